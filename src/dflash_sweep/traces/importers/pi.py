"""Pi coding agent sessions (JSON Lines, a tree of entries; or its HTML export). Imports `importers.base` only.

Source of the format: badlogic/pi-mono, `session-manager.ts`, `messages.ts`, `export-html/index.ts`. System prompt and
tool schemas are not in the session file; an export made from within Pi holds them as they were at its time (`sources`
makes a record of type EXPORT of what the page embeds beside the entries). The history is built the way Pi builds it:
the path from the last entry to the root, the last compaction before the call, aborted answers left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    call_of,
    items,
    mapping,
    seconds,
    whole,
    word,
)
from dflash_sweep.traces.message_rules import compact_json

# The frames Pi puts around a summary; they are part of the prompt, so they are spelt exactly as Pi sends them.
_COMPACTION = (
    "The conversation history before this point was compacted into the following summary:\n\n<summary>\n",
    "\n</summary>",
)
_BRANCH = ("The following is a summary of a branch that this conversation came back from:\n\n<summary>\n", "</summary>")

EXPORT = "html_export"
"""Type of the record that holds an HTML export's systemPrompt, tools and leafId."""

# Tuples, because a damaged file can hold anything where a word should stand, also what no set takes.
_IN_PROMPT = ("message", "compaction", "branch_summary", "custom_message")
_TYPES = (*_IN_PROMPT, "model_change", "thinking_level_change", "custom", "label", "session_info")
_FINISH = {"stop": "stop", "length": "length", "toolUse": "tool_calls"}


def recognises(source: Source) -> int:
    """Entries of Pi's tree, once the session header is there."""
    rows = [row for _, row in source.objects()]
    if not any(row.get("type") == "session" and "cwd" in row for row in rows):
        return 0
    return sum(row.get("type") == "session" or (row.get("type") in _TYPES and "timestamp" in row) for row in rows)


def _path(entries: Sequence[dict[str, Any]], leaf: str | None, ledger: Ledger) -> list[dict[str, Any]]:
    """Entries from the root to `leaf`, else to the last. Files of version 1 have no ids: their order is the path."""
    if not any("parentId" in entry for entry in entries):
        return list(entries)
    by_id = {entry["id"]: entry for entry in entries if isinstance(entry.get("id"), str)}
    path: list[dict[str, Any]] = []
    seen: set[str] = set()
    entry: dict[str, Any] | None = by_id.get(leaf or "") or (entries[-1] if entries else None)
    while entry is not None:
        path.append(entry)
        seen.add(str(entry.get("id")))
        parent = entry.get("parentId")
        if isinstance(parent, str) and parent in seen:
            ledger.warn("the entries' parents form a circle; cut there")
            break
        entry = by_id.get(parent) if isinstance(parent, str) else None
        if parent is not None and entry is None:
            ledger.lose(
                "history", f"entry {str(parent)[:40]!r} is named as a parent and missing: earlier ones are lost"
            )
    path.reverse()
    ledger.skip("other branch of the session", len(entries) - len(path))
    return path


