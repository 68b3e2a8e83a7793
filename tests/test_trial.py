"""A whole trial on a small real server process: what comes out when all goes well, and every way it can fail."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from dflash_sweep import engines, evidence, hosting, judge, leftovers, metrics, replay, server, telemetry, trial, watch
from dflash_sweep.engines.base import EngineFacts
from dflash_sweep.errors import ConfigError, FailureKind, StorageError, TrialFailed
from dflash_sweep.records import (
    Device,
    EngineSettings,
    Exchange,
    Knobs,
    LaunchSpec,
    Measurement,
    ReplayPolicy,
    TrialResult,
    TrialSpec,
    TurnCounters,
    TurnRecord,
)
from fakes import fake_engine


@pytest.fixture(autouse=True)
def _fake_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engines.REGISTRY, "fake", fake_engine.REGISTERED)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(watch, "INTERVAL_S", 0.02)


def run(spec: TrialSpec, **options: Any) -> TrialResult:
    return trial.run_trial(spec, fake_engine.CPU, **options)


def left_running(tmp_path: Path) -> list[Path]:
    return list((tmp_path / f"dflash-sweep-{os.getuid()}").glob("*.json"))


def failed(result: TrialResult) -> tuple[FailureKind, str]:
    assert result.failure is not None, "the trial was expected to fail"
    return result.failure.kind, result.failure.message


# ---------------------------------------------------------------- a good trial


def test_a_good_trial_has_turns_settings_and_files(tmp_path: Path) -> None:
    spec = fake_engine.spec(tmp_path, knobs={"budget": 22, "chain_seed": True, "top_k": None})
    result = run(spec)
    assert result.failure is None
    assert result.uid == "t1"
    assert result.measurement is Measurement.EMULATED
    assert result.clock == "real"
    assert result.device == fake_engine.CPU
    assert result.effective == {"budget": 22, "chain_seed": True}
    assert result.memory_mib == {"kv": 12.0}
    assert result.worker.endswith(f":{os.getpid()}")
    assert result.started_utc.endswith("+00:00")
    assert result.load_s is not None
    assert result.wall_s is not None
    assert 0 < result.load_s < result.wall_s
    assert [turn.warmup for turn in result.turns] == [True, False, False, False]
    assert [turn.order for turn in result.turns] == [0, 1, 2, 3]
    assert [turn.index for turn in result.turns if not turn.warmup] == [0, 1, 2]
    assert {turn.invalid_reason for turn in result.turns} == {None}
    # three turns of 41 tokens each; the first token comes from prefill: 3·40 / 3·0.8 s = 50 tok/s
    assert metrics.pooled_decode_tps(result.turns) == pytest.approx(50.0)
    assert result.telemetry.samples > 0
    assert result.telemetry.peak_memory_mib is not None
    assert result.telemetry.mean_power_w is None
    assert left_running(tmp_path) == []

    files = evidence.TrialFiles(Path(spec.evidence_dir))
    assert files.read_result() == result
    assert len(files.turns.read_text().splitlines()) == 4
    assert json.loads(files.turns.read_text().splitlines()[1])["conversation"] == "c"
    assert len(files.telemetry.read_text().splitlines()) >= result.telemetry.samples
    assert files.log.read_text().startswith("listening\n")
    assert not list(files.folder.glob("*.new"))
    launch = json.loads(files.launch.read_text())
    assert result.launch is not None
    assert launch["argv"] == list(result.launch.argv)
    assert launch["env"] == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ""}
    assert "PATH" in launch["inherited"]
    assert launch["spec"]["knobs"]["budget"] == 22
    assert launch["spec"]["trace"]["name"] == "short"
    assert launch["environment"]["python"]


def test_results_survive_json(tmp_path: Path) -> None:
    result = run(fake_engine.spec(tmp_path))
    assert msgspec.json.decode(msgspec.json.encode(result), type=TrialResult) == result


def test_a_server_that_is_still_loading_is_waited_for(tmp_path: Path) -> None:
    """/health says 200 at once, the first two completions 503: that is load time, not a failed turn."""
    result = run(fake_engine.spec(tmp_path, "loading:2"))
    assert result.failure is None
    assert len(result.turns) == 4
    assert metrics.pooled_decode_tps(result.turns) == pytest.approx(50.0)


def test_a_megabyte_of_log_per_turn_is_no_problem(tmp_path: Path) -> None:
    result = run(fake_engine.spec(tmp_path, "flood"))
    assert result.failure is None
    assert evidence.TrialFiles(tmp_path / "t1").log.stat().st_size > 4_000_000
    starts = [turn.exchange.log_start for turn in result.turns]
    assert all(later - earlier > 1_000_000 for earlier, later in itertools.pairwise(starts))


def test_stray_variables_never_reach_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_N_PARALLEL", "8")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    seen: list[dict[str, str]] = []

    def applied(_engine: Any, _knobs: Knobs, _speculative: bool, props: Any, _slots: Any, _log: str) -> Knobs:
        seen.append(props["env"])
        return {}

    monkeypatch.setattr(fake_engine.FakeEngine, "applied", applied)
    settings = replace(fake_engine.spec(tmp_path).engine, env={"LLAMA_DDTREE_PROFILE": "1", "HF_TOKEN": "s3cret"})
    result = run(fake_engine.spec(tmp_path, engine=settings))
    assert result.failure is None
    (env,) = seen
    assert "LLAMA_ARG_N_PARALLEL" not in env
    assert env["LLAMA_DDTREE_PROFILE"] == "1"
    assert env["LC_ALL"] == "C"
    assert server.stray_variables() == ("LLAMA_ARG_N_PARALLEL",)
    launch = (tmp_path / "t1" / "launch.json").read_text()
    assert "LLAMA_DDTREE_PROFILE" in launch
    assert "s3cret" not in launch


# ---------------------------------------------------------------- one server for several trials


def shared(folder: Path, uid: str, *, behaviour: str = "ok", **changes: Any) -> TrialSpec:
    policy = ReplayPolicy(warmup_turns=1, max_tokens=64, turn_timeout_s=20.0, fresh_server=False)
    return fake_engine.spec(folder, behaviour, uid=uid, policy=policy, **changes)


def test_trials_of_one_launch_share_a_server_if_the_policy_says_so(tmp_path: Path) -> None:
    bench = trial.Bench(fake_engine.CPU)
    first, second = bench.run(shared(tmp_path, "a")), bench.run(shared(tmp_path, "b"))
    (marker,) = left_running(tmp_path)
    third = bench.run(shared(tmp_path, "c", knobs={"budget": 16}))
    (other,) = left_running(tmp_path)
    bench.close()
    assert [entry.failure for entry in (first, second, third)] == [None, None, None]
    assert first.load_s is not None
    assert second.load_s is None  # nothing was loaded for it
    assert third.load_s is not None  # another command line, another server
    assert first.launch == second.launch
    assert marker != other
    assert left_running(tmp_path) == []
    # each trial's log is the start-up part and its own requests: the first completion, warm-up and three turns
    for uid in ("a", "b", "c"):
        log = (tmp_path / uid / "server.log").read_text()
        assert log.count("listening") == 1, uid
        assert log.count("decoded 41 tokens") == 4, uid
    sizes = [turn.exchange.log_start for turn in second.turns]
    assert sizes == [turn.exchange.log_start for turn in first.turns]


def test_a_fresh_server_is_the_rule(tmp_path: Path) -> None:
    bench = trial.Bench(fake_engine.CPU)
    results = [bench.run(fake_engine.spec(tmp_path, uid=uid)) for uid in ("a", "b")]
    assert all(result.load_s is not None for result in results)
    assert left_running(tmp_path) == []


def test_a_trial_that_wants_its_own_server_ends_the_kept_one(tmp_path: Path) -> None:
    bench = trial.Bench(fake_engine.CPU)
    bench.run(shared(tmp_path, "a"))
    assert bench.run(fake_engine.spec(tmp_path, uid="b")).load_s is not None
    assert left_running(tmp_path) == []


def test_a_kept_server_that_died_or_was_cut_off_is_not_used_again(tmp_path: Path) -> None:
    bench = trial.Bench(fake_engine.CPU)
    bench.run(shared(tmp_path, "a"))
    leader = json.loads(left_running(tmp_path)[0].read_text())["leader"]
    os.kill(leader, signal.SIGKILL)
    while leftovers.start_ticks(leader) is not None:
        time.sleep(0.001)
    second = bench.run(shared(tmp_path, "b"))
    assert (second.failure, second.load_s is not None) == (None, True)
    stopped = bench.run(shared(tmp_path, "c"), should_stop=lambda: True)
    assert failed(stopped)[0] is FailureKind.WORKER_LOST
    assert left_running(tmp_path) == []
    assert bench.run(shared(tmp_path, "d")).load_s is not None
    bench.close()


def test_a_shared_server_that_crashes_leaves_its_log(tmp_path: Path) -> None:
    bench = trial.Bench(fake_engine.CPU)
    assert failed(bench.run(shared(tmp_path, "a", behaviour="oom_abort")))[0] is FailureKind.OUT_OF_MEMORY
    assert "out of memory" in (tmp_path / "a" / "server.log").read_text()
    assert failed(bench.run(shared(tmp_path, "b", behaviour="die:3")))[0] is FailureKind.CRASHED
    assert "GGML_ASSERT" in (tmp_path / "b" / "server.log").read_text()
    assert left_running(tmp_path) == []


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("behaviour", "kind", "words", "exit_code"),
    [
        ("oom_abort", FailureKind.OUT_OF_MEMORY, "cudaMalloc failed: out of memory", -6),
        ("exit:3", FailureKind.INVALID_CONFIG, "unknown argument --frobnicate", 3),
        ("die:3", FailureKind.CRASHED, "the server ended after 1 of 3 turns (exit code -11)", -11),
        ("error500", FailureKind.REQUEST_FAILED, "turn c/0: http_error: HTTP 500: slot failed", None),
        ("error400", FailureKind.NO_MEASUREMENT, "3 × http_error; first: HTTP 400: the request exceeds", None),
        ("degenerate", FailureKind.DEGENERATE_OUTPUT, "3 of 3 turns repeat themselves", None),
        ("no_drafts", FailureKind.DRAFT_INACTIVE, "no turn shows a draft token", None),
    ],
)
def test_each_failure_has_its_kind(
    tmp_path: Path, behaviour: str, kind: FailureKind, words: str, exit_code: int | None
) -> None:
    result = run(fake_engine.spec(tmp_path, behaviour))
    assert failed(result)[0] is kind
    assert words in failed(result)[1]
    assert "\n" not in failed(result)[1]
    assert result.failure is not None
    assert result.failure.exit_code == exit_code
    assert result.failure.traceback == ""
    assert result.failure.log_path == str(tmp_path / "t1" / "server.log")
    assert result.failure.log_tail
    assert result.launch is not None
    assert evidence.TrialFiles(tmp_path / "t1").read_result() == result
    assert left_running(tmp_path) == []


def test_a_server_that_says_out_of_memory_and_lives_on_is_out_of_memory(tmp_path: Path) -> None:
    settings = EngineSettings(name="fake", options={"behaviour": "oom_hang"}, startup_timeout_s=1.5)
    kind, message = failed(run(fake_engine.spec(tmp_path, engine=settings)))
    assert kind is FailureKind.OUT_OF_MEMORY
    assert "not ready within" in message


def test_a_server_that_is_never_ready_is_a_health_timeout(tmp_path: Path) -> None:
    settings = EngineSettings(name="fake", options={"behaviour": "hang"}, startup_timeout_s=0.3)
    assert failed(run(fake_engine.spec(tmp_path, engine=settings)))[0] is FailureKind.HEALTH_TIMEOUT


def test_a_server_that_dies_after_its_last_answer_has_crashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings can no longer be asked for, so nothing shows that they were the ones asked for."""
    play = replay.play

    def play_and_kill(*arguments: Any, **options: Any) -> tuple[replay.PlayedTurn, ...]:
        played = play(*arguments, **options)
        for process in psutil.Process(json.loads(left_running(tmp_path)[0].read_text())["leader"]).children():
            process.kill()
        return played

    monkeypatch.setattr(replay, "play", play_and_kill)
    result = run(fake_engine.spec(tmp_path))
    assert failed(result) == (FailureKind.CRASHED, "the server ended after 3 of 3 turns (exit code -9)")


