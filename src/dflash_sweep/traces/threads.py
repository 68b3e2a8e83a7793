"""Which calls are one conversation: a later call's history begins with an earlier one's. Imports importers.base."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from dflash_sweep.traces.importers.base import Call

Messages = tuple[dict[str, Any], ...]


class SharedMessages:
    """Makes equal messages of many histories one object, so that a long session does not fill the memory."""

    def __init__(self) -> None:
        self._shared: dict[bytes, dict[str, Any]] = {}
        self._marks: dict[int, bytes] = {}

    def share(self, messages: Messages) -> Messages:
        shared = []
        for message in messages:
            encoded = msgspec.json.encode(message)
            one = self._shared.setdefault(encoded, message)
            self._marks.setdefault(id(one), hashlib.sha256(encoded).digest())
            shared.append(one)
        return tuple(shared)

    def prefixes(self, messages: Messages) -> list[bytes]:
        """A digest for each beginning of a shared history: entry n covers the first n + 1 messages."""
        digest = hashlib.sha256()
        marks = []
        for message in messages:
            digest.update(self._marks[id(message)])
            marks.append(digest.digest())
        return marks


def in_time_order(calls: Sequence[Call]) -> list[Call]:
    """Calls by their start where every call has one, else as they were recorded (exports are often newest first)."""
    starts = [call.started_s for call in calls]
    if any(start is None for start in starts):
        return list(calls)
    return sorted(calls, key=lambda call: call.started_s or 0.0)


def conversations(groups: Sequence[str | None], histories: Sequence[Messages], shared: SharedMessages) -> list[str]:
    """The conversation of each call, c1, c2, …, in the order in which they begin. Histories come from `shared`.

    Within what the source calls one conversation (`groups`), histories that do not continue each other (sub-agents,
    retries with other prompts) are conversations of their own; a shared beginning must reach past the first user
    message.
    """
    names: dict[tuple[str, int], str] = {}
    open_ends: dict[tuple[str, bytes], int] = {}
    counters: dict[str, int] = {}
    found = []
    for group, history in zip((group or "" for group in groups), histories, strict=True):
        marks = shared.prefixes(history)
        first_user = next(n for n, message in enumerate(history) if message["role"] == "user")
        ends = [(group, mark) for mark in reversed(marks[first_user:-1]) if (group, mark) in open_ends]
        number = open_ends.pop(ends[0]) if ends else counters.get(group, 0)
        counters[group] = max(counters.get(group, 0), number + 1)
        open_ends[(group, marks[-1])] = number
        found.append(names.setdefault((group, number), f"c{len(names) + 1}"))
    return found


def by_group(groups: Sequence[str | None]) -> list[str]:
    """The conversation of each call where the source's own grouping is all there is (invented texts)."""
    names: dict[str | None, str] = {}
    return [names.setdefault(group, f"c{len(names) + 1}") for group in groups]
