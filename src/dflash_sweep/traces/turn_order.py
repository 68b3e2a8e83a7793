"""Puts cleaned messages in an order that every chat template accepts. Imports the `traces` rules only.

Messages come from `message_rules` with a `place` key (their position in the record), which is taken off at the end.
What happens to an early message does not depend on later ones where that can be, so that the turns of one
conversation keep sharing their beginning.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from dflash_sweep.traces.changes import ChangeKind, Changes
from dflash_sweep.traces.legal import CALL_ID

LATE_SYSTEM_MARK = "[system message]"
MISSING_RESULT = "[no result recorded]"
BETWEEN = "…"

_Message = dict[str, Any]


def _joined(first: str, second: str) -> str:
    return f"{first}\n\n{second}" if first and second else first or second


def _systems_first(messages: Sequence[_Message], changes: Changes, late_system: str) -> list[_Message]:
    """One system message in front; later ones become marked user texts or join the first."""
    front: list[str] = []
    rest: list[_Message] = []
    places = 0
    for message in messages:
        if message["role"] != "system":
            rest.append(message)
        elif not rest:
            places += 1
            front.append(message["content"])
        elif late_system == "front":
            changes.add(ChangeKind.SYSTEM_MOVED, message["place"], "front")
            front.append(message["content"])
        else:
            changes.add(ChangeKind.SYSTEM_MOVED, message["place"], "user")
            rest.append({**message, "role": "user", "content": f"{LATE_SYSTEM_MARK}\n{message['content']}"})
    if places > 1:
        changes.add(ChangeKind.SYSTEM_MERGED, 0)
    if not front:
        return rest
    first = {"role": "system", "content": "\n\n".join(text for text in front if text), "place": 0}
    return [first, *rest]


def _merge(first: _Message, second: _Message) -> _Message:
    merged = {**first, "content": _joined(first["content"], second["content"])}
    if "reasoning_content" in second:
        merged["reasoning_content"] = _joined(first.get("reasoning_content", ""), second["reasoning_content"])
    if "tool_calls" in second:
        merged["tool_calls"] = [*first.get("tool_calls", []), *second["tool_calls"]]
    return merged


def _merge_repeats(messages: Sequence[_Message], changes: Changes) -> list[_Message]:
    merged: list[_Message] = []
    for message in messages:
        role = message["role"]
        if merged and role == merged[-1]["role"] and role in ("user", "assistant"):
            changes.add(ChangeKind.MERGED, message["place"], role)
            merged[-1] = _merge(merged[-1], message)
        else:
            merged.append(message)
    return merged


def _drop_leading_assistants(messages: Sequence[_Message], changes: Changes) -> list[_Message]:
    kept: list[_Message] = []
    user_seen = False
    for message in messages:
        user_seen = user_seen or message["role"] == "user"
        if message["role"] == "assistant" and not user_seen:
            changes.add(ChangeKind.LEADING_ASSISTANT, message["place"])
        else:
            kept.append(message)
    return kept


def _take_trailing(messages: list[_Message], changes: Changes) -> _Message | None:
    answer: _Message | None = None
    while messages and messages[-1]["role"] == "assistant":
        last = messages.pop()
        changes.add(ChangeKind.TRAILING_ASSISTANT, last["place"])
        answer = last if answer is None else _merge(last, answer)
    return answer


class _Results:
    """Which tool result belongs to which call. A result is claimed once, by the nearest call before it."""

    def __init__(self, messages: Sequence[_Message]) -> None:
        self._messages = messages
        self.claimed: set[int] = set()
        self._calls_at: dict[str, list[int]] = {}
        self._results_at: dict[str, list[int]] = {}
        for position, message in enumerate(messages):
            for call in message.get("tool_calls", ()):
                self._calls_at.setdefault(self._key(call), []).append(position)
            if message["role"] == "tool":
                self._results_at.setdefault(self._result_key(message), []).append(position)

    @staticmethod
    def _key(call: _Message) -> str:
        return f"id {call['id']}" if call["id"] is not None else f"name {call['function']['name']}"

    @staticmethod
    def _result_key(message: _Message) -> str:
        if message["tool_call_id"] is not None:
            return f"id {message['tool_call_id']}"
        return f"name {message['call_name']}" if "call_name" in message else "none"

    def claim(self, call: _Message, position: int) -> int | None:
        """Position of the result of this call, None if it has none. Results without id or name follow their call."""
        key = self._key(call)
        calls = self._calls_at[key]
        later = bisect_right(calls, position)
        limit = calls[later] if later < len(calls) else len(self._messages)
        found = self._first_free(self._results_at.get(key, []), position, limit)
        if found is None:
            found = self._first_free(self._results_at.get("none", []), position, self._next_assistant(position))
        if found is not None:
            self.claimed.add(found)
        return found

    def _next_assistant(self, position: int) -> int:
        following = range(position + 1, len(self._messages))
        return next((at for at in following if self._messages[at]["role"] == "assistant"), len(self._messages))

    def _first_free(self, positions: Sequence[int], after: int, before: int) -> int | None:
        for at in islice(positions, bisect_right(positions, after), None):
            if at >= before:
                return None
            if at not in self.claimed:
                return at
        return None

    def has_call(self, message: _Message) -> bool:
        return self._result_key(message) in self._calls_at


def _legal_id(recorded: Any, taken: set[str], ordinal: int) -> str:
    if isinstance(recorded, str) and CALL_ID.fullmatch(recorded) and recorded not in taken:
        return recorded
    source = str(recorded) if recorded is not None and str(recorded) not in taken else f"{recorded} {ordinal}"
    made = f"call_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    while made in taken:
        made = f"call_{hashlib.sha256(made.encode()).hexdigest()[:12]}"
    return made


def finished_answer(answer: _Message, before: Sequence[Mapping[str, Any]]) -> _Message:
    """A cleaned answer with the call ids that it has once it is part of the history after `before`."""
    calls_before = sum(len(message.get("tool_calls", ())) for message in before)
    taken: set[str] = set()
    calls = []
    for number, call in enumerate(answer.get("tool_calls", ())):
        call_id = _legal_id(call["id"], taken, calls_before + number)
        taken.add(call_id)
        calls.append({**call, "id": call_id})
    return _bare({**answer, "tool_calls": calls} if calls else answer)


def _answer_calls(
    message: _Message, position: int, results: _Results, messages: Sequence[_Message], changes: Changes, ordinal: int
) -> list[_Message]:
    """An assistant message with legal ids, followed by exactly one result for each of its calls, in their order."""
    taken: set[str] = set()
    calls: list[_Message] = []
    answers: list[_Message] = []
    for number, call in enumerate(message["tool_calls"]):
        at = results.claim(call, position)
        call_id = _legal_id(call["id"], taken, ordinal + number)
        taken.add(call_id)
        if call_id != call["id"]:
            changes.add(ChangeKind.CALL_ID, message["place"])
        calls.append({**call, "id": call_id})
        if at is None:
            changes.add(ChangeKind.MISSING_RESULT, message["place"])
            content, place = MISSING_RESULT, message["place"]
        else:
            content, place = messages[at]["content"], messages[at]["place"]
            if at != position + 1 + number:
                changes.add(ChangeKind.RESULT_MOVED, place)
        answers.append({"role": "tool", "content": content, "tool_call_id": call_id, "place": place})
    return [{**message, "tool_calls": calls}, *answers]


def _pair_results(messages: Sequence[_Message], changes: Changes) -> list[_Message]:
    results = _Results(messages)
    paired: list[_Message] = []
    ordinal = 0
    for position, message in enumerate(messages):
        if message["role"] == "tool":
            continue
        if "tool_calls" in message:
            paired += _answer_calls(message, position, results, messages, changes, ordinal)
            ordinal += len(message["tool_calls"])
        else:
            paired.append(message)
    for position, message in enumerate(messages):
        if message["role"] == "tool" and position not in results.claimed:
            kind = ChangeKind.DUPLICATE_RESULT if results.has_call(message) else ChangeKind.ORPHAN_RESULT
            changes.add(kind, message["place"])
    return paired


def _alternate(messages: Sequence[_Message], changes: Changes) -> list[_Message]:
    spaced: list[_Message] = []
    for message in messages:
        if spaced and spaced[-1]["role"] == "tool" and message["role"] == "user":
            changes.add(ChangeKind.ALTERNATED, message["place"])
            spaced.append({"role": "assistant", "content": BETWEEN, "place": message["place"]})
        spaced.append(message)
    return spaced


def order_messages(
    messages: Sequence[_Message], changes: Changes, *, late_system: str, strict_roles: bool
) -> tuple[list[_Message], _Message | None]:
    """Messages in legal order, and the assistant message that was cut from the end (None if there was none)."""
    ordered = _systems_first(messages, changes, late_system)
    ordered = _drop_leading_assistants(ordered, changes)
    ordered = _merge_repeats(ordered, changes)
    answer = _take_trailing(ordered, changes)
    ordered = _pair_results(ordered, changes)
    # Results that moved or were left out can bring two messages of one role together, but no call loses its result.
    ordered = _merge_repeats(ordered, changes)
    earlier = _take_trailing(ordered, changes)
    if earlier is not None:
        answer = earlier if answer is None else _merge(earlier, answer)
    finished = None if answer is None else finished_answer(answer, ordered)
    if strict_roles:
        ordered = _alternate(ordered, changes)
    return [_bare(message) for message in ordered], finished


def _bare(message: _Message) -> _Message:
    return {key: value for key, value in message.items() if key not in ("place", "call_name")}