def test_turns_before_a_crash_are_kept(tmp_path: Path) -> None:
    result = run(fake_engine.spec(tmp_path, "die:3"))
    good = [turn for turn in result.turns if turn.invalid_reason is None]
    assert [turn.warmup for turn in good] == [True, False]
    assert len(result.turns) == 3  # the broken one is kept too; the one after it was never sent
    assert len((tmp_path / "t1" / "turns.jsonl").read_text().splitlines()) == 3


def test_a_trial_past_its_time_is_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    result = run(fake_engine.spec(tmp_path, "slow:30", timeout_s=3.0))
    assert failed(result) == (FailureKind.TRIAL_TIMEOUT, "the trial took longer than 3 s: ended after 0 of 3 turns")
    assert time.monotonic() - began < 20
    assert left_running(tmp_path) == []


def test_a_start_that_eats_up_the_trials_time_is_a_trial_timeout(tmp_path: Path) -> None:
    result = run(fake_engine.spec(tmp_path, "hang", timeout_s=0.3))
    assert failed(result)[0] is FailureKind.TRIAL_TIMEOUT
    assert "not ready within" in failed(result)[1]


def test_a_stop_request_keeps_what_was_measured(tmp_path: Path) -> None:
    asked = threading.Event()
    log = tmp_path / "t1" / "server.log"

    def should_stop() -> bool:
        if log.exists() and log.read_text().count("decoded 41 tokens") >= 3:  # warm-up and two turns
            asked.set()
        return asked.is_set()

    result = run(fake_engine.spec(tmp_path, "slow:0.05", turns=50), should_stop=should_stop)
    assert failed(result)[0] is FailureKind.WORKER_LOST
    assert failed(result)[1].startswith("stopped by request after ")
    assert 1 <= len([turn for turn in result.turns if turn.invalid_reason is None and not turn.warmup]) < 20