def _blocks(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [
        {"type": "text", "text": block["text"]} if mapping(block).get("type") == "text" and "text" in block else block
        for block in items(content)
        if not (mapping(block).get("type") == "text" and not str(mapping(block).get("text", "")).strip())
    ]


def _user(content: Any) -> Message:
    return {"role": "user", "content": content if isinstance(content, str) else _blocks(content)}


def _call_id(value: Any) -> Any:
    """Pi cuts ids of the form call|item at the bar."""
    return value.split("|", 1)[0] if isinstance(value, str) else value


def _assistant(message: dict[str, Any]) -> Message:
    blocks = [mapping(block) for block in items(message.get("content"))]
    texts = [str(b["text"]) for b in blocks if b.get("type") == "text" and str(b.get("text") or "").strip()]
    thoughts = [
        str(b["thinking"])
        for b in blocks
        if b.get("type") == "thinking" and not b.get("redacted") and str(b.get("thinking") or "").strip()
    ]
    answer: Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        answer["reasoning_content"] = "\n".join(thoughts)
    calls = [
        {
            "id": _call_id(b.get("id")),
            "type": "function",
            "function": {"name": b.get("name"), "arguments": compact_json(b.get("arguments", {}))},
        }
        for b in blocks
        if b.get("type") == "toolCall"
    ]
    return answer | ({"tool_calls": calls} if calls else {})


def _bash_text(message: dict[str, Any]) -> str:
    output = message.get("output")
    text = f"Ran `{message.get('command')}`\n" + (f"```\n{output}\n```" if output else "(no output)")
    code = message.get("exitCode")
    if message.get("cancelled"):
        return text + "\n\n(command cancelled)"
    return text + (f"\n\nCommand exited with code {code}" if code else "")


def _tool_result(message: dict[str, Any]) -> Iterator[Message]:
    """Text goes into the tool message; images follow in a user message, as Pi sends them."""
    blocks = _blocks(message.get("content"))
    images = [block for block in blocks if mapping(block).get("type") == "image"]
    texts = [block for block in blocks if mapping(block).get("type") != "image"]
    tool_call_id = _call_id(message.get("toolCallId"))
    yield {"role": "tool", "tool_call_id": tool_call_id, "content": texts or ("(see image)" if images else "")}
    if images:
        yield {"role": "user", "content": images}


def _messages(message: dict[str, Any], ledger: Ledger) -> list[Message]:
    """A Pi message as chat messages; none if it does not enter the prompt."""
    match message.get("role"):
        case "user" | "custom" | "hookMessage":
            return [_user(message.get("content"))]
        case "assistant":
            return [_assistant(message)]
        case "toolResult":
            return list(_tool_result(message))
        case "bashExecution":
            return [] if message.get("excludeFromContext") else [_user(_bash_text(message))]
        case "branchSummary":
            return [_user(str(message.get("summary", "")).join(_BRANCH))]
        case "compactionSummary":
            return [_user(str(message.get("summary", "")).join(_COMPACTION))]
        case other:
            ledger.warn(f"message role {other!r} is not known and was left out")
            return []


def _facts(message: dict[str, Any]) -> dict[str, Any]:
    usage = mapping(message.get("usage"))
    counts = [whole(usage.get(key)) for key in ("input", "cacheRead", "cacheWrite")]
    known = [count for count in counts if count is not None]
    return {
        "max_tokens": whole(usage.get("output")) or None,
        "prompt_tokens": sum(known) if counts[0] is not None else None,
        "cached_tokens": whole(usage.get("cacheRead")),
        "model": word(message.get("model")),
        "finish_reason": _FINISH.get(str(message.get("stopReason"))),
    }


def _entries(entry: dict[str, Any], ledger: Ledger) -> list[Entry]:
    at_s = seconds(entry.get("timestamp"))
    kind = entry.get("type")
    if kind == "branch_summary":
        return [Entry(message=_user(str(entry.get("summary", "")).join(_BRANCH)), at_s=at_s)]
    if kind == "custom_message":
        return [Entry(message=_user(entry.get("content")), at_s=at_s)]
    if kind != "message":
        return []
    message = mapping(entry.get("message"))
    facts = _facts(message) if message.get("role") == "assistant" else {}
    return [Entry(message=m, at_s=at_s, facts=facts) for m in _messages(message, ledger)]


def _context(path: Sequence[dict[str, Any]], ledger: Ledger) -> list[Entry]:
    """What Pi would send after these entries: the last compaction's summary, what it kept, and what followed."""
    last = next((n for n in range(len(path) - 1, -1, -1) if path[n].get("type") == "compaction"), None)
    if last is None:
        return [e for entry in path for e in _entries(entry, ledger)]
    compaction = path[last]
    summary = Entry(message=_user(str(compaction.get("summary", "")).join(_COMPACTION)))
    tail = compaction.get("retainedTail")
    if isinstance(tail, list):
        kept = [Entry(message=m) for item in tail for m in _messages(mapping(item), ledger)]
    else:
        kept = [e for entry in path[_first_kept(path, last) : last] for e in _entries(entry, ledger)]
    return [summary, *kept, *(e for entry in path[last + 1 :] for e in _entries(entry, ledger))]


def _first_kept(path: Sequence[dict[str, Any]], last: int) -> int:
    compaction = path[last]
    index = compaction.get("firstKeptEntryIndex")
    if isinstance(index, int):
        return min(max(0, index - 1), last)  # version 1 counts the header line, which is not in the path
    wanted = compaction.get("firstKeptEntryId")
    return next((n for n in range(last) if path[n].get("id") == wanted), last)


def _is_failed(entry: dict[str, Any]) -> bool:
    return mapping(entry.get("message")).get("stopReason") in ("error", "aborted")


def _exported_tools(export: dict[str, Any], ledger: Ledger) -> list[dict[str, Any]] | None:
    """The tools as functions; where the export holds no parameters, any are allowed and the loss is noted."""
    tools = [mapping(tool) for tool in items(export.get("tools")) if word(mapping(tool).get("name"))]
    if any(not isinstance(tool.get("parameters"), dict) for tool in tools):
        ledger.lose(
            TOOL_SCHEMAS, "the export holds names and descriptions only: parameters are left open; --tools gives them"
        )
    return [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": str(tool.get("description") or ""),
                "parameters": mapping(tool.get("parameters")) or {"type": "object", "additionalProperties": True},
            },
        }
        for tool in tools
    ] or None


def _sorted_out(source: Source, ledger: Ledger) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The session's entries, and what an HTML export holds besides."""
    entries: list[dict[str, Any]] = []
    export: dict[str, Any] = {}
    for _, row in source.objects():
        if row.get("type") == "session":
            ledger.used += 1
        elif row.get("type") == EXPORT:
            ledger.used += 1
            export = row
        elif row.get("type") in _TYPES:
            entries.append(row)
        else:
            ledger.skip(f"line of type {row.get('type')!r} not known")
    return entries, export


def read(source: Source, ledger: Ledger) -> list[Call]:
    """One call for each answer on the session's path."""
    entries, export = _sorted_out(source, ledger)
    path = []
    for entry in _path(entries, word(export.get("leafId")), ledger):
        if _is_failed(entry):
            ledger.skip("answer that failed or was stopped")
        elif entry.get("type") not in _IN_PROMPT:
            ledger.skip(f"bookkeeping: {entry.get('type')}")
        else:
            ledger.used += 1
            path.append(entry)
    ledger.lose("output_tokens", "Pi's usage can count reasoning twice: taken as a limit, not as the answer's length")
    system, tools = word(export.get("systemPrompt")), _exported_tools(export, ledger)
    if system or tools:
        ledger.warn("system prompt and tools are those at the time of the export")
    first = [Entry(message={"role": "system", "content": system})] if system else []
    calls = []
    for position, entry in enumerate(path):
        if mapping(entry.get("message")).get("role") == "assistant":
            history = _context(path[:position], ledger)
            if history:
                call = call_of(_entries(entry, ledger)[0], [*first, *history], "session")
                call.tools = tools
                calls.append(call)
    return calls


FORMAT = Format(
    name="pi",
    title="Pi coding agent session (.jsonl) or its HTML export",
    recognises=recognises,
    read=read,
    lacks=(SYSTEM_PROMPT, TOOL_SCHEMAS),
)
