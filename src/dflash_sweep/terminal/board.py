"""The state of a running study as it is shown: phase, running trials, durations, best, stages. Draws nothing.

Imports `records`, `frames`, `watcher`. Every event of the driver comes in here; the time left is what the runs so far
have really taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from dflash_sweep import frames, metrics
from dflash_sweep.records import StoredTrial, TrialSpec
from dflash_sweep.terminal.scene import PHASES, Scene
from dflash_sweep.watcher import Best

_RECENT = 20
"""Runs whose mean duration the time left rests on."""


@dataclass(frozen=True, slots=True)
class Step:
    """One verify step of a run: stage → ms, the whole in ms, tokens it gave."""

    candidate: int | None
    stages: dict[str, float]
    step_ms: float
    tokens: float | None


def step_of(trial: StoredTrial) -> Step | None:
    """A run's mean step; None where it failed, did not speculate, or its engine prints no stage times."""
    if trial.result.failure is not None or not trial.speculative:
        return None
    row = frames.trial_row(trial)
    stages = {name: row[name] for name in metrics.SUMMED_STAGES if row[name] is not None}
    if row["step_ms"] is None or not stages:
        return None
    return Step(trial.candidate, stages, row["step_ms"], row["acceptance_length"])


class Board:
    """Told of the driver's events; gives what a view shows. Times are seconds of `now`, a monotonic clock."""

    def __init__(self, scene: Scene, now: Callable[[], float] = time.monotonic) -> None:
        self.scene = scene
        self.phase_name = "starting"
        self.done = self.total = 0
        self.running: dict[str, tuple[TrialSpec, float]] = {}
        self.best: Best | None = None
        self.last_step: Step | None = None
        self._now = now
        self._durations: list[float] = []
        self._steps: dict[int, Step] = {}
        self._later = dict(scene.planned)
        self._plain_ms = self._plain_tokens = 0.0

    def phase(self, name: str, total: int) -> None:
        self.phase_name, self.done, self.total = name, 0, total
        if name in PHASES:
            over = PHASES[: PHASES.index(name) + 1]
            self._later = {phase: count for phase, count in self._later.items() if phase not in over}

    def started(self, spec: TrialSpec) -> None:
        self.running[spec.uid] = (spec, self._now())

    def finished(self, trial: StoredTrial, best: Best | None) -> None:
        if trial.uid in self.running:
            _, began = self.running.pop(trial.uid)
            self._durations = [*self._durations, self._now() - began][-_RECENT:]
        self.done += 1
        self.best = best
        step = step_of(trial)
        if step is not None:
            self.last_step = step
            if step.candidate is not None:
                self._steps[step.candidate] = step
        elif not trial.speculative and trial.candidate is None and trial.result.failure is None:
            self._take_plain(trial)

    def _take_plain(self, trial: StoredTrial) -> None:
        row = frames.trial_row(trial)
        if row["decode_ms"] is not None and row["decode_tokens"]:
            self._plain_ms += row["decode_ms"]
            self._plain_tokens += row["decode_tokens"]

    @property
    def best_step(self) -> Step | None:
        """The newest run of the best candidate."""
        return None if self.best is None else self._steps.get(self.best.candidate)

    @property
    def plain_ms(self) -> float | None:
        """Plain decoding's ms per token, pooled over its runs so far."""
        return metrics.ratio(self._plain_ms, self._plain_tokens)

    def elapsed(self, uid: str) -> float:
        """How long a trial has been running, s."""
        return self._now() - self.running[uid][1]

    def _seconds(self, runs: int) -> float | None:
        """How long so many runs will take, those under way counted by what is left of them; None = nothing to go by."""
        if not self._durations or runs <= 0:
            return None
        each = fmean(self._durations)
        under_way = sum(min(self._now() - began, each) for _, began in list(self.running.values()))
        return max(0.0, runs * each - under_way) / max(1, len(self.scene.devices))

    def phase_left_s(self) -> float | None:
        """Estimated time until the phase ends."""
        return self._seconds(self.total - self.done)

    def study_left_s(self) -> float | None:
        """Estimated time until the study ends if every phase that is planned runs to its end."""
        return self._seconds(self.total - self.done + sum(self._later.values()))