def test_a_setting_the_server_did_not_take_is_a_failure(tmp_path: Path) -> None:
    settings = EngineSettings(name="fake", options={"lies": True})
    result = run(fake_engine.spec(tmp_path, engine=settings))
    assert failed(result) == (FailureKind.SETTING_NOT_APPLIED, "budget: asked for 22, the server runs with 1")
    assert result.effective == {"budget": 1}
    assert len(result.turns) == 4


def test_a_parser_that_fails_is_our_fault_and_leaves_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> tuple[TurnCounters, ...]:
        raise KeyError("eval time")

    monkeypatch.setattr(fake_engine.FakeEngine, "parse_trial", broken)
    result = run(fake_engine.spec(tmp_path))
    assert failed(result) == (
        FailureKind.PARSE_FAILED,
        "fake: the log or the answers cannot be read: KeyError('eval time')",
    )
    assert result.failure is not None
    assert "test_trial.py" in result.failure.traceback
    assert (tmp_path / "t1" / "traceback.txt").read_text() == result.failure.traceback


def test_a_parser_that_loses_a_turn_is_our_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_engine.FakeEngine, "parse_trial", lambda *_: ())
    assert failed(run(fake_engine.spec(tmp_path))) == (
        FailureKind.PARSE_FAILED,
        "fake: 4 turns were played, 0 were read",
    )


