"""What every importer takes and gives: a source of records, a ledger, calls. Imports `records`, `errors`.

An importer turns one format's records into `Call`s: the history of each model call as OpenAI chat messages, still as
untidy as they were recorded. Everything it leaves out is counted in the ledger with its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

Message = dict[str, Any]

SYSTEM_PROMPT = "system_prompt"
TOOL_SCHEMAS = "tool_schemas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One JSON object of a file. `line` is 1-based: the line of a JSONL file, else the place in the array."""

    line: int
    value: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file (or a folder of event files) as records; `log_lines` are the text lines of a file that is no JSON."""

    path: Path
    records: tuple[Record, ...] = ()
    log_lines: tuple[str, ...] = ()

    def objects(self) -> Iterable[tuple[int, dict[str, Any]]]:
        """The records with their numbers."""
        return ((record.line, record.value) for record in self.records)


class Ledger:
    """Counts of records read, used and skipped by reason, and what the source does not hold."""

    def __init__(self) -> None:
        self.read = 0
        self.used = 0
        self.skipped: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.losses: dict[str, str] = {}
        self.warnings: list[str] = []

    def recount(self, source: Source) -> None:
        """For formats whose records are smaller than the file's (steps, spans, requests): count them anew."""
        self.read -= len(source.records) + sum(bool(line.strip()) for line in source.log_lines)

    def skip(self, reason: str, count: int = 1) -> None:
        if count:
            self.skipped[reason] += count

    def drop(self, reason: str) -> None:
        """Count a model call whose records were read but which cannot be replayed."""
        self.dropped[reason] += 1

    def lose(self, what: str, why: str) -> None:
        """Note that the source does not hold something a faithful replay needs. `what` is a short key."""
        self.losses[what] = why

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


@dataclass(slots=True, kw_only=True)
class Call:
    """One model call as recorded. `conversation` groups calls; None = find out by their common beginnings.

    `answer` is the recorded assistant message, untidy like the rest. Times are seconds since 1970 in the source's own
    clock; `pause_ms` is set where the source gives the pause itself. None = the source does not say.
    """

    messages: list[Message]
    conversation: str | None = None
    tools: Any = None
    tool_choice: Any = None
    max_tokens: int | None = None
    answer: Message | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    started_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    pause_ms: float | None = None
    model: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    template_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format. `recognises` counts records that only this format has; `read` gives its calls in recorded order.

    `lacks`: what files of this format never hold. `synthetic`: its texts are invented from lengths.
    """

    name: str
    title: str
    recognises: Callable[[Source], int]
    read: Callable[[Source, Ledger], list[Call]]
    lacks: tuple[str, ...] = ()
    synthetic: bool = False


@dataclass(slots=True, kw_only=True)
class Entry:
    """A message of a session and when it was written; for assistant messages, what is known of the call."""

    message: Message
    at_s: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def call_of(entry: Entry, history: Sequence[Entry], conversation: str | None) -> Call:
    """The call that an assistant entry answered. The pause runs from the last answer to the last input before it."""
    last_answer = next((e for e in reversed(history) if e.message.get("role") == "assistant"), None)
    pause_ms = None
    if last_answer is not None and last_answer.at_s is not None and history[-1].at_s is not None:
        pause_ms = max(0.0, (history[-1].at_s - last_answer.at_s) * 1000)
    return Call(
        conversation=conversation,
        messages=[e.message for e in history],
        answer=entry.message,
        pause_ms=pause_ms,
        **entry.facts,
    )


def calls_of(entries: Sequence[Entry], conversation: str | None, start: int = 1) -> list[Call]:
    """One call for each assistant entry of a linear session, from entry `start` on (an answer needs a history)."""
    return [
        call_of(entry, entries[:position], conversation)
        for position, entry in enumerate(entries)
        if entry.message.get("role") == "assistant" and position >= max(1, start)
    ]


def seconds(value: Any) -> float | None:
    """A time in seconds since 1970: from a number (s, ms or ns by its size) or an ISO text. None if it is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        size = abs(value)
        return value / 1e9 if size > 1e17 else value / 1e3 if size > 1e11 else float(value)
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            return float(value) if value.replace(".", "", 1).isdigit() else None
    return None


def whole(value: Any) -> int | None:
    """A count as a whole number, also from a text like "8"; None if it is none or negative."""
    if isinstance(value, str) and value.strip().isdigit():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        return None
    return int(value)


def word(value: Any) -> str | None:
    """The value if it is a text with something in it; None otherwise."""
    return value if isinstance(value, str) and value else None


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """The value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []
