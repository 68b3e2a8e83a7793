"""What is to be run: one job is one trial in the making. Phases turn what is stored into the next jobs.

Pure but for the study that the search phase asks. A phase is asked `next()` whenever a worker is idle and is told each
finished trial by `took()`; it never waits for a batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dflash_sweep.errors import FailureKind
from dflash_sweep.outcomes import Outcome
from dflash_sweep.records import Device, Knobs, KnobValue, PruneRule, Role, StoredTrial
from dflash_sweep.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run to make. `knobs` are complete: axes and fixed ones. `repeat`, `attempt` and `prune` as in TrialSpec.

    `device`: the one it must run on; None = any.
    """

    role: Role
    candidate: int | None
    knobs: Knobs = field(default_factory=dict)
    speculative: bool = True
    repeat: int = 0
    attempt: int = 0
    device: Device | None = None
    prune: tuple[PruneRule, ...] = ()

    def uid(self, study: str) -> str:
        """The trial's unique name: the same job of the same study has the same one, also after a restart."""
        nameless = "default" if self.speculative else "plain"
        candidate = nameless if self.candidate is None else str(self.candidate)
        return f"{study}/{self.role}/{candidate}/{self.repeat}/{self.attempt}"

    def again(self) -> Job:
        """The next attempt of the same run."""
        return replace(self, attempt=self.attempt + 1)


class Phase(Protocol):
    """A part of the protocol. `name` is shown to people; `total` is the number of jobs it foresees."""

    name: str
    total: int

    def next(self) -> Job | None:
        """The next job, or None: nothing to start now (or ever again, once nothing is running)."""
        ...

    def took(self, job: Job, trial: StoredTrial) -> None:
        """A job has ended for good (its retries included)."""
        ...


class ListPhase:
    """Jobs known beforehand, in order: baseline and calibration."""

    def __init__(self, name: str, jobs: Iterable[Job]) -> None:
        self.name = name
        self._jobs = list(jobs)
        self.total = len(self._jobs)

    def next(self) -> Job | None:
        return self._jobs.pop(0) if self._jobs else None

    def took(self, job: Job, trial: StoredTrial) -> None:
        """Nothing depends on the result."""


def unfinished(
    jobs: Iterable[Job], study: str, stored: Sequence[StoredTrial], retries: int, stale: Container[str] = frozenset()
) -> list[Job]:
    """The jobs that have no final result yet, each with the attempt that is due.

    Repeats are counted from behind the stale rows of the same role: those stay what they are, the jobs are due anew.
    """
    behind: dict[Role, int] = {}
    for trial in stored:
        if trial.uid in stale:
            behind[trial.role] = max(behind.get(trial.role, 0), trial.repeat + 1)
    jobs = [replace(job, repeat=job.repeat + behind.get(job.role, 0)) for job in jobs]
    attempts: dict[str, list[StoredTrial]] = {}
    for trial in stored:
        attempts.setdefault(trial.uid.rpartition("/")[0], []).append(trial)
    due = []
    for job in jobs:
        done = attempts.get(job.uid(study).rpartition("/")[0], [])
        if not any(is_final(trial, retries) for trial in done):
            due.append(replace(job, attempt=len(done)))
    return due


def is_final(trial: StoredTrial, retries: int) -> bool:
    """True unless this was a transient failure with attempts left."""
    failure = trial.result.failure
    return failure is None or not failure.kind.is_transient or trial.attempt >= retries


def repeats(role: Role, count: int, *, speculative: bool, knobs: Knobs) -> list[Job]:
    """The same setting `count` times."""
    return [
        Job(role=role, candidate=None, knobs=knobs, speculative=speculative, repeat=index) for index in range(count)
    ]


def confirm_blocks(
    candidates: Mapping[int, Knobs],
    plain_knobs: Knobs | None,
    blocks: int,
    seed: int,
    controls: Mapping[int, Knobs] | None = None,
    devices: Sequence[Device | None] = (None,),
) -> list[list[Job]]:
    """Blocks in which every finalist and plain decoding run once on each device, each block in an order of its own.

    `devices`: those that are not equal to each other; None = any worker. `repeat` numbers block and device together, so
    that runs of one `repeat` were made on one device.

    `plain_knobs` None = without plain decoding as the baseline has it. `controls`: finalist → knobs of plain decoding
    that shares its settings, where that is another server than plain's.
    """
    rng = random.Random(seed)
    plan = []
    for block in range(blocks):
        row = []
        for place, device in enumerate(devices):
            where: dict[str, Any] = {"repeat": block * len(devices) + place, "device": device}
            row += [
                Job(role=Role.CONFIRM, candidate=number, knobs=knobs, **where) for number, knobs in candidates.items()
            ]
            if plain_knobs is not None:
                row.append(Job(role=Role.CONFIRM, candidate=None, knobs=plain_knobs, speculative=False, **where))
            row += [
                Job(role=Role.CONTROL, candidate=number, knobs=knobs, speculative=False, **where)
                for number, knobs in (controls or {}).items()
            ]
        rng.shuffle(row)
        plan.append(row)
    return plan


