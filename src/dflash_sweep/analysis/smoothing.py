"""What single runs say about settings, measured or not, once all are heard. Pure; imports `records` and numpy.

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


def smoothed(
    settings: Mapping[int, Knobs],
    values: Mapping[int, float],
    noise: float | None,
    runs: Mapping[int, int] | None = None,
) -> dict[int, float]:
    """Candidate → its figure as all runs together see it, in the unit of `values` (positive figures).

    `noise`: standard deviation of the logarithm of one run, as repeats show it; None = not known, and then, as with
    too few settings, the figures come back as they are. `runs`: how many runs each figure is the mean of; None = one.
    """
    numbers = [number for number in settings if values.get(number, 0.0) > 0]
    if noise is None or len(numbers) < MIN_SETTINGS:
        return {number: values[number] for number in numbers}
    logs = np.log([values[number] for number in numbers])
    chosen = [settings[number] for number in numbers]
    table = _indicators(chosen, _levels(chosen))
    _, misses = _best_penalty(table - table.mean(axis=0), logs)
    variance = noise**2 / np.array([(runs or {}).get(number, 1) for number in numbers])
    beyond_noise = max(0.0, float(np.mean(misses**2 - variance)))
    both = beyond_noise + variance
    weight = np.divide(beyond_noise, both, out=np.ones_like(both), where=both > 0)
    figures = logs - (1 - weight) * misses
    return {number: math.exp(figure) for number, figure in zip(numbers, figures, strict=True)}


def forecast(settings: Sequence[Knobs], values: Sequence[float], points: Sequence[Knobs]) -> list[float]:
    """What an additive model of the measured `settings` (their positive `values`) foretells for `points`, same unit.

    A value of a knob that no setting had counts as an average one. Needs at least two settings.
    """
    levels = _levels(settings)
    table, logs = _indicators(settings, levels), np.log(values)
    middle = table.mean(axis=0)
    penalty, _ = _best_penalty(table - middle, logs)
    left, singular, right = np.linalg.svd(table - middle, full_matrices=False)
    weights = right.T @ ((singular / (singular**2 + penalty)) * (left.T @ (logs - logs.mean())))
    found = logs.mean() + (_indicators(points, levels) - middle) @ weights
    return [float(value) for value in np.exp(found)]


def group_levels(settings: Sequence[Knobs], values: Sequence[float], groups: Sequence[str]) -> dict[str, float]:
    """Group → how high the logarithm of its figures lies, the knobs held equal; only differences mean anything.

    `groups`: where each positive figure was measured, for example the name of the card. Knobs are fitted to what is
    left within the groups, by the same ridge regression, so that a group is not thought fast for its better settings.
    """
    logs = np.log(np.asarray(values, dtype=float))
    names, place = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    counts = np.bincount(place)
    rest = logs
    if len(settings) >= MIN_SETTINGS:
        table = _indicators(settings, _levels(settings))
        within = table - np.stack([np.bincount(place, column) / counts for column in table.T], axis=1)[place]
        inside = logs - (np.bincount(place, logs) / counts)[place]
        penalty, _ = _best_penalty(within, inside)
        left, singular, right = np.linalg.svd(within, full_matrices=False)
        rest = logs - table @ (right.T @ ((singular / (singular**2 + penalty)) * (left.T @ inside)))
    levels = np.bincount(place, rest) / counts
    return {str(name): float(level) for name, level in zip(names, levels, strict=True)}


def _levels(settings: Sequence[Knobs]) -> list[tuple[str, str]]:
    """(knob, value) of each column: every value of each knob that varies."""
    seen: dict[str, set[str]] = {}
    for knobs in settings:
        for name in knobs:
            seen.setdefault(name, set())
    for name, values in seen.items():
        values |= {repr(knobs.get(name)) for knobs in settings}
    return [(name, value) for name in sorted(seen) if len(seen[name]) > 1 for value in sorted(seen[name])]


def _indicators(settings: Sequence[Knobs], levels: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
    """Settings × columns: 1 where the setting has the column's value."""
    if not levels:
        return np.zeros((len(settings), 1))
    place = {level: column for column, level in enumerate(levels)}
    names = sorted({name for name, _ in levels})
    table = np.zeros((len(settings), len(levels)))
    for row, knobs in enumerate(settings):
        for name in names:
            column = place.get((name, repr(knobs.get(name))))
            if column is not None:
                table[row, column] = 1.0
    return table


def _best_penalty(table: NDArray[np.float64], logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """The penalty that forecasts best, and by how much each setting then misses its forecast from all the others."""
    left, singular, _ = np.linalg.svd(table, full_matrices=False)
    centred = logs - logs.mean()
    found: list[tuple[float, float, NDArray[np.float64]]] = []
    for penalty in PENALTIES:
        shrink = singular**2 / (singular**2 + penalty)
        fitted = left @ (shrink * (left.T @ centred))
        leverage = np.minimum((left**2) @ shrink + 1 / len(logs), 0.999)
        misses = (centred - fitted) / (1 - leverage)
        found.append((float(misses @ misses), penalty, misses))
    _, penalty, misses = min(found, key=lambda entry: entry[0])
    return penalty, misses
