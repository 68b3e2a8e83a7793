"""What every chat server accepts: the rules that the normaliser's output keeps. Imports nothing of ours.

The rules come from the checks in upstream llama.cpp (`common/chat.cpp`, `tools/server/server-common.cpp`) and from
chat templates that raise on other orders (Qwen, Mistral); docs/traces.md lists them with what a server answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ROLES = ("system", "user", "assistant", "tool")
CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
MESSAGE_KEYS = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "reasoning_content", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}


def texts(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from texts(key)
            yield from texts(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from texts(item)


def is_object_text(arguments: Any) -> bool:
    """Whether tool-call arguments are a JSON text of an object (what templates that want objects can read)."""
    if not isinstance(arguments, str):
        return False
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False


def _call_problems(place: str, call: Any) -> Iterator[str]:
    if not isinstance(call, Mapping) or call.get("type") != "function" or not isinstance(call.get("function"), Mapping):
        yield f"{place}: a tool call is not of type function"
        return
    function = call["function"]
    if not isinstance(function.get("name"), str) or not function["name"]:
        yield f"{place}: a tool call has no name"
    if not is_object_text(function.get("arguments")):
        yield f"{place}: the arguments of {function.get('name')} are not the JSON text of an object"
    if not isinstance(call.get("id"), str) or not CALL_ID.fullmatch(call["id"]):
        yield f"{place}: a tool call's id is not 1 to 40 characters of A-Z a-z 0-9 _ -"


def _message_problems(place: str, message: Mapping[str, Any]) -> Iterator[str]:
    role = message.get("role")
    if role not in ROLES:
        yield f"{place}: role {role!r}; servers know {', '.join(ROLES)}"
        return
    if extra := sorted(set(message) - MESSAGE_KEYS[role]):
        yield f"{place}: keys {', '.join(extra)} do not belong to a {role} message"
    if nulls := sorted(key for key, value in message.items() if value is None):
        yield f"{place}: {', '.join(nulls)} is null"
    elif not isinstance(message.get("content"), str):
        yield f"{place}: content is not a text"
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield f"{place}: no tool_call_id"
    if "tool_calls" in message and not message["tool_calls"]:
        yield f"{place}: tool_calls is empty"
    for call in message.get("tool_calls") or ():
        yield from _call_problems(place, call)


def _call_ids(message: Mapping[str, Any]) -> list[Any]:
    calls = message.get("tool_calls") or ()
    return [call.get("id") if isinstance(call, Mapping) else None for call in calls]


def _place_problems(place: str, role: str, before: str, number: int) -> Iterator[str]:
    if role == "system" and number:
        yield f"{place}: a system message after the first place"
    if role in ("user", "assistant") and role == before:
        yield f"{place}: two {role} messages in a row"
    if role == "assistant" and before in ("", "system"):
        yield f"{place}: an assistant message before any user message"


def _order_problems(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    before = ""
    open_ids: list[Any] = []
    for number, message in enumerate(messages):
        role = str(message.get("role"))
        place = f"message {number}"
        yield from _place_problems(place, role, before, number)
        if role == "tool":
            expected = open_ids.pop(0) if open_ids else None
            if message.get("tool_call_id") != expected:
                yield f"{place}: tool result for {message.get('tool_call_id')!r}, expected {expected!r}"
        elif open_ids:
            yield f"{place}: no result for tool call {open_ids[0]!r}"
            open_ids = []
        if role == "assistant":
            open_ids = _call_ids(message)
        before = role
    if open_ids:
        yield f"no result for tool call {open_ids[0]!r}"
    if before not in ("user", "tool"):
        yield f"the last message is {before or 'missing'}; a request ends with a user or a tool message"


def _tool_problems(tools: Sequence[Any]) -> Iterator[str]:
    if not tools:
        yield "tools is empty; leave it out"
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type") != "function":
            yield f"tool {number}: not of type function"
        elif not isinstance(function.get("name"), str) or not isinstance(function.get("parameters"), Mapping):
            yield f"tool {number}: name or parameters missing"


def request_problems(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None) -> tuple[str, ...]:
    """Why some server would refuse this request or silently change it, one sentence each; empty = all accept it."""
    problems: list[str] = []
    for number, message in enumerate(messages):
        problems += _message_problems(f"message {number}", message)
    problems += _order_problems(messages)
    if tools is not None:
        problems += _tool_problems(tools)
    if any(LONE_SURROGATE.search(text) for text in texts([messages, tools or []])):
        problems.append("a text holds half of a UTF-16 pair")
    return tuple(problems)
