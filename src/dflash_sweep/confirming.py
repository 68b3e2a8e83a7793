"""The confirm phase of a study: who is measured again, in which blocks, and what they allow to say.

Imports `standing`, `jobs`, `controls`, `runner`, `analysis.decision`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from dflash_sweep import controls, standing
from dflash_sweep.analysis import eligibility
from dflash_sweep.analysis.decision import Decision
from dflash_sweep.constraints import Constraints
from dflash_sweep.frames import trial_frame, turn_frame
from dflash_sweep.jobs import ConfirmPhase, Job, confirm_blocks, different_devices, unfinished
from dflash_sweep.objective import direction
from dflash_sweep.records import Knobs, Role, StoredTrial
from dflash_sweep.runner import Context
from dflash_sweep.seeds import derive


class Confirming:
    """Plans from the stored rows alone: asked again, it plans what is left. `trials`: a live list of finished runs.

    `stale`: uids of rows from before a change of driver, build, model or device; their blocks are played again.
    """

    def __init__(
        self,
        context: Context,
        trials: Sequence[StoredTrial],
        constraints: Constraints,
        stale: Container[str] = frozenset(),
    ) -> None:
        self._context, self._trials, self._constraints, self._stale = context, trials, constraints, stale
        self._protocol = context.settings.config.protocol
        self._devices = different_devices(context.pool.devices)
        self._seed = derive(context.settings.config.seed, "order")

    def finalists(self) -> dict[int, Knobs]:
        """Candidate → knobs of those who are measured again."""
        return standing.finalists(
            self._trials,
            self._context.settings.objectives,
            count=self._protocol.confirm_top,
            effective=self._context.engine.effective_point,
            ineligible=self._constraints.ineligible(self._trials),
        )

    def phase(self, finalists: dict[int, Knobs], expired: Callable[[], bool]) -> ConfirmPhase:
        """The blocks that are still due."""
        plan = confirm_blocks(
            finalists, self._context.preflight.plain, self._protocol.confirm_blocks, self._seed,
            self._first_control(finalists), self._devices,
        )  # fmt: skip
        return self._due(plan, lambda: self.decision().finished, expired)

    def fair_phase(self, finalists: dict[int, Knobs], expired: Callable[[], bool]) -> ConfirmPhase | None:
        """Blocks of the best finalist and plain decoding like it, where those of `phase` hold none; None = no need.

        The control of `phase` is like the best of the search; in the blocks another one may turn out to be the best.
        They are played to the end: a look after each of them would find a difference by chance more often.
        """
        reached = self.decision()
        best = reached.winner if reached.winner is not None else next(iter(reached.contenders), None)
        if best is None or best not in finalists:
            return None
        beside, blocks = self._controls({best: finalists[best]}), self._protocol.confirm_blocks
        plan = confirm_blocks({best: finalists[best]}, None, 2 * blocks, self._seed, beside, self._devices)[blocks:]
        fair = self._due(plan, lambda: False, expired)
        begun = fair.total < sum(map(len, plan))
        failed = any(
            trial.role is Role.CONTROL and trial.candidate == best and trial.result.failure for trial in self._trials
        )
        needed = reached.unlike is not None and reached.beats_plain is None
        return fair if beside and fair.total and not failed and (begun or needed) else None

    def _due(
        self, plan: Sequence[Sequence[Job]], decided: Callable[[], bool], expired: Callable[[], bool]
    ) -> ConfirmPhase:
        name, retries = self._context.settings.study_name, self._protocol.retries
        due = [(len(block), unfinished(block, name, self._trials, retries, self._stale)) for block in plan]
        left = [(size, jobs) for size, jobs in due if jobs]
        begun = bool(left) and len(left[0][1]) < left[0][0]  # a block in the middle of which a run ended is finished
        return ConfirmPhase([jobs for _, jobs in left], decided, expired, look_first=len(left) < len(due) and not begun)

    def _first_control(self, finalists: dict[int, Knobs]) -> dict[int, Knobs]:
        """Plain decoding like the best of the search: one more run a block, not one for each finalist; none where the
        search has shown that plain decoding as it is cannot be beaten."""
        objective = self._context.settings.objective
        first = {
            number: knobs
            for number, knobs in list(finalists.items())[:1]
            if standing.may_beat_plain(self._trials, number, objective)
        }
        return self._controls(first) if first else {}

    def _controls(self, finalists: dict[int, Knobs]) -> dict[int, Knobs]:
        """Plain decoding like these finalists, where that is another server than the baseline's."""
        preflight = self._context.preflight
        if not self._protocol.controls:
            return {}
        return controls.controls(
            self._context.engine, preflight.engine, preflight.build, plain=preflight.plain, finalists=finalists
        )

    def decision(self) -> Decision:
        """What the blocks so far allow to say, of the candidates that keep the constraints."""
        settings = self._context.settings
        return eligibility.decide_among(
            trial_frame(self._trials),
            turn_frame(self._trials),
            objective=settings.objective,
            direction=direction(settings.objective),
            planned_blocks=self._protocol.confirm_blocks,
            limits=settings.limits,
        )

    def reserve_hours(self) -> float:
        """What the confirm phase will take, by the mean of the runs so far, h; 0 before there is one."""
        walls = [trial.result.wall_s for trial in self._trials if trial.result.wall_s is not None]
        if not walls:
            return 0.0
        beside = len(self._first_control(self.finalists()))
        runs = self._protocol.confirm_blocks * (self._protocol.confirm_top + 1 + beside)
        return runs * sum(walls) / len(walls) / len(self._context.pool.devices) / 3600
