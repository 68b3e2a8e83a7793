"""SWE-agent and mini-swe-agent trajectories (one JSON file an instance). Imports `importers.base` only.

`query` of a step holds the exact messages that were sent. Files without it (before 1.1.0) are read from the history.
Tool schemas are not in the file.
"""

from __future__ import annotations

from typing import Any

from dflash_sweep.traces.importers.base import (
    TOOL_SCHEMAS,
    Call,
    Entry,
    Format,
    Ledger,
    Message,
    Source,
    calls_of,
    items,
    mapping,
)

_KEPT = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content")


def _is_mini(row: dict[str, Any]) -> bool:
    info = mapping(row.get("info"))
    return isinstance(row.get("messages"), list) and ("exit_status" in info or "mini_version" in info)


def recognises(source: Source) -> int:
    """Trajectories: an array `trajectory`, or mini-swe-agent's messages with its exit status."""
    return sum(
        10 * ((isinstance(row.get("trajectory"), list) and ("history" in row or "info" in row)) or _is_mini(row))
        for _, row in source.objects()
    )


def _message(raw: Any) -> Message:
    """A stored message without the agent's own marks; the plural tool_call_ids becomes one id."""
    stored = mapping(raw)
    message = {key: stored[key] for key in _KEPT if key in stored}
    ids = items(stored.get("tool_call_ids"))
    if message.get("role") == "tool" and "tool_call_id" not in message and ids:
        message["tool_call_id"] = ids[0]
    if message.get("role") != "assistant":
        message.pop("tool_calls", None)
    return message


def _answer(step: dict[str, Any]) -> Message | None:
    calls = items(step.get("tool_calls"))
    response = step.get("response")
    text = response if isinstance(response, str) else mapping(response).get("message")
    if not isinstance(text, str) and not calls:
        return None
    return {"role": "assistant", "content": text if isinstance(text, str) else ""} | (
        {"tool_calls": calls} if calls else {}
    )


def _from_queries(steps: list[Any], conversation: str, ledger: Ledger) -> list[Call]:
    calls = []
    for step in map(mapping, steps):
        query = items(step.get("query"))
        if not query:
            ledger.skip("step without the messages that were sent")
            continue
        ledger.used += 1
        calls.append(Call(conversation=conversation, messages=[_message(m) for m in query], answer=_answer(step)))
    return calls


def _from_history(history: list[Any], conversation: str, ledger: Ledger) -> list[Call]:
    kept = [mapping(message) for message in history]
    ledger.used += len(kept)
    return calls_of([Entry(message=_message(message)) for message in kept], conversation)


def read(source: Source, ledger: Ledger) -> list[Call]:
    """One call for each step, or for each assistant message of the history."""
    ledger.recount(source)  # records are steps or messages, not files
    calls: list[Call] = []
    for line, row in source.objects():
        steps, name = items(row.get("trajectory")), f"instance {line}"
        if any(items(mapping(step).get("query")) for step in steps):
            ledger.read += len(steps)
            calls += _from_queries(steps, name, ledger)
        else:
            history = items(row.get("history")) or items(row.get("messages"))
            ledger.read += len(history)
            if steps and history:
                ledger.lose("exact_requests", "steps without `query`: requests were rebuilt from the history")
            calls += _from_history(history, name, ledger)
    return calls


FORMAT = Format(
    name="swe_agent",
    title="SWE-agent trajectory (.traj), mini-swe-agent (.traj.json)",
    recognises=recognises,
    read=read,
    lacks=(TOOL_SCHEMAS,),
)
