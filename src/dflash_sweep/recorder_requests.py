"""Requests of the three chat protocols as turns of a trace: OpenAI chat-completions, responses, Anthropic messages.

Imports the block converters of `traces`. Pure functions. Chat requests keep their messages and tools as they were
sent, for a template prints what it is given; the other two protocols are rewritten as chat messages in the way
llama.cpp's server does it before it applies its template.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash_sweep.traces.importers.anthropic_blocks import assistant_message, user_messages
from dflash_sweep.traces.importers.base import items, mapping, whole
from dflash_sweep.traces.message_rules import compact_json

CHAT, RESPONSES, MESSAGES = "chat-completions", "responses", "messages"
_ENDINGS = {"/chat/completions": CHAT, "/responses": RESPONSES, "/messages": MESSAGES}

SAMPLING_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repeat_penalty",
)  # fmt: skip
_HEADER_FIELDS = {"model", "stream", "stream_options", "messages", "input", "instructions", "system", "tools"}
_TURN_FIELDS = {"tool_choice", "max_tokens", "max_completion_tokens", "max_output_tokens", "chat_template_kwargs"}
_HARMLESS = {
    "metadata", "store", "user", "include", "previous_response_id", "prompt_cache_key", "cache_prompt", "betas",
    "service_tier", "safety_identifier", "timings_per_token", "return_progress",
}  # fmt: skip
"""Fields that change neither the prompt nor what is generated."""

Message = dict[str, Any]


class NotRecorded(ValueError):
    """A request that cannot become a turn; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """What a trace keeps of one request. `losses` are sentences about what it does not keep.

    `previous_response_id`: the request continues an answer that the server remembers (responses protocol).
    """

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: Any = None
    max_tokens: int | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    previous_response_id: str | None = None
    losses: tuple[str, ...] = ()


def protocol_of(method: str, path: str) -> str | None:
    """The protocol of a request by its path, with or without /v1; None = not a model call that is recorded."""
    if method != "POST":
        return None
    return next((name for ending, name in _ENDINGS.items() if path.rstrip("/").endswith(ending)), None)


