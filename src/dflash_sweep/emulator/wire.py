"""Answers as JSON bodies and server-sent events, in llama-server's shapes. Imports `answers` only."""

from __future__ import annotations

from typing import Any

from dflash_sweep.emulator.answers import Answer, as_tool_calls, dumps

_FIELDS = {"content": "content", "reasoning": "reasoning_content"}


def head(answer: Answer, model: str, created: int, kind: str) -> dict[str, Any]:
    """Fields that every event and body of one answer share."""
    return {
        "id": f"chatcmpl-emulated-{answer.task}",
        "object": kind,
        "created": created,
        "model": model,
        "system_fingerprint": "emulated",
    }


def body(answer: Answer, model: str, created: int) -> dict[str, Any]:
    """A whole chat completion."""
    message: dict[str, Any] = {"role": "assistant"}
    for kind, field in _FIELDS.items():
        text = "".join(part for part_kind, part in answer.chunks if part_kind == kind)
        if text or kind == "content":
            message[field] = text
    if answer.tool is not None:
        message |= {"content": None, "tool_calls": as_tool_calls(answer)}
    choice = {"finish_reason": answer.finish_reason, "index": 0, "message": message}
    return {
        **head(answer, model, created, "chat.completion"),
        "choices": [choice],
        "usage": answer.usage,
        "timings": answer.timings,
    }


def events(answer: Answer, model: str, created: int, include_usage: bool) -> list[bytes]:
    """Server-sent events of a streamed chat completion: role, one per chunk, the end with `timings`, [DONE]."""
    prefix = dumps(head(answer, model, created, "chat.completion.chunk"))[:-1]
    found = [_event(prefix, {"role": "assistant", "content": None}, None)]
    opened = False
    for kind, text in answer.chunks:
        if kind == "arguments":
            call: dict[str, Any] = {"index": 0, "function": {"arguments": text}}
            if not opened:
                call = {"index": 0, "id": f"call_{answer.task}", "type": "function",
                        "function": {"name": answer.tool, "arguments": text}}  # fmt: skip
                opened = True
            found.append(_event(prefix, {"tool_calls": [call]}, None))
        else:
            found.append(_event(prefix, {_FIELDS[kind]: text}, None))
    ending = {"choices": [{"finish_reason": answer.finish_reason, "index": 0, "delta": {}}], "timings": answer.timings}
    found.append(f"data: {prefix},{dumps(ending)[1:]}\n\n".encode())
    if include_usage:
        usage = {"choices": [], "usage": answer.usage, "timings": answer.timings}
        found.append(f"data: {prefix},{dumps(usage)[1:]}\n\n".encode())
    found.append(b"data: [DONE]\n\n")
    return found


def _event(prefix: str, delta: dict[str, Any], finish: str | None) -> bytes:
    choices = dumps([{"finish_reason": finish, "index": 0, "delta": delta}])
    return f'data: {prefix},"choices":{choices}}}\n\n'.encode("utf-8", "surrogatepass")


def completion_body(answer: Answer, model: str) -> dict[str, Any]:
    """llama-server's own /completion answer."""
    return {
        "index": 0,
        "content": "".join(text for _, text in answer.chunks),
        "id_slot": 0,
        "stop": True,
        "model": model,
        "tokens_predicted": answer.figures.output_tokens,
        "tokens_evaluated": answer.figures.prompt_tokens,
        "tokens_cached": answer.figures.prompt_tokens + answer.figures.output_tokens - 1,
        "stop_type": "eos" if answer.finish_reason == "stop" else "limit",
        "timings": answer.timings,
    }


def error(code: int, kind: str, message: str, **fields: Any) -> dict[str, Any]:
    """llama-server's error object."""
    return {"error": {"code": code, "message": message, "type": kind, **fields}}


def metrics(totals: dict[str, float], busy: bool) -> str:
    """The Prometheus text of /metrics."""
    rows = (
        ("prompt_tokens_total", "counter", totals["prompt"]),
        ("prompt_seconds_total", "counter", totals["p_s"]),
        ("tokens_predicted_total", "counter", totals["out"]),
        ("tokens_predicted_seconds_total", "counter", totals["d_s"]),
        ("prompt_tokens_seconds", "gauge", totals["prompt"] / totals["p_s"] if totals["p_s"] else 0.0),
        ("predicted_tokens_seconds", "gauge", totals["out"] / totals["d_s"] if totals["d_s"] else 0.0),
        ("requests_processing", "gauge", float(busy)),
        ("requests_deferred", "gauge", 0.0),
    )
    return "".join(f"# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value:g}\n" for name, kind, value in rows)
