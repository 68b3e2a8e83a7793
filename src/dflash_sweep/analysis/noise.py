"""Run-to-run noise from repeats of identical settings, and what it allows to show. Imports `rows`, `intervals`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.power import TTestIndPower

from dflash_sweep.analysis.intervals import Spread, log_mean_interval
from dflash_sweep.analysis.rows import is_plain, numbers, row_name, usable, with_keys

MIN_DF = 2
"""Fewer degrees of freedom than this say nothing about dispersion (a chi-square interval spans a factor of 30)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Dispersion of a figure between runs of the same setting on the same device, on the log scale.

    `sd` ≈ coefficient of variation; `low`/`high` its chi-square interval; `df` = runs − settings over the `groups`
    settings that were run more than once; `n` those runs; `rows` their names.
    """

    sd: float
    low: float
    high: float
    df: int
    groups: int
    n: int
    rows: tuple[str, ...]

    @property
    def spread(self) -> Spread:
        return Spread(sd=self.sd, df=self.df)


def repeat_noise(trials: pd.DataFrame, column: str = "decode_tps", level: float = 0.95) -> Noise | None:
    """Pooled dispersion over all repeats in `trials`; None with fewer than MIN_DF degrees of freedom.

    Pooled variance Σ(log x − mean of its setting)² / df; df · sd² / χ² gives the interval.
    """
    rows = with_keys(usable(trials, column))
    if rows.empty:
        return None
    rows = rows.assign(log=np.log(numbers(rows, column)))
    repeated = rows.groupby("cell")["log"].filter(lambda group: len(group) > 1)
    df = len(repeated) - rows.loc[repeated.index, "cell"].nunique()
    if df < MIN_DF:
        return None
    centred = repeated - rows.loc[repeated.index].groupby("cell")["log"].transform("mean")
    sd = math.sqrt(float((centred**2).sum()) / df)
    tail = (1 - level) / 2
    return Noise(
        sd=sd,
        low=sd * math.sqrt(df / float(stats.chi2.ppf(1 - tail, df))),
        high=sd * math.sqrt(df / float(stats.chi2.ppf(tail, df))),
        df=df,
        groups=len(repeated) - df,
        n=len(repeated),
        rows=tuple(row_name(row) for _, row in rows.loc[repeated.index].iterrows()),
    )


def spreads(trials: pd.DataFrame, column: str = "decode_tps") -> tuple[Spread | None, Spread | None]:
    """Dispersion of speculative and of plain rows, each from its own repeats; where one has none, the other's."""
    plain = is_plain(trials)
    found = [repeat_noise(trials[mask], column) for mask in (~plain, plain)]
    both = [noise.spread if noise else None for noise in found]
    return both[0] or both[1], both[1] or both[0]


def repeats_for(difference: float, sd: float, power: float = 0.8, alpha: float = 0.05) -> int:
    """Runs of each of two settings that show a relative `difference` with `power` (two-sided t test, level `alpha`).

    The smallest n ≥ 2 with power(|log(1 + difference)| / sd, n) ≥ power.
    """
    if sd <= 0:
        return 2
    effect = abs(math.log1p(difference)) / sd
    low, high = 1, 2
    while _power(effect, high, alpha) < power:
        low, high = high, high * 2
        if high > 1_000_000:
            return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(effect, middle, alpha) >= power else (middle, high)
    return high


def smallest_difference(runs: int, sd: float, power: float = 0.8, alpha: float = 0.05) -> float | None:
    """Smallest relative difference that `runs` of each of two settings show with `power`; None for fewer than 2."""
    if runs < 2:
        return None
    if sd <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while _power(high, runs, alpha) < power:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if _power(middle, runs, alpha) >= power else (middle, high)
    return math.expm1(high * sd)


def _power(effect: float, runs: int, alpha: float) -> float:
    if effect <= 0:
        return alpha
    value = float(TTestIndPower().power(effect, runs, alpha, ratio=1.0))
    return 1.0 if math.isnan(value) else value  # the noncentral t overflows where the power is 1


def powers(differences: Iterable[float], sd: float) -> dict[str, int]:
    """Runs that each relative difference needs, for tables: {"2 %": 90, …}."""
    return {f"{100 * difference:g} %": repeats_for(difference, sd) for difference in differences}


def known_to(values: Sequence[float], half_width: float) -> bool:
    """True if the mean of repeats is known: half of its 95 % interval, relative to it, is at most `half_width`."""
    found = log_mean_interval(values)
    if found.low is None or found.high is None:
        return False
    return (found.high - found.low) / 2 <= half_width * found.value
