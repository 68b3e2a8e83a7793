"""Where two answers to the same prompt begin to differ. Imports `sentences`, `records`. Pure functions.

By token ids where the server gave those of both answers; else by characters, with the token's place estimated: servers
stream pieces of text, and what a piece holds is not known.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dflash_sweep.analysis.sentences import Sentence, say
from dflash_sweep.records import Exchange

CONTEXT_BEFORE, CONTEXT_AFTER = 16, 16
"""Characters shown before the first difference and from it on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server wrote. `parts`: (place, text) in the order it was written: reasoning, content, then per tool call
    "tool_call 1 name" and "tool_call 1 arguments". `token_ids` None = not given; `tokens`: how many were counted."""

    parts: tuple[tuple[str, str], ...]
    token_ids: tuple[int, ...] | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first difference of two answers.

    `unit` says what was compared: "token" (ids) or "character". `position` counts these from 0: tokens from the start
    of the answer, characters from the start of `place`. `about_token` is the token's place, counted from 0: the exact
    one by ids, else estimated from the share of the text before it; None = the tokens were not counted. `expected`
    and `found` show both texts around the place; None = only ids differ. `ends`: which answer ended there, if one did.
    """

    unit: Literal["token", "character"]
    position: int
    place: str
    about_token: int | None
    expected: str | None
    found: str | None
    ends: Literal["expected", "found"] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON, under the names above."""
        return asdict(self)


def answer_of(exchange: Exchange, tokens: int | None = None) -> Answer:
    """The answer of one exchange; `tokens` is the turn's `output_tokens`."""
    return _answer(exchange.reasoning, exchange.content, [call.get("function") for call in exchange.tool_calls],
                   exchange.token_ids, tokens)  # fmt: skip


def read_answer(text: str, token_ids: Sequence[int] | None = None, tokens: int | None = None) -> Answer:
    """The answer from `text` of the turn table (payload.answer_text)."""
    reasoning, content, calls = json.loads(text)
    return _answer(reasoning, content, calls, token_ids, tokens)


def _answer(
    reasoning: str, content: str, calls: Sequence[Any], token_ids: Sequence[int] | None, tokens: int | None
) -> Answer:
    parts = [("reasoning", reasoning), ("content", content)]
    for number, call in enumerate(calls, 1):
        for field in ("name", "arguments"):
            parts.append((f"tool_call {number} {field}", str((call or {}).get(field) or "")))
    return Answer(parts=tuple(parts), token_ids=tuple(token_ids) if token_ids else None, tokens=tokens)


def first_divergence(expected: Answer, found: Answer) -> Divergence | None:
    """None if both are equal: their text, and their token ids where both are known."""
    by_text = _by_text(expected, found)
    if expected.token_ids is None or found.token_ids is None:
        return by_text
    index = _first_difference(expected.token_ids, found.token_ids)
    if index is None:
        return by_text
    if by_text is None:
        return Divergence(unit="token", position=index, place="token ids", about_token=index, expected=None, found=None,
                          ends=_ends(index, expected.token_ids, found.token_ids))  # fmt: skip
    return Divergence(unit="token", position=index, place=by_text.place, about_token=index,
                      expected=by_text.expected, found=by_text.found, ends=by_text.ends)  # fmt: skip


def _by_text(expected: Answer, found: Answer) -> Divergence | None:
    left, right = dict(expected.parts), dict(found.parts)
    before = 0
    for place in dict.fromkeys((*left, *right)):
        one, other = left.get(place, ""), right.get(place, "")
        index = _first_difference(one, other)
        if index is None:
            before += len(one)
            continue
        return Divergence(
            unit="character",
            position=index,
            place=place,
            about_token=_estimate(before + index, expected),
            expected=_around(one, index),
            found=_around(other, index),
            ends=_ends(index, one, other),
        )
    return None


def _first_difference(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    if one == other:
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _ends(index: int, expected: Sequence[Any], found: Sequence[Any]) -> Literal["expected", "found"] | None:
    if index == len(expected):
        return "expected"
    return "found" if index == len(found) else None


def _estimate(characters: int, answer: Answer) -> int | None:
    """Tokens taken to be of equal length: the share of the text before the place, of the tokens counted."""
    total = sum(len(text) for _, text in answer.parts)
    return None if not answer.tokens or not total else min(characters * answer.tokens // total, answer.tokens - 1)


def _around(text: str, index: int) -> str:
    start, end = max(index - CONTEXT_BEFORE, 0), index + CONTEXT_AFTER
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def place_in_words(found: Divergence) -> Sentence:
    """ "token 37", or "character 143 of content (about token 37)"; counted from 0."""
    if found.unit == "token":
        return say("token {position}", position=found.position)
    if found.about_token is None:
        return say("character {position} of {place}", position=found.position, place=found.place)
    words = "character {position} of {place} (about token {token})"
    return say(words, position=found.position, place=found.place, token=found.about_token)


def in_words(found: Divergence, expected: str, other: str) -> Sentence:
    """ "at character 143 of content (about token 37): plain "…a + b", this run "…a - b"". `expected` and `other` name
    the two answers."""
    place = place_in_words(found)
    if found.expected is None or found.found is None:
        return say("at {place}: other token ids, the same text", place=place)
    return say(
        "at {place}: {expected} {text}, {other} {other_text}",
        place=place,
        expected=expected,
        text=_quoted(found.expected),
        other=other,
        other_text=_quoted(found.found),
    )


def _quoted(text: str) -> str | Sentence:
    return json.dumps(text, ensure_ascii=False) if text else say("nothing more")
