"""The course of a study: baseline, default, gate, search, confirm. The only owner of store, study and pool.

A result is stored before anything else learns of it. Every phase is planned from what is stored, so an interrupted
study goes on where it stopped, and no run is lost or counted twice.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from dflash_sweep import metrics, owner
from dflash_sweep.analysis import confirm, gate
from dflash_sweep.analysis.intervals import log_mean_interval
from dflash_sweep.engines import Engine
from dflash_sweep.errors import StorageError, StudyFailed
from dflash_sweep.frames import trial_frame, turn_frame
from dflash_sweep.jobs import (
    ConfirmPhase,
    Job,
    ListPhase,
    Phase,
    SearchPhase,
    confirm_blocks,
    is_final,
    repeats,
    unfinished,
)
from dflash_sweep.objective import direction, score
from dflash_sweep.pool import Pool
from dflash_sweep.preflight import Preflight
from dflash_sweep.records import Knobs, Role, StoredTrial, StudyInfo, TrialResult, TrialSpec
from dflash_sweep.seeds import derive
from dflash_sweep.settings import Settings
from dflash_sweep.store import Store, comparability_key
from dflash_sweep.study import SamplerChoice, Study, point_key
from dflash_sweep.watcher import Best, Watcher

_POLL_S = 1.0
"""How long one wait for results lasts: the reaction time to an interrupt, not a delay of results."""
_FINALIST_SPREAD = 0.25
"""A candidate this far behind the best is not confirmed: the widest scatter of one published setting was 18 %."""


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


class Driver:
    """One study, from its first row to its last."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings, self._store = context.settings, context.store
        self._name = context.settings.study_name
        self._protocol = context.settings.config.protocol
        self._objective = context.settings.config.objective
        self._seed = context.settings.config.seed
        self._owner = owner.current()
        self._trials: list[StoredTrial] = []
        self._failures_in_a_row = 0
        self._began = time.monotonic()
        self._info: StudyInfo | None = None

    # ------------------------------------------------------------ the course

    def run(self) -> StudyInfo:
        """Run every phase that is still due. Raises StudyFailed or KeyboardInterrupt; all rows are kept.

        What is stored under this name is looked at first: a conflict with the configuration is a StorageError, and
        nothing has been started or written.
        """
        stored = self._store.study(self._name)
        if stored is not None:
            self._check_stored(stored)
        study = self._study() if self._settings.config.n_trials else None
        self._open(stored)
        try:
            self._phases(study)
        except KeyboardInterrupt:
            self._close("interrupted", "interrupted by the user")
            raise
        except StudyFailed as error:
            self._close("failed", str(error))
            raise
        return self._close("finished", self._info.stop_reason if self._info else None)

    def _phases(self, study: Study | None) -> None:
        plain = Role.BASELINE, self._protocol.baseline_repeats
        self._play("baseline", repeats(*plain, speculative=False, knobs=self._context.preflight.plain))
        if not any(self._value(trial) is not None for trial in self._trials if not trial.speculative):
            raise StudyFailed(f"plain decoding could not be measured: {self._last_failure()}")
        default = Role.CALIBRATE, self._protocol.default_repeats
        self._play("calibrate", repeats(*default, speculative=True, knobs=self._default_knobs()))
        if self._gate_stops():
            return
        if study is None:
            return
        search = self._search(study)
        if not any(trial.role is Role.SEARCH and self._value(trial) is not None for trial in self._trials):
            raise StudyFailed(f"no candidate could be measured: {self._last_failure()}")
        if search.exhausted:
            self._context.watcher.note("Every point of the space that differs from the others has been measured.")
        self._confirm()

    def _play(self, name: str, jobs: list[Job]) -> None:
        due = unfinished(jobs, self._name, self._trials, self._protocol.retries)
        self._drive(ListPhase(name, due))

    def _gate_stops(self) -> bool:
        if not self._protocol.gate:
            return False
        verdict = gate.stop(trial_frame(self._trials), turn_frame(self._trials), self._described())
        if verdict is None:
            return False
        self._context.watcher.note(verdict.statement)
        self._info = replace(self._described(), stop_reason=verdict.statement)
        self._store.save_study(self._info)
        return True

    def _study(self) -> Study:
        """The search study, opened or created. Raises StorageError if what is stored has other axes or directions."""
        config, preflight = self._settings.config, self._context.preflight

        def effective(point: Knobs) -> Knobs:
            whole = self._complete(point)
            return {name: whole.get(name) for name in point}

        return Study(
            self._settings.storage_url,
            self._name,
            preflight.space,
            direction=direction(self._objective),
            sampler=SamplerChoice(
                name=config.sampler.name,
                n_startup_trials=config.sampler.n_startup_trials,
                options=config.sampler.options,
            ),
            seed=self._seed,
            effective=effective,
            owner=self._owner,
        )

    def _search(self, study: Study) -> SearchPhase:
        config, preflight, engine = self._settings.config, self._context.preflight, self._context.engine
        study.set_metric_name(self._objective)
        if not any(trial.role is Role.SEARCH for trial in self._trials):
            self._enqueue(study)
        phase = SearchPhase(
            study,
            study_name=self._name,
            objective=self._objective,
            n_trials=config.n_trials,
            complete=self._complete,
            plain_knobs=self._context.preflight.plain,
            canary_every=self._protocol.canary_every,
            retries=self._protocol.retries,
            stored=self._trials,
            is_gone=lambda name: name in ("", self._owner) or owner.is_gone(name),
            expired=self._expired,
            problems=lambda knobs: engine.check(preflight.engine, preflight.build, knobs),
        )
        self._drive(phase)
        self._info = replace(self._described(), importance=study.importance())
        self._store.save_study(self._info)
        return phase

    def _enqueue(self, study: Study) -> None:
        """Seed points first; a space that fits the budget is measured point by point."""
        space, n_trials = self._context.preflight.space, self._settings.config.n_trials
        for point in self._context.preflight.seed_points:
            study.enqueue(point)
        if space.size is not None and space.size <= n_trials:
            for point in space.points():
                study.enqueue(point)

    def _confirm(self) -> None:
        blocks = self._protocol.confirm_blocks
        if not blocks:
            return
        finalists = self._finalists()
        plan = confirm_blocks(finalists, self._context.preflight.plain, blocks, derive(self._seed, "order"))
        due = [unfinished(block, self._name, self._trials, self._protocol.retries) for block in plan]

        def decision() -> confirm.Decision:
            return confirm.decide(
                trial_frame(self._trials),
                objective=self._objective,
                direction=direction(self._objective),
                planned_blocks=blocks,
            )

        self._drive(ConfirmPhase(due, lambda: decision().finished))
        reached = decision()
        self._context.watcher.note(reached.statement)
        self._info = replace(self._described(), confirmed_candidate=reached.winner)
        self._store.save_study(self._info)

    def _finalists(self) -> dict[int, Knobs]:
        """The best candidates of the search by their own value, none of them hopeless; equal servers appear once."""
        sign = -1.0 if direction(self._objective) == "minimize" else 1.0
        measured = [
            (sign * value, -(trial.candidate or 0), trial)
            for trial in self._trials
            if trial.role is Role.SEARCH and (value := self._value(trial)) is not None
        ]
        top = max((entry[0] for entry in measured), default=0.0)
        best: dict[int, Knobs] = {}
        seen: set[tuple[tuple[str, str], ...]] = set()
        for value, _, trial in sorted(measured, key=lambda entry: entry[:2], reverse=True):
            key = point_key(self._context.engine.effective_point(trial.knobs))
            hopeless = abs(value - top) > _FINALIST_SPREAD * abs(top)
            if (
                trial.candidate is not None
                and key not in seen
                and not hopeless
                and len(best) < self._protocol.confirm_top
            ):
                seen.add(key)
                best[trial.candidate] = trial.knobs
        return best

    # ------------------------------------------------------------ running jobs

    def _drive(self, phase: Phase) -> None:
        """Keep every worker busy until the phase has nothing left and nothing is running."""
        pool, watcher = self._context.pool, self._context.watcher
        if phase.total:
            watcher.phase(phase.name, phase.total)
        running: dict[str, Job] = {}
        again: deque[Job] = deque()
        while True:
            while pool.idle() and (job := again.popleft() if again else phase.next()):
                spec = self._spec(job)
                self._store.begin(spec, self._owner, comparability_key(spec, pool.devices[0].name))
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
        self._store.finish(result, comparability)
        trial = self._store.trial(result.uid)
        self._trials.append(trial)
        self._context.watcher.finished(trial, self._value(trial), self._best())
        failure = result.failure
        broken = failure is not None and failure.kind.is_infrastructure
        self._failures_in_a_row = self._failures_in_a_row + 1 if broken else 0
        if failure is not None and failure.kind.is_our_fault:
            raise StudyFailed(
                f"a result of {trial.uid} could not be read, which is a defect of this program: "
                f"{failure.message}; see {failure.log_path}"
            )
        if self._failures_in_a_row >= self._protocol.max_failures_in_a_row:
            raise StudyFailed(f"{self._failures_in_a_row} trials failed one after another: {self._last_failure()}")
        return trial

    def _spec(self, job: Job) -> TrialSpec:
        preflight = self._context.preflight
        uid = job.uid(self._name)
        options = dict(preflight.engine.options)
        if any(option.name == "launch_seed" for option in self._context.engine.options):
            options["launch_seed"] = derive(self._seed, "launch", uid.partition("/")[2])
        return TrialSpec(
            uid=uid,
            study=self._name,
            role=job.role,
            candidate=job.candidate,
            repeat=job.repeat,
            attempt=job.attempt,
            speculative=job.speculative,
            knobs=job.knobs,
            engine=replace(preflight.engine, options=options),
            build=preflight.build,
            trace=preflight.trace,
            policy=self._settings.policy,
            evidence_dir=str(self._settings.run_dir / "trials" / uid.partition("/")[2]),
            timeout_s=self._protocol.trial_timeout_s,
        )

    # ------------------------------------------------------------ what is known

    def _default_knobs(self) -> Knobs:
        """The setting people start from: the first seed point, else the engine's own defaults."""
        first = self._context.preflight.seed_points[:1]
        return self._complete(first[0] if first else {})

    def _complete(self, point: Knobs) -> Knobs:
        """All knobs of the server that a point stands for; dead ones are None."""
        return self._context.engine.effective_point({**self._context.preflight.fixed, **point})

    def _value(self, trial: StoredTrial) -> float | None:
        return None if trial.result.failure else score(trial.result.turns, self._objective)

    def _expired(self) -> bool:
        hours = self._settings.config.budget.hours
        if hours is None or time.monotonic() - self._began < hours * 3600:
            return False
        if self._info is not None and self._info.stop_reason is None:
            self._info = replace(self._info, stop_reason=f"the budget of {hours:g} h is spent")
        return True

    def _best(self) -> Best | None:
        """The best candidate by the mean of its runs so far; an interval from two runs on."""
        runs: dict[int | None, list[float]] = {}
        for trial in self._trials:
            value = self._value(trial)
            if value is not None and (trial.candidate is not None or not trial.speculative):
                runs.setdefault(trial.candidate, []).append(value)
        plain = runs.pop(None, None)
        sign = -1.0 if direction(self._objective) == "minimize" else 1.0
        best = max(runs, key=lambda number: sign * fmean(runs[number]), default=None)
        if best is None:
            return None
        interval = log_mean_interval(runs[best])
        return Best(
            candidate=best,
            value=interval.value,
            unit=metrics.METRIC[self._objective].unit,
            low=interval.low,
            high=interval.high,
            plain=None if plain is None else fmean(plain),
        )

    def _last_failure(self) -> str:
        for trial in reversed(self._trials):
            if trial.result.failure is not None:
                failure = trial.result.failure
                return f"{failure.kind}: {failure.message}; see {failure.log_path}"
        return "no run gave a value"

    # ------------------------------------------------------------ opening and closing

    def _check_stored(self, stored: StudyInfo) -> None:
        """Raises StorageError if the stored study measured something else: its values would be taken for ours."""
        for key, old, new in (
            ("objective", stored.objective, self._objective),
            ("engine.name", stored.engine, self._context.engine.name),
        ):
            if old != new:
                raise StorageError(
                    f"{key}={new}: the stored study {self._name!r} has {old}; restore it or choose another study_name"
                )

    def _open(self, stored: StudyInfo | None) -> None:
        gone = [name for name in self._store.running_owners(self._name) if owner.is_gone(name)]
        lost = self._store.forget_running(self._name, gone)
        if lost:
            self._context.watcher.note(f"{len(lost)} run(s) of a stopped driver had not finished and are run again.")
        self._trials = list(self._store.trials(self._name))
        config = self._settings.config
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._info = StudyInfo(
            name=self._name,
            engine=self._context.engine.name,
            measurement=self._context.engine.facts.measurement,
            objective=self._objective,
            direction=direction(self._objective),
            axes=self._context.preflight.axes,
            seed=config.seed,
            n_trials=config.n_trials,
            created_utc=stored.created_utc if stored else now,
            config=self._settings.resolved,
            provenance=self._context.provenance,
        )
        self._store.save_study(self._info)

    def _described(self) -> StudyInfo:
        assert self._info is not None, "the study is opened first"
        return self._info

    def _close(self, status: str, stop_reason: str | None) -> StudyInfo:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._info = replace(self._described(), status=status, stop_reason=stop_reason, finished_utc=now)
        self._store.save_study(self._info)
        self._store.forget_running(self._name, [self._owner])
        return self._info
