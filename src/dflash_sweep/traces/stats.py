"""What a trace is made of: prompt growth, tokens a bucket, share of tools. Imports records and `traces` rules only.

Token counts are recorded ones where the trace has them, else estimates from characters (4 a token); each count says
which it is. Parts of a prompt are shares of its characters.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash_sweep.records import Trace, Turn
from dflash_sweep.traces.buckets import CHARS_PER_TOKEN, message_chars

PARTS = ("system", "tools", "user", "assistant", "tool")
"""What a prompt consists of: the system message, the tool schemas, and the messages by role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStats:
    """One turn. `prompt_parts` are tokens by part and sum to `prompt_tokens`, up to rounding.

    `new_tokens`: the part of the prompt that the turn before did not have (what a warm cache has to read).
    `*_estimated`: counted from characters. `output_tokens` None: no answer was recorded.
    """

    conversation: str
    index: int
    bucket: str
    prompt_tokens: int
    prompt_estimated: bool
    prompt_parts: dict[str, int]
    new_tokens: int
    output_tokens: int | None
    output_estimated: bool
    max_tokens: int | None
    calls: int
    pause_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStats:
    """A whole trace. `by_bucket`: bucket → (turns, output tokens). `tool_turns`: turns whose answer calls a tool.

    `tool_prompt_share`: share of the last prompts' tokens that are tool results, 0 to 1.
    """

    name: str
    sha256: str
    turns: tuple[TurnStats, ...]
    conversations: int
    by_bucket: dict[str, tuple[int, int]] = field(default_factory=dict)
    tool_turns: int = 0
    tool_prompt_share: float = 0.0

    @property
    def estimated(self) -> bool:
        """Whether any count is an estimate."""
        return any(turn.prompt_estimated or turn.output_estimated for turn in self.turns)

    @property
    def longest_tokens(self) -> int:
        """The greatest prompt together with its output: what the context has to hold."""
        return max(turn.prompt_tokens + (turn.output_tokens or turn.max_tokens or 0) for turn in self.turns)


def _part_chars(turn: Turn) -> dict[str, int]:
    chars = dict.fromkeys(PARTS, 0)
    chars["tools"] = len(json.dumps(turn.tools, ensure_ascii=False)) if turn.tools else 0
    for message in turn.messages:
        role = str(message.get("role"))
        chars["system" if role == "developer" else role if role in PARTS else "user"] += message_chars([message])
    return chars


def _output(turn: Turn) -> tuple[int | None, bool, int]:
    """Output tokens, whether they are an estimate, and the number of tool calls."""
    recorded = turn.recorded
    if recorded.output_tokens is not None:
        return recorded.output_tokens, False, len(recorded.tool_calls)
    answer: Mapping[str, Any] = {
        "content": recorded.content or "",
        "reasoning_content": recorded.reasoning,
        "tool_calls": recorded.tool_calls,
    }
    chars = message_chars([answer])
    return (round(chars / CHARS_PER_TOKEN) if chars else None), bool(chars), len(recorded.tool_calls)


def _shared_chars(before: Turn | None, turn: Turn) -> int:
    """Characters at the start of the prompt that the turn before had as well."""
    if before is None or before.tools != turn.tools:
        return 0
    shared = len(json.dumps(turn.tools, ensure_ascii=False)) if turn.tools else 0
    for old, new in zip(before.messages, turn.messages, strict=False):
        if old is not new and old != new:
            break
        shared += message_chars([new])
    return shared


def turn_stats(turn: Turn, before: Turn | None) -> TurnStats:
    """Figures of one turn; `before` is the previous turn of its conversation."""
    chars = _part_chars(turn)
    total_chars = sum(chars.values())
    recorded = turn.recorded.prompt_tokens
    prompt_tokens = round(total_chars / CHARS_PER_TOKEN) if recorded is None else recorded
    scale = prompt_tokens / total_chars if total_chars else 0.0
    output_tokens, estimated, calls = _output(turn)
    return TurnStats(
        conversation=turn.conversation,
        index=turn.index,
        bucket=turn.bucket,
        prompt_tokens=prompt_tokens,
        prompt_estimated=recorded is None,
        prompt_parts={part: round(count * scale) for part, count in chars.items()},
        new_tokens=round((total_chars - _shared_chars(before, turn)) * scale),
        output_tokens=output_tokens,
        output_estimated=estimated,
        max_tokens=turn.max_tokens,
        calls=calls,
        pause_ms=turn.pause_ms,
    )


def trace_stats(trace: Trace) -> TraceStats:
    """Figures of a trace, turn by turn and together."""
    last: dict[str, Turn] = {}
    turns = []
    for turn in trace.turns:
        turns.append(turn_stats(turn, last.get(turn.conversation)))
        last[turn.conversation] = turn
    counts: Counter[str] = Counter(turn.bucket for turn in turns)
    outputs: Counter[str] = Counter()
    for one in turns:
        outputs[one.bucket] += one.output_tokens or 0
    finals = {one.conversation: one for one in turns}.values()
    prompt_total = sum(one.prompt_tokens for one in finals)
    return TraceStats(
        name=trace.header.name,
        sha256=trace.header.sha256,
        turns=tuple(turns),
        conversations=len(last),
        by_bucket={bucket: (count, outputs[bucket]) for bucket, count in counts.most_common()},
        tool_turns=sum(one.calls > 0 for one in turns),
        tool_prompt_share=sum(one.prompt_parts["tool"] for one in finals) / prompt_total if prompt_total else 0.0,
    )
