"""A shell command over several lines that can be pasted as it stands. Pure; imports nothing of ours."""

from __future__ import annotations

import re
from itertools import pairwise

_WORD = re.compile(r"(?:'[^']*'|\"[^\"]*\"|\\.|[^\s'\"\\])+", flags=re.DOTALL)
"""One word of a quoted command line; quotes keep their spaces and line ends."""
_INDENT = "  "
_CONTINUED = " \\"


def words(command: str) -> list[str]:
    """The words of a command line as they are written, quotes included."""
    return _WORD.findall(command)


def _units(command: str) -> list[list[str]]:
    """Words that should stay on one line: a switch and its value."""
    split = words(command)
    units: list[list[str]] = [split[:1]]
    for before, word in pairwise(split):
        if before.startswith("-") and not word.startswith("-") and len(units[-1]) == 1 and len(units) > 1:
            units[-1].append(word)
        else:
            units.append([word])
    return units


def wrapped(command: str, width: int = 80) -> list[str]:
    """The command in lines of at most `width` characters, each but the last ended by a backslash.

    Broken between words only; a word that is longer than a line stays whole on a line of its own.
    """
    room = width - len(_CONTINUED)
    lines: list[str] = []
    line = ""
    for unit in _units(command):
        indent = _INDENT * (2 if lines else 1)
        pieces = [" ".join(unit)] if len(indent) + len(" ".join(unit)) <= room else unit
        for piece in pieces:
            if line and len(line) + 1 + len(piece) > room:
                lines.append(line)
                line = ""
            line = f"{line} {piece}" if line else f"{_INDENT * (2 if lines else 1)}{piece}"
    lines.append(line)
    return [text + _CONTINUED for text in lines[:-1]] + lines[-1:]
