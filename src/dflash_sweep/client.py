"""The HTTP client: readiness, small GETs, and one streamed chat turn as a raw record. The only httpx import.

Imports `chat_stream`, `payload`, `sse`, `records`, `errors`. Measures with one monotonic clock and derives nothing; a
request that fails is a record too, never an exception out of `chat`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from weakref import WeakSet

import httpx

from dflash_sweep.chat_stream import ChatStream, clean_text, decode_json, error_text
from dflash_sweep.errors import ConfigError, FailureKind, TrialFailed
from dflash_sweep.payload import encode_payload
from dflash_sweep.records import Exchange
from dflash_sweep.sse import SSEParser

CHAT_PATH = "/v1/chat/completions"
CONNECT_TIMEOUT_S = 10.0
GET_TIMEOUT_S = 30.0
ERROR_CHARS = 500
"""An error body is kept up to this length: servers echo whole prompts in them."""


class RequestError(TrialFailed):
    """A GET that did not bring what was asked. `status` None = there was no HTTP answer at all."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(FailureKind.REQUEST_FAILED, message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What /health said. True only if the server says it can work. `status` None = nobody answered.

    `loading`: the server is there and asks for patience (HTTP 503). A server without such a page (404) counts as up.
    """

    ok: bool
    loading: bool = False
    status: int | None = None
    detail: str = ""

    def __bool__(self) -> bool:
        return self.ok


def checked_base_url(base_url: str) -> str:
    """The address without a trailing slash or /v1. Raises ConfigError, saying what an address looks like."""
    try:
        url = httpx.URL(base_url.strip())
    except httpx.InvalidURL as error:
        raise ConfigError(f"server address {base_url!r}: {error}; allowed: http://host:port or https://…") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"server address {base_url!r} is not allowed: it takes http://host:port or https://…")
    return str(url).rstrip("/").removesuffix("/v1")


class Client:
    """Talks to one server. May be shared by threads. Ignores proxy variables: the server is the one that was named.

    `base_url` may end in /v1 or not. `timeout_s` bounds the wait for the first byte and the whole turn; a stream that
    stalls in the middle is given up after at most twice that. `clock` gives monotonic nanoseconds. Raises ConfigError
    if `base_url` is no http(s) address.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.base_url = checked_base_url(base_url)
        self.timeout_s = timeout_s
        self._clock = clock
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = self._open()
        self._cancelled = threading.Event()
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._lock = threading.Lock()

    def _open(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.base_url,
            headers=self._headers | {"Accept-Encoding": "identity"},
            timeout=httpx.Timeout(GET_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def cancel(self) -> None:
        """Break off the turns in flight, from any thread; their exchanges and those of later turns say "cancelled"."""
        self._cancelled.set()
        with self._lock:
            for connection in self._sockets:
                with contextlib.suppress(OSError):  # closed already
                    connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for the next bytes

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def wait_cancelled(self, timeout_s: float) -> bool:
        """Sleep for this time; True, at once, if the client is cancelled."""
        return self._cancelled.wait(timeout_s)

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        """Keeps the sockets where `cancel` finds them, for a turn may wait long for the first byte of its answer."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            with self._lock:
                self._sockets.add(info["return_value"].get_extra_info("socket"))

    # ------------------------------------------------------------ small requests

    def get_text(self, path: str, timeout_s: float = GET_TIMEOUT_S) -> str:
        """Body of a GET. A broken connection is tried once more. Raises RequestError for anything but HTTP 200."""
        response = self._get(path, timeout_s)
        if response.status_code != 200:
            raise RequestError(f"GET {path}: HTTP {response.status_code}: {_body_text(response)}", response.status_code)
        return response.text

    def get_json(self, path: str, timeout_s: float = GET_TIMEOUT_S) -> Any:
        """JSON body of a GET; NaN and Infinity in it become None. Raises RequestError."""
        text = self.get_text(path, timeout_s)
        try:
            return decode_json(text.encode())
        except ValueError:
            raise RequestError(f"GET {path}: the answer is no JSON: {text[:80]!r}", 200) from None

    def _get(self, path: str, timeout_s: float) -> httpx.Response:
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))
        for attempt in (1, 2):
            try:
                return self._http.get(path, timeout=timeout, extensions={"trace": self._trace})
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                # A server may close a kept connection just as we reuse it; once is chance, twice is a fault.
                if attempt == 2 or isinstance(error, httpx.ConnectError | httpx.TimeoutException | httpx.InvalidURL):
                    raise RequestError(f"GET {self.base_url}{path}: {_reason(error)}") from error
        raise AssertionError("unreachable")

    def health(self, timeout_s: float = 5.0) -> Health:
        """State of the server by its /health page; never raises."""
        try:
            response = self._get("/health", timeout_s)
        except RequestError as error:
            return Health(ok=False, detail=str(error))
        code = response.status_code
        if code in (404, 405, 501):
            return Health(ok=True, status=code, detail="no /health page")
        return Health(ok=code == 200, loading=code == 503, status=code, detail=_body_text(response))

    def first_completion(
        self,
        payload: dict[str, Any],
        *,
        timeout_s: float,
        poll_s: float = 0.2,
        alive: Callable[[], bool] | None = None,
    ) -> Exchange:
        """Ask for one real token until the server gives it: what "ready" means, for /health may be ok too early.

        Tried again while nobody listens or the server answers 503 (loading); any other answer is final. The returned
        exchange has error_type None when the server is ready. `alive` False (its process ended) stops the wait.
        """
        deadline_ns = self._clock() + int(timeout_s * 1e9)
        request = payload | {"max_tokens": 1}
        while True:
            remaining_s = (deadline_ns - self._clock()) / 1e9
            exchange = self.chat(request, turn_index=-1, timeout_s=max(0.05, min(self.timeout_s, remaining_s)))
            waiting = exchange.error_type == "connect" or exchange.http_status == 503
            if not waiting or remaining_s <= poll_s or (alive is not None and not alive()):
                return exchange
            if self._cancelled.wait(poll_s):
                return exchange

    # ------------------------------------------------------------ the measured request

    def chat(
        self, payload: dict[str, Any], turn_index: int, log_start: int = 0, *, timeout_s: float | None = None
    ) -> Exchange:
        """Stream one chat turn. Never raises for what server or network do: see the exchange's `error_type`.

        `stream` and `stream_options.include_usage` are always set; `timings_per_token` only if the payload has it.
        error_type: bad_request (the payload is no JSON), connect, timeout, disconnected, http_error, server_error (an
        error event inside the stream), no_stream, bad_json, truncated (the stream ended without a finish reason),
        cancelled. A finish reason and an orderly end without [DONE] is complete.
        """
        options = payload.get("stream_options")
        options = {"include_usage": True} | (options if isinstance(options, dict) else {})
        turn = _Turn(self, turn_index, log_start, self.timeout_s if timeout_s is None else timeout_s)
        try:
            body = encode_payload(payload | {"stream": True, "stream_options": options})
        except (ValueError, TypeError) as error:
            return turn.end("bad_request", str(error))
        return turn.run(body)


class _Turn:
    """One streamed request while it runs."""

    def __init__(self, client: Client, turn_index: int, log_start: int, timeout_s: float) -> None:
        self._client, self._clock = client, client._clock
        self._turn_index, self._log_start, self._timeout_s = turn_index, log_start, timeout_s
        self._stream = ChatStream()
        self._status: int | None = None
        self._headers_ns: int | None = None
        self._send_ns = self._clock()

    def run(self, body: bytes) -> Exchange:
        request = self._client._http.build_request(
            "POST",
            CHAT_PATH,
            content=body,
            headers={"Content-Type": "application/json"},
            timeout=httpx.Timeout(self._timeout_s, connect=min(self._timeout_s, CONNECT_TIMEOUT_S)),
            extensions={"trace": self._client._trace},
        )
        if self._client.cancelled:
            return self.end("cancelled", "the client was stopped")
        self._send_ns = self._clock()
        try:
            response = self._client._http.send(request, stream=True)
            try:
                failure = self._read(response)
            finally:
                response.close()
        except httpx.HTTPError as error:
            failure = self._network_failure(error)
        if failure is not None and self._client.cancelled:
            failure = ("cancelled", "the turn was broken off")
        return self.end(*(failure or (None, None)))

    def _read(self, response: httpx.Response) -> tuple[str, str] | None:
        self._headers_ns = self._clock()
        self._status = response.status_code
        if response.status_code != 200:
            response.read()
            return "http_error", f"HTTP {response.status_code}: {_body_text(response)}"
        if "json" in response.headers.get("content-type", ""):
            response.read()
            return "no_stream", f"the server did not stream: {_body_text(response)}"
        return self._read_stream(response)

    def _read_stream(self, response: httpx.Response) -> tuple[str, str] | None:
        clock, stream, parser = self._clock, self._stream, SSEParser()
        deadline_ns = self._send_ns + int(self._timeout_s * 1e9)
        for raw in response.iter_raw():
            now_ns = clock()
            for event in parser.feed(raw):
                stream.add(event, now_ns)
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
            return "connect", _reason(error)
        if isinstance(error, httpx.TimeoutException):
            return "timeout", f"no answer within {self._timeout_s:g} s"
        if self._stream.error is not None:
            return "server_error", self._stream.error[:ERROR_CHARS]
        if self._stream.done and self._stream.finish_reason is not None:
            return None  # everything was said; only the transfer's own end is missing
        if self._headers_ns is not None and self._stream.chunks:
            return "truncated", f"the connection broke in the middle of the answer: {_reason(error)}"
        return "disconnected", _reason(error)

    def end(self, error_type: str | None, error: str | None) -> Exchange:
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
            log_start=self._log_start,
            response_id=stream.response_id,
            extra=stream.extra or None,
        )


# ---------------------------------------------------------------- the other side of a proxy


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamAnswer:
    """An answer as it arrives: status, header lines, and the body's bytes exactly as they come. `close` it."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: AsyncIterator[bytes]
    close: Callable[[], Awaitable[None]]


class Upstream:
    """The server behind a proxy: requests go out as they are, answers come back byte for byte (asyncio)."""

    def __init__(self, base_url: str) -> None:
        self.base_url = checked_base_url(base_url)
        # No read timeout: how long a model may think is the agent's decision, not the proxy's.
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False, follow_redirects=False)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def send(
        self, method: str, target: str, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> UpstreamAnswer:
        """Send a request for `target` (path and query). Raises RequestError if there is no answer at all."""
        request = self._http.build_request(method, self.base_url + target, content=body or None)
        request.headers = httpx.Headers([(b"host", request.headers["host"].encode()), *headers])
        if body:
            request.headers["content-length"] = str(len(body))
        try:
            response = await self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            raise RequestError(f"{method} {self.base_url}{target}: {_reason(error)}") from error
        return UpstreamAnswer(
            status=response.status_code,
            headers=tuple(response.headers.raw),
            body=_raw_body(response),
            close=response.aclose,
        )


async def _raw_body(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in response.aiter_raw():
            yield piece
    except httpx.HTTPError as error:
        raise RequestError(f"the server broke off its answer: {_reason(error)}", response.status_code) from error


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _body_text(response: httpx.Response) -> str:
    """What an error answer says, in one line."""
    try:
        text = error_text(decode_json(response.content))
    except ValueError:
        text = clean_text(response.text)
    return " ".join(text.split())[:ERROR_CHARS]
