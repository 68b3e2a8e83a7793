"""Answers of the three chat protocols, streamed or not, as recorded answers. Imports `sse`, `chat_stream`, `records`,
`recorder_requests`.

Works on the bytes that went through, after they did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_sweep.chat_stream import REASONING_FIELDS, ChatStream, clean_text, decode_json, error_text
from dflash_sweep.recorder_requests import CHAT, MESSAGES, RESPONSES, messages_of_items
from dflash_sweep.records import RecordedAnswer
from dflash_sweep.sse import SSEEvent, SSEParser
from dflash_sweep.traces.importers.anthropic_blocks import assistant_message
from dflash_sweep.traces.importers.base import items, mapping, whole

_STOP_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}

Piece = tuple[int, bytes]
"""Bytes of an answer's body and when they came, monotonic ns."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """What came back. `message`: the answer as a chat message, None = it said nothing. `error`: why it is no answer."""

    message: dict[str, Any] | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    first_token_ns: int | None = None
    response_id: str | None = None
    error: str | None = None

    def recorded(self, start_ns: int, end_ns: int) -> RecordedAnswer:
        """The answer as a trace keeps it; times from the arrival of the request."""
        message = self.message or {}
        first = self.first_token_ns
        return RecordedAnswer(
            content=message.get("content") or None,
            reasoning=message.get("reasoning_content"),
            tool_calls=tuple(message.get("tool_calls") or ()),
            output_tokens=self.output_tokens,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            finish_reason=self.finish_reason,
            ttft_ms=None if first is None else (first - start_ns) / 1e6,
            duration_ms=(end_ns - start_ns) / 1e6,
        )


def read_answer(protocol: str, content_type: str, pieces: Sequence[Piece]) -> Answer:
    """The answer of one request. Never raises: what cannot be read is in `error`."""
    if "event-stream" in content_type:
        return _STREAMS[protocol](_events(pieces))
    try:
        body = decode_json(b"".join(piece for _, piece in pieces))
    except ValueError:
        return Answer(error="the answer is no JSON")
    if not isinstance(body, dict) or body.get("error"):
        return Answer(error=error_text(body))
    return _BODIES[protocol](body)


def _events(pieces: Iterable[Piece]) -> Iterator[tuple[int, SSEEvent]]:
    parser, now_ns = SSEParser(), 0
    for now_ns, piece in pieces:
        yield from ((now_ns, event) for event in parser.feed(piece))
    yield from ((now_ns, event) for event in parser.finish())


