"""Chat-completion chunks, put together into what one turn answered. Imports `sse` only; reads no clock.

The shapes are OpenAI's chat-completion chunks with what servers add to them: reasoning deltas under several names,
`timings` or `usage` on any chunk (also one without choices), error objects inside a stream that began with HTTP 200,
NaN and Infinity in numbers, a missing [DONE]. Chunks are never counted as tokens.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from dflash_sweep.sse import SSEEvent

REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text")
"""Names of the reasoning delta: llama.cpp and older vLLM, newer vLLM and Ollama, others."""

_PLAIN_KEYS = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "timings", "error", "system_fingerprint"}
)
_NO_CONSTANT = {"NaN": None, "Infinity": None, "-Infinity": None}


def clean_text(text: str) -> str:
    """The text with unpaired surrogates replaced by U+FFFD, so that it is UTF-8; paired ones become their character."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def decode_json(data: bytes) -> Any:
    """JSON as servers write it: NaN and Infinity become None, bytes that are no UTF-8 U+FFFD. Raises ValueError."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            return json.loads(data.decode("utf-8", "replace"), parse_constant=_NO_CONSTANT.__getitem__)
        except RecursionError:
            raise ValueError("JSON is nested too deeply") from None


def error_text(body: Any) -> str:
    """The message of an error object as servers spell them: {"error": {"message"}}, {"error": "…"}, {"detail": …}."""
    if isinstance(body, dict):
        inner = body.get("error") or body.get("detail") or body.get("message") or body
        if isinstance(inner, dict):
            message = inner.get("message") or inner.get("type") or json.dumps(inner)
            kind = inner.get("type")
            return clean_text(f"{message} ({kind})" if kind and kind != message else str(message))
        return clean_text(str(inner))
    return clean_text(str(body))


def _error_code(body: dict[str, Any]) -> int | None:
    """The HTTP status that an error object names; None if it names none."""
    inner = body.get("error") or body
    code = inner.get("code") if isinstance(inner, dict) else None
    return code if isinstance(code, int) and not isinstance(code, bool) else None


def _ids_of(choice: dict[str, Any]) -> list[int]:
    """Token ids of a chunk: `token_ids` (vLLM, asked for by return_token_ids) or llama-server's `logprobs.content[].id`
    (asked for by logprobs)."""
    given = choice.get("token_ids")
    if given is None and isinstance(logprobs := choice.get("logprobs"), dict):
        entries = logprobs.get("content")
        given = [entry.get("id") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else None
    if not isinstance(given, list) or not all(isinstance(entry, int) for entry in given):
        return []
    return given


class ChatStream:
    """Takes the events of one answer with their arrival times (monotonic ns) and keeps what they add up to."""

    def __init__(self) -> None:
        self.done = False
        self.error: str | None = None
        self.error_code: int | None = None
        self.bad_json: str | None = None
        self.chunks = 0
        self.first_token_ns: int | None = None
        self.last_token_ns: int | None = None
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self.timings: dict[str, Any] | None = None
        self.response_id: str | None = None
        self.extra: dict[str, Any] = {}
        self._gaps_ns: list[int] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._token_ids: list[int] = []

    @property
    def content(self) -> str:
        return clean_text("".join(self._content))

    @property
    def reasoning(self) -> str:
        return clean_text("".join(self._reasoning))

    @property
    def tool_calls(self) -> tuple[dict[str, Any], ...]:
        """Complete tool calls in OpenAI's message form, in order of their index; ids may be empty if none was sent."""
        return tuple(
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": clean_text("".join(call["name"])), "arguments": clean_text("".join(call["args"]))},
            }
            for _, call in sorted(self._calls.items())
        )

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the answer's tokens as far as chunks carried them; empty = not asked for, or not given."""
        return tuple(self._token_ids)

    @property
    def chunk_gaps_ms(self) -> tuple[float, ...]:
        return tuple(gap / 1e6 for gap in self._gaps_ns)

    def add(self, event: SSEEvent, now_ns: int) -> None:
        """Take one event that arrived at `now_ns`. Never raises: what cannot be read is kept in `bad_json`."""
        data = event.data
        if data[:1] != b"{":
            data = data.strip()
            if data == b"[DONE]":
                self.done = True
                return
            if not data:
                return
        try:
            chunk = decode_json(data)
        except ValueError:
            if event.event == "error":
                self.error = self.error or event.text[:500]
            elif self.bad_json is None:
                self.bad_json = event.text[:200]
            return
        if not isinstance(chunk, dict):
            self.bad_json = self.bad_json or event.text[:200]
            return
        if event.event == "error" or chunk.get("error"):
            self._take_error(chunk)
            return
        self._take_top_level(chunk)
        choices = chunk.get("choices")
        if choices and isinstance(choices, list) and isinstance(choices[0], dict) and self._take_choice(choices[0]):
            self._stamp(now_ns)

    def _stamp(self, now_ns: int) -> None:
        self.chunks += 1
        if self.last_token_ns is None:
            self.first_token_ns = now_ns
        else:
            self._gaps_ns.append(now_ns - self.last_token_ns)
        self.last_token_ns = now_ns

    def _take_error(self, chunk: dict[str, Any]) -> None:
        if self.error is None:
            self.error, self.error_code = error_text(chunk), _error_code(chunk)

    def _take_top_level(self, chunk: dict[str, Any]) -> None:
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = usage
        if isinstance(timings := chunk.get("timings"), dict):
            self.timings = timings
        if self.response_id is None and isinstance(chunk.get("id"), str):
            self.response_id = chunk["id"]
        for key, value in chunk.items():
            if key not in _PLAIN_KEYS and value is not None:
                self.extra[key] = value

    def _take_choice(self, choice: dict[str, Any]) -> bool:
        """Take the first choice's delta; True if it carried text (content, reasoning, or a piece of a tool call)."""
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self.finish_reason = reason
        self._token_ids += _ids_of(choice)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return False
        carried = False
        if isinstance(content := delta.get("content"), str) and content:
            self._content.append(content)
            carried = True
        for name in REASONING_FIELDS:
            if isinstance(text := delta.get(name), str) and text:
                self._reasoning.append(text)
                carried = True
                break
        if isinstance(calls := delta.get("tool_calls"), list):
            for position, call in enumerate(calls):
                carried |= isinstance(call, dict) and self._take_call(call, position)
        return carried

    def _take_call(self, call: dict[str, Any], position: int) -> bool:
        index = call.get("index")
        key = index if isinstance(index, int) else position
        kept = self._calls.setdefault(key, {"id": "", "name": [], "args": []})
        if isinstance(call_id := call.get("id"), str) and call_id:
            kept["id"] = call_id
        function = call.get("function")
        if not isinstance(function, dict):
            return False
        carried = False
        for field, target in (("name", "name"), ("arguments", "args")):
            if isinstance(text := function.get(field), str) and text:
                kept[target].append(text)
                carried = True
        return carried
