"""OpenTelemetry spans with GenAI attributes (span JSON Lines or OTLP JSON). Imports `importers.base` only.

The convention is still moving: system text may stand in `gen_ai.system_instructions` or among the messages, results
under `response` or `result`, and any attribute may be a JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dflash_sweep.traces.importers.base import (
    Call,
    Format,
    Ledger,
    Message,
    Source,
    items,
    mapping,
    seconds,
    whole,
    word,
)
from dflash_sweep.traces.message_rules import compact_json


def _value(value: Any) -> Any:
    """An OTLP attribute value ({stringValue: …}, {arrayValue: …}) or a plain one."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    kind, inner = next(iter(value.items()))
    if kind == "arrayValue":
        return [_value(one) for one in items(mapping(inner).get("values"))]
    if kind == "kvlistValue":
        return {
            str(one.get("key")): _value(one.get("value")) for one in map(mapping, items(mapping(inner).get("values")))
        }
    return inner if kind in ("stringValue", "intValue", "doubleValue", "boolValue") else value


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    stored = span.get("attributes")
    if isinstance(stored, list):
        return {str(one.get("key")): _value(one.get("value")) for one in map(mapping, stored)}
    return mapping(stored)


def _spans(source: Source) -> Iterator[dict[str, Any]]:
    for _, row in source.objects():
        resources = items(row.get("resourceSpans"))
        if not resources:
            yield row
        for resource in map(mapping, resources):
            scopes = items(resource.get("scopeSpans")) or items(resource.get("instrumentationLibrarySpans"))
            for scope in map(mapping, scopes):
                yield from map(mapping, items(scope.get("spans")))


def recognises(source: Source) -> int:
    """Spans with a gen_ai attribute."""
    return sum(any(key.startswith("gen_ai.") for key in _attributes(span)) for span in _spans(source))


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _response_text(part: dict[str, Any]) -> Any:
    value = part.get("response", part.get("result", ""))
    return value if isinstance(value, str) else compact_json(value)


def _messages(stored: Any) -> list[Message]:
    """A message with parts as chat messages: each tool response is a tool message of its own."""
    message = mapping(stored)
    if "parts" not in message:
        return [message]
    texts: list[Any] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[Message] = []
    for part in map(mapping, items(message["parts"])):
        kind = part.get("type")
        if kind == "tool_call":
            function = {"name": part.get("name"), "arguments": part.get("arguments", {})}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif kind == "tool_call_response":
            results.append({"role": "tool", "tool_call_id": part.get("id"), "content": _response_text(part)})
        elif kind in ("reasoning", "thinking") and isinstance(part.get("content"), str):
            thoughts.append(part["content"])
        elif kind == "text":
            texts.append({"type": "text", "text": str(part.get("content", part.get("text", "")))})
        else:
            texts.append({**part, "type": str(part.get("modality") or part.get("mime_type") or kind)})
    if results and not texts and not calls:
        return results
    content: Any = texts[0]["text"] if len(texts) == 1 and texts[0].get("type") == "text" else texts
    said: Message = {"role": message.get("role"), "content": content or ""}
    if thoughts:
        said["reasoning_content"] = "\n".join(thoughts)
    if calls:
        said["tool_calls"] = calls
    return [*results, said]


def _call(span: dict[str, Any], attributes: dict[str, Any]) -> Call | None:
    stored = items(_decoded(attributes.get("gen_ai.input.messages")))
    messages = [message for one in stored for message in _messages(one)]
    system = _decoded(attributes.get("gen_ai.system_instructions"))
    if system and not any(message.get("role") in ("system", "developer") for message in messages):
        text = (
            system if isinstance(system, str) else "\n".join(str(mapping(p).get("content", "")) for p in items(system))
        )
        messages.insert(0, {"role": "system", "content": text})
    if not stored:
        return None
    answers = [m for one in items(_decoded(attributes.get("gen_ai.output.messages"))) for m in _messages(one)]
    reasons = _decoded(attributes.get("gen_ai.response.finish_reasons"))
    trace = span.get("traceId", mapping(span.get("context")).get("trace_id"))
    return Call(
        messages=messages,
        conversation=None if trace is None else str(trace),
        tools=_decoded(attributes.get("gen_ai.tool.definitions")) or None,
        max_tokens=whole(attributes.get("gen_ai.request.max_tokens")),
        answer=answers[0] if answers else None,
        output_tokens=whole(attributes.get("gen_ai.usage.output_tokens")),
        prompt_tokens=whole(attributes.get("gen_ai.usage.input_tokens")),
        finish_reason=str(reasons[0]) if isinstance(reasons, list) and reasons else None,
        model=word(attributes.get("gen_ai.response.model", attributes.get("gen_ai.request.model"))),
        sampling={
            key: value
            for key in ("temperature", "top_p", "top_k", "seed")
            if (value := attributes.get(f"gen_ai.request.{key}")) is not None
        },
        started_s=_nanoseconds(span.get("startTimeUnixNano", span.get("start_time"))),
        ended_s=_nanoseconds(span.get("endTimeUnixNano", span.get("end_time"))),
    )


def _nanoseconds(value: Any) -> float | None:
    return seconds(int(value)) if isinstance(value, str) and value.isdigit() else seconds(value)


def read(source: Source, ledger: Ledger) -> list[Call]:
    """One call for each chat span that kept its messages."""
    ledger.recount(source)
    calls = []
    for span in _spans(source):
        ledger.read += 1
        attributes = _attributes(span)
        operation = attributes.get("gen_ai.operation.name", "chat")
        if operation != "chat":
            ledger.skip(f"span of operation {operation}")
        elif (call := _call(span, attributes)) is None:
            ledger.skip("span without messages (content capture was off)")
        else:
            ledger.used += 1
            calls.append(call)
    return calls


FORMAT = Format(name="otel", title="OpenTelemetry GenAI spans (.json, .jsonl, OTLP)", recognises=recognises, read=read)
