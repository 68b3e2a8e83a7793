"""A document in the terminal. Imports `report.document` and rich; knows nothing of studies."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from dflash_sweep.report.document import (
    Block,
    Bullets,
    Code,
    Document,
    Heading,
    Inline,
    Paragraph,
    Picture,
    Table,
    spans,
)

_STYLES = {"strong": "bold", "em": "italic", "code": "cyan"}


def _text(inline: Inline, base: str = "") -> Text:
    """An inline text; links show their text alone."""
    text = Text(style=base)
    for span in spans(inline):
        text.append(span.text, style=_STYLES.get(span.kind, ""))
    return text


def _table(block: Table) -> RenderableType:
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", caption_justify="left")
    for name, letter in zip(block.header, block.align, strict=True):
        table.add_column(name, justify="right" if letter == "r" else "left", overflow="fold", no_wrap=letter == "r")
    for row in block.rows:
        table.add_row(*(_text(cell) for cell in row))
    return Group(table, Text(block.caption, style="dim italic")) if block.caption else table


def _block(block: Block) -> RenderableType | None:
    match block:
        case Heading(text, level, label):
            style = "bold cyan" if level <= 1 else "bold"
            stamp = f" — {label}" if label else ""
            return Padding(Text(text + stamp, style=style), (1, 0, 0, 0))
        case Paragraph(text):
            return Padding(_text(text), (0, 0, 0, 0))
        case Bullets(items):
            rows = RichTable.grid(padding=(0, 1))
            for item in items:
                rows.add_row("•", _text(item))
            return rows
        case Table():
            return _table(block)
        case Code(text):
            return Padding(Text(text, style="cyan"), (0, 0, 0, 2))
        case Picture():
            return None


def rendered(document: Document) -> RenderableType:
    """The whole document; pictures are left out."""
    blocks = [Heading(document.title, 1, document.label), *document.blocks]
    return Group(*(shown for block in blocks if (shown := _block(block)) is not None))
