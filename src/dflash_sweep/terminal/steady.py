"""A block of lines at the bottom of a terminal that is repainted in place: no flicker, no frame left behind.

Imports rich only. Between events only the lines that changed are written, over what stands there (nothing is erased
first). Whatever else prints while the block is up, through the console or through `sys.stdout` and `sys.stderr`, goes
above it. A terminal that was made narrower has wrapped the old lines: their rows are counted as it wraps them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from threading import RLock
from typing import IO, Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.control import Control
from rich.file_proxy import FileProxy
from rich.segment import ControlType, Segment
from rich.text import Text

Draw = Callable[[int, int], Sequence[Text]]
"""Gets columns and rows; gives lines of at most so many cells, at most so many lines."""

_STREAMS = ("stdout", "stderr")


def _code(text: str) -> Segment:
    """Terminal codes that pass through as they are and count no cells."""
    return Segment(text, None, [(ControlType.ERASE_IN_LINE, 0)])


_TO_LEFT, _CLEAR_BELOW, _CLEAR_REST = _code("\r"), _code("\x1b[J"), _code("\x1b[K")


class _Segments:
    """A renderable of ready segments."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = list(segments)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._segments


class _Redirected(FileProxy):
    """A standard stream while the block is up: what is written to it is printed above, one writer at a time."""

    def __init__(self, console: Console, file: IO[str], lock: RLock) -> None:
        super().__init__(console, file)
        self._own_lock = lock

    def write(self, text: str) -> int:
        with self._own_lock:
            return super().write(text)


class SteadyBlock(RenderHook):
    """Up between `start` and `stop`; `above` prints over it, `refresh` repaints it. Safe to call from any thread."""

    def __init__(self, console: Console, draw: Draw) -> None:
        self._console, self._draw = console, draw
        self._lock: Any = RLock()
        self._streams: dict[str, Any] = {}
        self._shown: list[list[Segment]] = []
        self._width = 0

    def start(self) -> None:
        with self._lock:
            self._console.show_cursor(False)
            for name in _STREAMS:
                self._streams[name] = getattr(sys, name)
                setattr(sys, name, _Redirected(self._console, self._streams[name], self._lock))
            self._console.push_render_hook(self)

    def stop(self) -> None:
        """Take the block away: the cursor stands where the block began. Safe to call again."""
        with self._lock:
            if not self._streams:
                return
            for name, stream in self._streams.items():
                getattr(sys, name).flush()
                setattr(sys, name, stream)
            self._streams = {}
            self._console.pop_render_hook()
            self._console.print(_Segments([*self._to_top(self._console.width), _CLEAR_BELOW]), end="")
            self._console.show_cursor(True)
            self._shown = []

    def above(self, renderable: ConsoleRenderable) -> None:
        """Print something that stays, above the block."""
        with self._lock:
            self._console.print(renderable)

    def refresh(self) -> None:
        with self._lock:
            if self._streams:
                self._console.print(Control())

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        with self._lock:
            width, height = self._console.size
            lines = self._render(width - 1, height - 1)
            nothing_new = all(isinstance(entry, Control) for entry in renderables)
            if nothing_new and self._shown and len(lines) == len(self._shown) and width == self._width:
                found = [_Segments(self._changes(lines)), *renderables]
            else:
                top = _Segments([*self._to_top(width), _CLEAR_BELOW])
                found = [top, *renderables, _Segments(self._whole(lines))]
            self._shown, self._width = lines, width
            return found

    def _render(self, width: int, height: int) -> list[list[Segment]]:
        """The block's lines as segments; one column stays free, so that no terminal wraps a full line."""
        drawn = list(self._draw(width, height))[: max(1, height)]
        rendered = (list(line.render(self._console, end="")) for line in drawn)
        return [Segment.adjust_line_length(line, width, pad=False) for line in rendered]

    def _to_top(self, width: int) -> list[Segment]:
        """From the end of the block to its beginning, in a terminal that is `width` columns wide by now."""
        if not self._shown:
            return []
        rows = sum(max(1, -(-Segment.get_line_length(line) // max(1, width))) for line in self._shown)
        return [_TO_LEFT, *([_code(f"\x1b[{rows - 1}A")] if rows > 1 else [])]

    def _whole(self, lines: list[list[Segment]]) -> list[Segment]:
        segments: list[Segment] = []
        for number, line in enumerate(lines):
            segments += ([Segment.line()] if number else []) + line
        return segments

    def _changes(self, lines: list[list[Segment]]) -> list[Segment]:
        """Only the lines that differ from what is shown; nothing at all if none does."""
        if lines == self._shown:
            return []
        segments = self._to_top(self._width)
        for number, (line, old) in enumerate(zip(lines, self._shown, strict=True)):
            segments += [Segment.line()] if number else []
            segments += [*line, _CLEAR_REST] if line != old else []
        return segments
