"""A document as GitHub-flavoured Markdown. Imports `report.document` only; knows nothing of studies."""

from __future__ import annotations

import re

from dflash_sweep.report.document import (
    PICTURE,
    ROWS,
    Block,
    Bullets,
    Code,
    Document,
    Heading,
    Inline,
    Paragraph,
    Picture,
    Span,
    Table,
    spans,
)

_SPECIAL = re.compile(r"([\\`*<>|])|(&)(?=#?\w+;)|(?<![A-Za-z0-9])(_)|(_)(?![A-Za-z0-9])|(\])(?=\()")


def escape(text: str) -> str:
    """Plain text that Markdown and HTML show as it is, on one line."""
    flat = " ".join(text.split())
    flat = _SPECIAL.sub(lambda match: "\\" + match.group(0), flat)
    return re.sub(r"^(\s*)([#+-]|\d+[.)])(\s)", r"\1\\\2\3", flat) if flat[:1] in "#+-" else flat


def _code(text: str) -> str:
    """A code span whose fence is longer than any run of backticks inside."""
    flat = " ".join(text.split())
    fence = "`" * (max((len(run) for run in re.findall(r"`+", flat)), default=0) + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{fence}{pad}{flat}{pad}{fence}" if flat else ""


class Renderer:
    """`picture_files` maps a figure's name to its file, relative to the page; `rows_file` is the table of all rows."""

    def __init__(self, picture_files: dict[str, str], rows_file: str) -> None:
        self._pictures = picture_files
        self._rows_file = rows_file

    def render(self, document: Document) -> str:
        blocks = [Heading(document.title, 1, document.label), *document.blocks]
        return "\n\n".join(text for block in blocks if (text := self._block(block))) + "\n"

    def _block(self, block: Block) -> str:
        match block:
            case Heading(text, level, label):
                return "#" * level + " " + escape(text) + (f" — {escape(label)}" if label else "")
            case Paragraph(text):
                return self._inline(text)
            case Bullets(items):
                return "\n".join(f"- {self._inline(item)}" for item in items)
            case Table():
                return self._table(block)
            case Code(text, language):
                fence = "`" * max(3, max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
                return f"{fence}{language}\n{text}\n{fence}"
            case Picture(name, alt, caption):
                if name not in self._pictures:
                    return ""
                picture = f"![{escape(alt)}]({self._pictures[name]})"
                return f"{picture}\n\n*{escape(caption)}*" if caption else picture

    def _table(self, table: Table) -> str:
        rules = ["---:" if letter == "r" else "---" for letter in table.align]
        lines = [self._row(tuple(escape(name) for name in table.header)), self._row(tuple(rules))]
        # a bar inside a code span would still end the cell
        lines += [self._row(tuple(self._cell(cell) for cell in row)) for row in table.rows]
        return "\n".join(lines) + (f"\n\n*{escape(table.caption)}*" if table.caption else "")

    def _cell(self, cell: Inline) -> str:
        return "".join(
            self._span(span).replace("|", "\\|") if span.kind == "code" else self._span(span) for span in spans(cell)
        )

    @staticmethod
    def _row(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cells) + " |"

    def _inline(self, inline: Inline) -> str:
        return "".join(self._span(span) for span in spans(inline))

    def _span(self, span: Span) -> str:
        lead, tail = span.text[: len(span.text) - len(span.text.lstrip())], span.text[len(span.text.rstrip()) :]
        inner = _code(span.text) if span.kind == "code" else escape(span.text)
        mark = {"strong": "**", "em": "*"}.get(span.kind, "")
        text = f"{mark}{inner}{mark}" if inner else ""
        if span.href is not None:
            text = f"[{text}]({self._target(span.href)})"
        return f"{' ' if lead else ''}{text}{' ' if tail and text else ''}"

    def _target(self, href: str) -> str:
        if href.startswith(ROWS):
            return self._rows_file
        if href.startswith(PICTURE):
            return self._pictures.get(href.removeprefix(PICTURE), self._rows_file)
        return href
