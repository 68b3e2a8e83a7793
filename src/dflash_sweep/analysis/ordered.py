"""Ordered axes: regions of values that cannot be told apart, sweet spots and saturation.

Imports `effects`, `levels`, `evidence`, `noise`, `intervals` only.
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash_sweep.analysis import levels as lv
from dflash_sweep.analysis.effects import LENGTH, AxisEffect, best_cut, numeric_codes
from dflash_sweep.analysis.evidence import Evidence, committed_per_step
from dflash_sweep.analysis.intervals import Interval
from dflash_sweep.analysis.levels import Fit, LevelRows
from dflash_sweep.analysis.noise import repeat_noise

CUT_ALPHA = 0.01
"""A region is cut again only if the best cut, times the number of cuts, is below this."""

RISE = 1.005
"""A rise of the acceptance length below half a percent is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """Values of an ordered axis, cut where the objective changes. `best`: the region with the best figures.

    `others`: levels outside it → ratio to the best region, adjusted for the number of comparisons; neighbouring levels
    with one run each are taken together, for one run shows nothing. `peak`: the level of the best region with the best
    adjusted mean.
    """

    parts: tuple[tuple[int, ...], ...]
    best: int
    peak: int
    others: dict[tuple[int, ...], Interval]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """Where an ordered axis stops helping. `knee` is the first level from which the acceptance length no longer rises.

    `acceptance`: levels from the knee on against those below it; `above`: the objective above the knee against the
    knee, and `above_usual` the same against the level with the most rows (None where there is nothing to compare).
    """

    knee: int
    acceptance: Interval
    above: Interval | None
    above_usual: Interval | None
    usual: int


def regions(effect: AxisEffect, sign: float) -> Regions | None:
    """Cut an axis that moves the objective into regions; None if it does not, is not ordered, or has no sure cut."""
    codes = numeric_codes(effect.rows)
    if effect.status != "moves" or not effect.rows.ordered or len(codes) < 2:
        return None
    parts = _cut(effect.rows, effect.fit, codes)
    if len(parts) < 2:
        return None
    best = _best_part(effect.rows, effect.fit, parts, sign)
    groups = [group for number, part in enumerate(parts) if number != best for group in _grouped(part, effect.rows)]
    level = 1 - 0.05 / len(groups)
    others = {}
    for group in groups:
        tested = lv.contrast(effect.rows, set(group), set(parts[best]), effect.fit.sd, effect.fit.df, level)
        if tested is not None:
            others[group] = tested[0]
    peak = max(parts[best], key=lambda code: sign * effect.fit.means[code])
    return Regions(parts=tuple(map(tuple, parts)), best=best, peak=peak, others=others)


def _grouped(part: list[int], rows: LevelRows) -> list[tuple[int, ...]]:
    """Levels of a region one by one, but runs of neighbouring levels that have a single run each as one group."""
    groups: list[tuple[int, ...]] = []
    for code in part:
        lonely = rows.counts[code] == 1
        if lonely and groups and all(rows.counts[other] == 1 for other in groups[-1]):
            groups[-1] = (*groups[-1], code)
        else:
            groups.append((code,))
    return groups


def _cut(rows: LevelRows, fitted: Fit, codes: list[int]) -> list[list[int]]:
    cut = best_cut(rows, fitted, codes)
    if cut is None or cut[1] >= CUT_ALPHA:
        return [codes]
    return _cut(rows, fitted, codes[: cut[0]]) + _cut(rows, fitted, codes[cut[0] :])


def _best_part(rows: LevelRows, fitted: Fit, parts: list[list[int]], sign: float) -> int:
    best = 0
    for number in range(1, len(parts)):
        tested = lv.contrast(rows, set(parts[number]), set(parts[best]), fitted.sd, fitted.df)
        if tested is not None and sign * (tested[0].value - 1) > 0:
            best = number
    return best


def saturation(effect: AxisEffect, evidence: Evidence) -> Saturation | None:
    """The knee of the acceptance length along an axis; None if it never rises or rises to the last value."""
    length = _length_rows(effect, evidence)
    if length is None:
        return None
    rows, sd, df = length
    codes = numeric_codes(rows)
    knee = next(
        (k for k in range(len(codes) - 1) if not any(_rises(rows, codes, j, sd, df) for j in _from(k, codes))), 0
    )
    if knee == 0:
        return None
    risen = lv.contrast(rows, set(codes[knee:]), set(codes[:knee]), sd, df)
    cuts = len(codes) - 1
    if risen is None or risen[1] * cuts >= CUT_ALPHA / 2 or risen[0].value < RISE:
        return None
    return _against(effect, rows.levels[codes[knee]], risen[0])


def _from(knee: int, codes: list[int]) -> range:
    return range(knee, len(codes) - 1)


def _rises(rows: LevelRows, codes: list[int], place: int, sd: float, df: int) -> bool:
    """The acceptance length is longer above `place` than at it, surely."""
    tested = lv.contrast(rows, set(codes[place + 1 :]), {codes[place]}, sd, df)
    return tested is not None and tested[1] < CUT_ALPHA and tested[0].value >= RISE


def _length_rows(effect: AxisEffect, evidence: Evidence) -> tuple[LevelRows, float, int] | None:
    """Acceptance lengths of an ordered axis with their noise: the repeats' where matched rows exist."""
    if not effect.rows.ordered:
        return None
    lengths = committed_per_step(evidence.known)
    table = lv.axis_table(evidence.known)
    noise = repeat_noise(evidence.known.assign(**{LENGTH: lengths}), LENGTH)
    rows = lv.prepare(table, effect.name, lengths, matched=True)
    if rows is not None and noise is not None and noise.df >= 3 and len(numeric_codes(rows)) >= 3:
        return rows, noise.sd if noise.sd > 1e-6 else 0.0, noise.df
    rows = lv.prepare(table, effect.name, lengths, matched=False)
    fitted = lv.fit(rows) if rows is not None else None
    if rows is None or fitted is None or len(numeric_codes(rows)) < 3:
        return None
    return rows, fitted.sd, fitted.df


def _against(effect: AxisEffect, knee: lv.Level, risen: Interval) -> Saturation | None:
    """The objective above the knee, from the rows that the effect itself was judged by."""
    rows, fitted = effect.rows, effect.fit
    codes = numeric_codes(rows)
    places = [code for code in codes if (rows.levels[code].low or 0.0) >= (knee.low or 0.0)]
    if not places:
        return None
    usual = max(places, key=lambda code: rows.counts[code])
    return Saturation(
        knee=places[0],
        acceptance=risen,
        above=_ratio(rows, fitted, {code for code in places if code > places[0]}, places[0]),
        above_usual=_ratio(rows, fitted, {code for code in places if code > usual}, usual),
        usual=usual,
    )


def _ratio(rows: LevelRows, fitted: Fit, upper: set[int], lower: int) -> Interval | None:
    tested = lv.contrast(rows, upper, {lower}, fitted.sd, fitted.df) if upper else None
    return tested[0] if tested is not None else None
