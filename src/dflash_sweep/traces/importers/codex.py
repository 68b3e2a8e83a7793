"""Codex CLI rollout files (JSON Lines, Responses items). Imports `importers.base` only.

`response_item` lines are what the model saw; `event_msg` lines repeat them for the screen, but hold the token counts.
Tool schemas are not in the file. Encrypted reasoning cannot be replayed.
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
    seconds,
    whole,
    word,
)
from dflash_sweep.traces.message_rules import compact_json

# Tuples, because a damaged file can hold anything where a word should stand, also what no set takes.
_ENVELOPES = ("session_meta", "turn_context", "response_item", "event_msg", "compacted")
_ITEMS = (
    "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
    "local_shell_call", "web_search_call",
)  # fmt: skip


def recognises(source: Source) -> int:
    """Lines with the envelope, or the bare items of files before October 2025 below their header line."""
    rows = [row for _, row in source.objects()]
    enveloped = sum(row.get("type") in _ENVELOPES and isinstance(row.get("payload"), dict) for row in rows)
    if enveloped or not rows:
        return enveloped
    header = "id" in rows[0] and "timestamp" in rows[0] and ("instructions" in rows[0] or "git" in rows[0])
    return sum(row.get("type") in _ITEMS or row.get("record_type") == "state" for row in rows) + 1 if header else 0


def _text(parts: Any) -> Any:
    """Content parts as they are for the normaliser; plain texts stay texts."""
    return parts if isinstance(parts, str) else items(parts)


def _joined(parts: Any, kind: str) -> str:
    return "\n".join(str(mapping(p).get("text", "")) for p in items(parts) if mapping(p).get("type") == kind)


def _instructions(meta: dict[str, Any]) -> str | None:
    """The system text: an object {text} in newer files, a plain text in older ones."""
    for key in ("base_instructions", "instructions"):
        value = meta.get(key)
        text = value.get("text") if isinstance(value, dict) else value
        if isinstance(text, str) and text:
            return text
    return None


def _output(value: Any) -> Any:
    if isinstance(value, str):
        return value
    inner = mapping(value)
    for key in ("content", "output"):
        if isinstance(inner.get(key), str):
            return inner[key]
    return items(value) or compact_json(value)


def _tool_call(item: dict[str, Any]) -> Message:
    kind = item.get("type")
    if kind == "custom_tool_call":
        arguments: Any = compact_json({"input": item.get("input", "")})
    elif kind == "local_shell_call":
        arguments = compact_json(mapping(item.get("action")))
    else:
        arguments = item.get("arguments")
    name = item.get("name") or ("local_shell" if kind == "local_shell_call" else None)
    return {"id": item.get("call_id") or item.get("id"), "type": "function",
            "function": {"name": name, "arguments": arguments}}  # fmt: skip


class _Session:
    """Folds items into messages: every run of assistant items becomes one assistant message."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.entries: list[Entry] = []
        self.calls: list[Call] = []
        self.model: str | None = None
        self._open: Entry | None = None
        self._counts: dict[str, Any] = {}
        self._kept = 0

    def _assistant(self, at_s: float | None) -> Message:
        if self._open is None:
            self._open = Entry(message={"role": "assistant", "content": ""}, at_s=at_s, facts={"model": self.model})
        self._open.at_s = at_s
        return self._open.message

    def close(self) -> None:
        """End the current assistant message, if there is one."""
        if self._open is not None:
            self._open.facts |= self._counts
            self.entries.append(self._open)
        self._open, self._counts = None, {}

    def add(self, message: Message, at_s: float | None) -> None:
        self.close()
        self.entries.append(Entry(message=message, at_s=at_s))

    def restart(self, entries: list[Entry]) -> None:
        """Go on with another history (after a compaction); calls so far keep theirs."""
        self.close()
        self.calls += calls_of(self.entries, "session", start=self._kept)
        self.entries = entries
        self._kept = len(entries)

    def item(self, item: dict[str, Any], at_s: float | None) -> str | None:
        """Take a response item; a reason if it cannot be used."""
        match item.get("type"):
            case "message" if item.get("role") == "assistant":
                message = self._assistant(at_s)
                said = _joined(item.get("content"), "output_text")
                message["content"] = "\n\n".join(text for text in (message["content"], said) if text)
            case "message":
                self.add({"role": item.get("role"), "content": _text(item.get("content"))}, at_s)
            case "reasoning":
                return self._reasoning(item, at_s)
            case "function_call" | "custom_tool_call" | "local_shell_call":
                self._assistant(at_s).setdefault("tool_calls", []).append(_tool_call(item))
            case "function_call_output" | "custom_tool_call_output":
                self.add(
                    {"role": "tool", "tool_call_id": item.get("call_id"), "content": _output(item.get("output"))}, at_s
                )
            case other:
                return f"item of type {other!r} cannot be replayed"
        return None

    def _reasoning(self, item: dict[str, Any], at_s: float | None) -> str | None:
        thought = _joined(item.get("content"), "reasoning_text") or _joined(item.get("summary"), "summary_text")
        if not thought:
            return "reasoning that is encrypted or empty"
        message = self._assistant(at_s)
        message["reasoning_content"] = "\n\n".join(t for t in (message.get("reasoning_content", ""), thought) if t)
        return None

    def count(self, event: dict[str, Any]) -> None:
        """Token counts of the last call: they stand after the answer's items, before the next input."""
        usage = mapping(mapping(event.get("info")).get("last_token_usage"))
        counts = {
            "output_tokens": whole(usage.get("output_tokens")),
            "prompt_tokens": whole(usage.get("input_tokens")),
            "cached_tokens": whole(usage.get("cached_input_tokens")),
        }
        if usage and self._open is not None:
            self._counts = counts
        elif usage:
            # Written after the tool's output: it belongs to the last answer before it.
            last = next((e for e in reversed(self.entries) if e.message.get("role") == "assistant"), None)
            if last is not None:
                last.facts |= counts


