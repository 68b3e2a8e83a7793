"""How much the best of several measured settings is flattered by having been picked for its figure. Pure; numpy only.

The highest of k means of equal settings lies above their common truth by chance. How far the means really differ is
what is left of their variance when the noise of a mean is taken away; the best mean is pulled towards the mean of all
by the part that noise explains (empirical Bayes with the moments' estimate, Efron and Morris 1973).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dflash_sweep.analysis.intervals import Interval


def flattery(table: pd.DataFrame, best: Any) -> float:
    """By how much the mean of `best` is too high, ≥ 0, in the unit of `table` (blocks × settings, larger = better).

    0 with one setting, or without two complete blocks: nothing then shows how noisy a mean is.
    """
    complete = table.dropna()
    blocks, settings = complete.shape
    if settings < 2 or blocks < 2:
        return 0.0
    figures = complete.to_numpy(dtype=float)
    means = figures.mean(axis=0)
    left = figures - figures.mean(axis=1, keepdims=True) - means + figures.mean()
    of_a_mean = float((left**2).sum()) / ((blocks - 1) * (settings - 1)) / blocks
    between = max(0.0, float(np.var(means, ddof=1)) - of_a_mean)
    if of_a_mean <= 0:
        return 0.0
    share = of_a_mean / (of_a_mean + between)
    return max(0.0, share * float(means[list(complete.columns).index(best)] - means.mean()))


def lowered(figure: Interval, by: float) -> Interval:
    """An interval of a positive figure, every end times e^−by (negative `by` raises it)."""
    factor = math.exp(-by)
    return replace(
        figure,
        value=figure.value * factor,
        low=None if figure.low is None else figure.low * factor,
        high=None if figure.high is None else figure.high * factor,
    )