def test_an_unexpected_error_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(replay, "play", broken)
    result = run(fake_engine.spec(tmp_path))
    assert failed(result) == (FailureKind.PARSE_FAILED, "unexpected ZeroDivisionError: division by zero")
    assert left_running(tmp_path) == []


def test_a_point_that_cannot_be_rendered_is_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> LaunchSpec:
        raise ConfigError("budget=-1 is not allowed: it takes 0 to ∞")

    monkeypatch.setattr(fake_engine.FakeEngine, "launch_spec", refuse)
    result = run(fake_engine.spec(tmp_path))
    assert failed(result) == (FailureKind.INVALID_CONFIG, "budget=-1 is not allowed: it takes 0 to ∞")
    assert result.failure is not None
    assert result.failure.log_path is None


def test_an_unknown_engine_is_invalid(tmp_path: Path) -> None:
    kind, message = failed(run(fake_engine.spec(tmp_path, engine=EngineSettings(name="nonsense"))))
    assert kind is FailureKind.INVALID_CONFIG
    assert "unknown engine 'nonsense'" in message


def test_a_disk_that_cannot_be_written_is_the_machines_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(fake_engine.spec(tmp_path, evidence_dir=str(tmp_path / "file" / "t1")))
    assert failed(result)[0] is FailureKind.WORKER_LOST


