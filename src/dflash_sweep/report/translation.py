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

from dflash_sweep.analysis.sentences import Sentence

LANGUAGES = ("zh",)
"""Languages beside English; each has a table sentences_<lang>.toml in this package."""

_TELLING = 12
"""Characters of its own that a template must have to be recognised by: "{low} to {high}" would fit anything."""

_LONGEST = 2000
"""Characters of a text that is looked at: what is longer is no sentence of ours."""

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
    """A stored English sentence of which only the text is left, by the template that it fits; else the text itself.

    Several sentences said together (see sentences.together) are taken one after the other.
    """
    if lang not in LANGUAGES or isinstance(text, Sentence):
        return translated(text, lang)
    if len(text) > _LONGEST:
        return text
    if (whole := _fitted(text, lang)) is not None:
        return whole
    for end in range(len(text) - 1, 0, -1):
        if text[end - 1] in ".)" and text[end] == " " and (known := _fitted(text[:end], lang)) is not None:
            return known + recognised(text[end + 1 :], lang)
    return word(text, lang)


def _fitted(text: str, lang: str) -> str | None:
    """The text by the one template that it fits as a whole, its fields recognised as well; None if it fits none."""
    for pattern, template in _patterns(lang):
        if match := pattern.fullmatch(text):
            fields = {name: _fitted(value, lang) or word(value, lang) for name, value in match.groupdict().items()}
            return _SPACED_STOP.sub("", _without_formats(template).format(**fields))
    return None


@cache
def _patterns(lang: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Patterns of the templates that can be told by their words: first those that begin with words, longest first, for
    they say most about what they fit."""
    ordered = sorted(table(lang).items(), key=lambda item: (item[0][0] == "{", -len(_without_fields(item[0]))))
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
