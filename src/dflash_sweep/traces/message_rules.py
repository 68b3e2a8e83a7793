"""Cleans one message: role, content, keys, reasoning, tool calls. Imports the `traces` rules only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dflash_sweep.traces.changes import ChangeKind, Changes
from dflash_sweep.traces.legal import LONE_SURROGATE, MESSAGE_KEYS, ROLES, texts

ROLE_NAMES = {"developer": "system", "function": "tool", "human": "user", "ai": "assistant", "model": "assistant"}
REASONING_KEYS = ("reasoning_content", "reasoning", "reasoning_text", "thinking")
_TEXT_PARTS = {"text", "input_text", "output_text"}
_MEDIA_WORDS = {"image": "image", "audio": "audio", "file": "file", "video": "video"}


def compact_json(value: Any) -> str:
    """JSON without spaces, characters as they are: the form tool-call arguments are sent in."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def replace_surrogates(value: Any) -> Any:
    """The same JSON value with U+FFFD for every half of a UTF-16 pair, in keys too."""
    if isinstance(value, str):
        return LONE_SURROGATE.sub("�", value)
    if isinstance(value, Mapping):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_surrogates(item) for item in value]
    return value


def _media_word(kind: str) -> str | None:
    return next((word for part, word in _MEDIA_WORDS.items() if part in kind), None)


def _part_text(part: Any, place: int, changes: Changes) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        changes.add(ChangeKind.UNKNOWN_PART, place, type(part).__name__)
        return "[part omitted]"
    kind = str(part.get("type", ""))
    text = part.get("text", part.get("content"))
    if isinstance(text, str) and (kind in _TEXT_PARTS or not kind):
        return text
    if word := _media_word(kind):
        changes.add(ChangeKind.MEDIA, place, word)
        return f"[{word} omitted]"
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    changes.add(ChangeKind.UNKNOWN_PART, place, kind)
    return f"[{kind or 'part'} omitted]"


def content_text(content: Any, place: int, changes: Changes) -> str:
    """Any recorded content as one text: parts joined by line breaks, media as placeholders, other values as JSON."""
    if isinstance(content, str):
        return content
    if content is None:
        changes.add(ChangeKind.CONTENT_NULL, place)
        return ""
    if isinstance(content, list | tuple):
        changes.add(ChangeKind.CONTENT_PARTS, place)
        found = (_part_text(part, place, changes) for part in content)
        return "\n".join(text for text in found if text is not None)
    changes.add(ChangeKind.CONTENT_VALUE, place)
    return compact_json(content)


def arguments_text(arguments: Any, place: int, changes: Changes) -> str:
    """Tool-call arguments as the JSON text of an object. A text that is one already is kept as it is."""
    if isinstance(arguments, Mapping):
        changes.add(ChangeKind.ARGUMENTS_OBJECT, place)
        return compact_json(arguments)
    if not isinstance(arguments, str):
        if arguments is None:
            changes.add(ChangeKind.ARGUMENTS_BROKEN, place, "missing")
            return "{}"
        changes.add(ChangeKind.ARGUMENTS_WRAPPED, place)
        return compact_json({"input": arguments})
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        changes.add(ChangeKind.ARGUMENTS_BROKEN, place)
        return "{}"
    if isinstance(value, dict):
        return arguments
    changes.add(ChangeKind.ARGUMENTS_WRAPPED, place)
    return compact_json({"input": value})


