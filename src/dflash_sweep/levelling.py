"""Candidates of unlike cards on one scale, for those who propose: which card a candidate happened to run on is no merit
of its knobs. Imports optuna and `analysis.smoothing`.

Optuna's tables keep what was measured. Only what a sampler is shown is divided by how fast each card is, the knobs held
equal; of one name of card everything is shown as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from dflash_sweep.analysis.smoothing import group_levels

DEVICE = "device"
"""The user attribute with the name of the card that a candidate ran on."""


def levelled(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The same trials in the same order, values of unlike cards brought to the first card's scale.

    Unchanged where there is one card only, or where a value is not positive: then nothing is known of ratios. So are
    trials that do not tell their card (stored by an older version): they are no card of their own.
    """
    told = [trial for trial in trials if DEVICE in trial.user_attrs]
    done = [trial for trial in told if trial.state is TrialState.COMPLETE and trial.values is not None]
    devices = [str(trial.user_attrs[DEVICE]) for trial in done]
    if len(set(devices)) < 2 or any(value <= 0 for trial in done for value in trial.values):
        return list(trials)
    settings = [trial.params for trial in done]
    scales = [group_levels(settings, column, devices) for column in zip(*(trial.values for trial in done), strict=True)]
    shown = {}
    for trial, device in zip(done, devices, strict=True):
        shown[trial.number] = copy(trial)
        shown[trial.number].values = [
            float(value * np.exp(scale[devices[0]] - scale[device]))
            for value, scale in zip(trial.values, scales, strict=True)
        ]
    return [shown.get(trial.number, trial) for trial in trials]


class _View:
    """A study whose finished values are levelled; in all else the study itself."""

    def __init__(self, study: Study) -> None:
        self._viewed = study

    def __getattr__(self, name: str) -> Any:
        return getattr(self._viewed, name)

    def get_trials(self, *args: Any, **options: Any) -> list[FrozenTrial]:
        return self._shown(self._viewed.get_trials, args, options)

    def _get_trials(self, *args: Any, **options: Any) -> list[FrozenTrial]:
        return self._shown(self._viewed._get_trials, args, options)

    def _shown(
        self, ask: Callable[..., list[FrozenTrial]], args: tuple[Any, ...], options: dict[str, Any]
    ) -> list[FrozenTrial]:
        """All finished trials together say how fast the cards are, whichever of them are asked for."""
        levels = {trial.number: trial for trial in levelled(self._viewed.get_trials(deepcopy=False))}
        return [levels.get(trial.number, trial) for trial in ask(*args, **options)]


class Levelled(BaseSampler):
    """Another sampler, to which a study is shown levelled."""

    def __init__(self, inner: BaseSampler) -> None:
        self._inner = inner

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._inner.infer_relative_search_space(_view(study), trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._inner.sample_relative(_view(study), trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._inner.sample_independent(_view(study), trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._inner.before_trial(_view(study), trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._inner.after_trial(study, trial, state, values)


def _view(study: Study) -> Any:
    return _View(study)
