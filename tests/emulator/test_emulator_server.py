"""The emulated server as a process: its HTTP, its log, its clock, its death, and every fault."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from dflash_sweep.emulator.faults import LAUNCH_FAULTS, REQUEST_FAULTS
from dflash_sweep.engines.emulator import EmulatorEngine
from dflash_sweep.errors import FailureKind
from dflash_sweep.records import Exchange

ENGINE = EmulatorEngine()
TREE = ["--speculative-mode", "ddtree", "-md", "draft.gguf", "--parallel", "1", "--ddtree-budget", "32"]
EXACT = {"LLAMA_DDTREE_VERIFIER": "exact", "LLAMA_DDTREE_PROPOSAL_TEMP": "0.7"}
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"properties": {"path": {"type": "string"}}}}}]
PROMPT = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Tell me about caches. " * 30}]


@dataclass
class Process:
    process: subprocess.Popen[bytes]
    log_path: Path
    client: httpx.Client

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace")

    def wait_for(self, text: str, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.log:
            assert time.monotonic() < deadline, f"{text!r} did not appear in: {self.log[-500:]}"
            time.sleep(0.02)

    def chat(self, **fields: Any) -> httpx.Response:
        body = {"messages": PROMPT, "max_tokens": 48, "temperature": 0, **fields}
        return self.client.post("/v1/chat/completions", json=body)

    def events(self, **fields: Any) -> list[dict[str, Any]]:
        text = self.chat(stream=True, stream_options={"include_usage": True}, **fields).text
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def server(folder: Path, *argv: str, env: dict[str, str] | None = None, wait: bool = True) -> Iterator[Process]:
    port = free_port()
    log_path = folder / f"server-{port}.log"
    words = [sys.executable, "-m", "dflash_sweep.emulator", "--host", "127.0.0.1", "--port", str(port), *argv]
    inherited = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    with log_path.open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env={**inherited, **(env or {})})
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20.0) as client:
            running = Process(process, log_path, client)
            if wait:
                running.wait_for("server is listening on")
            yield running
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("exact")
    argv = [*TREE, "-c", "32768", "-ctk", "q4_0", "-ctv", "q4_0", "--metrics", "--slots", "-m", "target.gguf"]
    with server(folder, *argv, env=EXACT) as running:
        yield running


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with server(tmp_path_factory.mktemp("plain"), "-c", "32768") as running:
        yield running


def text_of(events: list[dict[str, Any]], field: str = "content") -> str:
    return "".join(event["choices"][0]["delta"].get(field) or "" for event in events if event["choices"])


# ---------------------------------------------------------------- HTTP


def test_endpoints(exact: Process) -> None:
    client = exact.client
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/v1/models").json()["data"][0]["id"] == "target.gguf"
    props = client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 32768
    assert props["emulated"]["clock"] == "virtual"
    assert client.get("/slots").json()[0]["speculative"] is False  # the fork's /slots knows its chain speculator only
    exact.chat()
    assert "llamacpp:tokens_predicted_total" in client.get("/metrics").text
    tokens = client.post("/tokenize", json={"content": "one two, three"}).json()["tokens"]
    assert len(tokens) == 4
    assert tokens == client.post("/tokenize", json={"content": "one two, three"}).json()["tokens"]


def test_whole_answer(exact: Process) -> None:
    answer = exact.chat(ignore_eos=True).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == answer["timings"]["predicted_n"] == 48
    assert answer["usage"]["prompt_tokens"] == answer["timings"]["prompt_n"] + answer["timings"]["cache_n"]
    assert answer["timings"]["draft_n"] % 32 == 0  # steps × budget, whatever was drafted


def test_streamed_answer_says_the_same(exact: Process) -> None:
    events = exact.events(ignore_eos=True)
    whole = exact.chat(ignore_eos=True).json()
    assert text_of(events) == whole["choices"][0]["message"]["content"]
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 48
    assert events[-1]["timings"]["predicted_n"] == 48
    finished = [event for event in events if event["choices"] and event["choices"][0]["finish_reason"]]
    assert [event["choices"][0]["finish_reason"] for event in finished] == ["length"]
    # one chunk a verify step: fewer chunks than tokens
    assert 1 < len(events) - 3 < 48


def test_the_log_is_complete_when_the_answer_is(exact: Process) -> None:
    start = exact.log_path.stat().st_size
    timings = exact.events(ignore_eos=True)[-1]["timings"]
    log = exact.log_path.read_bytes()
    (turn,) = ENGINE.parse_trial([Exchange(turn_index=0, send_ns=0, end_ns=1, timings=timings, log_start=start)], log)
    assert turn.flags == ()
    assert turn.decode_tokens == 48
    assert turn.verify_steps is not None
    stages = {stage.name: stage.total_ms for stage in turn.stages}
    assert stages["step_ms"] == pytest.approx(timings["predicted_ms"], rel=1e-3)
    assert sum(value for name, value in stages.items() if name != "step_ms") == pytest.approx(
        stages["step_ms"], rel=1e-2
    )


def test_applied_settings_show_in_the_log(exact: Process) -> None:
    shown = ENGINE.applied({}, True, exact.client.get("/props").json(), exact.client.get("/slots").json(), exact.log)
    assert shown["speculation"] == "ddtree"
    assert (shown["cache_type_k"], shown["cache_type_v"], shown["n_ubatch"]) == ("q4_0", "q4_0", 512)
    assert ENGINE.memory_mib(exact.log)["kv"] == 576.0


def test_prompt_cache_per_conversation_is_capped_by_the_window(exact: Process) -> None:
    first = [{"role": "user", "content": "A long story about rivers and bridges. " * 60}]
    longer = [*first, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}]
    other = [{"role": "user", "content": "Something else entirely, about winter. " * 60}]
    prompt = exact.chat(messages=first).json()["timings"]
    exact.chat(messages=other)
    again = exact.chat(messages=longer).json()["timings"]
    assert prompt["cache_n"] == 0
    # All but the last 128 tokens (the default feature window) may come from the cache.
    total = again["cache_n"] + again["prompt_n"]
    assert again["cache_n"] == min(prompt["prompt_n"] - 4, total - 128)
    assert f"to rebuild the last {128} target-feature tokens" in exact.log
    assert exact.chat(messages=longer, cache_prompt=False).json()["timings"]["cache_n"] == 0


def test_lossless_text_is_that_of_plain_decoding(exact: Process, plain: Process) -> None:
    for bucket in ("code", "prose", "tool_call", "thinking", "other"):
        speculative, without = (
            process.chat(emulator_bucket=bucket).json()["choices"][0]["message"] for process in (exact, plain)
        )
        assert speculative == without, bucket


def test_plain_decoding_drafts_nothing(plain: Process) -> None:
    timings = plain.chat().json()["timings"]
    assert "draft_n" not in timings
    assert "ddtree stats" not in plain.log
    shown = ENGINE.applied({}, False, {}, [], plain.log)
    assert shown.get("speculation") is None


def test_trusted_text_differs_sometimes(tmp_path: Path, plain: Process) -> None:
    env = {"LLAMA_DDTREE_UNSAFE_TRUST_BATCHED": "1"}
    with server(
        tmp_path, *TREE[:-1], "16", "-c", "8192", "-ub", "64", "-b", "64", "-ctk", "q8_0", "-ctv", "q8_0", env=env
    ) as fast:

        def answer(process: Process, index: int) -> str:
            messages = [{"role": "user", "content": f"Question {index}"}]
            reply = process.chat(messages=messages, max_tokens=256, ignore_eos=True, emulator_bucket="code").json()
            return str(reply["choices"][0]["message"]["content"])

        pairs = [(answer(fast, index), answer(plain, index)) for index in range(12)]
    equal = sum(ours == theirs for ours, theirs in pairs)
    assert 0 < equal < 12
    different = next((ours, theirs) for ours, theirs in pairs if ours != theirs)
    assert different[0][:8] == different[1][:8]  # they part somewhere in the middle


def test_tool_calls_and_reasoning(exact: Process) -> None:
    events = exact.events(tools=TOOLS, emulator_bucket="tool_call", max_tokens=600)
    calls = [
        call for event in events if event["choices"] for call in event["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert calls[0]["function"]["name"] == "read"
    thinking = exact.events(emulator_bucket="thinking", ignore_eos=True)
    assert text_of(thinking, "reasoning_content")
    off = exact.events(emulator_bucket="thinking", ignore_eos=True, chat_template_kwargs={"enable_thinking": False})
    assert not text_of(off, "reasoning_content")


def test_grammar_shows_as_sampling_inside_the_exact_stage(exact: Process) -> None:
    start = len(exact.log)
    exact.chat(tools=TOOLS, ignore_eos=True)
    line = next(line for line in exact.log[start:].splitlines() if line.startswith("ddtree timing avg:"))
    values = dict(pair.split("=") for pair in line.split() if "=" in pair)
    picks = float(values["exact_nodes"])
    assert float(values["exact_sample"]) == pytest.approx(47.978 * picks, rel=0.06)  # 48 ms a pick, and the noise
    assert float(values["exact"]) == pytest.approx(
        float(values["exact_sample"]) + float(values["exact_decode"]), abs=0.02
    )


def test_requests_that_llama_server_refuses(exact: Process) -> None:
    assert exact.client.post("/v1/chat/completions", content=b"{no json").status_code == 400
    assert exact.chat(messages=[]).status_code == 400
    assert exact.chat(messages=[{"role": "user", "content": None}]).status_code == 400
    assert exact.chat(emulator_fault="oom_at_load").status_code == 400
    long = exact.chat(messages=[{"role": "user", "content": "word " * 40_000}])
    assert long.status_code == 400
    assert long.json()["error"]["type"] == "exceed_context_size_error"


def test_the_same_launch_repeats_itself_to_the_byte(tmp_path: Path) -> None:
    def run(seed: str) -> tuple[list[Any], str]:
        argv = [*TREE, "-c", "16384", "-ctk", "q4_0", "-ctv", "q4_0", "--emulator-launch-seed", seed]
        with server(tmp_path, *argv, env=EXACT) as running:
            answers = [running.chat(messages=[{"role": "user", "content": f"turn {i}"}]).json() for i in range(3)]
            log = running.log.replace(str(running.client.base_url.port), "PORT")
        return [(answer["choices"], answer["timings"]) for answer in answers], log

    assert run("3") == run("3")
    assert run("3") != run("4")


def test_real_clock_streams_at_the_emulated_pace(tmp_path: Path) -> None:
    with server(tmp_path, "-c", "4096", "--emulator-clock", "real", "--emulator-noise", "0") as running:
        messages = [{"role": "user", "content": "hi"}]
        start = time.monotonic()
        arrivals = []
        body = {"messages": messages, "max_tokens": 16, "temperature": 0, "stream": True, "ignore_eos": True}
        with running.client.stream("POST", "/v1/chat/completions", json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    arrivals.append(time.monotonic() - start)
    # 15 decodes of about 21.6 ms after a prefill of about 30 ms: 0.35 s. A busy machine can only be slower.
    assert arrivals[-1] >= 0.33
    assert len(set(arrivals)) > 10
    assert "times are real" in running.log


# ---------------------------------------------------------------- life and death


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_code_0(tmp_path: Path, number: signal.Signals) -> None:
    with server(tmp_path) as running:
        running.process.send_signal(number)
        assert running.process.wait(10) == 0
        assert ENGINE.classify(running.log, 0) is None


def test_a_wrong_argument_ends_it_with_code_1_in_the_forks_words(tmp_path: Path) -> None:
    with server(tmp_path, "--ddtree-depth", "3", wait=False) as running:
        assert running.process.wait(20) == 1
    assert running.log == "error: invalid argument: --ddtree-depth\n"


def test_version_and_help() -> None:
    words = [sys.executable, "-m", "dflash_sweep.emulator"]
    version, help_text = (
        subprocess.run([*words, flag], capture_output=True, text=True, check=True).stderr
        for flag in ("--version", "--help")
    )
    assert version.startswith("version: ")
    assert "--ddtree-budget" in help_text


def test_out_of_memory_by_its_own_settings(tmp_path: Path) -> None:
    argv = [*TREE, "-c", "65536", "-ctk", "q8_0", "-ctv", "q8_0"]
    with server(tmp_path, *argv, env=EXACT, wait=False) as running:
        assert running.process.wait(20) == 1
    found = ENGINE.classify(running.log, 1)
    assert found is not None
    assert found[0] is FailureKind.OUT_OF_MEMORY

    env = {"LLAMA_DDTREE_UNSAFE_TRUST_BATCHED": "1"}
    with server(tmp_path, *TREE, "-c", "65536", "-ctk", "q4_0", "-ctv", "q4_0", env=env) as running:
        answer = running.chat().json()  # ready, and then the first request finds no room: 200 and nothing
    assert answer["usage"]["completion_tokens"] == 0
    found = ENGINE.classify(running.log, None)
    assert found is not None
    assert found[0] is FailureKind.OUT_OF_MEMORY


# ---------------------------------------------------------------- faults of a request


def test_every_fault_is_tested_here() -> None:
    text = Path(__file__).read_text("utf-8")
    assert [
        name for name in {**LAUNCH_FAULTS, **REQUEST_FAULTS} if f'"{name}' not in text and f"={name}" not in text
    ] == []


def raw_stream(process: Process, fault: str, timeout_s: float = 20.0) -> bytes:
    body = {"messages": PROMPT, "max_tokens": 48, "temperature": 0, "stream": True, "emulator_fault": fault}
    with process.client.stream("POST", "/v1/chat/completions", json=body, timeout=timeout_s) as response:
        assert response.status_code == 200
        return response.read()


def test_half_event(exact: Process) -> None:
    data = raw_stream(exact, "half_event")
    assert not data.endswith(b"\n\n")
    assert b"[DONE]" not in data
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads(data.split(b"data: ")[-1])


def test_garbage(exact: Process) -> None:
    data = raw_stream(exact, "garbage")
    assert b"\xff\xfe" in data
    assert data.endswith(b"data: [DONE]\n\n")


def test_split_utf8_is_whole_again_when_joined(exact: Process) -> None:
    body = {"messages": PROMPT, "max_tokens": 8, "temperature": 0, "stream": True, "emulator_fault": "split_utf8"}
    with exact.client.stream("POST", "/v1/chat/completions", json=body) as response:
        parts = list(response.iter_raw())
    assert "漢" in b"".join(parts).decode()
    # some writes end inside a character
    assert any("\ufffd" in part.decode("utf-8", "replace") for part in parts)


def test_slow_stream_is_slow_but_whole(exact: Process) -> None:
    start = time.monotonic()
    data = raw_stream(exact, "slow_stream:15")
    assert time.monotonic() - start >= 0.015 * data.count(b"data: ")
    assert data.endswith(b"data: [DONE]\n\n")


def test_hang_mid_stream(exact: Process) -> None:
    with pytest.raises(httpx.ReadTimeout):
        raw_stream(exact, "hang_mid_stream", timeout_s=0.5)
    assert exact.chat().status_code == 200  # the slot is free again once the client has gone


def test_error_event(exact: Process) -> None:
    assert b'data: {"error"' in raw_stream(exact, "error_event")


def test_empty_answer(exact: Process) -> None:
    answer = exact.chat(emulator_fault="empty_answer").json()
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["timings"]["predicted_per_second"] is None


def test_zero_drafts(exact: Process) -> None:
    assert "draft_n" not in exact.chat(emulator_fault="zero_drafts", ignore_eos=True).json()["timings"]


def test_degenerate(exact: Process) -> None:
    content = exact.chat(emulator_fault="degenerate", ignore_eos=True).json()["choices"][0]["message"]["content"]
    assert content == " again" * 48


def test_unavailable_once(exact: Process) -> None:
    assert exact.chat(emulator_fault="unavailable_once").status_code == 503
    assert exact.chat().status_code == 200


def test_log_flood(exact: Process) -> None:
    before = exact.log_path.stat().st_size
    exact.chat(emulator_fault="log_flood:2")
    assert exact.log_path.stat().st_size - before >= 2 * 1024 * 1024


def test_oom_in_decode(exact: Process) -> None:
    start = len(exact.log)
    answer = exact.chat(emulator_fault="oom_in_decode", ignore_eos=True).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 48
    found = ENGINE.classify(exact.log[start:], None)
    assert found is not None
    assert found[0] is FailureKind.OUT_OF_MEMORY


def test_crash(tmp_path: Path) -> None:
    with server(tmp_path, *TREE, env=EXACT) as running:
        with pytest.raises(httpx.HTTPError):
            raw_stream(running, "crash")
        assert running.process.wait(10) == -signal.SIGABRT
    found = ENGINE.classify(running.log, -6)
    assert found is not None
    assert found[0] is FailureKind.CRASHED


# ---------------------------------------------------------------- faults of a launch


@pytest.mark.parametrize(
    ("fault", "code", "kind"),
    [
        ("crash_before_ready", -signal.SIGABRT, FailureKind.CRASHED),
        ("crash_before_ready:3", 3, FailureKind.CRASHED),
        ("oom_at_load", 1, FailureKind.OUT_OF_MEMORY),
        ("port_in_use", 1, FailureKind.HEALTH_TIMEOUT),
    ],
)
def test_death_before_readiness(tmp_path: Path, fault: str, code: int, kind: FailureKind) -> None:
    with server(tmp_path, "--emulator-fault", fault, wait=False) as running:
        assert running.process.wait(20) == code
    assert "listening" not in running.log
    found = ENGINE.classify(running.log, code)
    assert found is not None
    assert found[0] is kind


def test_a_port_that_is_really_taken(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        with server(tmp_path, "--port", port, wait=False) as running:
            assert running.process.wait(20) == 1
    assert f"couldn't bind HTTP server socket, hostname: 127.0.0.1, port: {port}" in running.log


def test_hang_at_start(tmp_path: Path) -> None:
    with server(tmp_path, "--emulator-fault", "hang_at_start", wait=False) as running:
        running.wait_for("loading model")
        with pytest.raises(httpx.ConnectError):
            running.client.get("/health")
        assert running.process.poll() is None


def test_crash_after_ready(tmp_path: Path) -> None:
    with server(tmp_path, "--emulator-fault", "crash_after_ready:2") as running:
        assert running.chat().status_code == 200
        with pytest.raises(httpx.HTTPError):
            running.chat()
        assert running.process.wait(10) == -signal.SIGABRT


def test_unavailable_for_a_while(tmp_path: Path) -> None:
    with server(tmp_path, "--emulator-fault", "unavailable:3") as running:
        assert running.client.get("/health").status_code == 200
        assert [running.chat().status_code for _ in range(5)] == [503, 503, 503, 200, 200]


def test_wrong_model(tmp_path: Path) -> None:
    with server(tmp_path, "-m", "mine.gguf", "--emulator-fault", "wrong_model") as running:
        assert running.client.get("/v1/models").json()["data"][0]["id"] != "mine.gguf"
        assert running.client.get("/props").json()["model_path"] != "mine.gguf"


def test_draft_inactive(tmp_path: Path) -> None:
    with server(tmp_path, *TREE, "--emulator-fault", "draft_inactive", env=EXACT) as running:
        assert "draft_n" not in running.chat(ignore_eos=True).json()["timings"]
        assert ENGINE.applied({}, True, {}, [], running.log)["speculation"] == "ddtree"  # it says nothing


def test_ignored_setting_shows_where_the_log_shows_the_setting(tmp_path: Path) -> None:
    fault = ["--emulator-fault", "ignored_setting:cache_type_k"]
    with server(tmp_path, *TREE, "-ctk", "q8_0", "-ctv", "q8_0", *fault, env=EXACT) as running:
        assert ENGINE.applied({}, True, {}, [], running.log)["cache_type_k"] == "f16"


def test_survives_term(tmp_path: Path) -> None:
    with server(tmp_path, "--emulator-fault", "survives_term") as running:
        running.process.terminate()
        assert running.client.get("/health").status_code == 200
        assert running.process.poll() is None