def _json_events(events: Iterable[tuple[int, SSEEvent]]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Time, type and object of each event; the type stands in the object, and in the event's name."""
    for now_ns, event in events:
        try:
            value = mapping(decode_json(event.data))
        except ValueError:
            continue  # [DONE], or a last event that was cut off
        yield now_ns, str(value.get("type") or event.event), value


# ---------------------------------------------------------------- chat-completions


def _chat_usage(answer: Answer, usage: Any) -> None:
    counts = mapping(usage)
    answer.output_tokens = whole(counts.get("completion_tokens"))
    answer.prompt_tokens = whole(counts.get("prompt_tokens"))
    answer.cached_tokens = whole(mapping(counts.get("prompt_tokens_details")).get("cached_tokens"))


def _message(content: Any, reasoning: Any, calls: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    message: dict[str, Any] = {"role": "assistant", "content": clean_text(content) if isinstance(content, str) else ""}
    if isinstance(reasoning, str) and reasoning:
        message["reasoning_content"] = clean_text(reasoning)
    if calls:
        message["tool_calls"] = list(calls)
    return message if len(message) > 2 or message["content"] else None


def _chat_stream(events: Iterable[tuple[int, SSEEvent]]) -> Answer:
    stream = ChatStream()
    for now_ns, event in events:
        stream.add(event, now_ns)
    answer = Answer(
        message=_message(stream.content, stream.reasoning, stream.tool_calls),
        finish_reason=stream.finish_reason,
        first_token_ns=stream.first_token_ns,
        response_id=stream.response_id,
        error=stream.error,
    )
    _chat_usage(answer, stream.usage)
    return answer


def _chat_body(body: dict[str, Any]) -> Answer:
    choice = mapping(next(iter(items(body.get("choices"))), None))
    message = mapping(choice.get("message"))
    reasoning = next((message[name] for name in REASONING_FIELDS if message.get(name)), None)
    calls = [call for call in items(message.get("tool_calls")) if isinstance(call, dict)]
    answer = Answer(
        message=_message(message.get("content"), reasoning, calls),
        finish_reason=choice.get("finish_reason"),
        response_id=body.get("id"),
    )
    _chat_usage(answer, body.get("usage"))
    return answer


# ---------------------------------------------------------------- Anthropic messages


def _anthropic_usage(answer: Answer, usage: Any) -> None:
    """Counts only grow over a stream. Anthropic's input_tokens leave cached ones out; ours do not."""
    counts = mapping(usage)
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    prompt = [count for name in names if (count := whole(counts.get(name))) is not None]
    if prompt:
        answer.prompt_tokens = max(sum(prompt), answer.prompt_tokens or 0)
    if (cached := whole(counts.get("cache_read_input_tokens"))) is not None:
        answer.cached_tokens = cached
    if (output := whole(counts.get("output_tokens"))) is not None:
        answer.output_tokens = max(output, answer.output_tokens or 0)


def _anthropic_body(body: dict[str, Any]) -> Answer:
    message = assistant_message(body.get("content"))
    calls = message.get("tool_calls") or []
    answer = Answer(
        message=_message(message.get("content"), message.get("reasoning_content"), calls),
        finish_reason=_stop_reason(body.get("stop_reason")),
        response_id=body.get("id"),
    )
    _anthropic_usage(answer, body.get("usage"))
    return answer


def _stop_reason(reason: Any) -> str | None:
    return _STOP_REASONS.get(reason, reason) if isinstance(reason, str) else None


_DELTA_FIELDS = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking"),
                 "input_json_delta": ("partial_json", "input")}  # fmt: skip


def _anthropic_stream(events: Iterable[tuple[int, SSEEvent]]) -> Answer:
    answer = Answer()
    blocks: dict[Any, dict[str, Any]] = {}
    for now_ns, kind, value in _json_events(events):
        if kind == "message_start":
            started = mapping(value.get("message"))
            answer.response_id = started.get("id")
            _anthropic_usage(answer, started.get("usage"))
        elif kind == "content_block_start":
            block = mapping(value.get("content_block"))
            blocks[value.get("index")] = {**block, **({"input": ""} if block.get("type") == "tool_use" else {})}
        elif kind == "content_block_delta":
            source, target = _DELTA_FIELDS.get(str(mapping(value.get("delta")).get("type")), ("", ""))
            piece, block = mapping(value.get("delta")).get(source), blocks.setdefault(value.get("index"), {})
            if piece:
                answer.first_token_ns = answer.first_token_ns or now_ns
                block[target] = str(block.get(target) or "") + str(piece)
        elif kind == "message_delta":
            answer.finish_reason = _stop_reason(mapping(value.get("delta")).get("stop_reason")) or answer.finish_reason
            _anthropic_usage(answer, value.get("usage"))
        elif kind == "error":
            answer.error = error_text(value)
    message = assistant_message([_finished(block) for block in blocks.values()])
    answer.message = _message(message["content"], message.get("reasoning_content"), message.get("tool_calls") or [])
    return answer


def _finished(block: dict[str, Any]) -> dict[str, Any]:
    """A streamed block with its tool input read: an object again, as in the client's next request."""
    if block.get("type") != "tool_use":
        return block
    try:
        return {**block, "input": decode_json(str(block["input"] or "{}").encode("utf-8", "replace"))}
    except ValueError:
        return {**block, "input": {}}


# ---------------------------------------------------------------- responses


def _responses_body(body: dict[str, Any]) -> Answer:
    made = messages_of_items(map(mapping, items(body.get("output"))), {})
    message = made[-1] if made else {}
    calls = message.get("tool_calls") or []
    reason = {"completed": "tool_calls" if calls else "stop", "incomplete": "length"}.get(str(body.get("status")))
    usage = mapping(body.get("usage"))
    return Answer(
        message=_message(message.get("content"), message.get("reasoning_content"), calls),
        finish_reason=reason,
        response_id=body.get("id"),
        output_tokens=whole(usage.get("output_tokens")),
        prompt_tokens=whole(usage.get("input_tokens")),
        cached_tokens=whole(mapping(usage.get("input_tokens_details")).get("cached_tokens")),
        error=error_text(body) if body.get("error") else None,
    )


def _responses_stream(events: Iterable[tuple[int, SSEEvent]]) -> Answer:
    """The last event holds the whole response; where a server leaves its output out, the finished items do."""
    first_token_ns: int | None = None
    done_items: list[dict[str, Any]] = []
    final: dict[str, Any] = {}
    error: str | None = None
    for now_ns, kind, value in _json_events(events):
        if kind.endswith(".delta") and value.get("delta"):
            first_token_ns = first_token_ns or now_ns
        elif kind == "response.output_item.done":
            done_items.append(mapping(value.get("item")))
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            final = mapping(value.get("response"))
        elif kind == "error":
            error = error_text(value)
    answer = _responses_body({**final, "output": final.get("output") or done_items})
    answer.first_token_ns = first_token_ns
    answer.error = error or answer.error
    return answer


_STREAMS = {CHAT: _chat_stream, MESSAGES: _anthropic_stream, RESPONSES: _responses_stream}
_BODIES = {CHAT: _chat_body, MESSAGES: _anthropic_body, RESPONSES: _responses_body}
