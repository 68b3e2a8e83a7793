"""Intervals for means, pooled ratios and speed-ups over runs. Imports nothing of ours.

A run is one observation, however many turns or tokens it holds. One run has no interval. Ratios and times are
positive and their noise is proportional to their size, so comparisons are made on the log scale and given back as
ratios. docs/statistics.md explains each choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from statsmodels.regression.linear_model import WLS


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure and its interval. `low`/`high` None = no interval can be given (one run). `n` counts runs."""

    value: float
    low: float | None
    high: float | None
    n: int
    method: str

    def excludes(self, point: float) -> bool:
        """True if an interval exists and does not hold `point`."""
        return self.low is not None and self.high is not None and not self.low <= point <= self.high

    def within(self, least: float, most: float = math.inf) -> Interval:
        """The same interval, its ends no further out than a figure of this kind can be (a share: 0 to 1)."""
        low = None if self.low is None else min(max(self.low, least), most)
        high = None if self.high is None else min(max(self.high, least), most)
        return Interval(value=self.value, low=low, high=high, n=self.n, method=self.method)

    def scaled(self, factor: float) -> Interval:
        """The same interval in another unit; a negative factor turns its ends round."""
        ends = sorted(factor * end for end in (self.low, self.high) if end is not None)
        low, high = (ends[0], ends[1]) if len(ends) == 2 else (None, None)
        return Interval(value=factor * self.value, low=low, high=high, n=self.n, method=self.method)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Run-to-run dispersion on the log scale, pooled over repeats: `sd` (≈ coefficient of variation) and its `df`."""

    sd: float
    df: int


def _floats(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(list(values), dtype=float)
    if array.size == 0:
        raise ValueError("an interval needs at least one run")
    if not np.isfinite(array).all():
        raise ValueError("an interval needs finite figures")
    return array


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """t interval of the mean of independent runs: mean ± t(n−1) · s / √n. One run: no ends."""
    array = _floats(values)
    mean = float(array.mean())
    if array.size < 2:
        return Interval(value=mean, low=None, high=None, n=1, method="single run")
    half = float(stats.t.ppf(0.5 + level / 2, array.size - 1)) * float(array.std(ddof=1)) / math.sqrt(array.size)
    return Interval(value=mean, low=mean - half, high=mean + half, n=array.size, method=f"t, {array.size - 1} df")


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float], level: float = 0.95) -> Interval:
    """Interval of the pooled ratio R = Σ numerators / Σ denominators; one pair a run.

    R is the slope through the origin by weighted least squares (weights 1/denominator); its standard error is the
    sandwich estimate √(n/(n−1) · Σ(x − R·y)²) / Σy, the classical one of a ratio estimator (Cochran, Sampling
    Techniques, ch. 6), with t(n−1). One run: no ends. Raises ValueError on unequal lengths or denominators ≤ 0.
    """
    x, y = _floats(numerators), _floats(denominators)
    if x.size != y.size:
        raise ValueError(f"{x.size} numerators but {y.size} denominators")
    if (y <= 0).any():
        raise ValueError("denominators must be positive")
    value = float(x.sum() / y.sum())
    if x.size < 2:
        return Interval(value=value, low=None, high=None, n=1, method="single run")
    fit = WLS(x, y[:, None], weights=1 / y).fit(cov_type="HC1", use_t=True)
    half = float(stats.t.ppf(0.5 + level / 2, x.size - 1)) * float(fit.bse[0])
    return Interval(
        value=value, low=value - half, high=value + half, n=x.size, method=f"pooled ratio, t, {x.size - 1} df"
    )


def bootstrap_ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], level: float = 0.95, seed: int = 0
) -> Interval:
    """BCa bootstrap over runs of the pooled ratio: for 20 runs and more, where its coverage can be trusted.

    With fewer runs, or with no spread at all, this is `ratio_interval`.
    """
    x, y = _floats(numerators), _floats(denominators)
    plain = ratio_interval(numerators, denominators, level)
    if x.size < 20 or np.ptp(x / y) == 0:
        return plain
    result = stats.bootstrap(
        (x, y),
        lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis),
        paired=True,
        vectorized=True,
        confidence_level=level,
        n_resamples=2000,
        method="BCa",
        rng=np.random.default_rng(seed),
    )
    low, high = float(result.confidence_interval.low), float(result.confidence_interval.high)
    if not (math.isfinite(low) and math.isfinite(high)):
        return plain
    return Interval(value=plain.value, low=low, high=high, n=x.size, method="pooled ratio, BCa bootstrap over runs")


def paired_speedup(candidate: Sequence[float], reference: Sequence[float], level: float = 0.95) -> Interval:
    """candidate / reference over pairs (blocks, or the same turns of two runs): geometric mean of the ratios.

    t interval of the mean log ratio, n−1 df, given back as a ratio; what changes both sides of a pair alike (drift,
    clock, turn length) drops out. One pair: no ends. Raises ValueError unless all figures are positive.
    """
    x, y = _floats(candidate), _floats(reference)
    if x.size != y.size:
        raise ValueError(f"{x.size} and {y.size} figures do not make pairs")
    if (x <= 0).any() or (y <= 0).any():
        raise ValueError("speed-ups need positive figures")
    logs = mean_interval(np.log(x / y).tolist(), level)
    return _exponential(logs, logs.method if logs.n == 1 else f"paired log ratio, t, {logs.n - 1} df")


def log_mean_interval(values: Sequence[float], spread: Spread | None = None, level: float = 0.95) -> Interval:
    """Typical figure of one setting (geometric mean of its runs) with an interval.

    With `spread` (dispersion pooled over the repeats of all settings) the half width is t(df) · sd / √n; else the
    setting's own runs give sd and df. One run has no ends either way: nothing may rest on a single run.
    """
    logs = np.log(_floats(values))
    if logs.size < 2:
        return Interval(value=float(np.exp(logs[0])), low=None, high=None, n=1, method="single run")
    own = Spread(sd=float(logs.std(ddof=1)), df=logs.size - 1)
    used = spread if spread is not None and spread.df > own.df else own
    half = float(stats.t.ppf(0.5 + level / 2, used.df)) * used.sd / math.sqrt(logs.size)
    kind = "own repeats" if used is own else "dispersion pooled over settings"
    mean = float(logs.mean())
    centre = Interval(value=mean, low=mean - half, high=mean + half, n=logs.size, method="")
    return _exponential(centre, f"log scale, {kind}, t, {used.df} df")


def speedup(
    candidate: Sequence[float],
    reference: Sequence[float],
    candidate_spread: Spread | None = None,
    reference_spread: Spread | None = None,
    level: float = 0.95,
) -> Interval:
    """candidate / reference of unpaired runs, as the ratio of geometric means.

    Welch's interval on the log scale (Satterthwaite's df); each side's dispersion is its own repeats' or, where that
    has more degrees of freedom, the pooled one. Either side with a single run: no ends.
    """
    x, y = np.log(_floats(candidate)), np.log(_floats(reference))
    ratio = float(np.exp(x.mean() - y.mean()))
    n = min(x.size, y.size)
    if n < 2:
        return Interval(value=ratio, low=None, high=None, n=n, method="single run")
    sides = [_variance(x, candidate_spread), _variance(y, reference_spread)]
    variance = sum(part for part, _ in sides)
    df = variance**2 / sum(part**2 / side_df for part, side_df in sides) if variance > 0 else float(n - 1)
    half = float(stats.t.ppf(0.5 + level / 2, df)) * math.sqrt(variance)
    return Interval(
        value=ratio,
        low=ratio * math.exp(-half),
        high=ratio * math.exp(half),
        n=n,
        method=f"log ratio, Welch, {df:.1f} df",
    )


def pooled_speedup(
    candidate: Sequence[float], reference: Sequence[float], spread: Spread, level: float = 0.95
) -> Interval:
    """candidate / reference of unpaired runs when the noise is known from other settings' repeats.

    exp(mean log difference ± t(df) · sd · √(1/n + 1/m)): the only interval a single run can have, and it rests on
    the assumption that the setting is as noisy as the repeated ones. `n` counts the candidate's runs.
    """
    x, y = np.log(_floats(candidate)), np.log(_floats(reference))
    log = float(x.mean() - y.mean())
    half = float(stats.t.ppf(0.5 + level / 2, spread.df)) * spread.sd * math.sqrt(1 / x.size + 1 / y.size)
    return Interval(
        value=math.exp(log),
        low=math.exp(log - half),
        high=math.exp(log + half),
        n=x.size,
        method=f"log ratio, dispersion of all repeats, t, {spread.df} df, {100 * level:.4g} %",
    )


def _variance(logs: np.ndarray, spread: Spread | None) -> tuple[float, int]:
    """Variance of a mean of log figures and its degrees of freedom."""
    own = Spread(sd=float(logs.std(ddof=1)), df=logs.size - 1)
    used = spread if spread is not None and spread.df > own.df else own
    return used.sd**2 / logs.size, used.df


def _exponential(logs: Interval, method: str) -> Interval:
    low = None if logs.low is None else math.exp(logs.low)
    high = None if logs.high is None else math.exp(logs.high)
    return Interval(value=math.exp(logs.value), low=low, high=high, n=logs.n, method=method)
