"""The recording proxy with real clients: what an agent sends is what a replay sends."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from dflash_sweep.client import Client
from dflash_sweep.errors import ConfigError
from dflash_sweep.recorder import bind, make_server, serve
from dflash_sweep.recording import Recording
from dflash_sweep.records import ReplayPolicy, Trace
from dflash_sweep.replay import play
from dflash_sweep.traces import load
from fakes.agent_upstream import ANSWERS, CALL_ARGUMENTS, THOUGHT, AgentUpstream
from fakes.sse_server import Reply, SSEServer, chunk, json_reply, sse

KEY = "sk-test-do-not-keep-0123456789"
SYSTEM = "You count lines."
SCHEMA = {
    "type": "object",
    "properties": {"lines": {"type": "boolean"}, "file": {"type": "string", "description": "é"}},
    "required": ["file"],
}


@contextmanager
def proxy(upstream: str, out_dir: Path, name: str = "toy") -> Iterator[tuple[str, Recording]]:
    """A running proxy; when the block ends, everything is written."""
    recording = Recording(out_dir, name)
    server = make_server(upstream, recording)
    with bind("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", recording
        finally:
            server.should_exit = True
            thread.join()


def replayed_prompts(trace: Trace) -> list[str]:
    """The prompts that a server sees when the trace is played to it."""
    upstream = AgentUpstream()
    with SSEServer(upstream) as server, Client(server.url) as client:
        play(trace, ReplayPolicy(warmup_turns=0), client, request_fields=lambda _: {}, log_size=lambda: 0)
    return upstream.prompts


def only_trace(out_dir: Path) -> Trace:
    (path,) = out_dir.iterdir()
    assert KEY.encode() not in path.read_bytes()
    return load(path)


# ---------------------------------------------------------------- the agent's side, by three protocols

TOOL = {"type": "function", "function": {"name": "wc", "description": "count", "parameters": SCHEMA}}


def talk_chat(url: str, stream: bool) -> None:
    """One user question, a tool call, its result, an answer, a second question."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        messages: list[Any] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": [{"type": "text", "text": "How long is list é.txt?"}]},
        ]
        for _ in range(3):
            options: Any = {"model": "toy", "messages": messages, "tools": [TOOL], "max_tokens": 64, "temperature": 0.2}
            if stream:
                with client.chat.completions.stream(**options) as events:
                    for _event in events:
                        pass
                    answer = events.get_final_completion().choices[0].message
            else:
                answer = client.chat.completions.create(**options).choices[0].message
            if answer.tool_calls:
                call = answer.tool_calls[0]
                function = {"name": call.function.name, "arguments": call.function.arguments}
                mine = {"id": call.id, "type": "function", "function": function}
                messages.append({"role": "assistant", "content": None, "tool_calls": [mine]})
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "7 list é.txt"})
            else:
                messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "And b?"}]


def talk_anthropic(url: str, stream: bool) -> None:
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": "How long is list é.txt?"}]
        for _ in range(3):
            options: Any = {
                "model": "toy",
                "max_tokens": 64,
                "messages": messages,
                "system": [
                    {"type": "text", "text": SYSTEM},
                    {"type": "text", "text": " Briefly.", "cache_control": {"type": "ephemeral"}},
                ],
                "tools": [{"name": "wc", "description": "count", "input_schema": SCHEMA}],
            }
            if stream:
                with client.messages.stream(**options) as events:
                    answer = events.get_final_message()
            else:
                answer = client.messages.create(**options)
            content = [block.model_dump(exclude_none=True) for block in answer.content]
            messages.append({"role": "assistant", "content": content})
            calls = [block for block in content if block["type"] == "tool_use"]
            said: list[Any] = [
                {
                    "type": "tool_result",
                    "tool_use_id": call["id"],
                    "content": [{"type": "text", "text": "7 list é.txt"}],
                }
                for call in calls
            ]
            messages.append({"role": "user", "content": said or [{"type": "text", "text": "And b?"}]})


def talk_responses(url: str, stream: bool, remember: bool = False) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        history: list[Any] = [{"role": "user", "content": "How long is list é.txt?"}]
        before: str | None = None
        tool = {"type": "function", "name": "wc", "description": "count", "parameters": SCHEMA, "strict": False}
        for _ in range(3):
            options: Any = {"model": "toy", "input": history, "instructions": SYSTEM, "tools": [tool]}
            if remember and before is not None:
                options["previous_response_id"] = before
            if stream:
                with client.responses.stream(**options) as events:
                    for _event in events:
                        pass
                    answer = events.get_final_response()
            else:
                answer = client.responses.create(**options)
            output = [item.model_dump(exclude_none=True) for item in answer.output]
            before = answer.id
            calls = [item for item in output if item["type"] == "function_call"]
            said = [{"type": "function_call_output", "call_id": c["call_id"], "output": "7 list é.txt"} for c in calls]
            new: list[Any] = said or [{"role": "user", "content": "And b?"}]
            history = new if remember else [*history, *output, *new]


