"""Markdown as the dashboard shows it best: commands over several lines, room between the columns of a table.

Imports `report` siblings and `terminal.command_text`.
"""

from __future__ import annotations

from dflash_sweep.report.document import Block, Code
from dflash_sweep.report.markdown import Renderer
from dflash_sweep.terminal.command_text import wrapped

WIDTH = 92
"""Longest line of a command, characters: a longer one would stretch the page, which does not wrap it."""
_ROOM = "\u2002"
"""A space that Markdown keeps: tables of the dashboard have no space between their columns."""


class NoteRenderer(Renderer):
    """The report's Markdown for the dashboard's notes."""

    def __init__(self) -> None:
        super().__init__({}, "")

    def _block(self, block: Block) -> str:
        if isinstance(block, Code) and block.language == "sh":
            block = Code("\n".join(wrapped(block.text, WIDTH)).lstrip(), block.language)
        return super()._block(block)

    @staticmethod
    def _row(cells: tuple[str, ...]) -> str:
        if all(set(cell) <= {"-", ":"} for cell in cells):
            return Renderer._row(cells)
        return Renderer._row(tuple(f"{_ROOM}{cell}{_ROOM}" for cell in cells))
