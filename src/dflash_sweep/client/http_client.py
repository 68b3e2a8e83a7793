"""A client of one model server: readiness, small GETs, streamed chat turns. Imports `chat_turn`, `checks`, `payload`,
`chat_stream`, `records`.

Measures with one monotonic clock and derives nothing; a turn that fails is a record too, never an exception.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from weakref import WeakSet

import httpx

from dflash_sweep.chat_stream import decode_json
from dflash_sweep.client.chat_turn import CONNECT_TIMEOUT_S, ChatTurn, Link
from dflash_sweep.client.checks import RequestError, body_text, checked_base_url, reason
from dflash_sweep.payload import encode_payload
from dflash_sweep.records import Exchange

GET_TIMEOUT_S = 30.0
KEEP_CONNECTION_S = 2.0
"""An idle connection is not used again after this time: llama-server and uvicorn close theirs after 5 s, and a request
that meets the closing is lost."""


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
        self._link = Link(http=self._http, clock=clock, trace=self._trace, cancelled=self._cancelled)
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._lock = threading.Lock()

    def _open(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.base_url,
            headers=self._headers | {"Accept-Encoding": "identity"},
            timeout=httpx.Timeout(GET_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEP_CONNECTION_S),
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
            raise RequestError(f"GET {path}: HTTP {response.status_code}: {body_text(response)}", response.status_code)
        return response.text

    def get_json(self, path: str, timeout_s: float = GET_TIMEOUT_S) -> Any:
        """JSON body of a GET; NaN and Infinity in it become None. Raises RequestError."""
        text = self.get_text(path, timeout_s)
        try:
            return decode_json(text.encode())
        except ValueError:
            raise RequestError(f"GET {path}: the answer is no JSON: {text[:80]!r}", 200) from None

    def post(self, path: str, timeout_s: float = GET_TIMEOUT_S) -> bool:
        """A POST without a body, for a server's small commands; False for anything but HTTP 200. Never raises."""
        try:
            return self._http.post(path, timeout=timeout_s).status_code == 200
        except (httpx.HTTPError, httpx.InvalidURL):
            return False

    def _get(self, path: str, timeout_s: float) -> httpx.Response:
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))
        for attempt in (1, 2):
            try:
                return self._http.get(path, timeout=timeout, extensions={"trace": self._trace})
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                # A server may close a kept connection just as we reuse it; once is chance, twice is a fault.
                if attempt == 2 or isinstance(error, httpx.ConnectError | httpx.TimeoutException | httpx.InvalidURL):
                    raise RequestError(f"GET {self.base_url}{path}: {reason(error)}") from error
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
        return Health(ok=code == 200, loading=code == 503, status=code, detail=body_text(response))

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
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        turn = ChatTurn(self._link, turn_index=turn_index, log_start=log_start, timeout_s=limit_s)
        try:
            body = encode_payload(payload | {"stream": True, "stream_options": options})
        except (ValueError, TypeError) as error:
            return turn.end("bad_request", str(error))
        return turn.run(body)
