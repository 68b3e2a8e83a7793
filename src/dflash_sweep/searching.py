"""The search phase of a study: what is asked first, what each finished trial is told as, when it ends.

Imports `seeding`, `outcomes`, `incumbent`, `standing`, `jobs`, `rounds`, `study`, `runner`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dflash_sweep import incumbent, opening, outcomes, standing
from dflash_sweep.constraints import Constraints
from dflash_sweep.jobs import SearchPhase
from dflash_sweep.records import Knobs, PruneRule, Role, StoredTrial
from dflash_sweep.rounds import Rounds
from dflash_sweep.runner import Context
from dflash_sweep.seeding import Seed
from dflash_sweep.study import Study


class Searching:
    """Plans from the stored rows alone. `trials`: a live list of finished runs."""

    def __init__(self, context: Context, study: Study, trials: Sequence[StoredTrial], constraints: Constraints) -> None:
        self._context, self._study, self._trials, self._constraints = context, study, trials, constraints
        self._settings, self._protocol = context.settings, context.settings.config.protocol

    def enqueue(self, seeds: Sequence[Seed]) -> None:
        """Seeds first; a space that fits the budget is measured point by point."""
        space, n_trials = self._context.preflight.space, self._settings.config.n_trials
        for seed in seeds:
            self._study.enqueue(seed.point)
        if space.size is not None and space.size <= n_trials:
            for point in space.points():
                self._study.enqueue(point)

    def begun(self) -> bool:
        """Whether a candidate was measured before: then the seeds have been asked."""
        return any(trial.role is Role.SEARCH for trial in self._trials)

    def phase(self, expired: Callable[[], bool]) -> SearchPhase:
        """The candidates that are still due."""
        context, preflight, engine = self._context, self._context.preflight, self._context.engine
        self._study.set_metric_names(self._settings.objectives)
        return SearchPhase(
            self._study,
            study_name=self._settings.study_name,
            outcome=self._outcome,
            n_trials=self._settings.config.n_trials,
            complete=lambda point: opening.complete(context, point),
            plain_knobs=preflight.plain,
            canary_every=self._protocol.canary_every,
            retries=self._protocol.retries,
            stored=self._trials,
            is_gone=lambda _: True,  # the lease says so: what is still running belongs to nobody
            expired=expired,
            problems=lambda knobs: engine.check(preflight.engine, preflight.build, knobs),
            prune=self._prune_rules,
            course=lambda trial: incumbent.course(trial, self._settings.objective),
            incumbent=self._incumbent,
        )

    def played(self, phase: SearchPhase) -> SearchPhase | Rounds:
        """The phase as `cluster.scheduling` wants it played."""
        if self._settings.config.cluster.scheduling != "deterministic":
            return phase
        return Rounds(phase, len(self._context.pool.devices), first=phase.leftover)

    def _outcome(self, trial: StoredTrial) -> outcomes.Outcome | str:
        return outcomes.outcome(trial, self._trials, self._settings.objectives, self._constraints)

    def _incumbent(self, trials: Sequence[StoredTrial]) -> tuple[int, Knobs] | None:
        """The best candidate by what was told so far, and its knobs."""
        best = standing.best(trials, self._settings.objective, self._constraints.ineligible(trials))
        if best is None:
            return None
        return best.candidate, next(trial.knobs for trial in trials if trial.candidate == best.candidate)

    def _prune_rules(self, trials: Sequence[StoredTrial]) -> tuple[PruneRule, ...]:
        """How a candidate may be ended early, by what was told so far; of several objectives none decides alone."""
        if not self._protocol.pruning or len(self._settings.objectives) > 1:
            return ()
        barred = self._constraints.ineligible(trials)
        allowed = [trial for trial in trials if trial.candidate not in barred]
        return incumbent.prune_rules(allowed, self._settings.objective, min_turns=self._protocol.prune_min_turns)
