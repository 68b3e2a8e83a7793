"""Which kind of text a turn produces: the bucket its speed is reported under. Imports nothing of ours.

Acceptance differs most by what is written, so the answer decides; only very long prompts form a bucket of their own,
because there the length of the context decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

CHARS_PER_TOKEN = 4.0
"""Rough figure for English and code; used where no token count was recorded."""

LONG_CONTEXT_TOKENS = 24_000
_CODE_ARGUMENT_CHARS = 240
_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)


def estimated_tokens(text_chars: int) -> int:
    """Tokens of a text of this many characters, roughly."""
    return round(text_chars / CHARS_PER_TOKEN)


def message_chars(messages: Sequence[Mapping[str, Any]]) -> int:
    """Characters of everything in these messages that is rendered into a prompt."""
    total = 0
    for message in messages:
        content = message.get("content")
        total += len(content) if isinstance(content, str) else len(str(content or ""))
        total += len(str(message.get("reasoning_content") or ""))
        for call in message.get("tool_calls") or ():
            function = call.get("function", {})
            total += len(str(function.get("name", ""))) + len(str(function.get("arguments", "")))
    return total


def _calls_write_code(calls: Sequence[Mapping[str, Any]]) -> bool:
    arguments = "".join(str(call.get("function", {}).get("arguments", "")) for call in calls)
    return len(arguments) >= _CODE_ARGUMENT_CHARS and arguments.count("\\n") >= 3


def bucket_of(answer: Mapping[str, Any] | None, prompt_tokens: int) -> str:
    """code, tool_call, thinking, prose, long_context or other (the answer is not known).

    Long context: 24,000 prompt tokens or more. Tool calls whose arguments are long and of several lines are code, as
    are texts that stand mostly in fences. Thinking: more reasoning than everything else.
    """
    if prompt_tokens >= LONG_CONTEXT_TOKENS:
        return "long_context"
    if answer is None:
        return "other"
    content = str(answer.get("content") or "")
    calls = answer.get("tool_calls") or ()
    reasoning = len(str(answer.get("reasoning_content") or ""))
    if reasoning > message_chars([{**answer, "reasoning_content": ""}]):
        return "thinking"
    if calls:
        return "code" if _calls_write_code(calls) else "tool_call"
    fenced = sum(len(match) for match in _FENCE.findall(content))
    if content and fenced >= len(content) / 2:
        return "code"
    return "prose" if content else "other"
