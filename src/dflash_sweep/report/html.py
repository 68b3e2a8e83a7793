"""A document as one self-contained HTML file: figures inlined, tables that sort, nothing loaded from anywhere.

Imports `report.document` and jinja2; knows nothing of studies. All text is escaped by the template engine.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from importlib import resources

import jinja2
from markupsafe import Markup, escape

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
    Table,
    spans,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Appendix:
    """The table of all rows at the end of the page: links to trials lead to it. `numbers` are the trials' numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...]
    align: str


_MEDIA = {"svg": "image/svg+xml", "png": "image/png"}


def _inline(inline: Inline, ids: dict[str, str]) -> Markup:
    parts = []
    for span in spans(inline):
        text = escape(span.text)
        tag = {"strong": "strong", "em": "em", "code": "code"}.get(span.kind)
        inner = Markup("<{0}>{1}</{0}>").format(Markup(tag), text) if tag else text
        if span.href is not None:
            inner = Markup('<a href="{}">{}</a>').format(_target(span.href, ids), inner)
        parts.append(inner)
    return Markup("").join(parts)


def _unbroken(letter: str, cell: Markup) -> Markup:
    """A figure's cell breaks before its interval, never inside it."""
    return Markup(cell.replace(", ", ",\u00a0")) if letter == "r" else cell


def _target(href: str, ids: dict[str, str]) -> str:
    if href.startswith(ROWS):
        return "#trial-" + href.removeprefix(ROWS).split(",")[0]
    if href.startswith(PICTURE):
        return ids.get(href.removeprefix(PICTURE), "#")
    return href if href.startswith(("https://", "http://", "#")) else "#"


def _data_uri(files: dict[str, bytes]) -> str:
    suffix = "svg" if "svg" in files else "png"
    return f"data:{_MEDIA[suffix]};base64,{base64.b64encode(files[suffix]).decode()}"


class Renderer:
    """`pictures`: figure name → format → bytes; SVG is preferred."""

    def __init__(self, pictures: dict[str, dict[str, bytes]]) -> None:
        self._pictures = pictures
        self._ids = {name: f"#figure-{name}" for name in pictures}
        source = resources.files("dflash_sweep.report").joinpath("page.html.j2").read_text(encoding="utf-8")
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
        self._template = environment.from_string(source)

    def render(self, document: Document, appendix: Appendix | None, hints: dict[str, str]) -> str:
        """The page. `hints`: words of the page's own controls (sort, filter, rows)."""
        blocks = [self._block(block) for block in document.blocks]
        return self._template.render(
            lang={"en": "en", "zh": "zh-Hans"}[document.lang], title=document.title, label=document.label,
            blocks=blocks, appendix=appendix, hints=hints,
        )  # fmt: skip

    def _block(self, block: Block) -> Markup:
        match block:
            case Heading(text, level, _):
                return Markup("<h{0}>{1}</h{0}>").format(level, text)
            case Paragraph(text):
                return Markup("<p>{}</p>").format(_inline(text, self._ids))
            case Bullets(items):
                return Markup("<ul>{}</ul>").format(
                    Markup("").join(Markup("<li>{}</li>").format(_inline(item, self._ids)) for item in items)
                )
            case Table():
                return self._table(block)
            case Code(text, _):
                return Markup("<pre><code>{}</code></pre>").format(text)
            case Picture():
                return self._picture(block)

    def _picture(self, picture: Picture) -> Markup:
        if picture.name not in self._pictures:
            return Markup("")
        caption = Markup("<figcaption>{}</figcaption>").format(picture.caption) if picture.caption else Markup("")
        return Markup('<figure id="figure-{}"><img src="{}" alt="{}" width="800">{}</figure>').format(
            picture.name, _data_uri(self._pictures[picture.name]), picture.alt, caption
        )

    def _table(self, table: Table) -> Markup:
        head = Markup("").join(
            Markup('<th class="{}" scope="col">{}</th>').format(letter, name)
            for letter, name in zip(table.align, table.header, strict=True)
        )
        body = Markup("").join(
            Markup("<tr>{}</tr>").format(
                Markup("").join(
                    Markup('<td class="{}">{}</td>').format(letter, _unbroken(letter, _inline(cell, self._ids)))
                    for letter, cell in zip(table.align, row, strict=True)
                )
            )
            for row in table.rows
        )
        caption = Markup("<caption>{}</caption>").format(table.caption) if table.caption else Markup("")
        return Markup(
            '<div class="scroll"><table class="sortable">{}<thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
        ).format(caption, head, body)