def test_a_keyboard_interrupt_passes_and_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []

    def interrupt(*_: Any, **__: Any) -> Any:
        markers = left_running(tmp_path)
        pids.append(json.loads(markers[0].read_text())["leader"])
        raise KeyboardInterrupt

    monkeypatch.setattr(replay, "play", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(fake_engine.spec(tmp_path))
    assert left_running(tmp_path) == []
    assert leftovers.start_ticks(pids[0]) is None


def test_a_port_taken_in_between_is_tried_again_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = server.free_port
    given: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]

        def port(host: str) -> int:
            given.append(taken if not given else free(host))
            return int(given[-1])

        monkeypatch.setattr(server, "free_port", port)
        assert run(fake_engine.spec(tmp_path)).failure is None
        assert len(given) == 2
        monkeypatch.setattr(server, "free_port", lambda host: taken)
        kind, message = failed(run(fake_engine.spec(tmp_path, uid="t2")))
    assert kind.is_transient
    assert f"port {taken} is taken by another process (pid {os.getpid()})" in message


@pytest.mark.parametrize("moment_ms", [1, 30, 60, 90, 120, 150, 180, 220, 260, 320])
def test_a_server_killed_at_any_moment_is_one_honest_result(tmp_path: Path, moment_ms: int) -> None:
    """Start-up, first completion, warm-up, turns, the end: whenever it comes, it is a failure or a whole trial."""
    over = threading.Event()

    def kill_soon() -> None:
        deadline = time.monotonic() + 10
        while not left_running(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.001)
        over.wait(moment_ms / 1000)
        for marker in left_running(tmp_path):
            with contextlib.suppress(OSError, psutil.Error, ValueError):
                for process in psutil.Process(json.loads(marker.read_text())["leader"]).children():
                    process.kill()

    killer = threading.Thread(target=kill_soon)
    killer.start()
    result = run(fake_engine.spec(tmp_path, "slow:0.02"))
    over.set()
    killer.join()
    if result.failure is None:
        assert metrics.pooled_decode_tps(result.turns) == pytest.approx(50.0)
    else:
        assert result.failure.kind in (FailureKind.CRASHED, FailureKind.LAUNCH_FAILED)
        assert result.failure.exit_code == -signal.SIGKILL
    assert evidence.TrialFiles(tmp_path / "t1").read_result() == result
    assert left_running(tmp_path) == []


# ---------------------------------------------------------------- a server that somebody else runs


def test_an_attached_server_is_measured_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = EngineFacts(measurement=Measurement.MEASURED, first_token_from_prefill=True, launches=False)
    monkeypatch.setattr(fake_engine.FakeEngine, "facts", facts)
    port = server.free_port()
    launch = LaunchSpec(argv=fake_engine.command(port, "ok", {"budget": 22}))
    log = tmp_path / "foreign.log"
    with server.running(launch, port=port, log_path=log, startup_timeout_s=20) as foreign:
        settings = EngineSettings(name="fake", options={"url": foreign.base_url}, startup_timeout_s=5)
        result = run(fake_engine.spec(tmp_path, engine=settings))
        assert foreign.alive()
    assert result.failure is None
    assert result.launch is None
    assert result.load_s is None
    assert result.measurement is Measurement.MEASURED
    assert not (tmp_path / "t1" / "server.log").exists()


def test_an_attached_server_that_is_not_there_is_a_health_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = EngineFacts(measurement=Measurement.MEASURED, first_token_from_prefill=True, launches=False)
    monkeypatch.setattr(fake_engine.FakeEngine, "facts", facts)
    url = f"http://127.0.0.1:{server.free_port()}"
    settings = EngineSettings(name="fake", options={"url": url}, startup_timeout_s=0.3)
    kind, message = failed(run(fake_engine.spec(tmp_path, engine=settings)))
    assert kind is FailureKind.HEALTH_TIMEOUT
    assert url in message


# ---------------------------------------------------------------- the judgement alone


