"""Keeps the workers of one study busy with a phase's jobs; stores each result before anything else learns of it.

Imports L0 to L3, `jobs`, `pool`, `store`, `standing`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from dflash_sweep import standing
from dflash_sweep.engines import Engine
from dflash_sweep.errors import StudyFailed
from dflash_sweep.jobs import Job, Phase, is_final
from dflash_sweep.pool import Pool
from dflash_sweep.preflight import Preflight
from dflash_sweep.records import StoredTrial, TrialResult, TrialSpec
from dflash_sweep.seeds import derive
from dflash_sweep.settings import Settings
from dflash_sweep.store import Store, comparability_key
from dflash_sweep.watcher import Watcher

_POLL_S = 1.0
"""How long one wait for results lasts: the reaction time to an interrupt, not a delay of results."""


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


class Runner:
    """Runs the jobs of phases. `trials`: every finished run of the study, in the order in which they were finished."""

    def __init__(self, context: Context, owner: str, stored: Iterable[StoredTrial]) -> None:
        self._context, self._owner = context, owner
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
        again: deque[Job] = deque()
        while True:
            store.check()
            while pool.idle() and (job := again.popleft() if again else phase.next()):
                spec = self._spec(job)
                store.begin(spec, self._owner, comparability_key(spec, pool.devices[0].name))
                running[spec.uid] = job
                watcher.started(spec)
                pool.submit(spec)
            if not running:
                return
            for result in pool.wait(_POLL_S):
                job = running.pop(result.uid)
                trial = self._take(result, comparability_key(self._spec(job), result.device.name))
                if is_final(trial, self._protocol.retries):
                    phase.took(job, trial)
                else:
                    again.append(job.again())

    def _take(self, result: TrialResult, comparability: str) -> StoredTrial:
        self._context.store.finish(result, comparability)
        trial = self._context.store.trial(result.uid)
        self.trials.append(trial)
        self._context.watcher.finished(
            trial, standing.value(trial, self._objective), standing.best(self.trials, self._objective)
        )
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

    def _spec(self, job: Job) -> TrialSpec:
        preflight = self._context.preflight
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
            trace=preflight.trace,
            policy=self._context.settings.policy,
            evidence_dir=str(self._context.settings.run_dir / "trials" / uid.partition("/")[2]),
            timeout_s=self._protocol.trial_timeout_s,
            models=preflight.models,
            devices=tuple(device.uuid or device.name for device in preflight.devices),
        )
