"""Levels of one axis, compared with everything else held equal. Imports `rows`, `intervals`,
`frames` and `records` only.

Two ways. *Matched*: only rows that differ in nothing but this axis are compared (a search that changes one thing at a
time gives many). *Additive*: all rows, the other axes allowed for by a linear model on the log scale (a sampler that
changes everything at once leaves nothing else). docs/statistics.md gives both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from dflash_sweep.analysis.intervals import Interval
from dflash_sweep.analysis.rows import is_missing, value_text
from dflash_sweep.frames import KNOB_PREFIX
from dflash_sweep.records import UNSET

MAX_LEVELS = 6
"""An axis with more distinct values than this is cut into as many quantile bins in the additive model."""

MAX_EXACT = 24
"""Up to this many levels each value is a level of its own in the additive model, if there are three rows a level."""

MAIN_MODE_SHARE = 0.6

MIN_RESIDUAL_DF = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level: a value, a bin of values (`low` < `high`), or unset (`low` None and text UNSET)."""

    text: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRows:
    """Rows prepared for comparing the levels of one axis.

    `codes`: level of each row; `y`: log figure; `nuisance`: columns for all that is held equal; `ordered`: levels are
    numbers in rising order; `method`: matched or additive; `places`: the rows' places in the table they come from.
    """

    axis: str
    levels: tuple[Level, ...]
    codes: np.ndarray
    y: np.ndarray
    nuisance: np.ndarray
    ordered: bool
    method: str
    places: np.ndarray

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(int((self.codes == code).sum()) for code in range(len(self.levels)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Residual dispersion of the full level model, the F test of the axis, and adjusted level means (log, centred)."""

    sd: float
    df: int
    f_p: float
    means: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTable:
    """The axes of some rows as arrays, made once. Knobs that always change together make one axis ("a + b").

    `texts`: axis → level of each row as integer; `labels`: axis → text per level; `figures`: axis → value (NaN where
    unset) of numeric axes; `ordered`: numeric, no flag, at least two values; `device`: device of each row as integer.
    """

    index: pd.Index
    texts: dict[str, np.ndarray]
    labels: dict[str, tuple[str, ...]]
    figures: dict[str, np.ndarray]
    ordered: dict[str, bool]
    device: np.ndarray

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.texts)


def axis_table(rows: pd.DataFrame) -> AxisTable:
    """Axes with two levels or more among `rows`."""
    groups: dict[tuple[int, ...], list[str]] = {}
    found: dict[str, tuple[np.ndarray, tuple[str, ...]]] = {}
    for column in (str(name) for name in rows.columns if str(name).startswith(KNOB_PREFIX)):
        codes, labels = pd.factorize(np.array([_text(value) for value in rows[column]], dtype=object))
        if len(labels) > 1:
            groups.setdefault(tuple(codes.tolist()), []).append(column)
            found[column] = codes, tuple(map(str, labels))
    axes = {" + ".join(c[len(KNOB_PREFIX) :] for c in columns): columns[0] for columns in groups.values()}
    devices = rows["device"].map(str) + "/" + rows["device_uuid"].map(str) if len(rows) else pd.Series(dtype=object)
    return AxisTable(
        index=rows.index,
        texts={name: found[column][0] for name, column in axes.items()},
        labels={name: found[column][1] for name, column in axes.items()},
        figures={name: pd.to_numeric(rows[c], errors="coerce").to_numpy(dtype=float) for name, c in axes.items()},
        ordered={name: _is_ordered(rows[column]) for name, column in axes.items()},
        device=pd.factorize(devices)[0],
    )


def _text(value: object) -> str:
    return UNSET if is_missing(value) else value_text(value)


def _is_ordered(values: pd.Series) -> bool:
    """Numbers (no flags) with at least two values."""
    known = [value for value in values if not is_missing(value)]
    return len(set(map(value_text, known))) > 1 and all(
        isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, (bool, np.bool_))
        for value in known
    )


def prepare(table: AxisTable, axis: str, figures: pd.Series, *, matched: bool) -> LevelRows | None:
    """Rows for one axis and one positive figure (aligned with the table); None if no two levels can be compared."""
    values = figures.to_numpy(dtype=float)
    places = np.flatnonzero(values > 0)
    if not len(places):
        return None
    chosen = _matched(table, axis, places) if matched else _additive(table, axis, places)
    if chosen is None:
        return None
    kept, levels, codes, nuisance = chosen
    return LevelRows(
        axis=axis,
        levels=levels,
        codes=codes,
        y=np.log(values[kept]),
        nuisance=nuisance,
        ordered=table.ordered[axis],
        method="matched" if matched else "additive",
        places=kept,
    )


_Chosen = tuple[np.ndarray, tuple[Level, ...], np.ndarray, np.ndarray]


def _matched(table: AxisTable, axis: str, places: np.ndarray) -> _Chosen | None:
    level = table.texts[axis][places]
    stratum = _joint([table.texts[n][places] for n in table.names if n != axis] + [table.device[places]])
    informative = _levels_per_stratum(level, stratum) > 1
    if table.ordered[axis] and informative.any():
        unordered = [table.texts[n][places] for n in table.names if n != axis and not table.ordered[n]]
        mode = _joint([np.zeros(len(places), dtype=int), *unordered])
        informative &= mode == np.argmax(np.bincount(mode[informative]))
    if informative.any():
        inside = np.flatnonzero(informative)
        informative[inside[~_largest_component(level[inside], stratum[inside])]] = False
    kept = places[informative]
    if len(np.unique(level[informative])) < 2:
        return None
    levels, codes = _levels(table, axis, kept, bins=None)
    return kept, levels, codes, _dummies(stratum[informative])


def _additive(table: AxisTable, axis: str, places: np.ndarray) -> _Chosen | None:
    kept = _main_mode(table, axis, places)
    distinct = len(np.unique(table.texts[axis][kept]))
    exact = distinct <= MAX_EXACT and len(kept) >= 3 * distinct
    levels, codes = _levels(table, axis, kept, bins=None if exact else MAX_LEVELS)
    if len(levels) < 2:
        return None
    parts = [np.ones((len(kept), 1)), _dummies(table.device[kept])[:, 1:]]
    parts += [trend(table, name, kept) for name in table.names if name != axis]
    return kept, levels, codes, np.hstack(parts)


def _main_mode(table: AxisTable, axis: str, places: np.ndarray) -> np.ndarray:
    """Rows with the usual setting of the *other* unordered knobs, if most rows have it; else all rows.

    Switches such as a rollback mode change what the other axes do: a model that adds effects up does not hold across
    them. A sampler that draws switches at random leaves no usual setting, and all rows stay.
    """
    parts = [table.texts[name][places] for name in table.names if name != axis and not table.ordered[name]]
    if not parts:
        return places
    mode = _joint(parts)
    counts = np.bincount(mode)
    return places[mode == np.argmax(counts)] if counts.max() >= MAIN_MODE_SHARE * len(places) else places


def fit(rows: LevelRows) -> Fit | None:
    """Least squares with a mean per level; None with fewer than MIN_RESIDUAL_DF residual degrees of freedom."""
    dummies = np.eye(len(rows.levels))[rows.codes]
    base, full = _projection(rows.nuisance), _projection(np.hstack([rows.nuisance, dummies]))
    df = len(rows.y) - full.rank
    extra = full.rank - base.rank
    if df < MIN_RESIDUAL_DF or extra < 1:
        return None
    reduced, rest = float(np.sum(base.residual(rows.y) ** 2)), float(np.sum(full.residual(rows.y) ** 2))
    sd = math.sqrt(rest / df)
    gain = max(0.0, reduced - rest)
    if rest <= 1e-18 * max(1.0, reduced):
        p = 1.0 if gain <= 1e-12 else 0.0
    else:
        p = float(stats.f.sf(gain / extra / (rest / df), extra, df))
    coefficients = np.linalg.pinv(base.residual(dummies)) @ base.residual(rows.y)
    weights = np.asarray(rows.counts, dtype=float)
    means = coefficients - float(np.average(coefficients, weights=weights))
    return Fit(sd=sd, df=df, f_p=p, means=means)


def f_test(rows: LevelRows, sd: float, df: int) -> float:
    """p of the F test that all levels are equal, against an outside estimate of the noise; sd 0 = any difference."""
    dummies = np.eye(len(rows.levels))[rows.codes]
    base, full = _projection(rows.nuisance), _projection(np.hstack([rows.nuisance, dummies]))
    extra = full.rank - base.rank
    gain = max(0.0, float(np.sum(base.residual(rows.y) ** 2) - np.sum(full.residual(rows.y) ** 2)))
    if extra < 1 or gain < 1e-9:
        return 1.0
    return float(stats.f.sf(gain / extra / sd**2, extra, df)) if sd > 0 else 0.0


def contrast(
    rows: LevelRows, upper: set[int], lower: set[int], sd: float, df: int, level: float = 0.95
) -> tuple[Interval, float] | None:
    """Levels `upper` against levels `lower`, everything else held equal: ratio with its interval, two-sided p.

    Only rows of these levels enter. None if the two are never compared with all else equal.
    """
    mask = np.isin(rows.codes, list(upper | lower))
    side = np.isin(rows.codes[mask], list(upper)).astype(float)
    held = _projection(rows.nuisance[mask])
    z, y = held.residual(side), held.residual(rows.y[mask])
    weight = float(z @ z)
    if weight < 1e-8:
        return None
    log = float(z @ y) / weight
    error = sd / math.sqrt(weight)
    certain = 1.0 if abs(log) < 1e-9 else 0.0
    p = certain if error <= 0 else float(2 * stats.t.sf(abs(log) / error, df))
    half = float(stats.t.ppf(0.5 + level / 2, df)) * error
    ratio = Interval(
        value=math.exp(log),
        low=math.exp(log - half),
        high=math.exp(log + half),
        n=int(mask.sum()),
        method=f"{rows.method} rows, log ratio, t, {df} df, {100 * level:.4g} %",
    )
    return ratio, p


@dataclass(frozen=True, slots=True)
class _Projection:
    """What is left of a vector beside the columns of a matrix. `inverse`: the pseudo-inverse of its Gram matrix."""

    matrix: np.ndarray
    inverse: np.ndarray
    rank: int

    def residual(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values - self.matrix @ (self.inverse @ (self.matrix.T @ values)))


_LEAST_EIGENVALUE = 1e-11
"""Share of the largest one below which an eigenvalue of a Gram matrix of indicators is rounding, not rank."""


def _projection(matrix: np.ndarray) -> _Projection:
    """By the eigenvalues of the Gram matrix: there are rows by the thousand and columns by the dozen, and a singular
    value decomposition of the whole matrix takes most of the time of a large study's last page."""
    values, vectors = np.linalg.eigh(matrix.T @ matrix)
    kept = values > _LEAST_EIGENVALUE * max(1.0, float(values.max(initial=0.0)))
    vectors = vectors[:, kept]
    return _Projection(matrix=matrix, inverse=(vectors / values[kept]) @ vectors.T, rank=int(kept.sum()))


def _joint(parts: list[np.ndarray]) -> np.ndarray:
    """One integer per row for the combination of several (at least one)."""
    return np.asarray(np.unique(np.column_stack(parts), axis=0, return_inverse=True)[1]).reshape(-1)


def _levels_per_stratum(level: np.ndarray, stratum: np.ndarray) -> np.ndarray:
    """For each row, how many levels its stratum has."""
    pairs = np.unique(np.column_stack([stratum, level]), axis=0)
    return np.asarray(np.bincount(pairs[:, 0], minlength=int(stratum.max()) + 1)[stratum])


def _levels(table: AxisTable, axis: str, places: np.ndarray, bins: int | None) -> tuple[tuple[Level, ...], np.ndarray]:
    """Levels (numbers rising, unset last) and the code of each row."""
    if not table.ordered[axis]:
        used, codes = np.unique(table.texts[axis][places], return_inverse=True)
        return tuple(Level(text=table.labels[axis][code]) for code in used), np.asarray(codes)
    figures = table.figures[axis][places]
    known = figures[~np.isnan(figures)]
    distinct = np.unique(known)
    if bins is not None and len(distinct) > bins:
        edges = np.unique(np.quantile(known, np.linspace(0, 1, bins + 1)[1:-1], method="nearest"))
        codes = np.searchsorted(edges, figures, side="left")
    else:
        codes = np.searchsorted(distinct, figures)
    codes = np.where(np.isnan(figures), codes.max(initial=0) + 1, codes)
    used, codes = np.unique(codes, return_inverse=True)
    return tuple(_level(figures[codes == code]) for code in range(len(used))), np.asarray(codes)


def left_out(table: AxisTable, rows: LevelRows, figures: pd.Series) -> tuple[tuple[Level, int], ...]:
    """Levels that have a positive figure but are in no row that `prepare` kept, and their rows.

    Of many numbers, those between two levels that were kept make one level.
    """
    places = np.flatnonzero(figures.to_numpy(dtype=float) > 0)
    seen = {level.text for level in rows.levels}
    if not rows.ordered:
        texts = [table.labels[rows.axis][code] for code in table.texts[rows.axis][places]]
        return tuple((Level(text=text), texts.count(text)) for text in dict.fromkeys(texts) if text not in seen)
    values = table.figures[rows.axis][places]
    spans = [(level.low, level.high) for level in rows.levels if level.low is not None and level.high is not None]
    outside = values[[not np.isnan(v) and not any(low <= v <= high for low, high in spans) for v in values]]
    distinct = np.unique(outside)
    many = len(distinct) + len(rows.levels) > MAX_EXACT
    groups = np.searchsorted([low for low, _ in spans], distinct) if many else np.arange(len(distinct))
    parts = [outside[np.isin(outside, distinct[groups == group])] for group in np.unique(groups)]
    unset = values[np.isnan(values)]
    parts += [unset] if len(unset) and UNSET not in seen else []
    return tuple((_level(part), len(part)) for part in parts)


def _level(figures: np.ndarray) -> Level:
    if np.isnan(figures).all():
        return Level(text=UNSET)
    low, high = float(figures.min()), float(figures.max())
    text = value_text(low) if low == high else f"{value_text(low)}–{value_text(high)}"
    return Level(text=text, low=low, high=high)


def _dummies(codes: np.ndarray) -> np.ndarray:
    used, inverse = np.unique(codes, return_inverse=True)
    return np.asarray(np.eye(max(1, len(used)))[inverse])


def trend(table: AxisTable, axis: str, places: np.ndarray) -> np.ndarray:
    """Columns that allow for another axis: level dummies, or a parabola for many ordered levels (in the logarithm
    where the values span more than a factor of eight)."""
    texts = table.texts[axis][places]
    if not table.ordered[axis] or len(np.unique(texts)) <= 3:
        return _dummies(texts)[:, 1:]
    figures = table.figures[axis][places]
    unset = np.isnan(figures)
    x = np.where(unset, np.nanmean(figures), figures)
    if x.min() > 0 and x.max() > 8 * x.min():
        x = np.log(x)
    x = (x - x.mean()) / (x.std() or 1.0)
    parts = [x, x**2] + ([unset.astype(float)] if unset.any() else [])
    return np.column_stack(parts)


def _largest_component(level: np.ndarray, stratum: np.ndarray) -> np.ndarray:
    """Mask of the rows whose levels are connected through shared strata; the component with the most rows."""
    nodes = coo_matrix(
        (np.ones(len(level)), (level, stratum + level.max() + 1)),
        shape=(size := 2 + int(level.max()) + int(stratum.max()), size),
    )
    labels = connected_components(nodes, directed=False)[1][level]
    return np.asarray(labels == np.argmax(np.bincount(labels)))