@pytest.mark.parametrize(
    ("asked", "shown", "different"),
    [
        ({"budget": 22}, {"budget": 22}, 0),
        ({"budget": 22}, {"budget": 16}, 1),
        ({"budget": 22}, {}, 0),  # not shown says nothing
        ({"budget": None}, {"budget": 16}, 0),  # left to the engine
        ({"proposal_temp": 0.333}, {"proposal_temp": 0.3333}, 0),  # printed with four digits
        ({"proposal_temp": 0.125}, {"proposal_temp": 0.12}, 1),
        ({"proposal_temp": 1}, {"proposal_temp": 1.0}, 0),
        ({"budget": 0}, {"budget": 0.0}, 0),
        ({"chain_seed": True}, {"chain_seed": 1}, 0),
        ({"chain_seed": True}, {"chain_seed": False}, 1),
        ({"cache_type_k": "q8_0"}, {"cache_type_k": "f16"}, 1),
        ({"cache_type_k": "q8_0"}, {"cache_type_k": None}, 1),
    ],
)
def test_not_applied(asked: Knobs, shown: Knobs, different: int) -> None:
    assert len(judge.not_applied(asked, shown)) == different


def turn(index: int = 0, *, error: str | None = None, status: int = 200, **figures: Any) -> TurnRecord:
    counters = TurnCounters(**{"decode_tokens": 40, "decode_ms": 800.0, "draft_tokens": 60} | figures)
    exchange = Exchange(turn_index=index, send_ns=0, finish_reason="stop", error_type=error, http_status=status)
    return TurnRecord(
        conversation="c",
        index=index,
        bucket="code",
        order=index,
        counters=counters,
        exchange=exchange,
        prompt_sha256="p",
        text_sha256="t",
        invalid_reason=error,
    )


def judged(
    tmp_path: Path, turns: list[TurnRecord], *, speculative: bool = True, effective: Knobs | None = None
) -> FailureKind | None:
    spec = fake_engine.spec(tmp_path, speculative=speculative)
    try:
        judge.judge(fake_engine.FakeEngine(), spec, turns, effective or {})
    except TrialFailed as error:
        return error.kind
    return None


def test_one_failed_request_spoils_the_trial_so_that_it_is_tried_again(tmp_path: Path) -> None:
    assert judged(tmp_path, [turn(0), turn(1, error="timeout", status=200)]) is FailureKind.REQUEST_FAILED
    assert judged(tmp_path, [turn(0), turn(1, error="http_error", status=503)]) is FailureKind.REQUEST_FAILED
    assert judged(tmp_path, [turn(0), turn(1, error="http_error", status=429)]) is FailureKind.REQUEST_FAILED


def test_a_turn_the_server_refuses_is_left_out(tmp_path: Path) -> None:
    """Whether by status or by an error event in a stream that began with 200: asking again would not help."""
    late = turn(1, error="server_error")
    late = replace(late, exchange=replace(late.exchange, error_code=400))
    assert judged(tmp_path, [turn(0), turn(1, error="http_error", status=400)]) is None
    assert judged(tmp_path, [turn(0), late]) is None
    assert judged(tmp_path, [late]) is FailureKind.NO_MEASUREMENT  # and that is final: such a trial is not repeated
    assert not FailureKind.NO_MEASUREMENT.is_transient
    late = replace(late, exchange=replace(late.exchange, error_code=500))
    assert judged(tmp_path, [turn(0), late]) is FailureKind.REQUEST_FAILED


def test_a_failed_warm_up_is_no_matter(tmp_path: Path) -> None:
    assert judged(tmp_path, [replace(turn(0, error="timeout"), warmup=True), turn(1)]) is None


@pytest.mark.parametrize(
    ("figures", "speculative", "kind"),
    [
        ({"draft_tokens": None}, True, FailureKind.DRAFT_INACTIVE),  # absent is not zero: no proof of drafting
        ({"draft_tokens": 0}, True, FailureKind.DRAFT_INACTIVE),
        ({"draft_tokens": 0, "verify_steps": 40}, True, FailureKind.DRAFT_INACTIVE),
        ({"draft_tokens": None, "verify_steps": 12}, True, None),
        ({"draft_tokens": None}, False, None),
    ],
)
def test_drafting_must_show(tmp_path: Path, figures: Any, speculative: bool, kind: FailureKind | None) -> None:
    assert judged(tmp_path, [turn(0, **figures)], speculative=speculative) is kind