def different_devices(devices: Iterable[Device]) -> tuple[Device | None, ...]:
    """One device of each that must not be taken for another: cards by their id, others (CPUs, emulated cards) by name.

    Where all are equal, the answer is (None,): any worker will do.
    """
    found = {device.uuid or device.name: device for device in reversed(tuple(devices))}
    return tuple(reversed(found.values())) if len(found) > 1 else (None,)


class ConfirmPhase:
    """Interleaved blocks, one after another, until `decided` says that a further block would not be used, or until the
    budget has `expired`: then not even the block is finished, since what is decided can be said without it.

    `look_first`: there are blocks of a run before this one, which may have decided already.
    """

    name = "confirm"

    def __init__(
        self,
        blocks: Iterable[Sequence[Job]],
        decided: Callable[[], bool],
        expired: Callable[[], bool] = lambda: False,
        *,
        look_first: bool = False,
    ) -> None:
        self._blocks = [list(block) for block in blocks if block]
        self._look_first = look_first
        self._decided, self._expired = decided, expired
        self._running = 0
        self.total = sum(map(len, self._blocks))

    def next(self) -> Job | None:
        if not self._blocks:
            return None
        if self._expired():
            self._blocks.clear()
            return None
        if self._look_first:
            self._look_first = False
            if self._decided():
                self._blocks.clear()
                return None
        self._running += 1
        return self._blocks[0].pop(0) if self._blocks[0] else self._open_next_block()

    def _open_next_block(self) -> Job | None:
        self._running -= 1
        if self._running:  # the block's last runs are still going: what comes next may not be needed
            return None
        self._blocks.pop(0)
        if self._blocks and self._decided():
            self._blocks.clear()
        return self.next()

    def took(self, job: Job, trial: StoredTrial) -> None:
        self._running -= 1


MAX_IMPOSSIBLE = 200
"""Candidates in a row that no server can be launched with, after which the search ends: a continuous space has none."""


