"""Conclusions while a study still runs, told where no server is busy. Imports `watcher`, `records`.

Judging costs seconds of computing, which must not stand beside a measurement: between two phases nothing is measured,
and between two trials nothing where one worker runs them. There the pause grows with what judging costs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from dflash_sweep.records import StoredTrial, TrialSpec, Verdict, VerdictStatus
from dflash_sweep.watcher import Best, Watcher

_LOG = logging.getLogger(__name__)

TOLD = ("structural_bound", "break_even", "correctness")
"""Ids that are told whichever way they come out; the others that are not alarms wait for the findings."""

ALARMS = ("degenerate_output", "setting_not_applied", "drift")
"""Ids that are told only where they hold: then something is wrong with the measuring itself."""

PHASE_ENDS = ("drift",)
"""Ids that wait for the end of a phase: who looks at a scatter again and again sees a trend in it some day."""

LEAST_PAUSE_S = 60.0
SHARE = 0.02
"""Within a phase the rows are judged after LEAST_PAUSE_S, and so late that judging takes at most this share of time."""


class EarlyVerdicts:
    """A watcher before a watcher: passes everything on, and adds the conclusions that are new since the last look."""

    def __init__(
        self, watcher: Watcher, judge: Callable[[], Iterable[Verdict]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._watcher, self._judge, self._clock = watcher, judge, clock
        self._told: dict[str, VerdictStatus] = {}
        self._running = 0
        self._is_new = False  # whether a run has ended since the last look at a phase's end
        self._due = clock() + LEAST_PAUSE_S

    def phase(self, name: str, total: int) -> None:
        if self._is_new:
            self._is_new = False
            self._tell(wait=())
        self._watcher.phase(name, total)

    def started(self, spec: TrialSpec) -> None:
        self._running += 1
        self._watcher.started(spec)

    def finished(self, trial: StoredTrial, value: float | None, best: Best | None) -> None:
        self._is_new = True
        self._running -= 1
        self._watcher.finished(trial, value, best)
        if self._running <= 0 and self._clock() >= self._due:
            self._tell(wait=PHASE_ENDS)

    def note(self, text: str) -> None:
        self._watcher.note(text)

    def verdict(self, verdict: Verdict) -> None:
        self._watcher.verdict(verdict)

    def _tell(self, wait: Iterable[str]) -> None:
        """Judge, and tell what is new; ids in `wait` not yet."""
        began = self._clock()
        try:
            found = list(self._judge())
        except Exception:  # noqa: BLE001 - a defect in a conclusion must not end the measuring; it is judged again at the end
            _LOG.exception("the rows could not be judged while the study runs")
            return
        finally:
            ended = self._clock()
            self._due = ended + max(LEAST_PAUSE_S, (ended - began) / SHARE)
        first: dict[str, Verdict] = {}  # of each id, the one that weighs most
        for verdict in found:
            first.setdefault(verdict.id, verdict)
        for verdict in first.values():
            wanted = verdict.id in TOLD or (verdict.id in ALARMS and verdict.status is VerdictStatus.HOLDS)
            if not wanted or verdict.id in wait:
                continue
            if verdict.status is not self._told.get(verdict.id, VerdictStatus.NOT_ENOUGH_DATA):
                self._told[verdict.id] = verdict.status
                self._watcher.verdict(verdict)
