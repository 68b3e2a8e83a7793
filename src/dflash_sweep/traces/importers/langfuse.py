"""Langfuse exports: observations of type GENERATION (JSON or JSON Lines). Imports `importers` rules only."""

from __future__ import annotations

import json
from typing import Any

from dflash_sweep.traces.importers.base import Call, Format, Ledger, Source, items, mapping, seconds, whole
from dflash_sweep.traces.importers.chat_request import SAMPLING, call_of_request, usable_answer


def _rows(source: Source) -> list[dict[str, Any]]:
    """Observations, also those inside exported traces or pages ({observations: […]}, {data: […]})."""
    rows: list[dict[str, Any]] = []
    for _, row in source.objects():
        inner = items(row.get("observations")) or items(row.get("data"))
        rows += [mapping(one) for one in inner] if inner else [row]
    return rows


def recognises(source: Source) -> int:
    """Observations with Langfuse's keys."""
    return sum(
        "type" in row and "startTime" in row and ("traceId" in row or "trace_id" in row) for row in _rows(source)
    )


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _request(row: dict[str, Any]) -> dict[str, Any] | None:
    stored = _decoded(row.get("input"))
    request = {"messages": stored} if isinstance(stored, list) else mapping(stored)
    return request if items(request.get("messages")) else None


def _answer(output: Any) -> dict[str, Any] | None:
    output = _decoded(output)
    if isinstance(output, list):
        output = output[0] if output else None
    if isinstance(output, str):
        return {"role": "assistant", "content": output} if output else None
    message = mapping(output)
    return usable_answer(message.get("message", message))


def _call(row: dict[str, Any], request: dict[str, Any], ledger: Ledger) -> Call:
    parameters = mapping(_decoded(row.get("modelParameters")))
    cap = parameters.get("max_completion_tokens", parameters.get("max_tokens"))
    named = {key: value for key, value in parameters.items() if key in SAMPLING}
    if cap is not None:
        named["max_tokens"] = cap
    call = call_of_request({**named, "model": row.get("model"), **request}, ledger)
    call.answer = _answer(row.get("output"))
    usage = mapping(row.get("usageDetails")) or mapping(row.get("usage"))
    call.output_tokens = whole(usage.get("output", usage.get("completionTokens")))
    call.prompt_tokens = whole(usage.get("input", usage.get("promptTokens")))
    trace = row.get("traceId", row.get("trace_id"))
    call.conversation = None if trace is None else str(trace)
    call.started_s, call.ended_s = seconds(row.get("startTime")), seconds(row.get("endTime"))
    call.first_token_s = seconds(row.get("completionStartTime"))
    return call


def read(source: Source, ledger: Ledger) -> list[Call]:
    """One call for each generation."""
    rows = _rows(source)
    ledger.recount(source)
    ledger.read += len(rows)
    calls = []
    for row in rows:
        request = _request(row)
        if row.get("type") != "GENERATION":
            ledger.skip(f"observation of type {row.get('type')}")
        elif row.get("level") == "ERROR":
            ledger.skip("generation that failed")
        elif request is None:
            ledger.skip("generation whose input holds no messages (cut or replaced)")
        else:
            ledger.used += 1
            calls.append(_call(row, request, ledger))
    return calls


FORMAT = Format(name="langfuse", title="Langfuse export (.json, .jsonl)", recognises=recognises, read=read)
