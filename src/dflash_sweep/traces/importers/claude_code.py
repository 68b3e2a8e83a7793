"""Claude Code session files (JSON Lines). Imports `importers.base` and the block rules only.

The format is declared internal by its vendor: unknown lines are counted and left out. One model answer is spread over
several lines with the same message id; the system prompt and the tool schemas are not in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dflash_sweep.traces.importers.anthropic_blocks import assistant_message, user_messages
from dflash_sweep.traces.importers.base import (
    SYSTEM_PROMPT,
    TOOL_SCHEMAS,
    Call,
    Entry,
    Format,
    Ledger,
    Source,
    calls_of,
    items,
    mapping,
    seconds,
    whole,
    word,
)

_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


def _is_turn(row: dict[str, Any]) -> bool:
    return row.get("type") in ("user", "assistant") and isinstance(row.get("message"), dict) and "uuid" in row


def recognises(source: Source) -> int:
    """Conversation lines with this program's envelope."""
    return sum(_is_turn(row) and "parentUuid" in row for _, row in source.objects())


def _ordered(rows: list[dict[str, Any]], ledger: Ledger) -> list[dict[str, Any]]:
    """The path from the last line back to its root; the file's order where a parent is missing or goes round."""
    by_id = {row["uuid"]: row for row in rows}
    path = [rows[-1]]
    seen = {rows[-1]["uuid"]}
    while (parent := path[-1].get("parentUuid")) is not None:
        if not isinstance(parent, str) or parent in seen or parent not in by_id:
            ledger.warn("a parentUuid names no line, or goes round: the order of the file was used instead")
            return rows
        path.append(by_id[parent])
        seen.add(parent)
    path.reverse()
    ledger.skip("other branch of the session", len(rows) - len(path))
    return path


def _segments(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Lines cut at every root: a compaction or a sub-agent starts a history of its own."""
    segments: list[list[dict[str, Any]]] = []
    for row in rows:
        if not segments or row.get("parentUuid") is None:
            segments.append([])
        segments[-1].append(row)
    return segments


def _usage(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The largest usage of the lines of one answer: early lines hold part of the output only."""
    usages = [mapping(mapping(row["message"]).get("usage")) for row in rows]
    best = max(usages, key=lambda usage: whole(usage.get("output_tokens")) or 0)
    inputs = [whole(best.get(k)) for k in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")]
    stop = next((r["message"]["stop_reason"] for r in reversed(rows) if r["message"].get("stop_reason")), None)
    return {
        "output_tokens": whole(best.get("output_tokens")),
        "prompt_tokens": None if inputs[0] is None else sum(count or 0 for count in inputs),
        "cached_tokens": inputs[2],
        "model": word(mapping(rows[0]["message"]).get("model")),
        "finish_reason": _FINISH.get(str(stop)),
    }


def _answer(rows: list[dict[str, Any]]) -> Entry:
    blocks: list[Any] = []
    for row in rows:
        content = row["message"].get("content")
        blocks += [{"type": "text", "text": content}] if isinstance(content, str) else items(content)
    return Entry(message=assistant_message(blocks), at_s=seconds(rows[-1].get("timestamp")), facts=_usage(rows))


def _answer_key(row: dict[str, Any]) -> tuple[str, str] | None:
    message = row["message"]
    if row["type"] != "assistant" or not isinstance(message.get("id"), str):
        return None
    return message["id"], str(row.get("requestId"))


def _entries(rows: list[dict[str, Any]]) -> Iterator[Entry]:
    """Messages in order. Lines of one answer are joined, also where a tool result was written between them."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if (key := _answer_key(row)) is not None:
            groups.setdefault(key, []).append(row)
    done: set[tuple[str, str]] = set()
    for row in rows:
        at_s = seconds(row.get("timestamp"))
        content = row["message"].get("content")
        if row["type"] == "assistant":
            key = _answer_key(row)
            if key is None:
                yield _answer([row])
            elif key not in done:
                done.add(key)
                yield _answer(groups[key])
        elif row["message"].get("role") == "system":
            yield Entry(message={"role": "system", "content": content}, at_s=at_s)
        else:
            yield from (Entry(message=message, at_s=at_s) for message in user_messages(content))


def _skip_reason(row: dict[str, Any]) -> str | None:
    if not _is_turn(row):
        return f"bookkeeping: {row.get('type')}"
    if row.get("isApiErrorMessage") or row["message"].get("model") == "<synthetic>":
        return "error shown to the user, no model answer"
    return None


def _turns(path: list[dict[str, Any]], ledger: Ledger) -> list[dict[str, Any]]:
    turns = []
    for row in path:
        if reason := _skip_reason(row):
            ledger.skip(reason)
        else:
            ledger.used += 1
            turns.append(row)
    return turns


def read(source: Source, ledger: Ledger) -> list[Call]:
    """One call for each answer; sub-agents (side chains) are conversations of their own."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for _, row in source.objects():
        if not isinstance(row.get("uuid"), str):
            ledger.skip(f"bookkeeping: {row.get('type')}")
        else:
            group = f"side {row.get('agentId') or row.get('sessionId')}" if row.get("isSidechain") else "main"
            groups.setdefault(group, []).append(row)
    calls: list[Call] = []
    for name, rows in groups.items():
        for number, segment in enumerate(_segments(rows)):
            calls += calls_of(list(_entries(_turns(_ordered(segment, ledger), ledger))), f"{name} {number}")
    return calls


FORMAT = Format(
    name="claude_code",
    title="Claude Code session (.jsonl)",
    recognises=recognises,
    read=read,
    lacks=(SYSTEM_PROMPT, TOOL_SCHEMAS),
)
