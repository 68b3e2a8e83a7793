"""Which view a `progress` setting means, and what is said beside single studies. Imports `terminal` siblings.

Progress goes to standard error; standard output is for results: METRIC lines and the findings' path, or with
`progress=json` nothing but JSON lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console

from dflash_sweep.terminal.ending import Ending
from dflash_sweep.terminal.json_lines import JsonLines, write, write_end
from dflash_sweep.terminal.live import LiveView
from dflash_sweep.terminal.plain import PlainLines
from dflash_sweep.terminal.preflight_table import Overview
from dflash_sweep.terminal.quiet import Quiet
from dflash_sweep.terminal.scene import Scene
from dflash_sweep.watcher import Watcher


class View(Watcher, Protocol):
    """A watcher with a beginning and an end; between them it is entered."""

    def begin(self, overview: Overview, notices: Sequence[str]) -> None: ...

    def end(self, ending: Ending) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None: ...


def console(*, stderr: bool = True) -> Console:
    """A console that honours NO_COLOR and colours nothing of its own accord.

    A terminal knows its size itself: COLUMNS and LINES may be those of a shell that was resized since, or of a test
    runner. They count only where the output is no terminal.
    """
    stream = sys.stderr if stderr else sys.stdout
    ignored = ("COLUMNS", "LINES") if stream.isatty() else ()
    environ = {name: value for name, value in os.environ.items() if name not in ignored}
    return Console(stderr=stderr, highlight=False, _environ=environ)


def view(mode: str, scene: Scene, out: Console | None = None) -> View:
    """The view of a `progress` setting. auto is live in a terminal and plain elsewhere; live needs a terminal too."""
    out = out or console()
    if mode == "json":
        return JsonLines(sys.stdout, scene)
    if mode == "quiet":
        return Quiet(out, scene)
    if mode in ("auto", "live") and out.is_terminal and not out.is_dumb_terminal:
        return LiveView(out, scene)
    return PlainLines(out, scene)


def results(mode: str, lines: Sequence[str]) -> None:
    """What goes to standard output at the end of a run; with progress=json it was part of the `end` event."""
    if mode != "json":
        for line in lines:
            print(line)  # noqa: T201 - all that goes to standard output


def tell(mode: str, study: str, text: str) -> None:
    """One sentence about several studies."""
    if mode == "json":
        write(sys.stdout, "note", study, None, {"note": text})
    elif mode != "quiet":
        console().print(text, markup=False, soft_wrap=True)


def close(mode: str, study: str, code: int, page: str, path: Path) -> None:
    """The end of a run over several studies: its page, and the path of it on standard output."""
    if mode == "json":
        write_end(sys.stdout, study, code, findings=str(path))
        return
    console().print(page, markup=False, soft_wrap=True)
    results(mode, [str(path)])
