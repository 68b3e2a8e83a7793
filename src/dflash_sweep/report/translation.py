"""Sentences of conclusions in the page's language. Imports `analysis.sentences`; reads sentences_<lang>.toml.

The English template is the key; without a translation the English sentence stays, which a test of all templates rules
out. Templates of fields and signs alone need none.
"""

from __future__ import annotations

import re
import string
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from dflash_sweep.analysis.sentences import Sentence

LANGUAGES = ("zh",)
"""Languages beside English; each has a table sentences_<lang>.toml in this package."""

_TELLING = 12
"""Characters of its own that a template must have to be recognised by: "{low} to {high}" would fit anything."""

_SPACED_STOP = re.compile(r"(?<=[。；：）]) (?=[^\s\[(])")


@cache
def table(lang: str) -> Mapping[str, str]:
    """English template → the language's own."""
    return _file(lang)["sentences"]


@cache
def _file(lang: str) -> dict[str, dict[str, str]]:
    return tomllib.loads(resources.files("dflash_sweep.report").joinpath(f"sentences_{lang}.toml").read_text("utf-8"))


def translated(text: str, lang: str) -> str:
    """A sentence in another language; the text itself in English, or where nobody said how it was made."""
    if lang not in LANGUAGES:
        return text
    return _SPACED_STOP.sub("", _said(text, lang)) if isinstance(text, Sentence) else word(text, lang)


def word(text: str, lang: str) -> str:
    """A subject or a unit; the text itself if the language has no word of its own for it."""
    return _file(lang)["words"].get(text, text) if lang in LANGUAGES else text


def _said(text: str, lang: str) -> str:
    if not isinstance(text, Sentence):
        return word(text, lang)
    template = table(lang).get(text.template, text.template)
    fields = {name: _said(value, lang) if isinstance(value, str) else value for name, value in text.fields.items()}
    return template.format(**fields)


def needs_translation(template: str) -> bool:
    """Whether a template holds words of its own."""
    return any(any(letter.isalpha() for letter in literal) for literal, *_ in string.Formatter().parse(template))


def recognised(text: str, lang: str) -> str:
    """A stored English sentence of which only the text is left, by the template that it fits; else the text itself."""
    if lang not in LANGUAGES or isinstance(text, Sentence):
        return translated(text, lang)
    for pattern, template in _patterns(lang):
        if match := pattern.fullmatch(text):
            fields: dict[str, Any] = {name: recognised(value, lang) for name, value in match.groupdict().items()}
            return _SPACED_STOP.sub("", _without_formats(template).format(**fields))
    return word(text, lang)


@cache
def _patterns(lang: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Patterns of the templates that can be told by their words, the longest first: it says most about what it fits."""
    ordered = sorted(table(lang).items(), key=lambda item: -len(_without_fields(item[0])))
    return tuple((_pattern(english), own) for english, own in ordered if len(_without_fields(english)) >= _TELLING)


def _pattern(template: str) -> re.Pattern[str]:
    seen: set[str] = set()
    parts = []
    for literal, name, *_ in string.Formatter().parse(template):
        parts.append(re.escape(literal))
        if name is not None:
            parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>.*?)")
            seen.add(name)
    return re.compile("".join(parts), re.DOTALL)


def _without_fields(template: str) -> str:
    return "".join(literal for literal, *_ in string.Formatter().parse(template))


def _without_formats(template: str) -> str:
    """Fields as they stand in the text already: numbers are formatted."""
    parts = string.Formatter().parse(template)
    return "".join(literal + (f"{{{name}}}" if name is not None else "") for literal, name, *_ in parts)
