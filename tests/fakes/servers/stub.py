"""What every stub server shares: a script that poses as an engine's executable, an HTTP server, a streamed answer.

Standard library only, so that a stub starts in a tenth of a second.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

WORDS = [
    "The",
    "parser",
    "reads",
    "every",
    "line",
    "once",
    "and",
    "keeps",
    "only",
    "what",
    "it",
    "knows;",
    "anything",
    "else",
    "is",
    "counted",
    "and",
    "shown",
    "later,",
    "because",
    "a",
    "figure",
    "that",
    "nobody",
    "can",
    "explain",
    "is",
    "worse",
    "than",
    "none",
    "at",
    "all.",
]
CHUNKS = 5

Answer = tuple[int, str, str]
"""Status, content type, body."""


def install(folder: Path, module: str, *arguments: str, name: str | None = None) -> Path:
    """Write an executable script that runs `fakes.servers.<module>.main(arguments, argv)`."""
    script = folder / (name or f"{module}-stub")
    tests = Path(__file__).resolve().parents[2]
    script.write_text(
        f"#!{sys.executable} -SE\n"
        f"import sys\nsys.path.insert(0, {str(tests)!r})\n"
        f"from fakes.servers.{module} import main\n"
        f"main({list(arguments)!r}, sys.argv[1:])\n",
        encoding="utf-8",
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def log(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def die(text: str, code: int, *, out: bool = False) -> NoReturn:
    (sys.stdout if out else sys.stderr).write(text + "\n")
    sys.stdout.flush()
    sys.stderr.flush()
    raise SystemExit(code)


def as_json(value: Any, status: int = 200) -> Answer:
    return status, "application/json", json.dumps(value)


def text_chunks(identifier: str, tokens: int) -> Iterable[dict[str, Any]]:
    """`CHUNKS` pieces of varied text, each as one chunk of a stream, and the finishing chunk."""
    words = [WORDS[index % len(WORDS)] + f"{index // len(WORDS) or ''} " for index in range(tokens)]
    size = max(1, len(words) // CHUNKS)
    for start in range(0, len(words), size):
        delta = {"content": "".join(words[start : start + size])}
        yield {"id": identifier, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
    yield {"id": identifier, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}


class Stub:
    """One server. `pages`: path → answer; `chat(request)` yields the chunks of a stream."""

    def __init__(
        self,
        host: str,
        port: int,
        pages: dict[str, Callable[[], Answer]],
        chat: Callable[[dict[str, Any]], Iterable[dict[str, Any]]],
        not_found: Callable[[str], Answer] | None = None,
    ) -> None:
        self.pages, self.chat = pages, chat
        self.not_found = not_found or (lambda path: as_json({"error": {"code": 404, "message": "File Not Found"}}, 404))
        self.lock = threading.Lock()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments: object) -> None:
                """Nothing: the engine's own log is what counts."""

            def do_GET(self) -> None:
                page = stub.pages.get(self.path.split("?")[0])
                self._answer(page() if page else stub.not_found(self.path))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or b"{}")
                if self.path != "/v1/chat/completions":
                    self._answer(stub.not_found(self.path))
                    return
                with stub.lock:
                    self._stream(stub.chat(body))

            def _answer(self, answer: Answer) -> None:
                status, kind, body = answer
                data = body.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _stream(self, chunks: Iterable[dict[str, Any]]) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                for chunk in chunks:
                    self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                    self.wfile.flush()
                    if chunk.get("choices"):
                        time.sleep(0.002)
                self.wfile.write(b"data: [DONE]\n\n")

        try:
            self.server = ThreadingHTTPServer((host, port), Handler)
        except OSError:
            self.server = None  # type: ignore[assignment]

    def run(self, ready: str) -> NoReturn:
        """Serve until SIGTERM; exit code 0 then."""
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        log(ready)
        self.server.serve_forever(poll_interval=0.05)
        raise SystemExit(0)


def prometheus(counters: dict[str, float], labels: str = "") -> Answer:
    """A page of counters."""
    lines = [f"# TYPE {name.split('{')[0]} counter\n{name}{labels} {value}" for name, value in counters.items()]
    return 200, "text/plain; version=0.0.4", "\n".join(lines) + "\n"
