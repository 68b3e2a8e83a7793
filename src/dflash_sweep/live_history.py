"""The history of a free-running conversation: the server's own answers, tools answered from the recording.

Imports `records`. Pure but for the state of one conversation. Recorded tool results belong to recorded calls: a live
call gets one only if its name and arguments are the recorded ones; other calls get a fixed stand-in and a flag.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from dflash_sweep.records import Exchange, Turn

NO_RESULT = "No result was recorded for this call."
"""Stand-in for the result of a call that the recording does not know."""

HISTORY_RESTARTED = "history_restarted"
TOOL_RESULT_MISSING = "tool_result_missing"
TOOL_ARGUMENTS_REPLACED = "tool_arguments_replaced"
NEXT_TURN_SKIPPED = "next_turn_skipped"

Message = dict[str, Any]


def _call_key(call: Message) -> tuple[str, str] | None:
    """Name and arguments in one spelling; None if the arguments are no JSON."""
    function = call.get("function") or {}
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        return None
    return str(function.get("name")), json.dumps(arguments, sort_keys=True)


def _recorded_results(messages: Iterable[Message]) -> dict[tuple[str, str], list[Any]]:
    """Call → contents of its results, in order of time."""
    keys: dict[str, tuple[str, str]] = {}
    results: dict[tuple[str, str], list[Any]] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            key = _call_key(call)
            if key is not None:
                keys[str(call.get("id"))] = key
        if message.get("role") == "tool" and (key := keys.get(str(message.get("tool_call_id")))) is not None:
            results.setdefault(key, []).append(message.get("content"))
    return results


class LiveHistory:
    """One conversation played freely. Ask `messages(k)` before turn k and report with `answered(k, …)` after it."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns
        longest = max(turns, key=lambda turn: len(turn.messages))
        self._everywhere = _recorded_results(longest.messages)
        self._with_reasoning = any("reasoning_content" in message for message in longest.messages)
        self._live: list[Message] = []
        self._calls: list[Message] = []
        self._broken = True

    def messages(self, position: int) -> tuple[tuple[Message, ...] | None, tuple[str, ...]]:
        """What to send for turn `position`, and flags. None = after the live answers there is nothing to ask."""
        turn = self._turns[position]
        before = self._turns[position - 1].messages if position else ()
        if self._broken or turn.messages[: len(before)] != before:
            self._live, self._calls, self._broken = list(turn.messages), [], False
            return turn.messages, (HISTORY_RESTARTED,) if position else ()
        tail = turn.messages[len(before) :]
        flags = self._answer_calls(tail)
        self._live += [message for message in tail if message.get("role") not in ("assistant", "tool")]
        self._calls = []
        if self._live[-1].get("role") == "assistant":
            return None, flags
        return tuple(self._live), flags

    def answered(self, position: int, exchange: Exchange) -> tuple[str, ...]:
        """Take the server's answer to turn `position` into the history. After a failed turn the recording goes on."""
        if exchange.error_type is not None:
            self._broken = True
            return ()
        flags: tuple[str, ...] = ()
        self._calls = []
        for number, call in enumerate(exchange.tool_calls):
            function = dict(call["function"])
            if _call_key(call) is None:
                function["arguments"] = "{}"  # a later turn with arguments that are no JSON would be refused
                flags = (TOOL_ARGUMENTS_REPLACED,)
            name = call.get("id") or f"call_{position}_{number}"
            self._calls.append({"id": name, "type": "function", "function": function})
        answer: Message = {"role": "assistant", "content": exchange.content}
        if self._with_reasoning and exchange.reasoning:
            answer["reasoning_content"] = exchange.reasoning
        if self._calls:
            answer["tool_calls"] = self._calls
        self._live.append(answer)
        return flags

    def _answer_calls(self, tail: Sequence[Message]) -> tuple[str, ...]:
        """Append one result per live call: the one recorded at this point, else one recorded elsewhere, else none."""
        here = _recorded_results(tail)
        missing = False
        for call in self._calls:
            key = _call_key(call)
            contents = (here.get(key) or self._everywhere.get(key) or []) if key is not None else []
            missing |= not contents
            content = contents[0] if contents else NO_RESULT
            if len(contents) > 1:
                contents.pop(0)  # the same call again gets its next recorded result
            self._live.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        return (TOOL_RESULT_MISSING,) if missing else ()
