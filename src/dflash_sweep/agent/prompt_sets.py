"""Prompts without tools, written for this project: coding tasks, prose, and questions about a long text.

Imports `traces`, `records`. No model answered them; where a conversation goes on, the answer before was written by hand
and the header says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from dflash_sweep.records import RecordedAnswer, Trace, TraceHeader, Turn
from dflash_sweep.traces.canonical import with_hash

SYSTEM = "You are a careful assistant. Answer completely, and stop when the answer is complete."


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One user message, and the answer written by hand where the conversation goes on after it."""

    text: str
    max_tokens: int
    answer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """Conversations of prompts. `bucket` is what their answers are."""

    name: str
    bucket: str
    conversations: tuple[tuple[Prompt, ...], ...]
    note: str


CODING = PromptSet(
    name="coding",
    bucket="code",
    note="Prompts written for this project; no answers were recorded.",
    conversations=(
        (
            Prompt(
                text=(
                    "Write a Python function `free_slots(busy, day_start, day_end, minutes)` for a meeting planner. "
                    "`busy` is a list of (start, end) pairs in minutes since midnight; pairs can overlap, touch, and "
                    "come in any order. Return the gaps between day_start and day_end that are at least `minutes` "
                    "long, as a list of pairs in order of time. Refuse a pair whose end lies before its start with a "
                    "ValueError that names the pair. Add type hints, a docstring with one example, and four unit "
                    "tests: no meetings at all, overlapping meetings, a meeting that covers the whole day, and a bad "
                    "pair. Reply with the code only."
                ),
                max_tokens=320,
            ),
        ),
        (
            Prompt(
                text=(
                    "Implement a class `RecentCache` in Python that keeps at most `capacity` entries and drops an "
                    "entry when it is older than `lifetime_s` seconds. `get(key)` returns the value or None and makes "
                    "the entry the most recently used one; `put(key, value)` removes the least recently used entry "
                    "when the cache is full. The clock is passed to the constructor as a function, so that tests need "
                    "not wait. All operations take constant time. No third-party packages. Show the class, then a "
                    "short example with a fake clock that prints what is left after each step."
                ),
                max_tokens=320,
            ),
        ),
        (
            Prompt(
                text=(
                    "Write a command-line program `slowest.py` that reads a web server's access log from standard "
                    "input. Each line looks like `2030-01-01T12:00:00 GET /items/7 200 0.153`, the last field being "
                    "seconds. Print the ten paths with the highest 95th percentile of the response time as an aligned "
                    "table with the columns path, count, p95 in milliseconds, and share of responses with status 500 "
                    "or above. Numbers in paths are replaced by `:id`, so that /items/7 and /items/8 are one path. "
                    "Lines that cannot be read are counted and reported on standard error. Use argparse for an option "
                    "`--top N`. Reply with the whole program."
                ),
                max_tokens=320,
            ),
        ),
    ),
)

PROSE = PromptSet(
    name="prose",
    bucket="prose",
    note="Prompts written for this project; no answers were recorded.",
    conversations=(
        (
            Prompt(
                text=(
                    "A twelve-year-old asks why there are two high tides a day and not one, although there is only one "
                    "moon. Explain it in about 150 words, without formulas, and mention what the sun has to do with it."
                ),
                max_tokens=220,
            ),
        ),
        (
            Prompt(
                text=(
                    "Write a letter to the people in a block of flats. The lift will be replaced between the third and "
                    "the twenty-first of March; during that time only the stairs can be used. Offer help with carrying "
                    "shopping on Tuesdays and Fridays, name a telephone number for urgent cases as 'see the notice "
                    "board', and apologise once. Friendly, no more than 160 words."
                ),
                max_tokens=220,
            ),
        ),
        (
            Prompt(
                text=(
                    "Summarise this text in four sentences, keeping every number.\n\nThe ferry between the two islands "
                    "was built in 1961 for 80 passengers and 12 cars. In its first summer it carried 31,000 people; "
                    "the company that ran it had expected a third of that. A second boat was ordered in 1964 and came "
                    "two years late, because the yard on the mainland had burnt down. In the meantime the first one "
                    "sailed nine times a day with the captain, a mate, and a cook who sold soup at the price of a "
                    "newspaper. When the bridge opened in 1988, both boats were sold, the older one for the sum of 1. "
                    "It lies in the harbour of a small town today and is a restaurant with 44 seats; the soup is still "
                    "on the menu, at fourteen times the old price."
                ),
                max_tokens=160,
            ),
        ),
        (
            Prompt(
                text=(
                    "Compare keeping a diary on paper with keeping one on a computer. Two paragraphs, one for each, "
                    "then one sentence that says for whom which is better. Be concrete: name things that happen in "
                    "everyday life, not general advantages."
                ),
                max_tokens=260,
            ),
        ),
    ),
)

