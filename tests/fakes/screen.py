"""A terminal in a few lines: takes what a program writes and holds what a person would see.

Knows what our views use: printing, CR, LF, cursor up, erase to the end of the line or of the screen, colours, cursor on
and off. Everything else is an error, so that a test notices a code that real terminals may treat differently.
"""

from __future__ import annotations

import re
from io import StringIO

_TOKEN = re.compile(r"\x1b\[\??([0-9;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


class Screen(StringIO):
    """`lines`: everything from the first line on, the scrolled-off ones included. Lines never wrap: `widest` tells."""

    def __init__(self, width: int = 80) -> None:
        super().__init__()
        self.width = width
        self.lines = [""]
        self.row = self.column = 0
        self.widest = 0
        self.writes = 0
        self.erased = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.writes += bool(text)
        for match in _TOKEN.finditer(text):
            self._take(match)
        return len(text)

    def _take(self, match: re.Match[str]) -> None:
        token = match.group(0)
        if token == "\r":
            self.column = 0
        elif token == "\n":
            self.row, self.column = self.row + 1, 0
            if self.row == len(self.lines):
                self.lines.append("")
        elif token.startswith("\x1b"):
            self._code(match.group(1), match.group(2))
        else:
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + token + line[self.column + len(token) :]
            self.column += len(token)
            self.widest = max(self.widest, self.column)

    def _code(self, numbers: str, letter: str) -> None:
        if letter == "A":
            self.row -= int(numbers or 1)
            assert self.row >= 0, "the cursor went above the first line"
        elif letter == "K":
            self._erase_rest()
        elif letter == "J":
            self._erase_rest()
            del self.lines[self.row + 1 :]
        elif letter not in "mhl":
            raise AssertionError(f"this terminal does not know ESC [ {numbers} {letter}")

    def _erase_rest(self) -> None:
        self.erased += len(self.lines[self.row]) > self.column
        self.lines[self.row] = self.lines[self.row][: self.column]

    def shown(self) -> list[str]:
        """The lines without trailing spaces, and without empty ones at the end."""
        found = [line.rstrip() for line in self.lines]
        while found and not found[-1]:
            found.pop()
        return found