class SearchPhase:
    """Asks the study for candidates until `n_trials` have a final result, with plain decoding in between.

    On resume it first takes up what a dead driver left: results stored but not told are told, candidates asked but not
    finished are run again under their own number. A point with `problems` is told as impossible and never launched.
    `prune` makes of the trials told so far the rules by which a candidate may be ended early; `course` is how a trial's
    objective grew turn by turn.
    `complete` turns a point into all knobs of a server, dead ones None, so that equal servers have equal rows;
    `outcome` says what a finished trial is told as, or in words why it has no value.
    After every `canary_every` candidates plain decoding and the `incumbent` (the best of the trials told so far: number
    and knobs; None = there is none) are measured again.
    """

    name = "search"

    def __init__(
        self,
        study: Study,
        *,
        study_name: str,
        outcome: Callable[[StoredTrial], Outcome | str],
        n_trials: int,
        complete: Callable[[Knobs], Knobs],
        plain_knobs: Knobs,
        canary_every: int,
        retries: int,
        stored: Sequence[StoredTrial],
        is_gone: Callable[[str], bool],
        expired: Callable[[], bool],
        problems: Callable[[Knobs], tuple[str, ...]] = lambda _knobs: (),
        prune: Callable[[Sequence[StoredTrial]], tuple[PruneRule, ...]] = lambda _trials: (),
        course: Callable[[StoredTrial], Mapping[int, float]] = lambda _trial: {},
        incumbent: Callable[[Sequence[StoredTrial]], tuple[int, Knobs] | None] = lambda _trials: None,
    ) -> None:
        self._study, self._outcome, self._complete, self._retries = study, outcome, complete, retries
        self._study_name, self._incumbent = study_name, incumbent
        self._plain_knobs, self._canary_every, self._expired = plain_knobs, canary_every, expired
        self._problems, self._prune, self._course = problems, prune, course
        self._told = list(stored)
        searched = [trial for trial in stored if trial.role is Role.SEARCH]
        final = {trial.candidate: trial for trial in searched if is_final(trial, retries)}
        self._known = {study.key(self._axes(trial.knobs)): self._measured(trial) for trial in final.values()}
        ended = [trial for trial in stored if trial.role is Role.CANARY and is_final(trial, retries)]
        self._canaries = len({trial.repeat for trial in ended if not trial.speculative})
        self._beside: list[Job] = []
        if self._canaries and not any(trial.speculative and trial.repeat == self._canaries - 1 for trial in ended):
            self._beside = self._incumbent_canary(self._canaries - 1)  # its driver died between the two
        self._asked = len(final)
        self._leftover: list[Job] = []
        for number, point, owner in study.running():
            if not is_gone(owner):
                continue
            if number in final:
                self._tell(number, final[number])
            elif study.key(point) in self._known:
                study.tell_duplicate(number, self._known[study.key(point)])
            elif (job := self._job(number, point)) is not None:
                self._leftover += unfinished([job], study_name, stored, retries)
        self._n_trials = n_trials
        left = max(0, n_trials - len(final))
        canaries = 0 if not canary_every else max(0, (n_trials - 1) // canary_every - self._canaries)
        self.total = left + 2 * canaries + len(self._beside)
        self.exhausted = self.impossible = False

    @property
    def leftover(self) -> int:
        """Runs that a dead driver asked for and did not finish; they are the first that `next` gives."""
        return len(self._leftover) + (len(self._beside) if self._leftover else 0)

    def _axes(self, knobs: Knobs) -> Knobs:
        return {axis.name: knobs.get(axis.name) for axis in self._study.space.axes}

    def next(self) -> Job | None:
        if self._leftover:
            return replace(self._leftover.pop(0), prune=self._prune(self._told))
        if self._canary_every and self._asked >= self._canary_every * (self._canaries + 1) < self._n_trials:
            self._beside += self._plain_canary(self._canaries) + self._incumbent_canary(self._canaries)
            self._canaries += 1
        if self._beside:
            return self._beside.pop(0)
        if self._asked >= self._n_trials or self.exhausted or self._expired():
            return None
        for _ in range(MAX_IMPOSSIBLE):
            if (asked := self._study.ask(self._known)) is None:
                break
            if (job := self._job(*asked)) is not None:
                return replace(job, prune=self._prune(self._told))
        else:
            self.impossible = True
        self.exhausted = True
        return None

    def _plain_canary(self, number: int) -> list[Job]:
        job = Job(role=Role.CANARY, candidate=None, knobs=self._plain_knobs, speculative=False, repeat=number)
        return unfinished([job], self._study_name, self._told, self._retries)

    def _incumbent_canary(self, number: int) -> list[Job]:
        if (best := self._incumbent(self._told)) is None:
            return []
        job = Job(role=Role.CANARY, candidate=best[0], knobs=best[1], repeat=number)
        return unfinished([job], self._study_name, self._told, self._retries)

    def _job(self, number: int, point: Knobs) -> Job | None:
        """The run of a candidate; None if it is impossible, which the study is told."""
        self._known[self._study.key(point)] = None
        knobs = self._complete(point)
        if problems := self._problems(knobs):
            self._study.tell_failure(number, FailureKind.INVALID_CONFIG, {"problem": problems[0]})
            return None
        self._asked += 1
        return Job(role=Role.SEARCH, candidate=number, knobs=knobs)

    def took(self, job: Job, trial: StoredTrial) -> None:
        self._told.append(trial)
        if job.role is not Role.SEARCH or job.candidate is None:
            return
        self._known[self._study.key(self._axes(job.knobs))] = self._measured(trial)
        self._tell(job.candidate, trial)

    def _measured(self, trial: StoredTrial) -> Outcome | None:
        found = self._outcome(trial)
        return found if isinstance(found, Outcome) else None

    def _tell(self, number: int, trial: StoredTrial) -> None:
        found = self._outcome(trial)
        attributes: dict[str, KnobValue] = {"trial": trial.number, "measurement": str(trial.result.measurement)}
        self._study.report(number, self._course(trial))
        if isinstance(found, Outcome):
            self._study.tell(number, found, attributes)
        else:
            failure = trial.result.failure
            kind = failure.kind if failure else FailureKind.NO_MEASUREMENT
            self._study.tell_failure(number, kind, {**attributes, "problem": found})
