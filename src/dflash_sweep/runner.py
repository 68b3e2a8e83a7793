"""Keeps the workers of one study busy with a phase's jobs; stores each result before anything else learns of it.

Imports L0 to L3, `jobs`, `pool`, `store`, `standing`, `controls`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dflash_sweep import environment, standing
from dflash_sweep.constraints import Constraints
from dflash_sweep.controls import plain_settings
from dflash_sweep.engines import Engine
from dflash_sweep.errors import StudyFailed
from dflash_sweep.interrupts import Interrupts
from dflash_sweep.jobs import Job, Phase, is_final
from dflash_sweep.pool import Pool
from dflash_sweep.preflight import Preflight
from dflash_sweep.records import Device, Role, StoredTrial, TrialResult, TrialSpec
from dflash_sweep.seeds import derive
from dflash_sweep.settings import Settings
from dflash_sweep.store import Store, comparability_key
from dflash_sweep.watcher import Watcher

_POLL_S = 1.0
"""How long one wait for results lasts: the reaction time to an interrupt, not a delay of results."""


OWN_SERVER = frozenset({Role.BASELINE, Role.CALIBRATE, Role.CONFIRM, Role.CONTROL, Role.RERUN})
"""Runs whose scatter says how sure a figure is: it differs from start to start of a server, so each has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a study needs from outside."""

    settings: Settings
    preflight: Preflight
    engine: Engine
    store: Store
    pool: Pool
    watcher: Watcher
    provenance: dict[str, Any]
    interrupts: Interrupts = field(default_factory=Interrupts)


class Runner:
    """Runs the jobs of phases. `trials`: every finished run of the study, in the order in which they were finished."""

    def __init__(
        self, context: Context, owner: str, stored: Iterable[StoredTrial], constraints: Constraints | None = None
    ) -> None:
        self._context, self._owner = context, owner
        self._constraints = constraints or Constraints(())
        self._objective = context.settings.objective
        self._protocol = context.settings.config.protocol
        self._failures_in_a_row = 0
        self.trials = list(stored)

    def play(self, phase: Phase) -> None:
        """Keep every worker busy until the phase has nothing left and nothing is running."""
        pool, watcher, store = self._context.pool, self._context.watcher, self._context.store
        if phase.total:
            watcher.phase(phase.name, phase.total)
        running: dict[str, Job] = {}
        waiting: deque[Job] = deque()  # to be tried again, or meant for a device that is busy
        while True:
            store.check()
            while (free := pool.idle_devices()) and (job := _startable(waiting, phase, free)):
                spec = self.spec(job)
                store.begin(spec, self._owner, comparability_key(spec, pool.devices[0].name))
                running[spec.uid] = job
                watcher.started(spec)
                pool.submit(spec, on=job.device)
            if not running:
                return
            with self._context.interrupts.raised():
                results = pool.wait(_POLL_S)
            for result in results:
                job = running.pop(result.uid)
                trial = self._take(result, comparability_key(self.spec(job), result.device.name))
                if is_final(trial, self._protocol.retries):
                    phase.took(job, trial)
                else:
                    waiting.append(job.again())

    def _take(self, result: TrialResult, comparability: str) -> StoredTrial:
        self._context.store.finish(result, comparability)
        trial = self._context.store.trial(result.uid)
        self.trials.append(trial)
        best = standing.best(self.trials, self._objective, self._constraints.ineligible(self.trials))
        self._context.watcher.finished(trial, standing.value(trial, self._objective), best)
        failure = result.failure
        broken = failure is not None and failure.kind.is_infrastructure
        self._failures_in_a_row = self._failures_in_a_row + 1 if broken else 0
        if failure is not None and failure.kind.is_our_fault:
            raise StudyFailed(
                f"a result of {trial.uid} could not be read, which is a defect of this program: "
                f"{failure.message}; see {failure.log_path}"
            )
        if self._failures_in_a_row >= self._protocol.max_failures_in_a_row:
            raise StudyFailed(
                f"{self._failures_in_a_row} trials failed one after another: {standing.last_failure(self.trials)}"
            )
        return trial

    def spec(self, job: Job) -> TrialSpec:
        """What a worker is sent for a job. The confirm phase replays its own turns where some are held out."""
        preflight = self._context.preflight
        held_out = preflight.held_out if job.role in (Role.CONFIRM, Role.CONTROL) else None
        uid = job.uid(self._context.settings.study_name)
        options = dict(preflight.engine.options)
        if any(option.name == "launch_seed" for option in self._context.engine.options):
            options["launch_seed"] = derive(self._context.settings.config.seed, "launch", uid.partition("/")[2])
        return TrialSpec(
            uid=uid,
            study=self._context.settings.study_name,
            role=job.role,
            candidate=job.candidate,
            repeat=job.repeat,
            attempt=job.attempt,
            speculative=job.speculative,
            knobs=job.knobs,
            engine=replace(preflight.engine, options=options),
            build=preflight.build,
            trace=held_out or preflight.trace,
            policy=self._context.settings.policy,
            evidence_dir=str(self._context.settings.run_dir / "trials" / uid.partition("/")[2]),
            timeout_s=self._protocol.trial_timeout_s,
            own_server=job.role in OWN_SERVER,
            prune=job.prune,
            retry_throttled=self._protocol.on_throttle == "retry" and job.attempt < self._protocol.retries,
            models=preflight.models,
            devices=tuple(device.uuid or device.name for device in preflight.devices),
            plain_settings=plain_settings(self._context.engine, preflight.engine, preflight.build, job.knobs),
            origin=environment.origin(self._context.provenance),
        )


def _startable(waiting: deque[Job], phase: Phase, free: Sequence[Device]) -> Job | None:
    """The next job that one of these devices can take; those met on the way that must wait are kept in `waiting`."""
    for due in waiting:
        if due.device is None or due.device in free:
            waiting.remove(due)
            return due
    while (job := phase.next()) is not None:
        if job.device is None or job.device in free:
            return job
        waiting.append(job)
    return None
