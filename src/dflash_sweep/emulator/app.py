"""The emulated server's HTTP: llama-server's endpoints, one request at a time. Imports starlette and this package.

In virtual time an answer leaves at once; in real time every chunk leaves when its verify step would have ended, counted
from the request's start (`pace`), so that a stream has the rate that its timings state. Log lines of a request are
written before its last bytes leave, so whoever has read the answer finds them in the log.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from dflash_sweep.emulator import faults, wire
from dflash_sweep.emulator.answers import Answer, ContextExceeded, Server
from dflash_sweep.emulator.faults import Faults
from dflash_sweep.emulator.pace import Pace
from dflash_sweep.emulator.prompts import Prompt, chat_prompt, text_prompt
from dflash_sweep.emulator.texts import token_ids
from dflash_sweep.errors import ConfigError

WRONG_MODEL = "/models/another-model.gguf"
_STREAM = "text/event-stream"


class App:
    """Endpoints around one `Server`. `ready` becomes true when loading is over."""

    def __init__(self, server: Server, log_fd: int = 2, pace: Callable[[], Pace] = Pace) -> None:
        self.server = server
        self.ready = True
        self._pace = pace
        self._log_fd = log_fd
        self._slot = asyncio.Lock()
        self._refused = 0
        launch = server.launch
        wrong = launch.faults.has("wrong_model")
        self.model = WRONG_MODEL if wrong else (launch.alias or launch.model)
        self.asgi = Starlette(
            routes=[
                Route("/health", self.health),
                Route("/v1/health", self.health),
                Route("/v1/models", self.models),
                Route("/models", self.models),
                Route("/props", self.props),
                Route("/slots", self.slots),
                Route("/metrics", self.metrics),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/chat/completions", self.chat, methods=["POST"]),
                Route("/completion", self.completion, methods=["POST"]),
            ]
        )

    def log(self, lines: list[str] | tuple[str, ...]) -> None:
        """Write log lines at once, in order."""
        data = "".join(f"{line}\n" for line in lines).encode()
        while data:
            data = data[os.write(self._log_fd, data) :]

    # ------------------------------------------------------------ small endpoints

    async def health(self, _: Request) -> Response:
        if not self.ready:
            return JSONResponse(wire.error(503, "unavailable_error", "Loading model"), 503)
        return JSONResponse({"status": "ok"})

    async def models(self, _: Request) -> Response:
        entry = {"id": self.model, "object": "model", "created": int(time.time()), "owned_by": "llamacpp"}
        return JSONResponse({"object": "list", "data": [entry]})

    async def props(self, _: Request) -> Response:
        launch = self.server.launch
        return JSONResponse(
            {
                "default_generation_settings": {"n_ctx": launch.setting.n_ctx, "params": {"temperature": 0.8}},
                "total_slots": 1,
                "model_path": WRONG_MODEL if launch.faults.has("wrong_model") else launch.model,
                "model_alias": self.model,
                "build_info": "dflash-sweep emulator",
                "emulated": {"device": launch.device, "clock": launch.clock, "seed": launch.seed},
            }
        )

    async def slots(self, _: Request) -> Response:
        launch = self.server.launch
        if not launch.slots:
            message = "This server does not support slots endpoint. Start it with `--slots`"
            return JSONResponse(wire.error(501, "not_supported_error", message), 501)
        slot = {"id": 0, "n_ctx": launch.setting.n_ctx, "speculative": False, "is_processing": self._slot.locked()}
        return JSONResponse([slot])

    async def metrics(self, _: Request) -> Response:
        if not self.server.launch.metrics:
            message = "This server does not support metrics endpoint. Start it with `--metrics`"
            return JSONResponse(wire.error(501, "not_supported_error", message), 501)
        return PlainTextResponse(wire.metrics(self.server.totals, self._slot.locked()))

    async def tokenize(self, request: Request) -> Response:
        given = await _json(request)
        if given is None:
            return _bad_request("the body is no JSON object")
        return JSONResponse({"tokens": token_ids(str(given.get("content", "")))})

    # ------------------------------------------------------------ answers

    async def chat(self, request: Request) -> Response:
        given = await _json(request)
        if given is None:
            return _bad_request("the body is no JSON object")
        problem = _message_problem(given.get("messages"))
        if problem:
            return _bad_request(problem)
        prompt = chat_prompt(given["messages"], given.get("tools"), given.get("chat_template_kwargs"))
        return await self._respond(given, prompt, chat=True)

    async def completion(self, request: Request) -> Response:
        given = await _json(request)
        if given is None or not isinstance(given.get("prompt"), str):
            return _bad_request('"prompt" must be a string')
        return await self._respond({**given, "stream": False}, text_prompt(given["prompt"]), chat=False)

    async def _respond(self, given: dict[str, Any], prompt: Prompt, *, chat: bool) -> Response:
        try:
            wanted = faults.parse(given.get("emulator_fault"))
        except ConfigError as error:
            return _bad_request(str(error))
        active = Faults({**self.server.launch.faults.active, **wanted.active})
        if refusal := self._refusal(active):
            return refusal
        await self._slot.acquire()
        try:
            answer = self.server.answer(given, prompt, active)
        except ContextExceeded as error:
            self._slot.release()
            fields = {"n_prompt_tokens": error.tokens, "n_ctx": error.limit}
            return JSONResponse(wire.error(400, "exceed_context_size_error", str(error), **fields), 400)
        except BaseException:
            self._slot.release()
            raise
        self.log(answer.before)
        self._flood(active)
        if given.get("stream"):
            usage = bool((given.get("stream_options") or {}).get("include_usage"))
            events = wire.events(answer, self.model, int(time.time()), usage)
            return StreamingResponse(self._stream(answer, events, active), media_type=_STREAM)
        try:
            return await self._whole(answer, active, chat)
        finally:
            self._slot.release()

    def _refusal(self, active: Faults) -> Response | None:
        if not self.ready:
            return JSONResponse(wire.error(503, "unavailable_error", "Loading model"), 503)
        refuse = int(self.server.launch.faults.number("unavailable", 2)) if active.has("unavailable") else 0
        if self._refused < refuse or active.has("unavailable_once"):
            self._refused += 1
            return JSONResponse(wire.error(503, "unavailable_error", "Loading model"), 503)
        return None

    def _flood(self, active: Faults) -> None:
        if active.has("log_flood"):
            line = "srv  log_flood: " + "x" * 1008
            self.log([line] * int(active.number("log_flood", 1) * 1024))

    def _crash(self, answer: Answer, active: Faults) -> None:
        """Abort when a fault asks for it: the process ends by SIGABRT, the answer is never finished."""
        last = self.server.launch.faults.number("crash_after_ready", 1) - 1
        if active.has("crash") or (active.has("crash_after_ready") and answer.task >= last):
            self.log(["/src/ggml/src/ggml-cuda/ggml-cuda.cu:98: CUDA error: an illegal memory access was encountered"])
            os.abort()

    async def _whole(self, answer: Answer, active: Faults, chat: bool) -> Response:
        if self.server.launch.clock == "real":
            await self._pace().wait((answer.figures.prompt_ms + answer.figures.decode_ms) / 1000)
        self._crash(answer, active)
        if active.has("hang_mid_stream"):
            await asyncio.Event().wait()
        self.log(answer.after)
        if not chat:
            return _json_response(wire.completion_body(answer, self.model))
        return _json_response(wire.body(answer, self.model, int(time.time())))

    async def _stream(self, answer: Answer, events: list[bytes], active: Faults) -> AsyncIterator[bytes]:
        try:
            if self.server.launch.clock == "virtual" and not active.active:
                self.log(answer.after)
                yield b"".join(events)
                return
            async for part in self._paced(answer, events, active):
                yield part
        finally:
            self._slot.release()

    async def _paced(self, answer: Answer, events: list[bytes], active: Faults) -> AsyncIterator[bytes]:
        """Events one by one: at their pace with the real clock, disturbed by whatever faults are active."""
        real = self.server.launch.clock == "real"
        slow_ms = active.number("slow_stream", 200) if active.has("slow_stream") else 0.0
        first, middle = 1, 1 + len(answer.chunks) // 2
        last = 1 + len(answer.chunks)  # the end event: what comes before it is text
        if active.has("error_event"):
            yield f"data: {json.dumps(wire.error(500, 'server_error', 'emulated error'))}\n\n".encode()
            return
        pace = self._pace()
        if real:
            yield b":\n\n"  # a heartbeat while the prompt is processed
            await pace.wait(answer.figures.prompt_ms / 1000)
        for index, event in enumerate(events):
            delay_ms = answer.gaps_ms[index - first] if real and first <= index < last else 0.0
            await pace.wait((delay_ms + slow_ms) / 1000)  # also with 0: one write each
            if index == middle:
                for part in await self._disturb(answer, event, active):
                    yield part
                if active.has("half_event"):
                    return
            if index == last:
                self.log(answer.after)
            for part in _split_inside_characters(event) if active.has("split_utf8") else [event]:
                yield part
                await asyncio.sleep(0)

    async def _disturb(self, answer: Answer, event: bytes, active: Faults) -> list[bytes]:
        """What goes wrong in the middle of an answer: bytes to send before the event, or no return at all."""
        self._crash(answer, active)
        if active.has("hang_mid_stream"):
            await asyncio.Event().wait()
        wrong = [b"\xff\xfe\x00<html>502 Bad Gateway</html>\n\ndata: {not json}\n\n"] if active.has("garbage") else []
        return [*wrong, event[: len(event) // 2]] if active.has("half_event") else wrong


def _split_inside_characters(event: bytes) -> list[bytes]:
    """The event cut after the first byte of every multi-byte character."""
    parts, start = [], 0
    for index, byte in enumerate(event):
        if byte >= 0xC0:
            parts.append(event[start : index + 1])
            start = index + 1
    return [*parts, event[start:]]


async def _json(request: Request) -> dict[str, Any] | None:
    try:
        given = json.loads(await request.body())
    except (ValueError, UnicodeDecodeError):
        return None
    return given if isinstance(given, dict) else None


def _message_problem(messages: Any) -> str | None:
    """What llama-server would refuse about the messages; None if nothing."""
    if not isinstance(messages, list) or not messages:
        return "'messages' must be a non-empty array"
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return "each message needs a 'role'"
        if message.get("content") is None and not message.get("tool_calls"):
            return "All non-assistant messages must contain 'content'"
    return None


def _bad_request(message: str) -> Response:
    return JSONResponse(wire.error(400, "invalid_request_error", message), 400)


def _json_response(value: dict[str, Any]) -> Response:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "surrogatepass"), media_type="application/json; charset=utf-8")
