"""A page as data: headings, paragraphs, tables, pictures. Rendered by `markdown` and `html`; imports nothing of ours.

Text is plain text everywhere: the renderers escape it. A link's target is a URL or relative path, or one of the two
schemes below, which each renderer turns into what it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

ROWS = "rows:"
"""Scheme of a link to trials of the study: "rows:" + trial numbers joined by commas."""

PICTURE = "picture:"
"""Scheme of a link to a figure: "picture:" + its name."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text. `kind`: "" (plain), strong, em or code; `href` None = no link."""

    text: str
    kind: str = ""
    href: str | None = None


Inline: TypeAlias = str | Span | tuple[str | Span, ...]


def strong(text: str) -> Span:
    return Span(text, "strong")


def em(text: str) -> Span:
    return Span(text, "em")


def code(text: str) -> Span:
    return Span(text, "code")


def rows(numbers: tuple[int, ...], text: str) -> Span | str:
    """A link to the rows of these trials; without any, the text alone."""
    return Span(text, "", ROWS + ",".join(map(str, numbers))) if numbers else text


def spans(inline: Inline) -> tuple[Span, ...]:
    """An inline text as spans."""
    parts = inline if isinstance(inline, tuple) else (inline,)
    return tuple(Span(part) if isinstance(part, str) else part for part in parts)


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2
    label: str | None = None  # a stamp behind the text, such as EMULATED


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: Inline


@dataclass(frozen=True, slots=True)
class Bullets:
    items: tuple[Inline, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """`align`: one letter a column, l or r. `caption` says what kind of numbers these are."""

    header: tuple[str, ...]
    rows: tuple[tuple[Inline, ...], ...]
    align: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    text: str
    language: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """`name` is the figure's file name without ending; `caption` may be empty: figures carry their own."""

    name: str
    alt: str
    caption: str


Block: TypeAlias = Heading | Paragraph | Bullets | Table | Code | Picture


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    label: str
    blocks: tuple[Block, ...]
    lang: str = "en"
