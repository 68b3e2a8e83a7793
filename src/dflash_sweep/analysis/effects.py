"""Which axes move the objective, and by how much. Imports `levels`, `evidence`, `noise`, `intervals`.

All axes of a study are one family: their p values are adjusted together (Holm), so that a study whose axes are all
dead reports an effect in at most ALPHA of the cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from statsmodels.stats.multitest import multipletests

from dflash_sweep.analysis import levels as lv
from dflash_sweep.analysis.evidence import Evidence, committed_per_step
from dflash_sweep.analysis.intervals import Interval
from dflash_sweep.analysis.levels import AxisTable, Fit, Level, LevelRows
from dflash_sweep.analysis.noise import Noise, repeat_noise
from dflash_sweep.analysis.rows import numbers

ALPHA = 0.015
"""Family-wise level of all axis effects of a study together."""

TOST_LEVEL = 0.90
"""Two one-sided tests at 5 % each are a 90 % interval inside the margin (Schuirmann 1987)."""

MAX_MARGIN = 1.25
"""Where two runs of one setting differ by more than this, no axis is called dead: the noise would hide anything."""

MIN_REPEAT_DF = 3

LENGTH = "_length"
"""Working column: tokens committed per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisEffect:
    """One axis. `p` tests that all its levels are equal; `p_adjusted` within the study's family.

    `ratios`: level → ratio to the `reference` (the level with the most rows), interval at TOST_LEVEL. `margin`:
    repeatability limit as a ratio, e.g. 1.08. `acceptance_moves` None = not known. `status`: moves, dead (all
    intervals lie within the margin and the acceptance stands still) or undecided. `left_out`: levels that were measured
    but in no row that can be compared, with their runs.
    """

    name: str
    rows: LevelRows
    fit: Fit
    p: float
    p_adjusted: float
    reference: int
    ratios: dict[int, Interval]
    margin: float
    acceptance_moves: bool | None
    status: str
    left_out: tuple[tuple[Level, int], ...] = ()

    @property
    def widest(self) -> tuple[int, Interval] | None:
        """The level whose ratio to the reference is furthest from 1."""
        return max(self.ratios.items(), key=lambda entry: abs(math.log(entry[1].value)), default=None)


def axis_effects(evidence: Evidence) -> tuple[AxisEffect, ...]:
    """All axes with at least two comparable levels, by adjusted p."""
    rows = evidence.known
    if len(rows) < 4:
        return ()
    table = lv.axis_table(rows)
    lengths = committed_per_step(rows)
    noise = repeat_noise(rows.assign(**{LENGTH: lengths}), LENGTH)
    found = []
    for name in table.names:
        chosen = _chosen(evidence, name, table)
        if chosen is not None:
            effect = _untested(name, *chosen, _acceptance_moves(table, name, lengths, noise), evidence)
            found.append(replace(effect, left_out=lv.left_out(table, effect.rows, numbers(rows, evidence.column))))
    if not found:
        return ()
    adjusted = multipletests([effect.p for effect in found], method="holm")[1]
    return tuple(
        sorted(
            (_judged(effect, float(q)) for effect, q in zip(found, adjusted, strict=True)),
            key=lambda effect: effect.p_adjusted,
        )
    )


def _chosen(evidence: Evidence, name: str, table: AxisTable) -> tuple[LevelRows, Fit] | None:
    """The way of comparing that has the smaller standard errors; how large the effect is plays no part."""
    figures = numbers(evidence.known, evidence.column)
    options: list[tuple[float, int, LevelRows, Fit]] = []
    for matched in (True, False):
        rows = lv.prepare(table, name, figures, matched=matched)
        fitted = lv.fit(rows) if rows is not None else None
        if rows is not None and fitted is not None:
            fitted = _with_noise(fitted, evidence, rows)
            options.append((_typical_error(rows, fitted), len(options), rows, fitted))
    return min(options, key=lambda option: option[:2])[2:] if options else None


