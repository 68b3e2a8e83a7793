"""The search study: Optuna's ask and tell behind our own words. With `samplers`, the only owner of optuna.

A candidate's number is Optuna's trial number. Points are Knobs over the axes of the space; values of other knobs are
none of Optuna's business. Failures are told by kind: repeatable ones as PRUNED without a value (TPE learns to stay
away), transient ones as FAIL. A number that was not measured is never told.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.study import StudyDirection
from optuna.trial import TrialState

from dflash_sweep.errors import ConfigError, FailureKind, StorageError
from dflash_sweep.foretelling import best_unmeasured
from dflash_sweep.importance import axis_importance
from dflash_sweep.levelling import DEVICE, Levelled, levelled
from dflash_sweep.optuna_storage import opened
from dflash_sweep.outcomes import Outcome
from dflash_sweep.records import Knobs, KnobValue
from dflash_sweep.samplers import (
    ENUMERATING,
    MIN_MEASURED,
    SamplerChoice,
    check_choice,
    distribution,
    make_sampler,
    untaught,
)
from dflash_sweep.seeds import derive
from dflash_sweep.space import SearchSpace

_LOG = logging.getLogger(__name__)
_MAX_DUPLICATES = 5
"""Asks in a row that may repeat a known point before an unmeasured one is taken at random."""
_MAX_PASSED_OVER = 1000
"""The same for a policy that goes through points one by one."""
EffectivePoint = Callable[[Knobs], Knobs]
PointKey = tuple[tuple[str, str], ...]
Known = Mapping[PointKey, Outcome | None]
"""Effective points (see `Study.key`) and what was measured there; None = failed, or still running."""


def point_key(point: Knobs) -> tuple[tuple[str, str], ...]:
    """A hashable identity of a point; 1, 1.0 and True are different values of a knob."""
    return tuple(sorted((name, repr(value)) for name, value in point.items()))


class Study:
    """One Optuna study over one space. `effective` maps a point to what really differs between servers."""

    def __init__(
        self,
        url: str,
        name: str,
        space: SearchSpace,
        *,
        directions: Sequence[str],
        sampler: SamplerChoice,
        seed: int,
        constrained: bool = False,
        effective: EffectivePoint = dict,
        owner: str = "",
    ) -> None:
        """Open or create the study. `directions`: maximize or minimize, one an objective. Raises StorageError on a
        conflict with what is stored, ConfigError for a sampler that cannot do this; before anything runs."""
        check_choice(sampler, space, objectives=len(directions), constrained=constrained)
        self.space = space
        self._url = url
        self._effective = effective
        self._owner = owner
        self._distributions = {axis.name: distribution(axis) for axis in space.axes}
        try:
            self._study = opened(url, name, directions)
        except Exception as error:
            raise StorageError(f"storage.url={url}: Optuna cannot use this database: {_first_line(error)}") from error
        self._check_stored(name, directions)
        self._sampler, self._seed = sampler, seed
        self._reseed()

    def _check_stored(self, name: str, directions: Sequence[str]) -> None:
        stored = [one.name.lower() for one in self._study.directions]
        if stored != list(directions):
            raise StorageError(
                f"study {name!r} is stored with direction {', '.join(stored)}, the configuration says "
                f"{', '.join(directions)}; choose another study_name"
            )
        for trial in self._study.get_trials(deepcopy=False):
            whole = trial.state.is_finished() and trial.distributions  # a driver may have died while asking for another
            for axis in self._distributions.keys() - trial.distributions.keys() if whole else ():
                raise StorageError(
                    f"space.{axis}: the stored study {name!r} was searched without this axis; "
                    "remove it or choose another study_name"
                )
            for axis, old in trial.distributions.items():
                new = self._distributions.get(axis)
                if new is None:
                    raise StorageError(
                        f"space.{axis}: the stored study {name!r} was searched along this axis ({_words(old)}); "
                        "restore it or choose another study_name"
                    )
                if new != old:
                    raise StorageError(
                        f"space.{axis} differs from the stored study {name!r}: it had {_words(old)}, "
                        f"the configuration has {_words(new)}; restore it or choose another study_name"
                    )

    # ------------------------------------------------------------ asking

    def _reseed(self, number: int | None = None) -> None:
        """A fresh sampler for the next number: its draws depend on seed, number and history, not on restarts."""
        if number is None:
            trials = self._study.get_trials(deepcopy=False)
            number = next((trial.number for trial in trials if trial.state is TrialState.WAITING), len(trials))
        measured = len(self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
        choice = self._sampler if measured >= MIN_MEASURED else untaught(self._sampler)
        self._study.sampler = Levelled(make_sampler(choice, derive(self._seed, "sampler", number), self.space))
        self._rng = random.Random(derive(self._seed, "fallback", number))

    def check(self, point: Knobs) -> None:
        """Raises ConfigError if this is not a point of the space."""
        for name, value in point.items():
            axis = next((axis for axis in self.space.axes if axis.name == name), None)
            if axis is None:
                raise ConfigError(f"seed point: {name!r} is not an axis; axes: {', '.join(self._distributions)}")
            if not axis.contains(value):
                raise ConfigError(f"seed point: {name}={value!r} is not a value of its axis ({axis.allowed})")

    def enqueue(self, point: Knobs) -> None:
        """Have this point asked next. Raises ConfigError if it is not a point of the space."""
        self.check(point)
        self._study.enqueue_trial(dict(point), skip_if_exists=True)

    def ask(self, known: Known) -> tuple[int, Knobs] | None:
        """The next candidate that is not effectively equal to a known one; None when no such point is left.

        An asked duplicate of a known point is told at once: what is known, or PRUNED.
        """
        with self._usable():
            return self._ask(known)

    def _ask(self, known: Known) -> tuple[int, Knobs] | None:
        if (foretold := self._foretold(known)) is not None:
            self._study.enqueue_trial(dict(foretold))
        enumerating = self._sampler.name in ENUMERATING
        patience = _MAX_PASSED_OVER if enumerating else _MAX_DUPLICATES
        for attempt in range(patience + 1):
            if attempt == patience or (enumerating and attempt == 1):  # there a duplicate may mean that none is left
                fresh = self._unmeasured(known)
                if fresh is None:
                    return None
                if attempt == patience:
                    self._study.enqueue_trial(dict(fresh))
            self._reseed()
            trial = self._study.ask(self._distributions)
            point = {name: _native(trial.params[name]) for name in self._distributions}
            key = self.key(point)
            if key not in known:
                trial.set_user_attr("owner", self._owner)
                return trial.number, point
            self.tell_duplicate(trial.number, known[key])
        return None

    def _foretold(self, known: Known) -> Knobs | None:
        """What every `forecast_every`th candidate is; None where it is the sampler's turn."""
        every, trials = self._sampler.forecast_every, self._study.get_trials(deepcopy=False)
        waiting = any(trial.state is TrialState.WAITING for trial in trials)
        if not every or waiting or len(self._study.directions) > 1 or len(trials) % every != every - 1:
            return None
        finished = [
            trial for trial in levelled(trials) if trial.state.is_finished() and "duplicate" not in trial.user_attrs
        ]
        return best_unmeasured(
            self.space,
            [
                ({axis: _native(trial.params.get(axis)) for axis in self._distributions}, _kept(trial))
                for trial in finished
            ],
            maximise=self._study.direction is StudyDirection.MAXIMIZE,
            known=lambda point: self.key(point) in known,
        )

    def tell_duplicate(self, number: int, outcome: Outcome | None) -> None:
        """A candidate that equals one already measured: its outcome again, or PRUNED where that has none."""
        state = TrialState.PRUNED if outcome is None else None
        self._finish(number, {"duplicate": True}, outcome=outcome, state=state)

    def key(self, point: Knobs) -> PointKey:
        """The identity of what a point effectively is."""
        return point_key(self._effective(point))

    def _unmeasured(self, known: Known) -> Knobs | None:
        if self.space.size is None:
            draws = (self._drawn() for _ in range(_MAX_PASSED_OVER))  # the continuous axis may be dead in most of them
            return next((point for point in draws if self.key(point) not in known), None)
        left = [point for point in self.space.points() if self.key(point) not in known]
        return self._rng.choice(left) if left else None

    def _drawn(self) -> Knobs:
        return {
            axis.name: self._rng.uniform(axis.low or 0.0, axis.high or 0.0)
            if axis.values is None
            else self._rng.choice(axis.values)
            for axis in self.space.axes
        }

    # ------------------------------------------------------------ telling

    def tell(self, number: int, outcome: Outcome, attributes: Mapping[str, KnobValue]) -> None:
        """What was measured. Raises ValueError for a number that is not finite (it would stay the best for ever)."""
        for value in (*outcome.values, *outcome.violations.values()):
            if not math.isfinite(value):
                raise ValueError(f"candidate {number}: {value} must not be told")
        self._finish(number, attributes, outcome=outcome)

    def report(self, number: int, course: Mapping[int, float]) -> None:
        """How the objective grew turn by turn (step → value), before the end is told. Several objectives have none."""
        if len(self._study.directions) > 1:
            return
        with self._usable():
            storage = self._study._storage
            trial_id = storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number)
            if storage.get_trial(trial_id).state.is_finished():
                return
            for step, value in course.items():
                if math.isfinite(value):
                    storage.set_trial_intermediate_value(trial_id, step, value)

    def tell_failure(self, number: int, kind: FailureKind, attributes: Mapping[str, KnobValue]) -> None:
        """A failure, by kind: PRUNED if it would happen again, FAIL if not."""
        state = TrialState.PRUNED if kind.is_repeatable else TrialState.FAIL
        self._finish(number, {"failure": str(kind), **attributes}, state=state)

    def _finish(
        self,
        number: int,
        attributes: Mapping[str, KnobValue],
        *,
        outcome: Outcome | None = None,
        state: TrialState | None = None,
    ) -> None:
        """Tell once. A candidate that somebody else finished meanwhile (the dashboard, a second tool) stays as it is:
        its row is in the store, and that is where reports read."""
        with self._usable():
            try:
                self._set_attributes(number, attributes)
                if outcome is not None and outcome.device:
                    self._set_attributes(number, {DEVICE: outcome.device})
                if outcome is not None:
                    self._set_constraints(number, outcome.violations)
                self._study.tell(number, None if outcome is None else list(outcome.values), state=state)
            except (UpdateFinishedTrialError, ValueError) as error:
                if not self._study.get_trials(deepcopy=False)[number].state.is_finished():
                    raise
                _LOG.warning("candidate %d was finished by somebody else: %s", number, _first_line(error))

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Raises StorageError where Optuna cannot read or write its tables, for example under a lock that stays."""
        try:
            yield
        except StorageInternalError as error:
            reason = _first_line(error.__cause__ if isinstance(error.__cause__, Exception) else error)
            raise StorageError(f"storage.url={self._url}: cannot be read or written: {reason}") from error

    def running(self) -> tuple[tuple[int, Knobs, str], ...]:
        """Candidates asked for and not told yet: number, point, and the driver that asked ("" = it died while asking).

        A driver that dies while it asks leaves a candidate with some of its values or none; the rest is drawn again as
        it would have been.
        """
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return tuple((trial.number, self._whole_point(trial), _owner(trial)) for trial in trials)

    def _whole_point(self, trial: optuna.trial.FrozenTrial) -> Knobs:
        """All values of a candidate. The draws of a number depend on nothing but seed, number and what was finished."""
        if trial.params.keys() >= self._distributions.keys():
            return {name: _native(trial.params[name]) for name in self._distributions}
        self._reseed(trial.number)
        bare = deepcopy(trial)
        bare.params, bare.distributions = {}, {}
        drawn = {**self._draws(bare), **trial.system_attrs.get("fixed_params", {}), **trial.params}
        point = {name: _native(drawn[name]) for name in self._distributions}
        for name in self._distributions.keys() - trial.params.keys():
            axis = self._distributions[name]
            self._study._storage.set_trial_param(trial._trial_id, name, axis.to_internal_repr(point[name]), axis)
        return point

    def _draws(self, trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
        """What the sampler draws for a candidate without values, in the order in which `ask` draws them."""
        sampler, fixed = self._study.sampler, trial.system_attrs.get("fixed_params", {})
        free = {name: axis for name, axis in self._distributions.items() if name not in fixed and not axis.single()}
        drawn: dict[str, Any] = {axis.name: axis.values[0] for axis in self.space.axes if axis.values}
        if free:
            relative = sampler.sample_relative(
                self._study, trial, sampler.infer_relative_search_space(self._study, trial)
            )
            for name, axis in free.items():
                drawn[name] = (
                    relative[name] if name in relative else sampler.sample_independent(self._study, trial, name, axis)
                )
        return drawn

    def importance(self) -> dict[str, float]:
        """See `importance.axis_importance`."""
        return axis_importance(self._study)

    def set_metric_names(self, names: Sequence[str]) -> None:
        self._study.set_metric_names(list(names))

    def _set_attributes(self, number: int, attributes: Mapping[str, KnobValue]) -> None:
        storage = self._study._storage
        trial_id = storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number)
        for name, value in attributes.items():
            storage.set_trial_user_attr(trial_id, name, value)

    def _set_constraints(self, number: int, violations: Mapping[str, float]) -> None:
        """Through Optuna's own interface, so that samplers and dashboard know them; those already there stay."""
        storage = self._study._storage
        trial_id = storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number)
        trial = optuna.Trial(self._study, trial_id)
        stored = trial.constraints
        for name, beyond in violations.items():
            if name not in stored:
                trial.set_constraint(name, beyond)


def _kept(trial: optuna.trial.FrozenTrial) -> float | None:
    """A candidate's value; None where it failed or broke a constraint."""
    broken = any(beyond > 0 for beyond in trial.constraints.values())
    return None if trial.value is None or broken else trial.value


def _native(value: object) -> KnobValue:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r} is not a knob's value")


def _owner(trial: optuna.trial.FrozenTrial) -> str:
    return str(trial.user_attrs.get("owner", ""))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _words(found: BaseDistribution) -> str:
    if isinstance(found, CategoricalDistribution):
        return ", ".join(str(choice) for choice in found.choices)
    if isinstance(found, IntDistribution):
        return f"{found.low} to {found.high} in steps of {found.step}"
    if isinstance(found, FloatDistribution):
        return f"{found.low:g} to {found.high:g}{' (log)' if found.log else ''}"
    return str(found)
