"""Conclusions while a study still runs: told between two phases, when no server is busy. Imports `watcher`, `records`.

Judging costs seconds of computing, which must not stand beside a measurement; between phases nothing is measured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from dflash_sweep.records import StoredTrial, TrialSpec, Verdict, VerdictStatus
from dflash_sweep.watcher import Best, Watcher

_LOG = logging.getLogger(__name__)

TOLD = ("structural_bound", "break_even", "correctness")
"""Ids that are told whichever way they come out; the others that are not alarms wait for the findings."""

ALARMS = ("degenerate_output", "setting_not_applied", "drift")
"""Ids that are told only where they hold: then something is wrong with the measuring itself."""


class EarlyVerdicts:
    """A watcher before a watcher: passes everything on, and adds the conclusions that are new since the last phase."""

    def __init__(self, watcher: Watcher, judge: Callable[[], Iterable[Verdict]]) -> None:
        self._watcher, self._judge = watcher, judge
        self._told: dict[str, VerdictStatus] = {}
        self._finished = 0

    def phase(self, name: str, total: int) -> None:
        self._tell()
        self._watcher.phase(name, total)

    def started(self, spec: TrialSpec) -> None:
        self._watcher.started(spec)

    def finished(self, trial: StoredTrial, value: float | None, best: Best | None) -> None:
        self._finished += 1
        self._watcher.finished(trial, value, best)

    def note(self, text: str) -> None:
        self._watcher.note(text)

    def verdict(self, verdict: Verdict) -> None:
        self._watcher.verdict(verdict)

    def _tell(self) -> None:
        if not self._finished:
            return
        self._finished = 0
        try:
            found = list(self._judge())
        except Exception:  # noqa: BLE001 - a defect in a conclusion must not end the measuring; it is judged again at the end
            _LOG.exception("the rows could not be judged between two phases")
            return
        first: dict[str, Verdict] = {}  # of each id, the one that weighs most
        for verdict in found:
            first.setdefault(verdict.id, verdict)
        for verdict in first.values():
            wanted = verdict.id in TOLD or (verdict.id in ALARMS and verdict.status is VerdictStatus.HOLDS)
            if wanted and verdict.status is not self._told.get(verdict.id, VerdictStatus.NOT_ENOUGH_DATA):
                self._told[verdict.id] = verdict.status
                self._watcher.verdict(verdict)
