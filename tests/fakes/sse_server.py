"""A scripted HTTP server on a raw socket: every byte, split and broken connection of an answer is the test's choice."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """One answer. `pieces` are sent one by one; a callable piece is called instead (to wait for an event, say).

    `framing`: chunked (one chunk per piece), close (until the connection ends) or length. `cut`: end the connection
    without the transfer's own end. `drop`: close without any answer.
    """

    pieces: Iterable[bytes | Callable[[], Any]] = ()
    status: int = 200
    content_type: str = "text/event-stream"
    framing: str = "chunked"
    cut: bool = False
    drop: bool = False
    headers: dict[str, str] = field(default_factory=dict)


def chunk(content: str | None = None, *, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chat-completion chunk; `more` are top-level fields (usage, timings) or, under `delta`, more delta fields."""
    delta = {**({} if content is None else {"content": content}), **more.pop("delta", {})}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice], **more}


def sse(*objects: dict[str, Any] | str, done: bool = True) -> list[bytes]:
    """One event per object (a string is sent as it is)."""
    pieces = [
        (item if isinstance(item, str) else f"data: {json.dumps(item)}\n\n").encode("utf-8", "surrogatepass")
        for item in objects
    ]
    return [*pieces, b"data: [DONE]\n\n"] if done else pieces


def json_reply(value: Any, status: int = 200) -> Reply:
    return Reply([json.dumps(value).encode()], status=status, content_type="application/json", framing="length")


def text_answer(text: str = "one two three", finish: str = "stop", usage: dict[str, Any] | None = None) -> Reply:
    """A complete streamed answer, one chunk a word."""
    words = [word + " " for word in text.split()]
    return Reply(
        sse(*(chunk(word) for word in words), chunk(finish=finish, usage=usage or {"completion_tokens": len(words)}))
    )


class SSEServer:
    """Answers with what `handler` returns for each request; keeps all requests. Use as a context manager."""

    def __init__(self, handler: Callable[[Request], Reply]) -> None:
        self._handler = handler
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests: list[Request] = []
        self.connections = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> SSEServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        with self._lock:
            for connection in self._open:
                _shut(connection)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with self._lock:
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with connection, connection.makefile("rb") as stream:
                while (request := _read_request(stream)) is not None:
                    self.requests.append(request)
                    if not _answer(connection, self._handler(request)):
                        _shut(connection)
                        return
        except OSError:
            return  # the client went away: that is its right
        finally:
            with self._lock:
                self._open.discard(connection)


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def _read_request(stream: Any) -> Request | None:
    line = stream.readline().decode().strip()
    if not line:
        return None
    method, path, _ = line.split(" ", 2)
    headers: dict[str, str] = {}
    while header := stream.readline().decode().strip():
        name, _, value = header.partition(":")
        before = headers.get(name.lower())
        headers[name.lower()] = value.strip() if before is None else f"{before}, {value.strip()}"
    return Request(method, path, headers, stream.read(int(headers.get("content-length", 0))))


def _frames(reply: Reply) -> Iterator[bytes | Callable[[], Any]]:
    for piece in reply.pieces:
        if callable(piece) or reply.framing != "chunked":
            yield piece
        elif piece:
            yield b"%x\r\n%s\r\n" % (len(piece), piece)
    if reply.framing == "chunked" and not reply.cut:
        yield b"0\r\n\r\n"


def _answer(connection: socket.socket, reply: Reply) -> bool:
    """Send one reply; False if the connection is to be closed."""
    if reply.drop:
        return False
    head = [f"HTTP/1.1 {reply.status} X", f"Content-Type: {reply.content_type}"]
    head += [f"{name}: {value}" for name, value in reply.headers.items()]
    if reply.framing == "chunked":
        head.append("Transfer-Encoding: chunked")
    elif reply.framing == "length":
        reply.pieces = [piece for piece in reply.pieces if isinstance(piece, bytes)]
        head.append(f"Content-Length: {sum(len(piece) for piece in reply.pieces if isinstance(piece, bytes))}")
    else:
        head.append("Connection: close")
    connection.sendall("\r\n".join(head).encode() + b"\r\n\r\n")
    for frame in _frames(reply):
        if callable(frame):
            frame()
        else:
            connection.sendall(frame)
    return reply.framing != "close" and not reply.cut
