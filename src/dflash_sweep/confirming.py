"""The confirm phase of a study: who is measured again, in which blocks, and what they allow to say.

Imports `standing`, `jobs`, `controls`, `runner`, `analysis.confirm`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from dflash_sweep import controls, standing
from dflash_sweep.analysis import confirm, eligibility
from dflash_sweep.constraints import Constraints
from dflash_sweep.frames import trial_frame, turn_frame
from dflash_sweep.jobs import ConfirmPhase, confirm_blocks, different_devices, unfinished
from dflash_sweep.objective import direction
from dflash_sweep.records import Knobs, StoredTrial
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
        plain, settings = self._context.preflight.plain, self._context.settings
        seed, beside = derive(settings.config.seed, "order"), self._controls(finalists)
        plan = confirm_blocks(finalists, plain, self._protocol.confirm_blocks, seed, beside, self._devices)
        name, retries = settings.study_name, self._protocol.retries
        due = [unfinished(block, name, self._trials, retries, self._stale) for block in plan]
        return ConfirmPhase(due, lambda: self.decision().finished, expired)

    def _controls(self, finalists: dict[int, Knobs]) -> dict[int, Knobs]:
        """Plain decoding like the best finalist of the search: one more run a block, not one for each of them."""
        preflight, first = self._context.preflight, dict(list(finalists.items())[:1])
        return controls.controls(
            self._context.engine, preflight.engine, preflight.build, plain=preflight.plain, finalists=first
        )

    def decision(self) -> confirm.Decision:
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
        beside = len(self._controls(self.finalists()))
        runs = self._protocol.confirm_blocks * (self._protocol.confirm_top + 1 + beside)
        return runs * sum(walls) / len(walls) / len(self._context.pool.devices) / 3600