_LONG_TEXT_CHARS = 100_000
"""Where the long text ends: more than 24,000 tokens, and less than 32,000, with the usual vocabularies."""

_LONG_ANSWERS = (
    "A trace file starts with a header line and has one line for each turn. A turn does not repeat its history: `keep` "
    "says how many messages of the previous turn of the same conversation stay, and `add` holds the new ones. "
    "`_TurnReader.turn` in `traces/canonical.py` puts the whole history together again, and refuses a turn that keeps "
    "more messages than there are. The hash is made from the whole histories, so it does not depend on how the file "
    "stores them.",
    "`order_messages` in `traces/turn_order.py` moves a later system message, leaves out assistant messages before the "
    "first user message, merges neighbours of the same role, takes a trailing answer off, and gives every tool call "
    "exactly one result. It merges twice because leaving out a result that belongs to no call can bring two messages "
    "of one role together.",
)


def _long_text() -> str:
    """Modules of `traces` that fit, the largest first, so that few large ones are left out for many small ones."""
    folder = files("dflash_sweep").joinpath("traces")
    sources = {entry.name: entry.read_text("utf-8") for entry in folder.iterdir() if entry.name.endswith(".py")}
    chosen: dict[str, str] = {}
    for name in sorted(sources, key=lambda name: (-len(sources[name]), name)):
        if sum(map(len, chosen.values())) + len(sources[name]) <= _LONG_TEXT_CHARS:
            chosen[name] = sources[name]
    parts = [f"=== traces/{name}\n{chosen[name]}" for name in sorted(chosen)]
    return "Here are some modules of a Python project. Read them; questions follow.\n\n" + "\n".join(parts)


def long_context() -> PromptSet:
    """Questions about a long text: modules of this project as they are at the time of recording."""
    return PromptSet(
        name="long_context",
        bucket="long_context",
        note=(
            "Questions about modules of this project as they were when this was recorded; the answers between them "
            "were written by hand, no model answered."
        ),
        conversations=(
            (
                Prompt(
                    text=f"{_long_text()}\n\nHow does a trace file avoid growing with the square of the conversation?",
                    max_tokens=160,
                    answer=_LONG_ANSWERS[0],
                ),
                Prompt(
                    text="What does the normaliser do about the order of messages, and why does it merge twice?",
                    max_tokens=160,
                    answer=_LONG_ANSWERS[1],
                ),
                Prompt(
                    text=(
                        "What would have to change if a turn could hold images instead of placeholders for them, and "
                        "where would the change be noticed first? Answer with names of modules and functions."
                    ),
                    max_tokens=200,
                ),
            ),
        ),
    )


def record_prompts(prompts: PromptSet, count_tokens: Callable[[str], int], tokenizer: str) -> Trace:
    """A trace of the prompts, one turn each. `output_tokens` is counted where an answer was written."""
    turns = []
    for number, conversation in enumerate(prompts.conversations, 1):
        messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        for index, prompt in enumerate(conversation):
            messages.append({"role": "user", "content": prompt.text})
            recorded = RecordedAnswer()
            if prompt.answer is not None:
                recorded = RecordedAnswer(
                    content=prompt.answer, output_tokens=count_tokens(prompt.answer), finish_reason="stop"
                )
            turns.append(
                Turn(
                    conversation=f"{prompts.name}_{number}",
                    index=index,
                    messages=tuple(messages),
                    max_tokens=prompt.max_tokens,
                    bucket=prompts.bucket,
                    recorded=recorded,
                )
            )
            if prompt.answer is not None:
                messages.append({"role": "assistant", "content": prompt.answer})
    header = TraceHeader(
        name=prompts.name,
        source="dflash-sweep, prompts written for it",
        license="Apache-2.0",
        tokenizer=tokenizer,
        note=prompts.note,
    )
    return with_hash(Trace(header=header, turns=tuple(turns)))
