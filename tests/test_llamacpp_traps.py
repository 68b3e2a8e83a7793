"""The traps of a real llama.cpp server, each provoked with a micro pair: what it does, and that we notice."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_sweep import gguf_meta, trial
from dflash_sweep.engines.llamacpp import LAUNCHER, LlamacppEngine
from dflash_sweep.errors import FailureKind
from dflash_sweep.records import Knobs, ReplayPolicy, Role, Trace, TraceHeader, TrialResult, TrialSpec, Turn
from fakes import micropair, microserver
from fakes.micropair import MicroPair
from fakes.microserver import serving, settings

pytest.importorskip("xllamacpp", reason="the CPU server is not installed: pip install 'dflash-sweep[cpu]'")
pytestmark = pytest.mark.slow

ENGINE = LlamacppEngine()
DFLASH: Knobs = {"spec_type": "draft-dflash", "spec_draft_n_max": 3}
PROMPTS = ("reverse a list", "why is the sky blue", "name, age and city as JSON")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> MicroPair:
    return micropair.write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield int(other.getsockname()[1])


def run(pair: MicroPair, knobs: Knobs, folder: Path, **more: object) -> TrialResult:
    """A whole trial through the product: launch, replay, parse, judge."""
    engine = settings(pair.target, pair.draft)
    engine = more.pop("engine", engine)  # type: ignore[assignment]
    turns = tuple(
        Turn(conversation="c", index=i, messages=({"role": "user", "content": text},)) for i, text in enumerate(PROMPTS)
    )
    spec = TrialSpec(
        uid="u", study="s", role=Role.SEARCH, candidate=0, knobs={"threads": 1, **knobs}, engine=engine,
        build=microserver.UNKNOWN_BUILD, trace=Trace(header=TraceHeader(name="t", source="test"), turns=turns),
        policy=ReplayPolicy(max_tokens=64, warmup_turns=1), evidence_dir=str(folder), timeout_s=60,
        **more,  # type: ignore[arg-type]
    )  # fmt: skip
    return trial.run_trial(spec, microserver.CPU)


def launcher(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", LAUNCHER, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


# ---------------------------------------------------------------- what works


def test_synthetic_acceptance_is_counted_as_the_server_counts_it_and_marked(pair: MicroPair, tmp_path: Path) -> None:
    with serving(settings(pair.target, pair.draft), DFLASH, tmp_path, "--spec-synth-len", "3") as micro:
        before = micro.client.get_text("/metrics")
        exchanges = [micro.ask(text, index=i, temperature=1.0) for i, text in enumerate(PROMPTS)]
        after = micro.client.get_text("/metrics")
        log = micro.log()
    counters = ENGINE.parse_trial(exchanges, log)

    def grown(name: str) -> int:
        def read(page: str) -> float:
            return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"llamacpp:{name} "))

        return int(read(after) - read(before))

    assert all(entry.draft_tokens and entry.accepted_draft_tokens for entry in counters)
    assert sum(entry.draft_tokens or 0 for entry in counters) == grown("spec_decode_num_draft_tokens_total")
    assert sum(entry.accepted_draft_tokens or 0 for entry in counters) == grown("spec_decode_num_accepted_tokens_total")
    drafts = grown("spec_decode_num_drafts_total")
    steps = sum(entry.verify_steps or 0 for entry in counters)
    # A step that is too short to draft in (one token is left) is a step without a draft: at most one an answer.
    assert drafts <= steps <= drafts + len(PROMPTS)
    for entry, exchange in zip(counters, exchanges, strict=True):
        assert entry.timing_source == "json"
        assert entry.output_tokens == (exchange.usage or {})["completion_tokens"]
        assert entry.decode_tokens == (entry.output_tokens or 0) - 1
        assert "synthetic_acceptance" in entry.flags
        histogram = entry.acceptance_histogram
        assert histogram is not None
        assert sum(histogram.values()) == entry.verify_steps
        assert sum(kept * count for kept, count in histogram.items()) == entry.accepted_draft_tokens
        stages = {stage.name: stage for stage in entry.stages}
        assert stages["draft_ms"].total_ms > 0
        assert stages["verify_ms"].source == "derived"
        parts = sum(stages[name].total_ms for name in ("draft_ms", "accept_ms", "verify_ms"))
        assert parts == pytest.approx(entry.decode_ms)
    # Asked for a mean length of 3; the mean over some 50 steps of dice lies well within 1 of it.
    mean_length = sum(entry.decode_tokens or 0 for entry in counters) / steps
    assert 2.0 < mean_length < 4.0
    assert ENGINE.classify(log.decode(errors="replace"), 0) is None  # every good start prints one line of level E


def test_greedy_text_is_the_same_with_and_without_a_draft(pair: MicroPair, tmp_path: Path) -> None:
    # Flash attention computes one query by another kernel than several: with random weights a near tie tells.
    exact: Knobs = {"flash_attn": "off"}
    plain = run(pair, exact, tmp_path / "plain", speculative=False)
    assert plain.failure is None
    assert all(turn.counters.draft_tokens is None for turn in plain.turns)
    for n_max in (1, 7):
        drafted = run(pair, {**DFLASH, **exact, "spec_draft_n_max": n_max}, tmp_path / str(n_max))
        assert drafted.failure is None
        assert drafted.effective["spec_draft_n_max"] == n_max
        assert drafted.effective["speculation"] == "draft-dflash"
        assert [turn.text_sha256 for turn in drafted.turns] == [turn.text_sha256 for turn in plain.turns]


def test_settings_are_read_back_from_the_server(pair: MicroPair, tmp_path: Path) -> None:
    knobs: Knobs = {
        **DFLASH, "spec_draft_n_min": 1, "spec_draft_p_min": 0.125, "cache_type_k": "q8_0", "cache_type_v": "q4_0",
        "draft_cache_type_k": "q8_0", "draft_cache_type_v": "q8_0", "flash_attn": "on", "n_batch": 256, "n_ubatch": 128,
    }  # fmt: skip
    result = run(pair, knobs, tmp_path)
    # p_min cuts most of this draft's guesses, so the trial may end as draft_inactive; nothing may be called unapplied.
    assert result.failure is None or result.failure.kind is FailureKind.DRAFT_INACTIVE
    assert {name: result.effective[name] for name in knobs} == knobs
    assert result.memory_mib["kv"] > 0
    assert result.memory_mib["draft_kv"] > 0


def test_ngram_drafts_repeat_what_was_said(pair: MicroPair, tmp_path: Path) -> None:
    knobs: Knobs = {"spec_type": "ngram-simple", "ngram_size_n": 2, "ngram_size_m": 4}
    with serving(settings(pair.target), knobs, tmp_path) as micro:
        exchange = micro.ask("abababababababababababab", max_tokens=200)
        slots, log = micro.client.get_json("/slots"), micro.log()
    (counters,) = ENGINE.parse_trial([exchange], log)
    assert slots[0]["speculative"] is True
    assert counters.draft_tokens is not None  # the answer's JSON has no draft_n when nothing was found: 0, not unknown
    assert counters.verify_steps == (counters.decode_tokens or 0) - (counters.accepted_draft_tokens or 0)
    shown = ENGINE.applied(knobs, True, {}, slots, log.decode(errors="replace"))
    assert {name: shown[name] for name in knobs} == knobs


# ---------------------------------------------------------------- silence


def test_dflash_without_a_draft_file_serves_plainly_and_fails_the_trial(pair: MicroPair, tmp_path: Path) -> None:
    result = run(pair, {"spec_type": "draft-dflash"}, tmp_path, engine=settings(pair.target))
    assert result.failure is not None
    assert result.failure.kind is FailureKind.DRAFT_INACTIVE
    assert result.effective["speculation"] == "none"
    (problem,) = ENGINE.check(settings(pair.target), microserver.UNKNOWN_BUILD, {"spec_type": "draft-dflash"})
    assert "engine.draft_model" in problem


def test_a_draft_of_another_vocabulary_serves_plainly_and_fails_the_trial(pair: MicroPair, tmp_path: Path) -> None:
    other = micropair.write_target(tmp_path / "other.gguf", extra_tokens=300)
    result = run(pair, {"spec_type": "draft-simple"}, tmp_path, engine=settings(pair.target, other))
    assert result.failure is not None
    assert result.failure.kind is FailureKind.DRAFT_INACTIVE
    assert "without speculation" in result.failure.message
    assert gguf_meta.check_pair(pair.target, other) == ("vocabulary: the draft has 560 tokens, the target 260",)


def test_a_dflash_draft_of_another_vocabulary_is_only_caught_before_the_launch(pair: MicroPair, tmp_path: Path) -> None:
    other = micropair.write_draft(tmp_path / "other.gguf", extra_tokens=300)
    with serving(settings(pair.target, other), DFLASH, tmp_path) as micro:  # the server says nothing at all
        assert micro.client.get_json("/slots")[0]["speculative"] is True
    assert gguf_meta.check_pair(pair.target, other) == ("vocabulary: the draft has 560 tokens, the target 260",)


def test_n_max_above_the_block_size_is_clamped_and_fails_the_trial(pair: MicroPair, tmp_path: Path) -> None:
    knobs: Knobs = {**DFLASH, "spec_draft_n_max": 12}
    result = run(pair, knobs, tmp_path)
    assert result.failure is not None
    assert result.failure.kind is FailureKind.SETTING_NOT_APPLIED
    assert "spec_draft_n_max: asked for 12, the server runs with 7" in result.failure.message
    (problem,) = ENGINE.check(settings(pair.target, pair.draft), microserver.UNKNOWN_BUILD, knobs)
    assert "allows 7" in problem


# ---------------------------------------------------------------- death


def test_a_draft_of_another_width_aborts_the_server(pair: MicroPair, tmp_path: Path) -> None:
    wide = micropair.write_draft(tmp_path / "wide.gguf", width=96)
    result = run(pair, DFLASH, tmp_path, engine=settings(pair.target, wide))
    assert result.failure is not None
    assert result.failure.kind is FailureKind.CRASHED
    assert "GGML_ASSERT" in result.failure.message
    assert result.failure.exit_code == -signal.SIGABRT
    assert "hidden size: the draft has 96, the target 64" in "; ".join(gguf_meta.check_pair(pair.target, wide))


def test_a_draft_that_reads_past_the_last_layer_dies_at_the_first_request(pair: MicroPair, tmp_path: Path) -> None:
    # Layer 4 of a target with layers 0 to 3 is the one the server's own check lets pass: its health page says ok.
    beyond = micropair.write_draft(tmp_path / "beyond.gguf", target_layers=(1, 2, micropair.LAYERS))
    with serving(settings(pair.target, beyond), DFLASH, tmp_path, first_request=False) as micro:
        assert micro.client.health()
        assert micro.ask("hello").error_type is not None
        micro.process._guard.wait(10)
        seen = ENGINE.classify(micro.log().decode(errors="replace"), micro.process.exit_code())
    assert seen is not None
    assert seen[0] is FailureKind.LAUNCH_FAILED
    assert "layer input tensor is null" in seen[1]
    result = run(pair, DFLASH, tmp_path / "trial", engine=settings(pair.target, beyond))
    assert result.failure is not None
    assert result.failure.kind is FailureKind.LAUNCH_FAILED
    assert gguf_meta.check_pair(pair.target, beyond) == (
        "target layers: the draft reads [4], the target has layers 0 to 3",
    )


def test_missing_model_and_bad_flags_end_with_exit_code_1(tmp_path: Path) -> None:
    for words, kind, text in (
        (("-m", str(tmp_path / "none.gguf")), FailureKind.LAUNCH_FAILED, "failed to load model"),
        (("--bogus", "3"), FailureKind.INVALID_CONFIG, "error: invalid argument: --bogus"),
        (("--cache-type-k", "q9"), FailureKind.INVALID_CONFIG, "Unsupported cache type: q9"),
        (("--spec-type", "guess"), FailureKind.INVALID_CONFIG, "unknown speculative type: guess"),
        (("-t", "two"), FailureKind.INVALID_CONFIG, 'error while handling argument "-t"'),
    ):
        done = launcher(*words)
        assert done.returncode == 1
        assert text in done.stderr
        seen = ENGINE.classify(done.stderr, done.returncode)
        assert seen is not None
        assert seen[0] is kind, words


def test_a_taken_port_is_told_apart_from_a_bad_model(pair: MicroPair, taken_port: int) -> None:
    done = launcher("-m", str(pair.target), "--port", str(taken_port))
    seen = ENGINE.classify(done.stderr, done.returncode)
    assert done.returncode == 1
    assert seen is not None
    assert seen[0] is FailureKind.HEALTH_TIMEOUT


def test_a_context_that_is_too_small_answers_400_and_serves_on(pair: MicroPair, tmp_path: Path) -> None:
    with serving(settings(pair.target), {}, tmp_path, speculative=False) as micro:
        too_long = micro.ask("x" * 2000)
        assert too_long.http_status == 400
        assert "context" in (too_long.error or "")
        assert micro.ask("short").error_type is None


@pytest.mark.parametrize("busy", [False, True])
def test_sigterm_ends_the_server_with_exit_code_0(pair: MicroPair, tmp_path: Path, busy: bool) -> None:
    with serving(settings(pair.target), {}, tmp_path, speculative=False) as micro:
        answers: list[str | None] = []
        asking = threading.Thread(
            target=lambda: answers.append(micro.ask("go on", max_tokens=900, ignore_eos=True).error_type)
        )
        if busy:
            asking.start()
            while not micro.client.get_json("/slots")[0]["is_processing"] and not answers:
                pass
        began = time.monotonic()
        micro.process.stop()
        assert time.monotonic() - began < 5  # the launcher's own limit is 0.7 s; the rest is a busy machine's
        assert micro.process.exit_code() == 0
        if busy:
            asking.join(20)
            assert not asking.is_alive()
