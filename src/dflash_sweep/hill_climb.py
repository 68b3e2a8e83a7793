"""Change one parameter by one step, keep it if a single run is better: the policy people tune by, as a reference.

Imports optuna, `space`. It is here to be compared with: it believes every single run, so noise leads it astray.

1. Start where the first trial is (the default setting, or the first value of each axis).
2. Try a neighbour of the best setting so far: one axis, one step (another value of an axis without order; a tenth of
   the range of a continuous one). After a step that was kept, the same step again; else one at random.
3. Keep it if its value is better than the best so far and it keeps the limits; else discard it.
4. Where every neighbour has been tried, go on from a point taken at random.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from dflash_sweep.space import Axis, SearchSpace

STEPS = 10
"""Steps into which the range of a continuous axis is divided."""

_RANDOM_POINTS = 1000
"""Draws among which a point is looked for that was not tried yet."""


@dataclass(frozen=True, slots=True)
class Move:
    """One axis in one direction: +1 or -1 along an ordered axis; to the n-th value of an axis without order."""

    axis: str
    to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a history comes down to: the best setting so far, the step that led to it (None = no single step did), and
    every point that was tried."""

    best: Mapping[str, Any]
    step: Move | None
    tried: frozenset[tuple[str, ...]]


class HillClimb(BaseSampler):
    """Same seed and same history, same proposal."""

    def __init__(self, space: SearchSpace, distributions: Mapping[str, BaseDistribution], seed: int) -> None:
        self._axes = {axis.name: axis for axis in space.axes if axis.name in distributions}
        self._distributions = dict(distributions)
        self._random = random.Random(seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        earlier = [one for one in study.get_trials(deepcopy=False) if one.number < trial.number and self._whole(one)]
        if not earlier:
            return {name: _first(axis) for name, axis in self._axes.items()}
        course = self._course(earlier, maximize=study.directions[0] is StudyDirection.MAXIMIZE)
        fresh = [(move, point) for move, point in self._neighbours(course.best) if self._key(point) not in course.tried]
        for move, point in fresh:
            if move == course.step:
                return point
        return self._random.choice(fresh)[1] if fresh else self._anywhere(course.tried)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return _drawn(self._axes[param_name], self._random)

    def _whole(self, trial: FrozenTrial) -> bool:
        return trial.params.keys() >= self._axes.keys()

    def _key(self, point: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(_text(point[name]) for name in self._axes)

    def _course(self, trials: Sequence[FrozenTrial], *, maximize: bool) -> Course:
        best: FrozenTrial | None = None
        step: Move | None = None
        for trial in trials:
            if trial.state is not TrialState.COMPLETE or any(beyond > 0 for beyond in trial.constraints.values()):
                continue
            if best is None or (trial.values[0] > best.values[0] if maximize else trial.values[0] < best.values[0]):
                step = None if best is None else self._step(best.params, trial.params)
                best = trial
        return Course(
            best=(best or trials[0]).params, step=step, tried=frozenset(self._key(trial.params) for trial in trials)
        )

    def _step(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Move | None:
        """The one move between two points; None if it takes more."""
        return next((move for move, point in self._neighbours(before) if self._key(point) == self._key(after)), None)

    def _neighbours(self, point: Mapping[str, Any]) -> Iterator[tuple[Move, dict[str, Any]]]:
        for name, axis in self._axes.items():
            for to, value in _steps(axis, point[name]):
                yield Move(name, to), {**{other: point[other] for other in self._axes}, name: value}

    def _anywhere(self, tried: frozenset[tuple[str, ...]]) -> dict[str, Any]:
        for _ in range(_RANDOM_POINTS):
            point = {name: _drawn(axis, self._random) for name, axis in self._axes.items()}
            if self._key(point) not in tried:
                break
        return point


def _text(value: Any) -> str:
    """A value's identity; a number that was reached by other steps is the same number."""
    return f"{value:.9g}" if isinstance(value, float) else repr(value)


def _first(axis: Axis) -> Any:
    return axis.low if axis.values is None else axis.values[0]


def _drawn(axis: Axis, rng: random.Random) -> Any:
    if axis.values is not None:
        return rng.choice(axis.values)
    low, high = axis.low or 0.0, axis.high or 0.0
    return math.exp(rng.uniform(math.log(low), math.log(high))) if axis.log else rng.uniform(low, high)


def _steps(axis: Axis, value: Any) -> Iterator[tuple[int, Any]]:
    """The values one step away, each with its direction (or the place of a value without order)."""
    if axis.values is None:
        yield from _continuous_steps(axis, float(value))
        return
    if not axis.ordered:
        yield from ((place, other) for place, other in enumerate(axis.values) if repr(other) != repr(value))
        return
    levels = sorted(axis.values, key=lambda number: float(number or 0))
    place = next(place for place, level in enumerate(levels) if level == value)
    for to in (1, -1):
        if 0 <= place + to < len(levels):
            yield to, levels[place + to]


def _continuous_steps(axis: Axis, value: float) -> Iterator[tuple[int, float]]:
    low, high = axis.low or 0.0, axis.high or 0.0
    for to in (1, -1):
        moved = value * (high / low) ** (to / STEPS) if axis.log else value + to * (high - low) / STEPS
        bounded = min(high, max(low, moved))
        if bounded != value:
            yield to, bounded
