"""A server process that misbehaves on request. Standard library only; starts in a few hundredths of a second.

    python -S fake_server.py --port P [--behaviour NAME[:ARGUMENT]] [--knob NAME=VALUE ...]

It answers /health, /props and streamed /v1/chat/completions like llama-server, prints one line of timings per request
and shows its knobs in /props. Behaviours are the methods of `Behaviour` and the entries of `BEFORE_LISTENING`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKENS = 41
DECODE_MS = 800.0
WORDS = [f"word{index}" for index in range(TOKENS)]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def oom_abort(_: str) -> None:
    say("ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB: cudaMalloc failed: out of memory")
    os.abort()


def oom_hang(_: str) -> None:
    say("ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB: cudaMalloc failed: out of memory")
    time.sleep(600)


def hang(_: str) -> None:
    say("loading")
    time.sleep(600)


def exit_now(argument: str) -> None:
    say("error: unknown argument --frobnicate")
    sys.exit(int(argument or 1))


def ignore_term(_: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def grandchild(argument: str) -> None:
    """Starts a helper; with `own_session` it leaves the server's session, as daemons do."""
    if os.fork() == 0:
        if argument == "own_session":
            os.setsid()
        say(f"helper {os.getpid()}")
        time.sleep(600)
        os._exit(0)


def gpu(argument: str) -> None:
    """Holds that many MiB of the card it sees and keeps it busy during every answer."""
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))  # noqa: PTH118, PTH120 (pathlib starts slowly)
    from fakes.fake_cuda import Card

    State.card = Card(int(argument))
    say(f"card {State.card.uuid} of {State.card.visible}")


BEFORE_LISTENING: dict[str, Callable[[str], None]] = {
    "oom_abort": oom_abort,
    "oom_hang": oom_hang,
    "hang": hang,
    "exit": exit_now,
    "ignore_term": ignore_term,
    "grandchild": grandchild,
    "gpu": gpu,
}


class State:
    """Shared by all requests of the process."""

    behaviour = "ok"
    argument = ""
    knobs: dict[str, Any] = {}  # noqa: RUF012
    posts = 0
    refused = 0
    card: Any = None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Quiet: the log holds what the behaviours print."""

    def _json(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        if self.path == "/health":
            self._json(200, {"status": "ok"})
        elif self.path == "/props":
            self._json(200, {"knobs": State.knobs, "env": dict(os.environ), "pid": os.getpid()})
        else:
            self._json(404, {"error": "not found"})

    def do_POST(self) -> None:
        if self.path == "/flush_cache":
            say("flushed")
            self._json(400 if State.behaviour == "no_flush" else 200, {})
            return
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if State.behaviour == "loading" and State.refused < int(State.argument):
            State.refused += 1
            self._json(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})
            return
        if request["max_tokens"] == 1:
            self._stream(["Hi"], 1)
            return
        State.posts += 1
        if State.behaviour == "error500":
            self._json(500, {"error": {"message": "slot failed", "code": 500}})
            return
        if State.behaviour == "error400":
            self._json(400, {"error": {"message": "the request exceeds the available context size", "code": 400}})
            return
        if State.behaviour == "flood":
            say("x" * 1_000_000)
        if State.card is not None:
            State.card.work(0.5)
        while State.behaviour == "until" and not os.path.exists(State.argument):  # noqa: PTH110
            time.sleep(0.01)
        if State.behaviour == "slow":
            time.sleep(float(State.argument))
        words = ["same"] * 90 if State.behaviour == "degenerate" else WORDS
        self._stream(words, min(len(words), request["max_tokens"]))

    def _stream(self, words: list[str], count: int) -> None:
        say(f"timings: decoded {count} tokens in {DECODE_MS:.1f} ms")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number, word in enumerate(words[:count]):
            self._event({"choices": [{"index": 0, "delta": {"content": word + " "}, "finish_reason": None}]})
            if State.behaviour == "die" and State.posts >= int(State.argument) and number == 3:
                say("GGML_ASSERT failed: the tree is empty")
                os.kill(os.getpid(), signal.SIGSEGV)
                time.sleep(10)  # the signal may reach another thread first
        timings = {"predicted_n": count, "predicted_ms": DECODE_MS, "prompt_n": 20, "cache_n": 0, "prompt_ms": 10.0}
        if State.behaviour != "no_drafts":
            timings |= {"draft_n": 60, "draft_n_accepted": 30}
        usage = {"prompt_tokens": 20, "completion_tokens": count}
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "usage": usage, "timings": timings}
        self._event(last)
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, content: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--behaviour", default="ok")
    parser.add_argument("--knob", action="append", default=[])
    options = parser.parse_args()
    State.behaviour, _, State.argument = options.behaviour.partition(":")
    State.knobs = {name: json.loads(value) for name, _, value in (knob.partition("=") for knob in options.knob)}
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if State.behaviour in BEFORE_LISTENING:
        BEFORE_LISTENING[State.behaviour](State.argument)
    with Server(("127.0.0.1", options.port), Handler) as http:
        say("listening")
        http.serve_forever(poll_interval=0.01)


if __name__ == "__main__":
    main()