def _start(session: _Session, meta: dict[str, Any]) -> None:
    text = _instructions(meta)
    if text is not None and not session.entries:
        session.add({"role": "system", "content": text}, None)


def _compacted(session: _Session, payload: dict[str, Any]) -> None:
    replacement = [mapping(item) for item in items(payload.get("replacement_history"))]
    system = [e for e in session.entries[:1] if e.message.get("role") == "system"]
    if replacement:
        fresh = _Session(session.ledger)
        for item in replacement:
            fresh.item(item, None)
        fresh.close()
        session.restart(system + [Entry(message=e.message) for e in fresh.entries])
    else:
        session.ledger.lose("compaction", "the history after a compaction is not in the file: its summary stands in")
        session.restart([*system, Entry(message={"role": "user", "content": str(payload.get("message", ""))})])


def _line(session: _Session, row: dict[str, Any]) -> str | None:
    """Take one line; a reason if it is not used."""
    at_s, kind = seconds(row.get("timestamp")), row.get("type")
    payload = row["payload"] if isinstance(row.get("payload"), dict) else row
    if kind == "session_meta" or (kind is None and _instructions(row)):
        _start(session, payload)
    elif kind == "turn_context" and word(payload.get("model")):
        session.model = word(payload.get("model"))
    elif kind == "event_msg" and payload.get("type") == "token_count":
        session.count(payload)
    elif kind == "event_msg":
        return "screen event (repeats what the model saw)"
    elif kind == "compacted":
        _compacted(session, payload)
    elif kind == "response_item" or kind in _ITEMS:
        return session.item(payload, at_s)
    else:
        return f"bookkeeping: {kind or row.get('record_type', 'header')}"
    return None


def read(source: Source, ledger: Ledger) -> list[Call]:
    """One call for each run of assistant items."""
    session = _Session(ledger)
    for _, row in source.objects():
        if (reason := _line(session, row)) is None:
            ledger.used += 1
        else:
            ledger.skip(reason)
    session.restart([])
    return session.calls


FORMAT = Format(
    name="codex", title="Codex CLI rollout (.jsonl)", recognises=recognises, read=read, lacks=(TOOL_SCHEMAS,)
)
