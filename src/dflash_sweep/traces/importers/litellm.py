"""LiteLLM proxy logs (StandardLoggingPayload, JSON or JSON Lines). Imports `importers` rules only.

`response_time` is the time to the first token for streams, so times are taken from start, completion start and end.
Metadata (key hashes, addresses) is never read.
"""

from __future__ import annotations

from typing import Any

from dflash_sweep.traces.importers.base import Call, Format, Ledger, Source, mapping, seconds, whole
from dflash_sweep.traces.importers.chat_request import apply_response, call_of_request


def recognises(source: Source) -> int:
    """Payloads with LiteLLM's own keys."""
    return sum("call_type" in row and "messages" in row and "startTime" in row for _, row in source.objects())


def _skip_reason(row: dict[str, Any]) -> str | None:
    if str(row.get("call_type")) not in ("completion", "acompletion"):
        return f"call of type {row.get('call_type')}"
    if row.get("status") not in (None, "success"):
        return "call that failed"
    if row.get("cache_hit") is True:
        return "answered from the proxy's cache, never reached a model"
    messages = row.get("messages")
    messages = mapping(messages).get("messages", messages)
    if not isinstance(messages, list) or not messages:
        return "messages redacted or stored as text"
    return None


def _call(row: dict[str, Any], ledger: Ledger) -> Call:
    stored = row["messages"]
    parameters = mapping(row.get("model_parameters"))
    call = call_of_request(
        {"model": row.get("model"), **parameters, "messages": mapping(stored).get("messages", stored)}, ledger
    )
    response = row.get("response")
    apply_response(call, response)
    if isinstance(response, str) and response:
        call.answer = {"role": "assistant", "content": response}
    if call.output_tokens is None:
        call.output_tokens = whole(row.get("completion_tokens"))
    if call.prompt_tokens is None:
        call.prompt_tokens = whole(row.get("prompt_tokens"))
    call.conversation = str(row["trace_id"]) if row.get("trace_id") else None
    call.started_s, call.ended_s = seconds(row.get("startTime")), seconds(row.get("endTime"))
    first = seconds(row.get("completionStartTime"))
    # For calls that were not streamed the proxy repeats the end here.
    call.first_token_s = None if first == call.ended_s else first
    return call


def read(source: Source, ledger: Ledger) -> list[Call]:
    """One call for each payload that reached a model."""
    calls = []
    for _, row in source.objects():
        if reason := _skip_reason(row):
            ledger.skip(reason)
        else:
            ledger.used += 1
            calls.append(_call(row, ledger))
    return calls


FORMAT = Format(name="litellm", title="LiteLLM proxy log (.json, .jsonl)", recognises=recognises, read=read)
