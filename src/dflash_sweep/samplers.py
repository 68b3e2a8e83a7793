"""Who proposes the next candidate: Optuna's samplers and our own policies, by name. Imports optuna, `space`,
`hill_climb`, `grid`.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from dflash_sweep.errors import ConfigError
from dflash_sweep.grid import Grid
from dflash_sweep.hill_climb import HillClimb
from dflash_sweep.space import Axis, SearchSpace

_NEEDS = {"cmaes": "cmaes", "gp": "torch"}
"""Sampler → the package that it needs, which comes with the optional extra of the sampler's name."""

_SINGLE_MINDED = {"cmaes": "CMA-ES"}
"""Samplers that take one objective and no constraints."""

ENUMERATING = ("grid", "hillclimb")
"""Policies whose next proposal is never the same twice: what equals a known point is passed over until none is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerChoice:
    """Which sampler, and its options in Optuna's spelling. `forecast_every`: see `foretelling`; 0 = never."""

    name: str = "tpe"
    n_startup_trials: int = 10
    options: Mapping[str, Any] | None = None
    forecast_every: int = 0


MIN_MEASURED = 1
"""Values before a sampler's model is used. Failures teach it what to keep away from only beside a value: where all have
failed, TPE takes some of them for the good ones and stays there."""


def untaught(choice: SamplerChoice) -> SamplerChoice:
    """The same choice while there are too few values for its model: candidates at random."""
    return SamplerChoice(name="random") if choice.name in ("tpe", "cmaes", "gp") else choice


def distribution(axis: Axis) -> BaseDistribution:
    """The Optuna distribution of an axis. Evenly spaced numbers keep their order; other choices are categories."""
    if axis.values is None:
        return FloatDistribution(axis.low or 0.0, axis.high or 0.0, log=axis.log)
    numbers = [value for value in axis.values if isinstance(value, int) and not isinstance(value, bool)]
    if len(numbers) == len(axis.values) > 2:
        steps = {later - earlier for earlier, later in itertools.pairwise(numbers)}
        if len(steps) == 1 and (step := steps.pop()) > 0:
            return IntDistribution(numbers[0], numbers[-1], step=step)
    return CategoricalDistribution(axis.values)


def check_choice(choice: SamplerChoice, space: SearchSpace, *, objectives: int, constrained: bool) -> None:
    """Raises ConfigError for a sampler that cannot do what is asked of it."""
    name = choice.name
    if name in _SINGLE_MINDED and (objectives > 1 or constrained):
        what = "several objectives" if objectives > 1 else "constraints"
        raise ConfigError(f"sampler.name={name}: {_SINGLE_MINDED[name]} takes no {what}; choose tpe, nsga2 or gp")
    if name in _NEEDS and importlib.util.find_spec(_NEEDS[name]) is None:
        raise ConfigError(
            f"sampler.name={name} needs {_NEEDS[name]}, which is not installed: pip install 'dflash-sweep[{name}]'"
        )
    if name == "grid" and space.size is None:
        continuous = next(axis.name for axis in space.axes if axis.values is None)
        raise ConfigError(f"sampler.name=grid: space.{continuous} is continuous and cannot be enumerated")
    if name in ENUMERATING and choice.options:
        raise ConfigError(f"sampler.options: sampler {name} takes none, got {', '.join(map(str, choice.options))}")
    make_sampler(choice, 0, space)


def make_sampler(choice: SamplerChoice, seed: int, space: SearchSpace) -> BaseSampler:
    """The sampler of a configuration. Raises ConfigError for an option that it does not take."""
    options: dict[str, Any] = dict(choice.options or {})
    startup = choice.n_startup_trials
    makers: dict[str, Callable[[], BaseSampler]] = {
        "tpe": lambda: TPESampler(seed=seed, n_startup_trials=startup, **{"multivariate": True, **options}),
        "random": lambda: RandomSampler(seed=seed, **options),
        "grid": lambda: Grid(space, _distributions(space)),
        "cmaes": lambda: CmaEsSampler(seed=seed, n_startup_trials=startup, **options),
        "gp": lambda: GPSampler(seed=seed, n_startup_trials=startup, **options),
        "nsga2": lambda: NSGAIISampler(seed=seed, **options),
        "hillclimb": lambda: HillClimb(space, _distributions(space), seed),
    }
    if choice.name not in makers:
        raise ConfigError(f"sampler.name={choice.name}: not known; allowed: {', '.join(makers)}")
    try:
        return makers[choice.name]()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"sampler.options: {error}") from error


def _distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Of the axes on which there is anything to choose."""
    every = {axis.name: distribution(axis) for axis in space.axes}
    return {name: found for name, found in every.items() if not found.single()}
