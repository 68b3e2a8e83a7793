"""ShareGPT conversations (a JSON array or JSON Lines). Imports `importers.base` only."""

from __future__ import annotations

import json
from typing import Any

from dflash_sweep.traces.importers.base import Call, Entry, Format, Ledger, Message, Source, calls_of, items, mapping

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
          "bing": "assistant", "bard": "assistant", "system": "system", "function_call": "call",
          "observation": "tool", "tool": "tool", "function_response": "tool"}  # fmt: skip


def recognises(source: Source) -> int:
    """Objects with `conversations` of from/value pairs."""
    return sum(
        any("from" in mapping(turn) and "value" in mapping(turn) for turn in items(row.get("conversations"))[:3])
        for _, row in source.objects()
    )


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None


def _call_message(value: Any, number: int) -> Message | None:
    """A function_call turn: a JSON text of name and arguments, or a list of those."""
    decoded = _json(value)
    found = [mapping(one) for one in (decoded if isinstance(decoded, list) else [decoded])]
    if not all(isinstance(one.get("name"), str) for one in found):
        return None
    calls = [
        {"id": f"call_{number}_{n}", "type": "function",
         "function": {"name": one["name"], "arguments": one.get("arguments", one.get("parameters", {}))}}
        for n, one in enumerate(found)
    ]  # fmt: skip
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _conversation(row: dict[str, Any], ledger: Ledger) -> list[Entry]:
    """Messages of one conversation. The format has no ids: a result answers the oldest call without one."""
    entries: list[Entry] = []
    waiting: list[str] = []
    if isinstance(row.get("system"), str) and row["system"]:
        entries.append(Entry(message={"role": "system", "content": row["system"]}))
    for number, turn in enumerate(map(mapping, items(row["conversations"]))):
        role, value = _ROLES.get(str(turn.get("from")).lower()), turn.get("value")
        message: Message | None = {"role": role, "content": value}
        if role == "call":
            message = _call_message(value, number)
            waiting = [call["id"] for call in message["tool_calls"]] if message else []
        elif role == "tool":
            message = {"role": "tool", "tool_call_id": waiting.pop(0) if waiting else None, "content": value}
        if role is None or message is None:
            ledger.warn(f"turn from {turn.get('from')!r} that cannot be read was left out")
        else:
            entries.append(Entry(message=message))
    return entries


def read(source: Source, ledger: Ledger) -> list[Call]:
    """One call for each assistant turn of each conversation."""
    calls: list[Call] = []
    for line, row in source.objects():
        if not items(row.get("conversations")):
            ledger.skip("record without conversations")
            continue
        found = calls_of(_conversation(row, ledger), f"conversation {line}")
        tools = _json(row.get("tools"))
        for call in found:
            call.tools = tools if isinstance(tools, list) and tools else None
        if found:
            ledger.used += 1
        else:
            ledger.skip("conversation without an answer to anything")
        calls += found
    return calls


FORMAT = Format(name="sharegpt", title="ShareGPT conversations (.json, .jsonl)", recognises=recognises, read=read)
