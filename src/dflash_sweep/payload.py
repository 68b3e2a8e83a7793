"""The chat request of one turn, and the fingerprints of what was asked and answered. Imports `records`, `errors`,
`arms`, `chat_stream`. Pure functions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dflash_sweep import arms
from dflash_sweep.chat_stream import clean_text
from dflash_sweep.errors import ConfigError
from dflash_sweep.records import Exchange, ReplayPolicy, Turn

MODES = ("teacher_forced", "free_running")
PAUSES = ("drop", "keep", "compress")

OWN_FIELDS = {
    "messages": "the trace",
    "tools": "policy.tools",
    "tool_choice": "the trace",
    "stream": "always on",
    "stream_options": "always on",
    "max_tokens": "policy.max_tokens",
    "temperature": "policy.temperature",
    "seed": "policy.sampling_seed",
    "cache_prompt": "policy.cache_prompt",
}
"""Request fields that `policy.request_fields` may not set, and what sets them."""

_PROMPT_FIELDS = ("messages", "tools", "tool_choice", "chat_template_kwargs")


def check_policy(policy: ReplayPolicy) -> None:
    """Raises ConfigError, naming field and allowed values, if a replay policy cannot be followed."""
    for name, value, allowed in (("mode", policy.mode, MODES), ("pauses", policy.pauses, PAUSES)):
        if value not in allowed:
            raise ConfigError(f"policy.{name}={value!r} is not allowed: it takes {', '.join(allowed)}")
    for name, low in (("warmup_turns", 0), ("max_tokens", 1), ("concurrency", 1), ("min_decode_tokens", 1)):
        if getattr(policy, name) < low:
            raise ConfigError(f"policy.{name}={getattr(policy, name)} is not allowed: it takes {low} or more")
    if policy.turn_timeout_s <= 0:
        raise ConfigError(f"policy.turn_timeout_s={policy.turn_timeout_s:g} is not allowed: it takes a time above 0 s")
    if policy.temperature < 0:
        raise ConfigError(f"policy.temperature={policy.temperature:g} is not allowed: it takes 0 or more")
    arms.check(policy)
    for name in policy.request_fields:
        if name in OWN_FIELDS:
            raise ConfigError(f"policy.request_fields.{name} is not allowed: that field is set by {OWN_FIELDS[name]}")


def build_payload(
    turn: Turn,
    policy: ReplayPolicy,
    extra: Mapping[str, Any],
    template_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The body of the chat request for one turn; the client adds streaming.

    Sampling, token limit, seed and cache policy are always explicit. `extra` are the engine's fields for this
    candidate: they win over `policy.request_fields`, and a None in either takes a field out. Template switches are
    merged key by key: `template_kwargs` (the trace's), policy.request_fields, policy.thinking, extra; later ones win.
    """
    payload: dict[str, Any] = {"messages": list(turn.messages)}
    if policy.tools and turn.tools:
        payload["tools"] = list(turn.tools)
        if turn.tool_choice is not None:
            payload["tool_choice"] = turn.tool_choice
    payload["max_tokens"] = policy.max_tokens if turn.max_tokens is None else min(policy.max_tokens, turn.max_tokens)
    payload["temperature"] = policy.temperature
    payload["seed"] = policy.sampling_seed
    payload["cache_prompt"] = policy.cache_prompt
    switches = dict(template_kwargs or {})
    switches |= policy.request_fields.get("chat_template_kwargs") or {}
    if policy.thinking is not None:
        switches["enable_thinking"] = policy.thinking
    switches |= extra.get("chat_template_kwargs") or {}
    payload |= policy.request_fields
    payload |= extra
    payload["chat_template_kwargs"] = switches or None
    return {name: value for name, value in payload.items() if value is not None}


def encode_payload(payload: Mapping[str, Any]) -> bytes:
    """The request body: compact UTF-8 JSON, keys as given, lone surrogates as U+FFFD. Raises ValueError for NaN."""
    text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return clean_text(text).encode()


def prompt_sha256(payload: Mapping[str, Any]) -> str:
    """Fingerprint of what makes the prompt: messages, tools, tool_choice and template switches, in canonical JSON.

    The order of keys counts: templates print a tool's schema in the order it came in.
    """
    prompt = {name: payload[name] for name in _PROMPT_FIELDS if name in payload}
    text = json.dumps(prompt, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(clean_text(text).encode()).hexdigest()


def answer_text(exchange: Exchange) -> str:
    """The answer as one JSON text: [reasoning, content, the tool calls' names and arguments] (ids are random)."""
    calls = [call.get("function") for call in exchange.tool_calls]
    return clean_text(
        json.dumps([exchange.reasoning, exchange.content, calls], ensure_ascii=False, separators=(",", ":"))
    )


def text_sha256(exchange: Exchange) -> str:
    """Fingerprint of `answer_text`."""
    return hashlib.sha256(answer_text(exchange).encode()).hexdigest()