TALKS: dict[str, Callable[[str], None]] = {
    "chat": lambda url: talk_chat(url, stream=False),
    "chat streamed": lambda url: talk_chat(url, stream=True),
    "anthropic": lambda url: talk_anthropic(url, stream=False),
    "anthropic streamed": lambda url: talk_anthropic(url, stream=True),
    "responses": lambda url: talk_responses(url, stream=False),
    "responses streamed": lambda url: talk_responses(url, stream=True),
    "responses remembered": lambda url: talk_responses(url, stream=True, remember=True),
}


@pytest.mark.parametrize("name", TALKS)
def test_a_recorded_conversation_is_replayed_with_the_same_prompts(name: str, tmp_path: Path) -> None:
    upstream = AgentUpstream()
    with SSEServer(upstream) as server, proxy(server.url, tmp_path) as (url, recording):
        TALKS[name](url)
    assert recording.skipped == {}
    trace = only_trace(tmp_path)
    assert len(trace.turns) == 3
    assert len(set(upstream.prompts)) == 3
    assert replayed_prompts(trace) == upstream.prompts

    called, told, last = (turn.recorded for turn in trace.turns)
    arguments = called.tool_calls[0]["function"]["arguments"]
    assert json.loads(arguments) == json.loads(CALL_ARGUMENTS)
    assert (called.finish_reason, told.finish_reason) == ("tool_calls", "stop")
    assert (told.content, last.content) == (ANSWERS[1, 1], ANSWERS[2, 1])
    assert (called.prompt_tokens, called.output_tokens) == (100, 9)
    assert called.cached_tokens == (80 if "anthropic" in name else 40)
    if name != "chat":  # its plain body has no thinking
        assert called.reasoning == THOUGHT
    for recorded in (called, told, last):
        assert recorded.duration_ms is not None
        assert (recorded.ttft_ms is not None) == ("streamed" in name or "remembered" in name)
    assert [turn.bucket for turn in trace.turns] == ["tool_call", "prose", "prose"]
    assert trace.turns[0].pause_ms is None
    assert trace.turns[1].pause_ms is not None


def test_chat_messages_and_tools_are_kept_to_the_byte(tmp_path: Path) -> None:
    with SSEServer(AgentUpstream()) as server, proxy(server.url, tmp_path) as (url, _):
        talk_chat(url, stream=True)
        sent = [request.json for request in server.requests]
    trace = only_trace(tmp_path)
    with SSEServer(AgentUpstream()) as server, Client(server.url) as client:
        play(trace, ReplayPolicy(warmup_turns=0), client, request_fields=lambda _: {}, log_size=lambda: 0)
        replayed = [request.json for request in server.requests]
    for field in ("messages", "tools"):
        assert [json.dumps(body[field]) for body in replayed] == [json.dumps(body[field]) for body in sent]
    assert trace.header.sampling == {"temperature": 0.2}
    assert trace.header.note == "model: toy"
    assert trace.turns[0].max_tokens == 64
    assert trace.header.losses == ()


# ---------------------------------------------------------------- untouched


