"""The course of a study: baseline, default, gate, search, confirm. The only owner of store, study and pool.

A result is stored before anything else learns of it. Every phase is planned from what is stored, so an interrupted
study goes on where it stopped, and no run is lost or counted twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from dflash_sweep import budget, crash_journal, objective, opening, owner, phases, renewal, seeding, standing
from dflash_sweep.analysis import gate
from dflash_sweep.analysis.noise import known_to
from dflash_sweep.confirming import Confirming
from dflash_sweep.constraints import Constraints
from dflash_sweep.errors import StudyFailed
from dflash_sweep.frames import trial_frame, turn_frame
from dflash_sweep.jobs import MAX_IMPOSSIBLE, ListPhase, repeats, unfinished
from dflash_sweep.lease import Lease, LeaseLost
from dflash_sweep.records import Knobs, Role, StoredTrial, StudyInfo
from dflash_sweep.runner import Context, Runner
from dflash_sweep.searching import Searching
from dflash_sweep.study import Study


class Driver:
    """One study, from its first row to its last."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings, self._store = context.settings, context.store
        self._name = context.settings.study_name
        self._protocol = context.settings.config.protocol
        self._objectives = context.settings.objectives
        self._owner = owner.current()
        self._constraints = Constraints(context.settings.limits)
        self._runner = Runner(context, self._owner, (), self._constraints)
        self._began = time.monotonic()
        self._budget = self._budget_after(())
        self._info: StudyInfo | None = None
        self._stale: frozenset[str] = frozenset()
        self._seeds: tuple[seeding.Seed, ...] = ()

    # ------------------------------------------------------------ the course

    def run(self) -> StudyInfo:
        """Run every phase that is asked for and still due. Raises StudyFailed or KeyboardInterrupt; all rows are kept.

        What is stored under this name is looked at first: a conflict with the configuration is a StorageError, and
        nothing has been started or written. So is a second driver of one study: it is a StorageError, too.
        """
        with Lease(self._store, self._name, self._owner):
            return self._course()

    def _course(self) -> StudyInfo:
        stored, trials = self._store.study(self._name), self._store.trials(self._name)
        if stored is not None:
            opening.check_stored(self._context, stored, trials)
        opening.check_measurable(self._context)
        phases.check_inputs(self._settings.phases, trials, self._has_values, self._name)
        searching = "search" in self._settings.phases and self._settings.config.n_trials
        self._seeds = seeding.seeds(self._context)
        study = opening.search_study(self._context, self._owner) if searching else None
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
        return self._close("finished", self._described().stop_reason)

    def _phases(self, study: Study | None) -> None:
        chosen = self._settings.phases
        if "calibrate" in chosen:
            self._calibrate()
        if "gate" in chosen and self._gate_stops():
            return
        if study is not None:
            self._search(study)
        if "confirm" in chosen and self._settings.config.n_trials:
            self._confirm()
        if chosen != phases.PHASES and self._described().stop_reason is None:
            self._save(stop_reason=f"only these phases were asked for: {', '.join(chosen)}")

    def _calibrate(self) -> None:
        plain, counts = self._context.preflight.plain, self._protocol
        self._repeat("baseline", Role.BASELINE, counts.baseline_repeats, speculative=False, knobs=plain)
        if not self._measured(lambda trial: not trial.speculative):
            raise StudyFailed(f"plain decoding could not be measured: {self._why_no_value()}")
        if missing := self._constraints.unmeasurable(self._runner.trials):
            raise StudyFailed("; ".join(missing))
        default = self._default_knobs()
        self._repeat("calibrate", Role.CALIBRATE, counts.default_repeats, speculative=True, knobs=default)

    def _repeat(self, name: str, role: Role, at_least: int, *, speculative: bool, knobs: Knobs) -> None:
        """The same setting until its mean is known well enough (`protocol.half_width`) or `max_repeats` are made."""
        count, width = at_least, self._protocol.half_width
        while count:
            due = repeats(role, count, speculative=speculative, knobs=knobs)
            due = unfinished(due, self._name, self._runner.trials, self._protocol.retries, self._stale)
            self._runner.play(ListPhase(name, due))
            runs = [trial for trial in self._runner.trials if trial.role is role and trial.uid not in self._stale]
            values = [value for trial in runs if (value := standing.value(trial, self._objectives[0])) is not None]
            enough = width is None or not values or known_to(values, width)
            if enough or count >= self._protocol.max_repeats or self._expired():
                return
            count = min(self._protocol.max_repeats, count + len(self._context.pool.devices))

    def _gate_stops(self) -> bool:
        if not self._protocol.gate:
            return False
        verdict = gate.stop(trial_frame(self._runner.trials), turn_frame(self._runner.trials), self._described())
        if verdict is None:
            return False
        self._context.watcher.note(verdict.statement)
        self._save(stop_reason=str(verdict.statement))
        return True

    def _search(self, study: Study) -> None:
        trials = self._runner.trials
        searching = Searching(self._context, study, trials, self._constraints)
        confirming = Confirming(self._context, trials, self._constraints, self._stale)
        if not searching.begun():
            searching.enqueue(self._seeds)
        kept_back = confirming.reserve_hours if "confirm" in self._settings.phases else lambda: 0.0
        phase = searching.phase(lambda: self._expired(kept_back()))
        self._runner.play(searching.played(phase))
        self._save(importance=study.importance())
        if phase.impossible:
            self._context.watcher.note(
                f"The search ended: no server can be launched with any of the last {MAX_IMPOSSIBLE} candidates."
            )
        elif phase.exhausted:
            self._context.watcher.note("Every point of the space that differs from the others has been measured.")

    def _confirm(self) -> None:
        if not self._measured(lambda trial: trial.role is Role.SEARCH):
            if self._expired() or self._described().stop_reason is not None:  # a budget's end is no failure
                return
            raise StudyFailed(f"no candidate could be measured: {self._why_no_value()}")
        if not self._protocol.confirm_blocks:
            return
        confirming = Confirming(self._context, self._runner.trials, self._constraints, self._stale)
        finalists = confirming.finalists()
        if not finalists:
            number, why = next(iter(self._constraints.ineligible(self._runner.trials).items()))
            text = f"No candidate keeps all constraints; candidate {number}, for example: {why}."
            self._context.watcher.note(text)
            self._save(stop_reason=text, confirmed_candidate=None)
            return
        self._runner.play(confirming.phase(finalists, self._expired))
        for _ in finalists:  # the best may change once more with each
            fair = confirming.fair_phase(finalists, self._expired)
            if fair is None:
                break
            self._runner.play(fair)
        reached = confirming.decision()
        self._context.watcher.note(reached.statement)
        self._save(confirmed_candidate=reached.winner)

    # ------------------------------------------------------------ what is known

    def _has_values(self, trial: StoredTrial) -> bool:
        return all(standing.value(trial, name) is not None for name in self._objectives)

    def _measured(self, chosen: Callable[[StoredTrial], bool]) -> bool:
        return any(self._has_values(trial) for trial in self._runner.trials if chosen(trial))

    def _why_no_value(self) -> str:
        """What the newest run without a value died of, or what of it is not known."""
        newest = self._runner.trials[-1]
        if newest.result.failure is not None:
            return standing.last_failure(self._runner.trials)
        lacking = (name for name in self._objectives if standing.value(newest, name) is None)
        return next((f"{name} is not known: {objective.why_missing(newest.result, name)}" for name in lacking), "")

    def _default_knobs(self) -> Knobs:
        """The setting people start from: the first seed point, else the engine's own defaults."""
        first = self._context.preflight.seed_points[:1]
        return opening.complete(self._context, first[0] if first else {})

    def _budget_after(self, stored: tuple[StoredTrial, ...]) -> budget.Budget:
        """The budget with what earlier drivers of this study spent of it."""
        limits = self._settings.config.budget
        return budget.Budget(
            hours=limits.hours,
            money=limits.money,
            price_per_hour=limits.price_per_hour,
            devices=len(self._context.pool.devices),
            spent_hours=budget.stored_hours(stored),
            began=self._began,
        )

    def _expired(self, reserve_hours: float = 0.0) -> bool:
        """Whether the budget is spent; the study's description then says which one."""
        spent = self._budget.spent(reserve_hours)
        if spent is not None and self._info is not None and self._info.stop_reason is None:
            self._info = replace(self._info, stop_reason=spent)
        return spent is not None

    # ------------------------------------------------------------ opening and closing

    def _open(self, stored: StudyInfo | None) -> None:
        facts, device = self._context.engine.facts, self._context.pool.devices[0]
        for uid in crash_journal.settle(self._store, self._name, device, facts.measurement):
            self._context.watcher.note(f"{uid} was running when the machine went down: it is not tried again.")
        lost = self._store.forget_running(self._name)
        if lost:
            self._context.watcher.note(f"{len(lost)} run(s) of a stopped driver had not finished and are run again.")
        trials = self._store.trials(self._name)
        self._stale = self._outdated(trials)
        self._runner = Runner(self._context, self._owner, trials, self._constraints)
        self._budget = self._budget_after(trials)
        self._info = opening.described(self._context, stored)
        if any(seed.study for seed in self._seeds):
            proposals = {"seeds": [seed.data() for seed in self._seeds]}
            self._info = replace(self._info, provenance={**self._info.provenance, **proposals})
        self._store.save_study(self._info)

    def _outdated(self, trials: Sequence[StoredTrial]) -> frozenset[str]:
        """Stored rows from before a change of driver, build, model or device; says so if there are any."""
        preflight = self._context.preflight
        now = renewal.ground(self._context.provenance, preflight.build, preflight.models, preflight.devices)
        changes = renewal.stale(trials, now)
        if (said := renewal.note(changes)) is not None:
            self._context.watcher.note(said)
        return frozenset(changes)

    def _described(self) -> StudyInfo:
        assert self._info is not None, "the study is opened first"
        return self._info

    def _save(self, **changes: Any) -> None:
        self._info = replace(self._described(), **changes)
        self._store.save_study(self._info)

    def _close(self, status: str, stop_reason: str | None) -> StudyInfo:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._save(status=status, stop_reason=stop_reason, finished_utc=now)
        self._store.forget_running(self._name)
        return self._described()
