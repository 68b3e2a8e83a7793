"""OpenAI chat logs, Batch files and rows of messages (JSON Lines). Imports `importers` rules only.

Takes: Batch input (`custom_id`, `body`) joined with Batch output of the same file by `custom_id`; loggers' rows with
`request` and `response`; bare request bodies; OpenHands completion logs (`messages`, `kwargs`, `response`); rows of
messages with an `output_length` (AIPerf). A row whose messages end with the assistant holds its own answer.
"""

from __future__ import annotations

from typing import Any

from dflash_sweep.traces.importers.base import Call, Format, Ledger, Source, mapping, seconds, whole
from dflash_sweep.traces.importers.chat_request import SAMPLING, apply_response, call_of_request, is_request

DELTA = (
    "row in delta mode, whose history needs answers that were never recorded: export full histories "
    '("message_mode": "history"), or record the traffic with dflash-sweep record'
)

_ROW_KEYS = {"request", "response", "body", "custom_id", "ts", "timestamp", "id", "url", "method", "error"}


def _request(row: dict[str, Any]) -> dict[str, Any] | None:
    for key in ("body", "request", "request_body", "input"):
        inner = row.get(key)
        inner = mapping(inner).get("body", inner)
        if is_request(inner):
            return mapping(inner)
    return row if is_request(row) else None


def _response(row: dict[str, Any]) -> dict[str, Any] | None:
    for key in ("response", "response_body", "output"):
        inner = mapping(row.get(key))
        inner = mapping(inner.get("body", inner))
        if isinstance(inner.get("choices"), list):
            return inner
    return None


def recognises(source: Source) -> int:
    """Rows that hold a chat request, or Batch results."""
    return sum(_request(row) is not None or ("custom_id" in row and "response" in row) for _, row in source.objects())


def _outputs(source: Source) -> dict[str, dict[str, Any]]:
    return {
        str(row["custom_id"]): response
        for _, row in source.objects()
        if "custom_id" in row and _request(row) is None and (response := _response(row)) is not None
    }


def _skip_reason(row: dict[str, Any], request: dict[str, Any] | None) -> str | None:
    url = str(row.get("url", ""))
    if url and not url.rstrip("/").endswith("/chat/completions"):
        return f"request to {url.split('?')[0][-40:]}, not to chat completions"
    if request is None:
        return "no chat request in the row"
    if row.get("error"):
        return "request that failed"
    if str(row.get("message_mode", "")).lower() == "delta":
        return DELTA
    return None


def _call(row: dict[str, Any], request: dict[str, Any], ledger: Ledger) -> Call:
    if request is row:  # the row's own keys are not fields of a request
        extra = {**mapping(row.get("kwargs")), **mapping(row.get("extra"))}
        names = {"messages", "tools", "tool_choice", "max_tokens", "model", "chat_template_kwargs", *SAMPLING}
        known = {key: value for key, value in row.items() if key in names}
        call = call_of_request({**extra, **known}, ledger, _response(row))
    else:
        call = call_of_request(request, ledger, _response(row))
    length = whole(row.get("output_length"))
    if length is not None:
        call.max_tokens = length
    session = row.get("session_id")
    call.conversation = None if session is None else str(session)
    call.started_s = next((s for key in ("ts", "timestamp", "created_at") if (s := seconds(row.get(key)))), None)
    delay = row.get("delay")
    if isinstance(delay, int | float) and not isinstance(delay, bool) and delay >= 0:
        call.pause_ms = float(delay)
    return call


def read(source: Source, ledger: Ledger) -> list[Call]:
    """One call for each row with a chat request."""
    outputs = _outputs(source)
    calls = []
    for _, row in source.objects():
        request = _request(row)
        custom_id = str(row.get("custom_id"))
        if request is None and custom_id in outputs:
            ledger.used += 1
        elif (reason := _skip_reason(row, request)) or request is None:
            ledger.skip(reason or "no chat request in the row")
        else:
            ledger.used += 1
            call = _call(row, request, ledger)
            if custom_id in outputs:
                apply_response(call, outputs[custom_id])
            calls.append(call)
    if not calls and outputs:
        ledger.warn("a Batch output file has no requests: put its lines and those of the input file into one file")
    return calls


FORMAT = Format(
    name="openai",
    title="OpenAI chat requests: logs, Batch files, rows of messages (.jsonl)",
    recognises=recognises,
    read=read,
)
