"""One line an event, for logs and pipes; what all printed views share. Imports `terminal` siblings."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console

from dflash_sweep.records import StoredTrial, TrialSpec, Verdict
from dflash_sweep.report.wording import plural
from dflash_sweep.terminal.board import Board
from dflash_sweep.terminal.ending import Ending
from dflash_sweep.terminal.preflight_table import Overview, preflight_table
from dflash_sweep.terminal.scene import Scene
from dflash_sweep.terminal.summary import summary
from dflash_sweep.terminal.words import STATUS_MARKS, about, best_pieces, trial_pieces
from dflash_sweep.watcher import Best


class Printed:
    """A view that prints the preflight table first and the summary last; what comes between is its children's."""

    def __init__(self, out: Console, scene: Scene) -> None:
        self._out, self._scene = out, scene
        self._board = Board(scene)

    def begin(self, overview: Overview, notices: Sequence[str]) -> None:
        """What will be run, and what a person should know of it beforehand."""
        self._out.print(preflight_table(self._scene, overview))
        for notice in notices:
            self._out.print(notice, markup=False)

    def end(self, ending: Ending) -> None:
        """The study's answer in at most 20 lines, the path of the findings among them or next, on standard output."""
        for line in summary(ending, self._out.width, say_where=not sys.stdout.isatty()):
            self._out.print(line, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None: ...


class PlainLines(Printed):
    """One line an event."""

    def _line(self, text: str) -> None:
        self._out.print(f"{time.strftime('%H:%M:%S')} {' '.join(text.split())}", markup=False, soft_wrap=True)

    def phase(self, name: str, total: int) -> None:
        self._board.phase(name, total)
        self._line(f"== {name}: {plural(total, 'run')}")

    def started(self, spec: TrialSpec) -> None:
        self._board.started(spec)

    def finished(self, trial: StoredTrial, value: float | None, best: Best | None) -> None:
        board = self._board
        board.finished(trial, best)
        left = board.study_left_s()
        words = "  ".join(trial_pieces(trial, value, self._scene))
        tail = "" if left is None else f"  | about {about(left)} left"
        self._line(f"[{board.done}/{board.total}] {words}  | best {'; '.join(best_pieces(best))}{tail}")

    def note(self, text: str) -> None:
        self._line(text)

    def verdict(self, verdict: Verdict) -> None:
        self._line(f"{STATUS_MARKS[verdict.status]} {verdict.statement}")
