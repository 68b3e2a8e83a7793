"""The course of a study: baseline, default, gate, search, confirm. The only owner of store, study and pool.

A result is stored before anything else learns of it. Every phase is planned from what is stored, so an interrupted
study goes on where it stopped, and no run is lost or counted twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from dflash_sweep import controls, owner, standing
from dflash_sweep.analysis import confirm, gate
from dflash_sweep.errors import StorageError, StudyFailed
from dflash_sweep.frames import trial_frame, turn_frame
from dflash_sweep.jobs import (
    ConfirmPhase,
    Job,
    ListPhase,
    SearchPhase,
    confirm_blocks,
    repeats,
    unfinished,
)
from dflash_sweep.lease import Lease, LeaseLost
from dflash_sweep.objective import direction
from dflash_sweep.records import Knobs, Role, StoredTrial, StudyInfo
from dflash_sweep.rounds import Rounds
from dflash_sweep.runner import Context, Runner
from dflash_sweep.seeds import derive
from dflash_sweep.study import SamplerChoice, Study


class Driver:
    """One study, from its first row to its last."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings, self._store = context.settings, context.store
        self._name = context.settings.study_name
        self._protocol = context.settings.config.protocol
        self._objective = context.settings.objective
        self._seed = context.settings.config.seed
        self._owner = owner.current()
        self._runner = Runner(context, self._owner, ())
        self._began = time.monotonic()
        self._info: StudyInfo | None = None

    # ------------------------------------------------------------ the course

    def run(self) -> StudyInfo:
        """Run every phase that is still due. Raises StudyFailed or KeyboardInterrupt; all rows are kept.

        What is stored under this name is looked at first: a conflict with the configuration is a StorageError, and
        nothing has been started or written. So is a second driver of one study: it is a StorageError, too.
        """
        with Lease(self._store, self._name, self._owner):
            return self._course()

    def _course(self) -> StudyInfo:
        stored = self._store.study(self._name)
        if stored is not None:
            self._check_stored(stored)
        study = self._study() if self._settings.config.n_trials else None
        self._open(stored)
        try:
            self._phases(study)
        except LeaseLost:  # the study is somebody else's now: nothing of it may be written any more
            raise
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
        if not self._measured(lambda trial: not trial.speculative):
            raise StudyFailed(f"plain decoding could not be measured: {standing.last_failure(self._runner.trials)}")
        default = Role.CALIBRATE, self._protocol.default_repeats
        self._play("calibrate", repeats(*default, speculative=True, knobs=self._default_knobs()))
        if self._gate_stops():
            return
        if study is None:
            return
        search = self._search(study)
        if not self._measured(lambda trial: trial.role is Role.SEARCH):
            raise StudyFailed(f"no candidate could be measured: {standing.last_failure(self._runner.trials)}")
        if search.exhausted:
            self._context.watcher.note("Every point of the space that differs from the others has been measured.")
        self._confirm()

    def _measured(self, chosen: Callable[[StoredTrial], bool]) -> bool:
        return any(standing.value(trial, self._objective) is not None for trial in self._runner.trials if chosen(trial))

    def _play(self, name: str, jobs: list[Job]) -> None:
        due = unfinished(jobs, self._name, self._runner.trials, self._protocol.retries)
        self._runner.play(ListPhase(name, due))

    def _gate_stops(self) -> bool:
        if not self._protocol.gate:
            return False
        verdict = gate.stop(trial_frame(self._runner.trials), turn_frame(self._runner.trials), self._described())
        if verdict is None:
            return False
        self._context.watcher.note(verdict.statement)
        self._info = replace(self._described(), stop_reason=str(verdict.statement))
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
        if not any(trial.role is Role.SEARCH for trial in self._runner.trials):
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
            stored=self._runner.trials,
            is_gone=lambda _: True,  # the lease says so: what is still running belongs to nobody
            expired=self._expired,
            problems=lambda knobs: engine.check(preflight.engine, preflight.build, knobs),
        )
        workers = len(self._context.pool.devices)
        in_rounds = self._settings.config.cluster.scheduling == "deterministic"
        self._runner.play(Rounds(phase, workers, first=phase.leftover) if in_rounds else phase)
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
        finalists = standing.finalists(
            self._runner.trials,
            self._objective,
            count=self._protocol.confirm_top,
            effective=self._context.engine.effective_point,
        )
        preflight = self._context.preflight
        beside = controls.controls(
            self._context.engine, preflight.engine, preflight.build, plain=preflight.plain, finalists=finalists
        )
        plan = confirm_blocks(finalists, preflight.plain, blocks, derive(self._seed, "order"), beside)
        due = [unfinished(block, self._name, self._runner.trials, self._protocol.retries) for block in plan]

        def decision() -> confirm.Decision:
            return confirm.decide(
                trial_frame(self._runner.trials),
                objective=self._objective,
                direction=direction(self._objective),
                planned_blocks=blocks,
            )

        self._runner.play(ConfirmPhase(due, lambda: decision().finished))
        reached = decision()
        self._context.watcher.note(reached.statement)
        self._info = replace(self._described(), confirmed_candidate=reached.winner)
        self._store.save_study(self._info)

    # ------------------------------------------------------------ what is known

    def _default_knobs(self) -> Knobs:
        """The setting people start from: the first seed point, else the engine's own defaults."""
        first = self._context.preflight.seed_points[:1]
        return self._complete(first[0] if first else {})

    def _complete(self, point: Knobs) -> Knobs:
        """All knobs of the server that a point stands for; dead ones are None."""
        return self._context.engine.effective_point({**self._context.preflight.fixed, **point})

    def _expired(self) -> bool:
        hours = self._settings.config.budget.hours
        if hours is None or time.monotonic() - self._began < hours * 3600:
            return False
        if self._info is not None and self._info.stop_reason is None:
            self._info = replace(self._info, stop_reason=f"the budget of {hours:g} h is spent")
        return True

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
        lost = self._store.forget_running(self._name)
        if lost:
            self._context.watcher.note(f"{len(lost)} run(s) of a stopped driver had not finished and are run again.")
        self._runner = Runner(self._context, self._owner, self._store.trials(self._name))
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
        self._store.forget_running(self._name)
        return self._info