def _call(raw: Any, place: int, changes: Changes) -> dict[str, Any] | None:
    function = raw.get("function") if isinstance(raw, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not (isinstance(raw, Mapping) and isinstance(function, Mapping) and isinstance(name, str) and name):
        changes.add(ChangeKind.CALL_UNUSABLE, place)
        return None
    if raw.get("type") != "function":
        changes.add(ChangeKind.CALL_TYPE, place)
    arguments = arguments_text(function.get("arguments"), place, changes)
    # Ids are made legal later, together with those of the results (turn_order).
    return {"id": raw.get("id"), "type": "function", "function": {"name": name, "arguments": arguments}}


def _calls(raw: Mapping[str, Any], place: int, changes: Changes) -> list[dict[str, Any]]:
    recorded = raw.get("tool_calls")
    calls = list(recorded) if isinstance(recorded, list | tuple) else []
    legacy = raw.get("function_call")
    if isinstance(legacy, Mapping) and not calls:
        changes.add(ChangeKind.FUNCTION_CALL, place)
        calls = [{"id": None, "type": "function", "function": legacy}]
    return [call for item in calls if (call := _call(item, place, changes)) is not None]


def _reasoning(raw: Mapping[str, Any], place: int, changes: Changes, keep: bool) -> str:
    key = next((k for k in REASONING_KEYS if isinstance(raw.get(k), str) and raw[k]), None)
    if key is None:
        return ""
    if not keep:
        changes.add(ChangeKind.REASONING_DROPPED, place)
        return ""
    if key != "reasoning_content":
        changes.add(ChangeKind.REASONING_FIELD, place, key)
    return str(raw[key])


def _role(raw: Mapping[str, Any], place: int, changes: Changes) -> str:
    role = raw.get("role")
    name = role.strip().lower() if isinstance(role, str) else ""
    known = ROLE_NAMES.get(name, name)
    if known not in ROLES:
        changes.add(ChangeKind.UNKNOWN_ROLE, place, str(role)[:40])
        return "user"
    if known != role:
        changes.add(ChangeKind.ROLE, place, f"{role} → {known}")
    return known


def _note_removed(raw: Mapping[str, Any], role: str, place: int, changes: Changes) -> None:
    handled = MESSAGE_KEYS[role] | ({*REASONING_KEYS, "function_call"} if role == "assistant" else set())
    for key, value in raw.items():
        if value is None and key != "content":
            changes.add(ChangeKind.NULL, place, str(key))
        elif key not in handled:
            changes.add(ChangeKind.KEY, place, str(key))


class CleanMemo:
    """Messages cleaned before: the calls of one session share their history's objects, so each is cleaned once."""

    def __init__(self, *, keep_reasoning: bool) -> None:
        self._keep_reasoning = keep_reasoning
        # The raw message is kept as well, so that its id stays its own for as long as the memo lives.
        self._done: dict[tuple[int, int], tuple[Any, dict[str, Any] | None, Changes]] = {}

    def clean(self, raw: Any, place: int, changes: Changes) -> dict[str, Any] | None:
        """As `clean_message`; the result is shared and must not be changed."""
        key = (id(raw), place)
        if key not in self._done:
            own = Changes()
            self._done[key] = (raw, clean_message(raw, place, own, keep_reasoning=self._keep_reasoning), own)
        _, message, own = self._done[key]
        changes.take(own)
        return message


def clean_message(raw: Any, place: int, changes: Changes, *, keep_reasoning: bool) -> dict[str, Any] | None:
    """A recorded message with only what servers know; None if it is no message. Tool ids are left for turn_order."""
    if not isinstance(raw, Mapping):
        changes.add(ChangeKind.NOT_A_MESSAGE, place)
        return None
    if any(LONE_SURROGATE.search(text) for text in texts(raw)):
        changes.add(ChangeKind.SURROGATE, place)
        raw = replace_surrogates(raw)
    role = _role(raw, place, changes)
    _note_removed(raw, role, place, changes)
    message: dict[str, Any] = {"role": role, "content": content_text(raw.get("content"), place, changes)}
    if role == "assistant":
        if reasoning := _reasoning(raw, place, changes, keep_reasoning):
            message["reasoning_content"] = reasoning
        if calls := _calls(raw, place, changes):
            message["tool_calls"] = calls
    elif role == "tool":
        message["tool_call_id"] = raw.get("tool_call_id")
        if message["tool_call_id"] is None and isinstance(raw.get("name"), str):
            message["call_name"] = raw["name"]  # results of the legacy function role carry a name instead of an id
    return message | {"place": place}
