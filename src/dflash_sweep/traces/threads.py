"""Which calls are one conversation: a later call's history begins with an earlier one's. Imports importers.base."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from dflash_sweep.traces.importers.base import Call


class _Prefixes:
    """A digest for each beginning of a history: entry n covers the first n + 1 messages."""

    def __init__(self) -> None:
        # Calls of one session share their message objects, which live as long as the calls do.
        self._encoded: dict[int, bytes] = {}

    def of(self, call: Call) -> list[str]:
        digest = hashlib.sha256()
        marks = []
        for message in call.messages:
            if id(message) not in self._encoded:
                self._encoded[id(message)] = json.dumps(message, sort_keys=True, default=str).encode() + b"\n"
            digest.update(self._encoded[id(message)])
            marks.append(digest.copy().hexdigest())
        return marks


def in_time_order(calls: Sequence[Call]) -> list[Call]:
    """Calls by their start where every call has one, else as they were recorded (exports are often newest first)."""
    starts = [call.started_s for call in calls]
    if any(start is None for start in starts):
        return list(calls)
    return sorted(calls, key=lambda call: call.started_s or 0.0)


def thread(calls: Sequence[Call]) -> list[tuple[str, Call]]:
    """Calls with the name of their conversation, c1, c2, …, in the order in which conversations begin.

    Within what the source calls one conversation, histories that do not continue each other (sub-agents, retries with
    other prompts) are conversations of their own; a shared beginning must reach past the first user message.
    """
    names: dict[tuple[str, int], str] = {}
    open_ends: dict[tuple[str, str], int] = {}
    counters: dict[str, int] = {}
    prefixes = _Prefixes()
    threaded = []
    for call in calls:
        group = call.conversation if call.conversation is not None else ""
        marks = prefixes.of(call)
        first_user = next((n for n, m in enumerate(call.messages) if m.get("role") == "user"), len(marks))
        ends = [(group, mark) for mark in reversed(marks[first_user:-1]) if (group, mark) in open_ends]
        number = open_ends.pop(ends[0]) if ends else None
        if number is None:
            number = counters.get(group, 0)
            counters[group] = number + 1
        open_ends[(group, marks[-1])] = number
        name = names.setdefault((group, number), f"c{len(names) + 1}")
        threaded.append((name, call))
    return threaded
