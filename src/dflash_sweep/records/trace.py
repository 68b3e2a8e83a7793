"""Recorded model calls, ready to be sent again. Imports nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswer:
    """What the model answered when the trace was recorded: for checking, never sent (later history holds it anyway)."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    ttft_ms: float | None = None
    duration_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call of a trace: the full request history up to the call, never the recorded answer.

    `messages` and `tools` are OpenAI chat objects, ready to send. `tools` is None (absent), never ().
    `pause_ms` is the recorded time between the previous answer and this request (tool run, human).
    `bucket` is one of code, tool_call, thinking, prose, long_context, other.
    """

    conversation: str
    index: int
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: Any = None
    max_tokens: int | None = None
    pause_ms: float | None = None
    bucket: str = "other"
    recorded: RecordedAnswer = field(default_factory=RecordedAnswer)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHeader:
    """Where a trace comes from and what it cannot tell. `sha256` is over the canonical turns."""

    name: str
    source: str
    format_version: int = 1
    sha256: str = ""
    license: str | None = None
    tokenizer: str | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    content_kind: str = "real"
    losses: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    header: TraceHeader
    turns: tuple[Turn, ...]
