"""The recording proxy: an agent changes its base URL, its calls go through untouched and become traces.

Imports `client` (upstream side), `recording`, `recorder_requests`, `errors`. Headers are passed on and never kept; the
work of recording is done after the answer has gone through, in a thread of its own.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dflash_sweep.client import RequestError, Upstream, UpstreamAnswer
from dflash_sweep.errors import ConfigError
from dflash_sweep.recorder_answers import Piece
from dflash_sweep.recorder_requests import protocol_of
from dflash_sweep.recording import Passed, Recording

_LOG = logging.getLogger(__name__)

_HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
})  # fmt: skip
"""Header lines that belong to one connection (RFC 9110, section 7.6.1), not to the message."""

_NOT_SENT_ON = _HOP_BY_HOP | {b"host", b"content-length", b"accept-encoding", b"expect"}
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


class _PassedOn(Response):
    """An answer passed on as it comes. Ends the upstream's when the client goes away, and the client's without its
    proper end when the upstream breaks off: what happened stays visible."""

    def __init__(self, answer: UpstreamAnswer, body: AsyncGenerator[bytes, None]) -> None:
        super().__init__(status_code=answer.status)
        self.raw_headers = [line for line in answer.headers if line[0].lower() not in _HOP_BY_HOP]
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:

            async def watch_client() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(watch_client)
            await self._send(send)
            group.cancel_scope.cancel()

    async def _send(self, send: Send) -> None:
        try:
            async with aclosing(self._body):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async for piece in self._body:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        except RequestError as error:
            _LOG.warning("%s", error)
        except OSError:
            _LOG.info("the client went away in the middle of an answer")
        else:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


@dataclass(slots=True)
class _Proxy:
    """One upstream, one recording."""

    upstream: Upstream
    recording: Recording
    # One thread: calls are recorded in the order in which they ended.
    writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "recording"))

    async def handle(self, request: Request) -> Response:
        start_ns = time.monotonic_ns()
        try:
            body = await request.body()
        except ClientDisconnect:
            return Response(status_code=400)
        target = request.scope["raw_path"].decode("latin-1")
        if query := request.scope["query_string"]:
            target += "?" + query.decode("latin-1")
        headers = [(name, value) for name, value in request.headers.raw if name.lower() not in _NOT_SENT_ON]
        # A compressed answer could not be read along; an uncompressed one is what every client understands.
        headers.append((b"accept-encoding", b"identity"))
        try:
            answer = await self.upstream.send(request.method, target, headers, body)
        except RequestError as error:
            _LOG.warning("%s", error)
            return JSONResponse({"error": {"message": f"recording proxy: {error}", "type": "upstream_error"}}, 502)
        protocol = protocol_of(request.method, request.url.path)
        return _PassedOn(answer, self._pass(answer, protocol, body, start_ns))

    async def _pass(
        self, answer: UpstreamAnswer, protocol: str | None, request: bytes, start_ns: int
    ) -> AsyncGenerator[bytes, None]:
        pieces: list[Piece] = []
        complete = False
        try:
            async for piece in answer.body:
                if protocol is not None:
                    pieces.append((time.monotonic_ns(), piece))
                yield piece
            complete = True
        finally:
            with anyio.CancelScope(shield=True):
                await answer.close()
            if protocol is not None:
                passed = Passed(
                    protocol=protocol,
                    request=request,
                    status=answer.status,
                    content_type=_content_type(answer),
                    pieces=pieces,
                    start_ns=start_ns,
                    end_ns=time.monotonic_ns(),
                    complete=complete,
                )
                self.writer.submit(self._record, passed)

    def _record(self, passed: Passed) -> None:
        try:
            self.recording.add(passed)
        except Exception:  # the agent's work must not end because a recording fails  # noqa: BLE001
            _LOG.exception("a call could not be recorded")
            self.recording.skipped["the recorder failed (see the log)"] += 1

    async def close(self) -> None:
        """Write what is still waiting to be written."""
        await self.upstream.aclose()
        await anyio.to_thread.run_sync(self.writer.shutdown)


def _content_type(answer: UpstreamAnswer) -> str:
    return next((value.decode("latin-1") for name, value in answer.headers if name.lower() == b"content-type"), "")


def make_app(upstream: str, recording: Recording) -> Starlette:
    """The proxy as an ASGI application. Raises ConfigError for a wrong upstream address."""
    proxy = _Proxy(Upstream(upstream), recording)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await proxy.close()

    return Starlette(routes=[Route("/{path:path}", proxy.handle, methods=_METHODS)], lifespan=lifespan)


def make_server(upstream: str, recording: Recording) -> uvicorn.Server:
    """A server to be run on sockets of the caller's. Ends, with everything written, when `should_exit` is set."""
    config = uvicorn.Config(
        make_app(upstream, recording),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=5,
        lifespan="on",
    )
    return uvicorn.Server(config)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 = one that the system chooses. Raises ConfigError if it cannot be had."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}; --port 0 takes any free one") from None


def serve(
    upstream: str,
    host: str = "127.0.0.1",
    port: int = 8089,
    out_dir: str | Path = "traces",
    name: str = "recorded",
    *,
    announce: Callable[[str], None] = _LOG.info,
) -> Recording:
    """Record until interrupted; returns the recording. `announce` gets lines for the person at the terminal.

    Raises ConfigError (TraceError) for a wrong upstream, a port that is taken, a folder that cannot be written.
    """
    recording = Recording(out_dir, name)
    server = make_server(upstream, recording)
    with bind(host, port) as listener:
        address = f"http://{host}:{listener.getsockname()[1]}"
        announce(f"Recording calls to {upstream}. Point the agent at {address} (or {address}/v1); Ctrl-C ends it.")
        if host not in ("127.0.0.1", "::1", "localhost"):
            announce("Note: other machines can reach this address and use the server behind it.")
        with suppress(KeyboardInterrupt):  # raised again by uvicorn after it has shut down in good order
            server.run(sockets=[listener])
    for path, turns in recording.written.items():
        announce(f"{path}: {turns} {'turn' if turns == 1 else 'turns'}")
    for reason, count in sorted(recording.skipped.items()):
        announce(f"not recorded, {count}: {reason}")
    return recording
