"""Anthropic Messages content blocks as OpenAI chat messages. Imports `importers.base` only."""

from __future__ import annotations

from typing import Any

from dflash_sweep.traces.importers.base import Message, items, mapping
from dflash_sweep.traces.message_rules import compact_json


def _block_text(block: dict[str, Any]) -> Any:
    """A block as a content part: texts as they are, media left for the normaliser's placeholder."""
    return {"type": "text", "text": block["text"]} if isinstance(block.get("text"), str) else block


def result_text(content: Any) -> Any:
    """A tool result's content, a text or blocks, as content of a tool message."""
    if isinstance(content, list):
        return [_block_text(mapping(block)) if isinstance(block, dict) else block for block in content]
    return content


def user_messages(content: Any) -> list[Message]:
    """A user turn: first the tool results (each a tool message), then what the user said."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    results: list[Message] = []
    parts: list[Any] = []
    for block in map(mapping, items(content)):
        if block.get("type") == "tool_result":
            results.append(
                {
                    "role": "tool",
                    "tool_call_id": block.get("tool_use_id"),
                    "content": result_text(block.get("content") or ""),
                }
            )
        else:
            parts.append(_block_text(block))
    said: list[Message] = [{"role": "user", "content": parts}] if parts else []
    return results + said


def assistant_message(content: Any) -> Message:
    """An assistant turn: texts joined, thinking as reasoning_content, tool_use blocks as tool calls.

    Signatures and redacted thinking cannot be replayed and are left out.
    """
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    blocks = [mapping(block) for block in items(content)]
    texts = [block["text"] for block in blocks if block.get("type") == "text" and isinstance(block.get("text"), str)]
    thoughts = [str(block["thinking"]) for block in blocks if block.get("type") == "thinking" and block.get("thinking")]
    calls = [
        {
            "id": block.get("id"),
            "type": "function",
            "function": {"name": block.get("name"), "arguments": compact_json(block.get("input", {}))},
        }
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message