def _typical_error(rows: LevelRows, fitted: Fit) -> float:
    """Median relative width of the levels' intervals against the reference."""
    widths = [math.log(r.high / r.low) for r in _ratios(rows, fitted).values() if r.low and r.high]
    return float(np.median(widths)) if widths else math.inf


def _with_noise(fitted: Fit, evidence: Evidence, rows: LevelRows) -> Fit:
    """Where a few matched rows leave few degrees of freedom, the study's repeats say how large the noise is.

    Only while the rows' own dispersion does not exceed the interval of the repeats': it would show something else.
    """
    noise = evidence.noise
    if rows.method != "matched" or noise is None or noise.df <= fitted.df or fitted.sd > noise.high:
        return fitted
    return replace(fitted, sd=noise.sd, df=noise.df, f_p=lv.f_test(rows, noise.sd, noise.df))


def best_cut(rows: LevelRows, fitted: Fit, within: list[int] | None = None) -> tuple[int, float] | None:
    """Ordered axes: the place in `within` (codes, default all) that separates best, and p times the number of cuts."""
    codes = numeric_codes(rows) if within is None else within
    if not rows.ordered or len(codes) < 2:
        return None
    found = []
    for place in range(1, len(codes)):
        tested = lv.contrast(rows, set(codes[place:]), set(codes[:place]), fitted.sd, fitted.df)
        if tested is not None:
            found.append((place, tested[1]))
    if not found:
        return None
    place, p = min(found, key=lambda entry: entry[1])
    return place, min(1.0, p * len(found))


def numeric_codes(rows: LevelRows) -> list[int]:
    """Codes of the levels that have a value (all but unset)."""
    return [code for code, level in enumerate(rows.levels) if level.low is not None]


def _acceptance_moves(table: AxisTable, axis: str, lengths: pd.Series, noise: Noise | None) -> bool | None:
    """Whether the acceptance length differs between levels of otherwise identical settings.

    Where repeats never differ (greedy decoding of one prompt), any difference counts.
    """
    prepared = lv.prepare(table, axis, lengths, matched=True)
    if prepared is None:
        return None
    if noise is not None and noise.df >= MIN_REPEAT_DF:
        return lv.f_test(prepared, noise.sd if noise.sd > 1e-6 else 0.0, noise.df) < 0.01
    fitted = lv.fit(prepared)
    return None if fitted is None else fitted.f_p < 0.01


def _ratios(rows: LevelRows, fitted: Fit) -> dict[int, Interval]:
    reference = int(np.argmax(rows.counts))
    ratios = {}
    for code in range(len(rows.levels)):
        tested = None if code == reference else lv.contrast(rows, {code}, {reference}, fitted.sd, fitted.df, TOST_LEVEL)
        if tested is not None:
            ratios[code] = tested[0]
    return ratios


def _untested(name: str, rows: LevelRows, fitted: Fit, acceptance: bool | None, evidence: Evidence) -> AxisEffect:
    cut = best_cut(rows, fitted)
    noise = evidence.noise
    return AxisEffect(
        name=name,
        rows=rows,
        fit=fitted,
        p=fitted.f_p if cut is None else min(1.0, 2 * min(fitted.f_p, cut[1])),
        p_adjusted=1.0,
        reference=int(np.argmax(rows.counts)),
        ratios=_ratios(rows, fitted),
        margin=math.exp(1.96 * math.sqrt(2) * (noise.sd if noise else fitted.sd)),
        acceptance_moves=acceptance,
        status="undecided",
    )


def _judged(effect: AxisEffect, adjusted: float) -> AxisEffect:
    inside = bool(effect.ratios) and all(
        ratio.low is not None
        and ratio.high is not None
        and 1 / effect.margin < ratio.low
        and ratio.high < effect.margin
        for ratio in effect.ratios.values()
    )
    quiet = inside and effect.margin <= MAX_MARGIN and not effect.acceptance_moves
    status = "moves" if adjusted < ALPHA else "dead" if quiet else "undecided"
    return replace(effect, p_adjusted=adjusted, status=status)
