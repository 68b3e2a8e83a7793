"""Levels of one axis, compared with everything else held equal. Imports `rows` and `intervals` only.

Two ways. *Matched*: only rows that differ in nothing but this axis are compared (a search that changes one thing at a
time gives many). *Additive*: all rows, the other axes allowed for by a linear model on the log scale (a sampler that
changes everything at once leaves nothing else). docs/statistics.md gives both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from dflash_sweep.analysis.intervals import Interval
from dflash_sweep.analysis.rows import is_missing, numbers, value_text
from dflash_sweep.frames import KNOB_PREFIX

MAX_LEVELS = 6
"""An axis with more distinct values than this is cut into as many quantile bins in the additive model."""

MAX_EXACT = 24
"""Up to this many levels each value is a level of its own in the additive model, if there are three rows a level."""

MAIN_MODE_SHARE = 0.6

MIN_RESIDUAL_DF = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level: a value, a bin of values (`low` < `high`), or unset (`low` None and text "unset")."""

    text: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRows:
    """Rows prepared for comparing the levels of one axis.

    `codes`: level of each row; `y`: log figure; `nuisance`: columns for all that is held equal; `ordered`: levels are
    numbers in rising order; `method`: matched or additive; `mode`: the setting of the unordered knobs it is about.
    """

    axis: str
    levels: tuple[Level, ...]
    codes: np.ndarray
    y: np.ndarray
    nuisance: np.ndarray
    ordered: bool
    method: str
    index: pd.Index
    mode: str = ""

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


def knob_axes(rows: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """Axis name → knob columns. Knobs that always change together make one axis ("cache_type_k + cache_type_v")."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for column in (str(name) for name in rows.columns if str(name).startswith(KNOB_PREFIX)):
        codes, _ = pd.factorize(rows[column].map(lambda v: "∅" if is_missing(v) else value_text(v)))
        if codes.max(initial=0) > 0:
            groups.setdefault(tuple(codes.tolist()), []).append(column)
    return {" + ".join(c[len(KNOB_PREFIX) :] for c in columns): tuple(columns) for columns in groups.values()}


def prepare(
    rows: pd.DataFrame, axis: str, axes: dict[str, tuple[str, ...]], column: str, *, matched: bool
) -> LevelRows | None:
    """Rows for one axis; None if fewer than two of its levels can be compared."""
    values = numbers(rows, column)
    good = rows[values > 0]
    if good.empty:
        return None
    return (_matched if matched else _additive)(good, axis, axes, column)


def _matched(rows: pd.DataFrame, axis: str, axes: dict[str, tuple[str, ...]], column: str) -> LevelRows | None:
    texts = {name: _level_texts(rows, columns) for name, columns in axes.items()}
    level, ordered = texts[axis], _is_ordered(rows, axes[axis])
    stratum = _others(texts, axis) + "|" + rows["device_uuid"].map(str) + rows["device"].map(str)
    informative = level.groupby(stratum).transform("nunique") > 1
    mode = pd.Series("", index=rows.index)
    if ordered:
        mode = _others({n: t for n, t in texts.items() if n != axis and not _is_ordered(rows, axes[n])}, "")
        if informative.any():
            informative &= mode == mode[informative].value_counts(sort=False).idxmax()
    kept = informative[informative].index
    kept = kept[_largest_component(level[kept], stratum[kept])] if len(kept) else kept
    if level[kept].nunique() < 2:
        return None
    levels, codes = _levels(rows.loc[kept], axes[axis], ordered, bins=None)
    return LevelRows(
        axis=axis,
        levels=levels,
        codes=codes,
        y=np.log(numbers(rows.loc[kept], column).to_numpy()),
        nuisance=_dummies(stratum[kept]),
        ordered=ordered,
        method="matched",
        index=kept,
        mode=str(mode[kept].iloc[0]),
    )


def _additive(rows: pd.DataFrame, axis: str, axes: dict[str, tuple[str, ...]], column: str) -> LevelRows | None:
    ordered = _is_ordered(rows, axes[axis])
    rows, mode = _main_mode(rows, axis, axes)
    distinct = _level_texts(rows, axes[axis]).nunique()
    exact = distinct <= MAX_EXACT and len(rows) >= 3 * distinct
    levels, codes = _levels(rows, axes[axis], ordered, bins=None if exact else MAX_LEVELS)
    if len(levels) < 2:
        return None
    parts = [np.ones((len(rows), 1)), _dummies(rows["device_uuid"].map(str) + rows["device"].map(str))[:, 1:]]
    parts += [_trend(rows, axes[name]) for name in axes if name != axis]
    return LevelRows(
        axis=axis,
        levels=levels,
        codes=codes,
        y=np.log(numbers(rows, column).to_numpy()),
        nuisance=np.hstack(parts),
        ordered=ordered,
        method="additive",
        index=rows.index,
        mode=mode,
    )


def _main_mode(rows: pd.DataFrame, axis: str, axes: dict[str, tuple[str, ...]]) -> tuple[pd.DataFrame, str]:
    """Rows with the usual setting of the *other* unordered knobs, if most rows have it; else all rows.

    Switches such as a rollback mode change what the other axes do: a model that adds effects up does not hold across
    them. A sampler that draws switches at random leaves no usual setting, and all rows stay.
    """
    texts = {n: _level_texts(rows, c) for n, c in axes.items() if n != axis and not _is_ordered(rows, c)}
    if not texts:
        return rows, ""
    mode = _others(texts, "")
    counts = mode.value_counts(sort=False)
    usual = counts.idxmax()
    return (rows[mode == usual], str(usual)) if counts.max() >= MAIN_MODE_SHARE * len(rows) else (rows, "")


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
    """Orthogonal basis of a column space: what is left of a vector beside it."""

    basis: np.ndarray

    @property
    def rank(self) -> int:
        return int(self.basis.shape[1])

    def residual(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values - self.basis @ (self.basis.T @ values))


def _projection(matrix: np.ndarray) -> _Projection:
    u, s, _ = np.linalg.svd(matrix, full_matrices=False)
    return _Projection(u[:, s > 1e-9 * max(1.0, float(s.max(initial=0.0)))])


def _level_texts(rows: pd.DataFrame, columns: tuple[str, ...]) -> pd.Series:
    return rows[columns[0]].map(lambda value: "unset" if is_missing(value) else value_text(value)).astype(object)


def _others(texts: dict[str, pd.Series], axis: str) -> pd.Series:
    """The other axes' levels, joined."""
    parts = [f"{name}=" + text for name, text in texts.items() if name != axis]
    if not parts:
        index = next(iter(texts.values())).index if texts else None
        return pd.Series("", index=index, dtype=object)
    joined = parts[0]
    for part in parts[1:]:
        joined = joined + " " + part
    return joined


def _is_ordered(rows: pd.DataFrame, columns: tuple[str, ...]) -> bool:
    """Numbers (no flags) with at least two values."""
    values = [value for value in rows[columns[0]] if not is_missing(value)]
    return len(set(map(value_text, values))) > 1 and all(
        isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, (bool, np.bool_))
        for value in values
    )


