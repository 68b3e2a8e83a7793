"""The unmeasured point that all runs so far foretell as the best. Pure; imports `analysis.smoothing`, `space`.

A sampler explores; now and then the best guess is worth a run of its own: effects of knobs on decode speed mostly
multiply, so an additive model of the logarithm knows the good corner of a space long before a sampler has been there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from dflash_sweep.analysis.smoothing import MIN_SETTINGS, forecast
from dflash_sweep.records import Knobs
from dflash_sweep.space import SearchSpace

MAX_POINTS = 50_000
"""Points of a space that are looked at one by one; larger and continuous spaces are left to the sampler."""


def best_unmeasured(
    space: SearchSpace,
    measured: Sequence[tuple[Knobs, float | None]],
    *,
    maximise: bool,
    known: Callable[[Knobs], bool],
) -> Knobs | None:
    """The point with the best forecast that `known` does not hold; None = too few runs, or nothing to choose from.

    `measured`: points with their positive figure; None = no figure (out of memory, a limit not kept), which counts as
    the worst figure seen, so that the forecast keeps away from there.
    """
    figures = [value for _, value in measured if value is not None and value > 0]
    if space.size is None or space.size > MAX_POINTS or len(figures) < MIN_SETTINGS:
        return None
    worst = min(figures) if maximise else max(figures)
    points = _points(space)
    values = [value if value is not None and value > 0 else worst for _, value in measured]
    foretold = np.array(forecast([point for point, _ in measured], values, points))
    order = np.argsort(-foretold if maximise else foretold, kind="stable")
    return next((points[index] for index in order if not known(points[index])), None)


@lru_cache(maxsize=2)
def _points(space: SearchSpace) -> tuple[Knobs, ...]:
    return tuple(space.points())
