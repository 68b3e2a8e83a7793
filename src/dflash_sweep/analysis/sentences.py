"""English sentences that know how they were made, so that a report can say them in another language.

Imports nothing of ours. The English template is the key of a translation, as with gettext: `say` gives a text that is
an ordinary string to everybody, with its template and fields beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Sentence", "listed", "say", "together"]


class Sentence(str):
    """A text in English. `template`: with named fields; `fields`: what was put in, which may be sentences again."""

    __slots__ = ("fields", "template")
    fields: Mapping[str, Any]
    template: str

    def __new__(cls, text: str, template: str = "", fields: Mapping[str, Any] | None = None) -> Sentence:
        made = super().__new__(cls, text)
        made.template = template or text.replace("{", "{{").replace("}", "}}")
        made.fields = {} if fields is None else fields
        return made


def say(template: str, **fields: Any) -> Sentence:
    """The template with its fields filled in, as str.format does. Raises KeyError for a field that is not given."""
    return Sentence(template.format(**fields), template, fields)


def listed(parts: Iterable[object], separator: str = ", ") -> Sentence:
    """Parts in a row; none of them = an empty text. A template of fields and signs alone needs no translation."""
    fields = {f"part{place}": part for place, part in enumerate(parts)}
    return say(separator.join(f"{{{name}}}" for name in fields), **fields)


def together(*sentences: str) -> Sentence:
    """Sentences one after the other; empty ones are left out."""
    return listed([sentence for sentence in sentences if sentence], " ")