def read_request(protocol: str, body: Any) -> RecordedRequest:
    """A request body as a turn. Raises NotRecorded where there is nothing to replay."""
    if not isinstance(body, Mapping):
        raise NotRecorded("the request body is no JSON object")
    losses: dict[str, None] = {}
    messages = _READERS[protocol](body, losses)
    if not messages and not body.get("previous_response_id"):
        raise NotRecorded("the request has no messages")
    tools = _tools(body.get("tools"), losses)
    for name in sorted(set(body) - _HEADER_FIELDS - _TURN_FIELDS - _HARMLESS - set(SAMPLING_FIELDS)):
        if body[name] is not None:
            losses[f"request field {name} is not kept"] = None
    limits = (whole(body.get(name)) for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"))
    return RecordedRequest(
        messages=tuple(messages),
        tools=tools,
        tool_choice=_tool_choice(body.get("tool_choice")) if tools else None,
        max_tokens=next((limit for limit in limits if limit), None),
        sampling={name: body[name] for name in SAMPLING_FIELDS if body.get(name) is not None},
        template_kwargs=dict(mapping(body.get("chat_template_kwargs"))),
        model=body["model"] if isinstance(body.get("model"), str) else None,
        previous_response_id=body.get("previous_response_id"),
        losses=tuple(losses),
    )


# ---------------------------------------------------------------- tools


def _tools(raw: Any, losses: dict[str, None]) -> tuple[dict[str, Any], ...] | None:
    tools = []
    for tool in items(raw):
        made = _tool(mapping(tool))
        if made is None:
            losses[f"tool of type {mapping(tool).get('type')!r} is not kept: it runs on a vendor's server"] = None
        else:
            tools.append(made)
    return tuple(tools) or None


def _tool(tool: dict[str, Any]) -> dict[str, Any] | None:
    """A tool in the chat shape: as it is if it has it already, else from the flat shapes of the other protocols."""
    if tool.get("type") == "function" and isinstance(tool.get("function"), dict):
        return tool
    if not isinstance(tool.get("name"), str) or tool.get("type", "custom") not in ("function", "custom"):
        return None
    function: dict[str, Any] = {"name": tool["name"]}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    schema = tool.get("input_schema", tool.get("parameters"))
    function["parameters"] = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _tool_choice(raw: Any) -> Any:
    if not isinstance(raw, Mapping):
        return raw
    kind, name = raw.get("type"), raw.get("name")
    if kind in ("function", "tool") and isinstance(name, str):
        return {"type": "function", "function": {"name": name}}
    if kind in ("auto", "none", "any"):
        return "required" if kind == "any" else kind
    return dict(raw)


# ---------------------------------------------------------------- messages


def flat_content(content: Any, between: str = "\n") -> Any:
    """Content parts that are all text as one text, joined by line ends as servers do; anything else as it is."""
    if not isinstance(content, list):
        return content
    parts = [mapping(part) for part in content]
    if all(isinstance(part.get("text"), str) for part in parts):
        return between.join(part["text"] for part in parts)
    return [{"type": "text", "text": part["text"]} if isinstance(part.get("text"), str) else part for part in parts]


def _chat(body: Mapping[str, Any], losses: dict[str, None]) -> list[Message]:
    """As sent, but for null fields: a template does not see them and strict servers refuse them."""
    messages = []
    for raw in items(body.get("messages")):
        message = {key: value for key, value in mapping(raw).items() if value is not None or key == "content"}
        if len(message) < len(mapping(raw)):
            losses["null fields of messages are not kept"] = None
        messages.append(message)
    return messages


def _anthropic(body: Mapping[str, Any], losses: dict[str, None]) -> list[Message]:
    system = body.get("system")
    if isinstance(system, list):
        # llama.cpp's server puts these blocks, and those of tool results, together without anything between them.
        system = "".join(str(block["text"]) for block in map(mapping, system) if isinstance(block.get("text"), str))
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for raw in map(mapping, items(body.get("messages"))):
        if raw.get("role") == "assistant":
            made = [assistant_message(raw.get("content"))]
        else:
            made = user_messages(raw.get("content"))
        for message in made:
            between = "" if message["role"] == "tool" else "\n"
            messages.append({**message, "content": flat_content(message.get("content"), between)})
        if any(block.get("type") == "redacted_thinking" for block in map(mapping, items(raw.get("content")))):
            losses["redacted thinking is not kept"] = None
    return messages


def _responses(body: Mapping[str, Any], losses: dict[str, None]) -> list[Message]:
    messages: list[Message] = []
    if isinstance(body.get("instructions"), str) and body["instructions"]:
        messages.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    return messages + messages_of_items(map(mapping, items(given)), losses)


def messages_of_items(response_items: Iterable[dict[str, Any]], losses: dict[str, None]) -> list[Message]:
    """Response items as chat messages: each run of assistant items becomes one assistant message."""
    messages: list[Message] = []
    open_answer: Message | None = None
    for item in response_items:
        kind = item.get("type", "message")
        if kind in ("function_call_output", "custom_tool_call_output"):
            open_answer = None
            messages.append(
                {"role": "tool", "tool_call_id": item.get("call_id"), "content": _output(item.get("output"))}
            )
        elif kind == "message" and item.get("role") != "assistant":
            open_answer = None
            role = "system" if item.get("role") == "developer" else item.get("role")
            messages.append({"role": role, "content": flat_content(item.get("content"))})
        elif kind in ("message", "reasoning", "function_call", "custom_tool_call"):
            if open_answer is None:
                open_answer = {"role": "assistant", "content": ""}
                messages.append(open_answer)
            _into_answer(open_answer, kind, item, losses)
        else:
            losses[f"item of type {kind!r} is not kept"] = None
    return messages


def _output(output: Any) -> Any:
    return flat_content(output) if isinstance(output, str | list) else compact_json(output)


def _into_answer(answer: Message, kind: str, item: dict[str, Any], losses: dict[str, None]) -> None:
    if kind == "message":
        text = flat_content(item.get("content"))
        answer["content"] = "\n".join(part for part in (answer["content"], text) if part) if text else answer["content"]
    elif kind == "reasoning":
        parts = [*items(item.get("content")), *([] if item.get("content") else items(item.get("summary")))]
        if text := "\n".join(str(mapping(part).get("text", "")) for part in parts):
            answer["reasoning_content"] = text
        else:
            losses["reasoning that is encrypted or empty is not kept"] = None
    else:
        free_text = kind == "custom_tool_call"
        arguments = compact_json({"input": item.get("input", "")}) if free_text else item.get("arguments", "{}")
        function = {"name": item.get("name"), "arguments": arguments}
        call = {"id": item.get("call_id") or item.get("id"), "type": "function", "function": function}
        answer.setdefault("tool_calls", []).append(call)


_READERS = {CHAT: _chat, RESPONSES: _responses, MESSAGES: _anthropic}