def _levels(
    rows: pd.DataFrame, columns: tuple[str, ...], ordered: bool, bins: int | None
) -> tuple[tuple[Level, ...], np.ndarray]:
    """Levels (numbers rising, unset last) and the code of each row."""
    values = rows[columns[0]]
    texts = _level_texts(rows, columns)
    if not ordered:
        names = list(dict.fromkeys(texts))
        return tuple(Level(text=name) for name in names), texts.map(names.index).to_numpy(dtype=int)
    figures = pd.to_numeric(values, errors="coerce").astype(float)
    distinct = np.unique(figures.dropna())
    if bins is not None and len(distinct) > bins:
        edges = np.unique(np.quantile(figures.dropna(), np.linspace(0, 1, bins + 1)[1:-1], method="nearest"))
        codes = np.searchsorted(edges, figures.to_numpy(), side="left")
    else:
        codes = np.searchsorted(distinct, figures.to_numpy())
    codes = np.where(figures.isna(), codes.max(initial=0) + 1, codes)
    used = np.unique(codes)
    levels = tuple(_level(figures[codes == code]) for code in used)
    return levels, np.searchsorted(used, codes)


def _level(figures: pd.Series) -> Level:
    if figures.isna().all():
        return Level(text="unset")
    low, high = float(figures.min()), float(figures.max())
    text = value_text(low) if low == high else f"{value_text(low)}–{value_text(high)}"
    return Level(text=text, low=low, high=high)


def _dummies(names: pd.Series) -> np.ndarray:
    codes, found = pd.factorize(names)
    return np.eye(max(1, len(found)))[codes]


def _trend(rows: pd.DataFrame, columns: tuple[str, ...]) -> np.ndarray:
    """Columns that allow for another axis: level dummies, or a parabola for many ordered levels (in the logarithm
    where the values span more than a factor of eight)."""
    ordered = _is_ordered(rows, columns)
    levels, codes = _levels(rows, columns, ordered, bins=None)
    if not ordered or len(levels) <= 3:
        return np.asarray(np.eye(len(levels))[codes][:, 1:])
    figures = pd.to_numeric(rows[columns[0]], errors="coerce").astype(float).to_numpy()
    unset = np.isnan(figures)
    x = np.where(unset, np.nanmean(figures), figures)
    if x.min() > 0 and x.max() > 8 * x.min():
        x = np.log(x)
    x = (x - x.mean()) / (x.std() or 1.0)
    parts = [x, x**2] + ([unset.astype(float)] if unset.any() else [])
    return np.column_stack(parts)


def _largest_component(level: pd.Series, stratum: pd.Series) -> np.ndarray:
    """Mask of the rows whose levels are connected through shared strata; the component with the most rows."""
    parent = {name: name for name in level.unique()}

    def root(name: Any) -> Any:
        while parent[name] != name:
            name = parent[name]
        return name

    for _, names in level.groupby(stratum):
        first, *rest = names.unique()
        for other in rest:
            parent[root(other)] = root(first)
    roots = level.map(root)
    return np.asarray(roots == roots.value_counts(sort=False).idxmax())
