"""What single runs say about settings once their neighbours are heard too. Pure; imports `records` and numpy.

The best of many single runs is mostly the luckiest. An additive model of the axes foretells each setting from all the
others (ridge regression of the logarithm on one indicator a value, leave-one-out), and the setting's own run counts by
how far such forecasts usually miss beyond noise: the posterior mean of an empirical Bayes estimate (Efron and Morris
1973, with the forecast in the place of the common mean).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dflash_sweep.records import Knobs

MIN_SETTINGS = 8
"""With fewer settings a forecast would rest on one or two runs."""
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Ridge penalties to choose from; the one with the least leave-one-out error is taken."""


def smoothed(settings: Mapping[int, Knobs], values: Mapping[int, float], noise: float | None) -> dict[int, float]:
    """Candidate → its figure as all runs together see it, in the unit of `values` (positive figures).

    `noise`: standard deviation of the logarithm of one run, as repeats show it; None = not known, and then, as with
    too few settings, the figures come back as they are.
    """
    numbers = [number for number in settings if values.get(number, 0.0) > 0]
    if noise is None or len(numbers) < MIN_SETTINGS:
        return {number: values[number] for number in numbers}
    logs = np.log([values[number] for number in numbers])
    misses = _forecast_misses(_indicators([settings[number] for number in numbers]), logs)
    beyond_noise = max(0.0, float(np.mean(misses**2)) - noise**2)
    weight = beyond_noise / (beyond_noise + noise**2) if beyond_noise + noise**2 > 0 else 1.0
    figures = logs - (1 - weight) * misses
    return {number: math.exp(figure) for number, figure in zip(numbers, figures, strict=True)}


def _indicators(settings: Sequence[Knobs]) -> NDArray[np.float64]:
    """Settings × one column for each value of each knob that varies, centred."""
    names = sorted({name for knobs in settings for name in knobs})
    columns = []
    for name in names:
        seen = [repr(knobs.get(name)) for knobs in settings]
        levels = sorted(set(seen))
        if len(levels) > 1:
            columns += [[float(value == level) for value in seen] for level in levels]
    table = np.array(columns, dtype=float).T if columns else np.zeros((len(settings), 1))
    return table - table.mean(axis=0)


def _forecast_misses(table: NDArray[np.float64], logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each setting's figure minus its forecast from all the others, by the penalty that forecasts best."""
    left, singular, _ = np.linalg.svd(table, full_matrices=False)
    centred = logs - logs.mean()
    best: NDArray[np.float64] | None = None
    for penalty in PENALTIES:
        shrink = singular**2 / (singular**2 + penalty)
        fitted = left @ (shrink * (left.T @ centred))
        leverage = np.minimum((left**2) @ shrink + 1 / len(logs), 0.999)
        misses = (centred - fitted) / (1 - leverage)
        if best is None or float(misses @ misses) < float(best @ best):
            best = misses
    assert best is not None, "there are penalties to choose from"
    return best