def raw_request(url: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_request_and_answer_go_through_untouched(tmp_path: Path) -> None:
    body = b'{ "messages" : [ {"role":"user","content":"\\u00e9 caf\xc3\xa9"} ],  "x":1.0e0, "stream":true}'
    answer = b': ping\r\ndata:{"choices":[{"delta":{"content":"\xe2\x80\xa8"},"finish_reason":"stop"}]}\r\n\r\n'
    reply = Reply(
        [answer[i : i + 7] for i in range(0, len(answer), 7)], status=201, headers={"X-Req": "é", "x-two": "2"}
    )
    with SSEServer(lambda _: reply) as server, proxy(server.url, tmp_path) as (url, _):
        headers = {"Authorization": f"Bearer {KEY}", "X-Api-Key": KEY, "X-Own": "1", "Accept-Encoding": "gzip, br"}
        status, got, content = raw_request(url, "/v1/chat/completions?a=b%20c&d", body, headers)
        (request,) = server.requests
    assert (request.body, request.path) == (body, "/v1/chat/completions?a=b%20c&d")
    assert (request.headers["authorization"], request.headers["x-own"]) == (f"Bearer {KEY}", "1")
    assert request.headers["host"] == server.url.removeprefix("http://")
    assert request.headers["accept-encoding"] == "identity"
    assert (status, content) == (201, answer)
    assert (got["x-two"], got["content-type"]) == ("2", "text/event-stream")
    assert "server" not in got
    only_trace(tmp_path)  # holds no key


def test_each_piece_goes_on_as_it_comes(tmp_path: Path) -> None:
    seen = threading.Event()
    first, rest = sse(chunk("a"), done=False), sse(chunk("b", finish="stop"))
    reply = Reply([*first, lambda: seen.wait(10), *rest])
    with SSEServer(lambda _: reply) as server, proxy(server.url, tmp_path) as (url, _):
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
        connection.request("POST", "/v1/chat/completions", b'{"messages":[{"role":"user","content":"x"}]}')
        answer = connection.getresponse()
        assert answer.read1(65536) == first[0]  # the server holds the rest back until this has come through
        seen.set()
        assert answer.read() == b"".join(rest)
        connection.close()
    assert only_trace(tmp_path).turns[0].recorded.content == "ab"


def test_other_requests_pass_and_are_not_recorded(tmp_path: Path) -> None:
    with SSEServer(AgentUpstream()) as server, proxy(server.url, tmp_path) as (url, recording):
        with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
            assert list(client.models.list()) == []
        assert server.requests[0].path == "/v1/models"
    assert list(tmp_path.iterdir()) == []
    assert recording.skipped == {}


# ---------------------------------------------------------------- what goes wrong


def test_refused_calls_are_passed_on_and_counted(tmp_path: Path) -> None:
    body = b'{"messages":[{"role":"user","content":"x"}]}'
    refusal = json_reply({"error": {"message": "no"}}, 429)
    with SSEServer(lambda _: refusal) as server, proxy(server.url, tmp_path) as (url, recording):
        status, _, content = raw_request(url, "/v1/chat/completions", body, {})
    assert (status, json.loads(content)) == (429, {"error": {"message": "no"}})
    assert recording.skipped == {"the server answered HTTP 429": 1}


def test_an_upstream_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with SSEServer(lambda _: json_reply({})) as server:
        gone = server.url
    with proxy(gone, tmp_path) as (url, _):
        status, _, content = raw_request(url, "/v1/chat/completions", b"{}", {})
    assert status == 502
    assert gone in json.loads(content)["error"]["message"]


def test_an_upstream_that_breaks_off_is_not_made_whole(tmp_path: Path) -> None:
    reply = Reply(sse(chunk("a"), done=False), cut=True)
    with (
        SSEServer(lambda _: reply) as server,
        proxy(server.url, tmp_path) as (url, recording),
        pytest.raises(http.client.IncompleteRead),
    ):
        raw_request(url, "/v1/chat/completions", b'{"messages":[{"role":"user","content":"x"}]}', {})
    assert only_trace(tmp_path).header.losses == ("an answer was broken off",)
    assert recording.skipped == {}


def test_a_client_that_goes_away_ends_the_upstreams_work(tmp_path: Path) -> None:
    gone, ended = threading.Event(), threading.Event()

    def endless() -> Iterator[bytes]:
        try:
            yield from sse(chunk("a"), done=False)
            gone.wait(10)
            while True:
                yield b": still here\n\n"
        finally:
            ended.set()

    with SSEServer(lambda _: Reply(endless())) as server, proxy(server.url, tmp_path) as (url, _):
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
        connection.request("POST", "/v1/chat/completions", b'{"messages":[{"role":"user","content":"x"}]}')
        assert connection.getresponse().read1(65536) == sse(chunk("a"), done=False)[0]
        connection.close()
        gone.set()
        assert ended.wait(10)
    turn = only_trace(tmp_path).turns[0]
    assert turn.recorded.content == "a"


def test_a_port_that_is_taken_and_a_wrong_upstream_are_said_in_one_line(tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            serve("http://127.0.0.1:1", port=port, out_dir=tmp_path)
    with pytest.raises(ConfigError, match="http://host:port"):
        serve("localhost", port=0, out_dir=tmp_path)


PROGRAM = "import typer; from dflash_sweep.recorder_cli import record; typer.run(record)"


def test_the_command_records_until_interrupted_and_says_what_it_wrote(tmp_path: Path) -> None:
    with SSEServer(AgentUpstream()) as server:
        words = ["--upstream", server.url, "--port", "0", "--out", str(tmp_path), "--name", "mine"]
        with subprocess.Popen([sys.executable, "-uc", PROGRAM, *words], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            url = re.findall(r"http://127\.0\.0\.1:\d+", first)[1]
            assert first.startswith(f"Recording calls to {server.url}")
            body = b'{"messages":[{"role":"user","content":"x"}]}'
            assert raw_request(url, "/v1/chat/completions", body, {})[0] == 200
            assert raw_request(url, "/v1/chat/completions", b"{}", {})[0] == 500  # the fake has no answer to that
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
        assert process.returncode == 0
    path = tmp_path / "mine-001.jsonl"
    assert rest == f"{path}: 1 turn\nnot recorded, 1: the server answered HTTP 500\n"
    assert len(load(path).turns) == 1
