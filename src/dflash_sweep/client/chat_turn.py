"""One streamed chat turn while it runs, and the record it becomes.

Imports `checks`, `chat_stream`, `sse` and `records`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from dflash_sweep.chat_stream import ChatStream, decode_json
from dflash_sweep.client.checks import ERROR_CHARS, body_text, reason
from dflash_sweep.records import Exchange
from dflash_sweep.sse import SSEParser

CHAT_PATH = "/v1/chat/completions"
CONNECT_TIMEOUT_S = 10.0
STALE_NS = 1_000_000_000
"""A kept connection that was closed under a request says so at once; later it is the server's own failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What turns share of their client. `trace` gets httpcore's connection events; `cancelled` ends all turns."""

    http: httpx.Client
    clock: Callable[[], int]
    trace: Callable[[str, dict[str, Any]], None]
    cancelled: threading.Event


class ChatTurn:
    """One streamed request: `run` it, or `end` it without."""

    def __init__(self, link: Link, *, turn_index: int, log_start: int, timeout_s: float) -> None:
        self._link, self._clock = link, link.clock
        self._turn_index, self._log_start, self._timeout_s = turn_index, log_start, timeout_s
        self._stream = ChatStream()
        self._status: int | None = None
        self._headers_ns: int | None = None
        self._send_ns = self._clock()
        self._on_new_connection = False

    def run(self, body: bytes) -> Exchange:
        """Send and read it all. A request that met the closing of a kept connection is sent again, on another one."""
        if self._link.cancelled.is_set():
            return self.end("cancelled", "the client was stopped")
        failure = self._attempt(body)
        while failure is not None and self._was_stale():  # ends: each time one kept connection fewer is left
            failure = self._attempt(body)
        if failure is not None and self._link.cancelled.is_set():
            failure = ("cancelled", "the turn was broken off")
        return self.end(*(failure or (None, None)))

    def _attempt(self, body: bytes) -> tuple[str, str] | None:
        self._on_new_connection = False
        request = self._link.http.build_request(
            "POST",
            CHAT_PATH,
            content=body,
            headers={"Content-Type": "application/json"},
            timeout=httpx.Timeout(self._timeout_s, connect=min(self._timeout_s, CONNECT_TIMEOUT_S)),
            extensions={"trace": self._trace},
        )
        self._send_ns = self._clock()
        try:
            response = self._link.http.send(request, stream=True)
            try:
                return self._read(response)
            finally:
                response.close()
        except httpx.HTTPError as error:
            return self._network_failure(error)

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.started":
            self._on_new_connection = True
        self._link.trace(event, info)

    def _was_stale(self) -> bool:
        """Whether the request went into a kept connection that the server was just closing: at once, and unanswered."""
        at_once = self._clock() - self._send_ns < STALE_NS
        kept = not self._on_new_connection and not self._link.cancelled.is_set()
        return kept and at_once and self._headers_ns is None

    def _read(self, response: httpx.Response) -> tuple[str, str] | None:
        self._headers_ns = self._clock()
        self._status = response.status_code
        if response.status_code != 200:
            response.read()
            return "http_error", f"HTTP {response.status_code}: {body_text(response)}"
        if "json" in response.headers.get("content-type", ""):
            response.read()
            return "no_stream", f"the server did not stream: {body_text(response)}"
        return self._read_stream(response)

    def _read_stream(self, response: httpx.Response) -> tuple[str, str] | None:
        clock, stream, parser = self._clock, self._stream, SSEParser()
        deadline_ns = self._send_ns + int(self._timeout_s * 1e9)
        for raw in response.iter_raw():
            now_ns = clock()
            for event in parser.feed(raw):
                stream.add(event, now_ns)
            if stream.error is not None:
                break  # nothing counts after it, and a stream left early leaves no connection: servers close theirs too
            if now_ns > deadline_ns:
                return "timeout", f"the turn took longer than {self._timeout_s:g} s"
        self._take_rest(parser)
        if stream.error is not None:
            return "server_error", stream.error[:ERROR_CHARS]
        if stream.bad_json is not None:
            return "bad_json", f"an event is no JSON object: {stream.bad_json}"
        if stream.finish_reason is None:
            return "truncated", "the stream ended without a finish reason"
        return None

    def _take_rest(self, parser: SSEParser) -> None:
        """An event without its blank line counts only if it is whole."""
        for event in parser.finish():
            if event.data.strip() == b"[DONE]":
                self._stream.done = True
                continue
            try:
                decode_json(event.data)
            except ValueError:
                continue
            self._stream.add(event, self._clock())

    def _network_failure(self, error: httpx.HTTPError) -> tuple[str, str] | None:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return "connect", reason(error)
        if isinstance(error, httpx.TimeoutException):
            return "timeout", f"no answer within {self._timeout_s:g} s"
        if self._stream.error is not None:
            return "server_error", self._stream.error[:ERROR_CHARS]
        if self._stream.done and self._stream.finish_reason is not None:
            return None  # everything was said; only the transfer's own end is missing
        if self._headers_ns is not None and self._stream.chunks:
            return "truncated", f"the connection broke in the middle of the answer: {reason(error)}"
        return "disconnected", reason(error)

    def end(self, error_type: str | None, error: str | None) -> Exchange:
        """The record of what happened until now."""
        stream = self._stream
        return Exchange(
            turn_index=self._turn_index,
            send_ns=self._send_ns,
            headers_ns=self._headers_ns,
            first_token_ns=stream.first_token_ns,
            last_token_ns=stream.last_token_ns,
            end_ns=self._clock(),
            chunks=stream.chunks,
            chunk_gaps_ms=stream.chunk_gaps_ms,
            http_status=self._status,
            content=stream.content,
            reasoning=stream.reasoning,
            tool_calls=stream.tool_calls,
            finish_reason=stream.finish_reason,
            usage=stream.usage,
            timings=stream.timings,
            error_type=error_type,
            error=error,
            error_code=stream.error_code,
            log_start=self._log_start,
            response_id=stream.response_id,
            extra=stream.extra or None,
            token_ids=stream.token_ids or None,
        )
