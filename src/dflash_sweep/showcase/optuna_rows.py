"""Stored rows as trials of an Optuna study that has none: how imported studies come onto the dashboard.

Imports optuna, `records` and `frames`. A study that was searched here has its trials already and gets none from here.
Baseline, canary and confirm runs are never made trials: a sampler would learn from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from dflash_sweep.objective import direction
from dflash_sweep.records import KnobValue, Measurement, StoredTrial, StudyInfo

DEFAULT = "default"
"""What a knob shows that was left to the engine."""


def distributions(rows: Iterable[StoredTrial]) -> dict[str, BaseDistribution]:
    """One distribution a knob that holds all its values: numbers keep their order, everything else is a choice."""
    found: dict[str, dict[KnobValue, None]] = {}
    for row in rows:
        for name, value in row.knobs.items():
            found.setdefault(name, {})[value] = None
    return {name: _distribution(list(values)) for name, values in found.items()}


def _distribution(values: Sequence[KnobValue]) -> BaseDistribution:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values):
        return CategoricalDistribution(tuple(dict.fromkeys(map(_choice, values))))
    if all(isinstance(value, int) for value in numbers):
        return IntDistribution(int(min(numbers)), int(max(numbers)))
    return FloatDistribution(float(min(numbers)), float(max(numbers)))


def _choice(value: KnobValue) -> KnobValue:
    return DEFAULT if value is None else value


def as_trial(row: StoredTrial, value: float | None, axes: Mapping[str, BaseDistribution]) -> FrozenTrial:
    """A row as a finished trial: COMPLETE with its figure, FAIL if it failed, PRUNED if it has none."""
    params: dict[str, Any] = {}
    for name, axis in axes.items():
        if name in row.knobs:
            given = row.knobs[name]
            params[name] = _choice(given) if isinstance(axis, CategoricalDistribution) else given
    attributes: dict[str, Any] = {"trial": row.number, "measurement": str(row.result.measurement)}
    if row.label:
        attributes["label"] = row.label
    failure = row.result.failure
    if failure is not None:
        attributes["failure"] = str(failure.kind)
    pruned = value is None if failure is None else failure.kind.is_stop
    state = TrialState.PRUNED if pruned else TrialState.COMPLETE if failure is None else TrialState.FAIL
    return create_trial(
        state=state, value=value if state is TrialState.COMPLETE else None, params=params,
        distributions={name: axes[name] for name in params}, user_attrs=attributes,
    )  # fmt: skip


def ensure_study(
    storage: RDBStorage, info: StudyInfo, rows: Sequence[StoredTrial], value_of: Mapping[str, float | None]
) -> None:
    """Make Optuna's study if there is none, and of an imported study its trials that are not there yet.

    `value_of`: uid → objective; None = no figure. The trials' numbers count the imported rows in their order.
    """
    directions = [info.direction, *(direction(name) for name in info.objectives[1:])]
    study = optuna.create_study(
        storage=storage, study_name=info.name, load_if_exists=True,
        directions=[StudyDirection[word.upper()] for word in directions],
    )  # fmt: skip
    if info.measurement is not Measurement.IMPORTED:
        return
    there = len(study.get_trials(deepcopy=False))
    study.set_metric_names([info.objective])
    ours = candidates(rows)
    axes = distributions(ours)
    for row in ours[there:]:
        study.add_trial(as_trial(row, value_of.get(row.uid), axes))


def candidates(rows: Sequence[StoredTrial]) -> list[StoredTrial]:
    """The rows of an imported study that become trials, in order: all but plain decoding."""
    return [row for row in sorted(rows, key=lambda row: row.number) if row.speculative]
