"""OpenAI chat requests and their responses, as many loggers keep them. Imports `importers.base` only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_sweep.traces.importers.base import Call, Ledger, items, mapping, whole

_USED = {"messages", "tools", "functions", "tool_choice", "max_tokens", "max_completion_tokens", "model", "stream",
         "stream_options", "chat_template_kwargs"}  # fmt: skip
"""Keys of a request that a trace keeps in its turns or header, or that say nothing about the prompt."""

SAMPLING = {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty",
            "repeat_penalty", "repetition_penalty"}  # fmt: skip
"""Keys kept in the header, to be read by people: a study sets its own sampling. All others are listed as left out."""


def is_request(value: Any) -> bool:
    """Whether this is the body of a chat-completions request."""
    return isinstance(value, Mapping) and isinstance(value.get("messages"), list) and bool(value["messages"])


def usable_answer(message: Any) -> dict[str, Any] | None:
    """The assistant message of a response if it says anything; None if it is empty or no message."""
    if not isinstance(message, Mapping):
        return None
    said = any(message.get(key) for key in ("content", "tool_calls", "function_call", "reasoning_content", "reasoning"))
    return {"role": "assistant", **message} if said else None


def apply_response(call: Call, response: Any) -> None:
    """Fill in the answer, its finish reason and token counts from a chat-completions response body."""
    body = mapping(response)
    choice = mapping(next(iter(items(body.get("choices"))), None))
    call.answer = usable_answer(choice.get("message")) or call.answer
    if isinstance(choice.get("finish_reason"), str):
        call.finish_reason = choice["finish_reason"]
    usage = mapping(body.get("usage"))
    call.output_tokens = _known(whole(usage.get("completion_tokens")), call.output_tokens)
    call.prompt_tokens = _known(whole(usage.get("prompt_tokens")), call.prompt_tokens)
    details = mapping(usage.get("prompt_tokens_details"))
    call.cached_tokens = _known(whole(details.get("cached_tokens")), call.cached_tokens)


def _known(first: int | None, second: int | None) -> int | None:
    return second if first is None else first


def call_of_request(request: Mapping[str, Any], ledger: Ledger, response: Any = None) -> Call:
    """A call from a request body and, where it is known, its response body."""
    tools = request.get("tools")
    if tools is None and isinstance(request.get("functions"), list):
        tools = [{"type": "function", "function": function} for function in request["functions"]]
    messages = [message for message in request["messages"] if isinstance(message, dict)]
    if len(messages) < len(request["messages"]):
        ledger.warn("messages that are no objects were left out")
    cap = whole(request.get("max_completion_tokens"))
    call = Call(
        messages=messages,
        tools=tools,
        tool_choice=request.get("tool_choice"),
        max_tokens=whole(request.get("max_tokens")) if cap is None else cap,
        model=request["model"] if isinstance(request.get("model"), str) else None,
        sampling={key: request[key] for key in sorted(SAMPLING & set(request)) if request[key] is not None},
        template_kwargs=mapping(request.get("chat_template_kwargs")),
    )
    for key in sorted(set(request) - _USED - SAMPLING):
        ledger.warn(f"request field {key} is not kept")
    apply_response(call, response)
    return call
