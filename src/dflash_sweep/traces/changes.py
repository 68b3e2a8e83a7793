"""What the normaliser changed, where, and how often: nothing is altered in silence. Imports nothing of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class ChangeKind(StrEnum):
    """Every kind of change, worded as it is shown."""

    NOT_A_MESSAGE = "message is no object, left out"
    ROLE = "role renamed to the one servers know"
    UNKNOWN_ROLE = "unknown role sent as user"
    CONTENT_NULL = "null or missing content set to an empty text"
    CONTENT_PARTS = "content parts joined to one text"
    CONTENT_VALUE = "content that was no text written as JSON"
    MEDIA = "image, audio or file replaced by a placeholder"
    UNKNOWN_PART = "content part of unknown type replaced by a placeholder"
    KEY = "key that does not belong to the message removed"
    NULL = "null value removed"
    REASONING_FIELD = "reasoning moved to reasoning_content"
    REASONING_DROPPED = "reasoning dropped"
    FUNCTION_CALL = "function_call rewritten as a tool call"
    CALL_TYPE = "tool call's type set to function"
    CALL_UNUSABLE = "tool call without a name left out"
    ARGUMENTS_OBJECT = "arguments given as an object written as text"
    ARGUMENTS_WRAPPED = "arguments that are no object wrapped as input"
    ARGUMENTS_BROKEN = "arguments that are no JSON replaced by {}"
    CALL_ID = "tool call id rewritten"
    SURROGATE = "half of a UTF-16 pair replaced by U+FFFD"
    SYSTEM_MERGED = "system messages at the start merged"
    SYSTEM_MOVED = "later system message moved"
    MERGED = "messages of the same role in a row merged"
    ORPHAN_RESULT = "tool result without a call left out"
    DUPLICATE_RESULT = "second result of a tool call left out"
    MISSING_RESULT = "missing tool result filled in"
    RESULT_MOVED = "tool result moved to its call"
    LEADING_ASSISTANT = "assistant message before any user message left out"
    TRAILING_ASSISTANT = "assistant message at the end taken off"
    ALTERNATED = "assistant message put between tool result and user"
    TOOL_SHAPE = "tool rewritten to the function shape"
    TOOL_UNSUPPORTED = "tool that is no function left out"
    TOOLS_EMPTY = "empty tools removed"
    TOOL_CHOICE = "tool_choice rewritten or removed"


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One change. `place` is the message's position in the recorded history; -1 for tools and the whole request."""

    kind: ChangeKind
    place: int
    detail: str = ""


class Changes:
    """Collects changes; each is listed once."""

    def __init__(self) -> None:
        self._seen: dict[Change, None] = {}

    def add(self, kind: ChangeKind, place: int = -1, detail: str = "") -> None:
        self._seen[Change(kind, place, detail)] = None

    def take(self, other: Changes) -> None:
        """Add everything that another collection holds."""
        self._seen |= other._seen

    def listed(self) -> tuple[Change, ...]:
        return tuple(self._seen)


def summary(changes: Iterable[Change]) -> tuple[str, ...]:
    """One line a kind, most frequent first, with the details that occurred: "key … removed: name (3)"."""
    counts: Counter[tuple[str, str]] = Counter((change.kind.value, change.detail) for change in changes)
    return tuple(
        f"{kind}{': ' + detail if detail else ''} ({count})"
        for (kind, detail), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )
