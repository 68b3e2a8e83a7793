"""OpenHands trajectories: V0 event lists and V1 event files (JSON, JSON Lines or a folder). Imports `importers.base`.

V0 keeps the whole completion object of a call in `tool_call_metadata.model_response`: the only exact record of the
assistant's text and calls. V1 writes one event for each tool call; those of one answer share `llm_response_id`.
"""

from __future__ import annotations

from typing import Any

from dflash_sweep.traces.importers.base import (
    SYSTEM_PROMPT,
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
    seconds,
    whole,
)

# Tuples, because a damaged file can hold anything where a word should stand, also what no set takes.
_V1_KINDS = ("SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent")
_V1_RESULTS = ("ObservationEvent", "UserRejectObservation", "AgentErrorEvent")


def _is_v0(row: dict[str, Any]) -> bool:
    return "source" in row and "id" in row and ("action" in row or "observation" in row) and "kind" not in row


def recognises(source: Source) -> int:
    """Events of either version."""
    return sum(_is_v0(row) or (row.get("kind") in _V1_KINDS and "source" in row) for _, row in source.objects())


# ---------------------------------------------------------------- V1


def _texts(parts: Any) -> str:
    return "\n".join(str(mapping(part)["text"]) for part in items(parts) if "text" in mapping(part))


def _result_content(event: dict[str, Any]) -> Any:
    observation = mapping(event.get("observation"))
    for value in (observation.get("content"), event.get("error"), event.get("rejection_reason")):
        if value:
            return value
    return _texts(event.get("extended_content"))


class _V1:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.entries: list[Entry] = []
        self.tools: list[Any] = []
        self._response: str | None = None

    def event(self, event: dict[str, Any]) -> bool:
        """Take an event; False if it does not enter the prompt."""
        at_s, kind = seconds(event.get("timestamp")), event.get("kind")
        if kind == "SystemPromptEvent":
            self._system(event, at_s)
        elif kind == "MessageEvent":
            message = mapping(event.get("llm_message"))
            self._add({"role": message.get("role"), **message}, at_s)
        elif kind == "ActionEvent":
            self._action(event, at_s)
        elif kind in _V1_RESULTS:
            self.entries.append(
                Entry(
                    message={"role": "tool", "tool_call_id": event.get("tool_call_id"),
                             "content": _result_content(event)},
                    at_s=at_s,
                )
            )  # fmt: skip
        else:
            return False
        return True

    def _add(self, message: Message, at_s: float | None) -> None:
        self._response = None
        self.entries.append(Entry(message=message, at_s=at_s))

    def _system(self, event: dict[str, Any], at_s: float | None) -> None:
        parts = [mapping(event.get("system_prompt")).get("text"), mapping(event.get("dynamic_context")).get("text")]
        self._add({"role": "system", "content": "\n\n".join(str(part) for part in parts if part)}, at_s)
        self.tools = [tool for tool in items(event.get("tools")) if self._usable(tool)]

    def _usable(self, tool: Any) -> bool:
        shown = mapping(tool)
        named = "function" in shown or ("name" in shown and ("parameters" in shown or "input_schema" in shown))
        if not named:
            self.ledger.lose(TOOL_SCHEMAS, "tools are stored as action types, not as the schemas that were sent")
        return named

    def _action(self, event: dict[str, Any], at_s: float | None) -> None:
        stored = mapping(event.get("tool_call"))
        call = {
            "id": stored.get("id", event.get("tool_call_id")),
            "type": "function",
            "function": {"name": stored.get("name", event.get("tool_name")), "arguments": stored.get("arguments")},
        }
        response = event.get("llm_response_id")
        if response is not None and response == self._response:
            self._joined(call)
            return
        message: Message = {"role": "assistant", "content": _texts(event.get("thought")), "tool_calls": [call]}
        if isinstance(event.get("reasoning_content"), str) and event["reasoning_content"]:
            message["reasoning_content"] = event["reasoning_content"]
        self._add(message, at_s)
        self._response = response

    def _joined(self, call: dict[str, Any]) -> None:
        """A parallel call: into the answer it came with, also when results were written in between."""
        last = next(e for e in reversed(self.entries) if e.message.get("role") == "assistant")
        last.message["tool_calls"].append(call)


def _read_v1(rows: list[dict[str, Any]], ledger: Ledger) -> list[Call]:
    reader = _V1(ledger)
    for row in rows:
        if reader.event(row):
            ledger.used += 1
        else:
            ledger.skip(f"event of kind {row.get('kind')} does not enter the prompt")
    calls = calls_of(reader.entries, "session")
    for call in calls:
        call.tools = reader.tools or None
    return calls


# ---------------------------------------------------------------- V0


def _v0_answer(event: dict[str, Any], seen: set[str]) -> Entry | None:
    """The answer an agent's event belongs to; None if an earlier event of the same answer brought it already."""
    response = mapping(mapping(event.get("tool_call_metadata")).get("model_response"))
    choice = mapping(next(iter(items(response.get("choices"))), None))
    message = mapping(choice.get("message"))
    at_s = seconds(event.get("timestamp"))
    if message:
        if (key := str(response.get("id"))) in seen:
            return None
        seen.add(key)
        usage = mapping(response.get("usage"))
        facts = {
            "output_tokens": whole(usage.get("completion_tokens")),
            "prompt_tokens": whole(usage.get("prompt_tokens")),
            "finish_reason": choice.get("finish_reason") if isinstance(choice.get("finish_reason"), str) else None,
        }
        return Entry(message={"role": "assistant", **message}, at_s=at_s, facts=facts)
    text = mapping(event.get("args")).get("content") or event.get("message") or ""
    return Entry(message={"role": "assistant", "content": str(text)}, at_s=at_s)


def _v0_entry(event: dict[str, Any], seen: set[str]) -> Entry | str | None:
    """The entry of one event; a reason if it does not enter the prompt; None if its answer is there already."""
    args, at_s = mapping(event.get("args")), seconds(event.get("timestamp"))
    action, metadata = event.get("action"), mapping(event.get("tool_call_metadata"))
    if action == "system":
        return Entry(message={"role": "system", "content": args.get("content", "")}, at_s=at_s)
    if action == "message" and event.get("source") == "user":
        return Entry(message={"role": "user", "content": args.get("content", "")}, at_s=at_s)
    if "observation" in event and metadata.get("tool_call_id"):
        result = {"role": "tool", "tool_call_id": metadata["tool_call_id"], "content": event.get("content", "")}
        return Entry(message=result, at_s=at_s)
    if action is not None and event.get("source") == "agent" and (metadata or action == "message"):
        return _v0_answer(event, seen)
    return f"{action or event.get('observation')} does not enter the prompt"


def _v0_tools(rows: list[dict[str, Any]]) -> Any:
    system = next((row for row in rows if row.get("action") == "system"), {})
    return items(mapping(system.get("args")).get("tools")) or None


def _read_v0(rows: list[dict[str, Any]], ledger: Ledger) -> list[Call]:
    entries: list[Entry] = []
    seen: set[str] = set()
    for row in rows:
        entry = _v0_entry(row, seen)
        if isinstance(entry, str):
            ledger.skip(entry)
            continue
        ledger.used += 1
        if entry is not None:
            entries.append(entry)
    calls = calls_of(entries, "session")
    for call in calls:
        call.tools = _v0_tools(rows)
    return calls


def read(source: Source, ledger: Ledger) -> list[Call]:
    """One call for each answer of the agent."""
    rows = [row for _, row in source.objects()]
    return _read_v0(rows, ledger) if any(_is_v0(row) for row in rows) else _read_v1(rows, ledger)


FORMAT = Format(
    name="openhands",
    title="OpenHands trajectory, V0 (.json) or V1 events (.jsonl, folder)",
    recognises=recognises,
    read=read,
    lacks=(SYSTEM_PROMPT, TOOL_SCHEMAS),
)