@pytest.mark.parametrize(
    ("shown", "kind"),
    [("ngram-map-k", None), ("none", FailureKind.DRAFT_INACTIVE), ("ddtree", FailureKind.DRAFT_INACTIVE)],
)
def test_a_drafter_that_the_server_shows_may_find_nothing_to_draft(
    tmp_path: Path, shown: str, kind: FailureKind | None
) -> None:
    assert judged(tmp_path, [turn(0, draft_tokens=None)], effective={"speculation": shown}) is kind


def test_no_turn_at_all_is_no_measurement(tmp_path: Path) -> None:
    assert judged(tmp_path, []) is FailureKind.NO_MEASUREMENT


def test_half_degenerate_turns_cannot_win(tmp_path: Path) -> None:
    bad = replace(turn(1), invalid_reason="degenerate_output")
    assert judged(tmp_path, [turn(0), bad]) is FailureKind.DEGENERATE_OUTPUT
    assert judged(tmp_path, [turn(0), turn(2), bad]) is None


# ---------------------------------------------------------------- evidence


def test_secrets_are_hidden_by_name() -> None:
    values = {"api_key": "x", "HF_TOKEN": "y", "max_tokens": 5, "api_key_env": "NAME", "password": None}
    assert evidence.without_secrets(values) == {
        "api_key": "(hidden)",
        "HF_TOKEN": "(hidden)",
        "max_tokens": 5,
        "api_key_env": "NAME",
        "password": None,
    }


@pytest.mark.parametrize(("content", "words"), [(None, "No such file"), ("{}", "not a trial's result")])
def test_a_result_that_cannot_be_read_is_named(tmp_path: Path, content: str | None, words: str) -> None:
    files = evidence.TrialFiles(tmp_path)
    if content is not None:
        files.result.write_text(content)
    with pytest.raises(StorageError, match=words) as caught:
        files.read_result()
    assert str(files.result) in str(caught.value)


# ---------------------------------------------------------------- GPU memory between trials


class SlowToFree:
    """A card whose memory comes back after a few readings, in MiB."""

    def __init__(self, readings: list[float]) -> None:
        self.readings = readings

    def read(self) -> telemetry.Sample:
        value = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        return telemetry.Sample(time_ns=0, memory_mib=value)


def test_the_next_launch_waits_for_the_cards_memory() -> None:
    card = SlowToFree([9000.0, 5000.0, 530.0])
    assert telemetry.wait_memory_back(card, 500.0, timeout_s=5.0)
    assert card.readings == [530.0]
    assert not telemetry.wait_memory_back(SlowToFree([9000.0]), 500.0, timeout_s=0.0)
    assert telemetry.wait_memory_back(SlowToFree([9000.0]), None, timeout_s=0.0)


def test_a_trial_on_a_card_ends_when_its_memory_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card reads 500 MiB before the launch; after the server's end it takes two more looks to get there again."""
    card = SlowToFree([500.0, 9000.0, 4000.0, 510.0])
    quiet = telemetry.EmptyReader()
    monkeypatch.setattr(telemetry, "reader_for", lambda device, processes: card if processes is list else quiet)
    gpu = Device(kind="gpu", index=1, name="Big Card", uuid="GPU-bbbb")
    result = trial.run_trial(fake_engine.spec(tmp_path), gpu)
    assert result.failure is None
    assert card.readings == [510.0]
    assert result.launch is not None
    assert result.launch.env == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "GPU-bbbb"}


def test_memory_that_never_comes_back_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    card = SlowToFree([500.0, 9000.0])
    monkeypatch.setattr(telemetry, "reader_for", lambda *_: card)
    monkeypatch.setattr(hosting, "MEMORY_BACK_S", 0.0)
    gpu = Device(kind="gpu", index=0, name="Big Card", uuid="GPU-bbbb")
    assert trial.run_trial(fake_engine.spec(tmp_path), gpu).failure is None
    assert "memory is not back" in caplog.text


def test_policy_problems_are_invalid_config(tmp_path: Path) -> None:
    result = run(fake_engine.spec(tmp_path, policy=ReplayPolicy(mode="sideways")))
    assert failed(result)[0] is FailureKind.INVALID_CONFIG
    assert "mode" in failed(result)[1]
