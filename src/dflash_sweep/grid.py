"""Every point of a finite space, one after another in the order in which it is written. Imports optuna, `space`.

The order is that of nested loops over the axes as the configuration lists them: the last axis changes fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from dflash_sweep.space import SearchSpace


class Grid(BaseSampler):
    """The first point that no earlier trial of the study has; the first point of all once none is left."""

    def __init__(self, space: SearchSpace, distributions: Mapping[str, BaseDistribution]) -> None:
        self._space, self._distributions = space, dict(distributions)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        seen = {
            self._key(earlier.params) for earlier in study.get_trials(deepcopy=False) if earlier.number < trial.number
        }
        first: dict[str, Any] | None = None
        for point in self._space.points():
            free = {name: point[name] for name in search_space}
            first = free if first is None else first
            if self._key(free) not in seen:
                return free
        return first or {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.sample_relative(study, trial, self._distributions)[param_name]

    def _key(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(repr(params.get(name)) for name in self._distributions)
