"""The live view of a study in a terminal: what has happened scrolls by above, how it stands is repainted below.

Imports rich and `terminal` siblings. The block is repainted once a second, not oftener: a program that measures should
not compute beside its measurements.
"""

from __future__ import annotations

import time
from threading import Event, Thread
from types import TracebackType

from rich.console import Console
from rich.text import Text

from dflash_sweep.records import StoredTrial, TrialSpec, Verdict
from dflash_sweep.report.wording import plural
from dflash_sweep.terminal.board import Board
from dflash_sweep.terminal.frame import frame
from dflash_sweep.terminal.plain import Printed
from dflash_sweep.terminal.scene import Scene
from dflash_sweep.terminal.steady import SteadyBlock
from dflash_sweep.terminal.words import STATUS_MARKS, cut, first_sentence, fit, trial_pieces
from dflash_sweep.watcher import Best

_EVERY_S = 1.0
_FAILURE_LINES = 3
"""Why a run failed may take so many lines; the whole of it is in the findings."""
_INDENT = 9
"""Width of the time that each event begins with, and a space."""


class LiveView(Printed):
    """A watcher for people who watch. Leaves the terminal as it found it, also on an interrupt."""

    def __init__(self, out: Console, scene: Scene) -> None:
        super().__init__(out, scene)
        self._board = Board(scene)
        self._block = SteadyBlock(out, lambda width, height: frame(self._board, width, height))
        self._over = Event()
        self._ticker = Thread(target=self._tick, name="live view", daemon=True)

    def __enter__(self) -> LiveView:
        self._block.start()
        self._ticker.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._ticker.join()
        self._block.stop()

    def _tick(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._block.refresh()

    def phase(self, name: str, total: int) -> None:
        self._board.phase(name, total)
        self._say(f"{name}: {plural(total, 'run')}", style="bold cyan")

    def started(self, spec: TrialSpec) -> None:
        self._board.started(spec)
        self._block.refresh()

    def finished(self, trial: StoredTrial, value: float | None, best: Best | None) -> None:
        self._board.finished(trial, best)
        pieces, room = trial_pieces(trial, value, self._scene), self._out.width - _INDENT - 1
        failure = trial.result.failure
        if failure is not None and not failure.kind.is_stop:
            self._say(cut(pieces[0], _FAILURE_LINES * room), style="red")
        else:
            self._say(fit(pieces, room), style="")

    def note(self, text: str) -> None:
        self._say(text, style="bold")

    def verdict(self, verdict: Verdict) -> None:
        self._say(f"{STATUS_MARKS[verdict.status]} {first_sentence(verdict.statement)}", style="bold")

    def _say(self, text: str, style: str) -> None:
        """One event above the block, its time in front; a long one is wrapped between words, under itself."""
        said = Text(text.replace("\n", " "), style=style)
        lines = said.wrap(self._out, max(20, self._out.width - _INDENT - 1))
        stamp = Text(time.strftime("%H:%M:%S "), style="bright_black")
        self._block.above(stamp + Text("\n" + " " * _INDENT).join(lines))
