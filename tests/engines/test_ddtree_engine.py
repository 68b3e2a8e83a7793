"""The DDTree fork's adapter: command lines, golden logs, failures, effective points."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep import engines
from dflash_sweep.engines.base import LaunchRequest
from dflash_sweep.engines.ddtree import DDTreeEngine, effective_top_k
from dflash_sweep.errors import ConfigError, EngineMissing, FailureKind
from dflash_sweep.judge import not_applied
from dflash_sweep.records import Device, EngineBuild, EngineSettings, Exchange, Knobs, Measurement

ENGINE = DDTreeEngine()
GOLDEN = Path(__file__).parents[1] / "golden" / "ddtree" / "track-a"
SETTINGS = EngineSettings(name="ddtree", model="/m/target.gguf", draft_model="/m/draft.gguf", n_ctx=65536)
BUILD = EngineBuild(engine="ddtree", version="9021 (819cc8b8c)", binary="/bin/llama-server")
CARD = Device(kind="gpu", index=0, name="card", uuid="GPU-1")


def launch(knobs: Knobs, *, speculative: bool = True, settings: EngineSettings = SETTINGS) -> Any:
    return ENGINE.launch_spec(
        LaunchRequest(
            settings=settings,
            build=BUILD,
            knobs=knobs,
            speculative=speculative,
            device=CARD,
            host="127.0.0.1",
            port=4321,
        )
    )


def exchange(index: int = 0, **fields: Any) -> Exchange:
    return Exchange(**{"turn_index": index, "send_ns": index * 1000, "end_ns": index * 1000 + 900, **fields})


def log_of(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def word_after(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


# ---------------------------------------------------------------- launch


def test_registry_gives_this_adapter() -> None:
    engine = engines.get("ddtree")
    assert engine.name == "ddtree"
    assert engine.facts.measurement is Measurement.MEASURED


def test_speculative_command_line() -> None:
    spec = launch(
        {
            "target_feat_ctx": 128, "budget": 32, "proposal_temp": 0.7, "top_k": 0, "chain_seed": False,
            "cache_type_k": "q4_0", "cache_type_v": "q4_0", "verifier": "exact", "n_batch": 512, "n_ubatch": 256,
        }
    )  # fmt: skip
    assert spec.argv[0] == "/bin/llama-server"
    for flag, value in {
        "--model": "/m/target.gguf", "--model-draft": "/m/draft.gguf", "--speculative-mode": "ddtree",
        "--port": "4321", "--parallel": "1", "--ctx-size": "65536", "-fit": "off", "--log-colors": "off",
        "--ddtree-budget": "32", "--ddtree-top-k": "0", "--cache-type-k": "q4_0", "--batch-size": "512",
        "--ubatch-size": "256", "--gpu-layers": "65", "--gpu-layers-draft": "6", "--flash-attn": "on",
    }.items():  # fmt: skip
        assert word_after(spec.argv, flag) == value, flag
    assert {"--ddtree-no-chain-seed", "--metrics", "--slots"} <= set(spec.argv)
    assert spec.env == {
        "LLAMA_DDTREE_TARGET_FEAT_CTX": "128",
        "LLAMA_DDTREE_PROPOSAL_TEMP": "0.7",
        "LLAMA_DDTREE_VERIFIER": "exact",
    }


def test_plain_decoding_is_the_same_server_without_draft_and_tree() -> None:
    knobs: Knobs = {
        "budget": 32,
        "target_feat_ctx": 256,
        "cache_type_k": "q8_0",
        "verifier": "trusted",
        "n_ubatch": 128,
    }
    spec = launch(knobs, speculative=False)
    assert word_after(spec.argv, "--speculative-mode") == "chain"
    assert word_after(spec.argv, "--cache-type-k") == "q8_0"
    assert word_after(spec.argv, "--ubatch-size") == "128"
    assert not {"--model-draft", "--ddtree-budget", "--gpu-layers-draft"} & set(spec.argv)
    assert spec.env == {}


@pytest.mark.parametrize(
    ("verifier", "expected"),
    [
        ("exact", {"LLAMA_DDTREE_VERIFIER": "exact"}),
        ("paper", {"LLAMA_DDTREE_VERIFIER": "paper"}),
        (
            "trusted",
            {
                "LLAMA_DDTREE_VERIFIER": "paper",
                "LLAMA_DDTREE_TRUST_BATCHED": "1",
                "LLAMA_DDTREE_UNSAFE_TRUST_BATCHED": "1",
            },
        ),
        ("fast_batched", {"LLAMA_DDTREE_VERIFIER": "exact", "LLAMA_DDTREE_FAST_BATCHED": "1"}),
        (None, {}),
    ],
)
def test_verifier_is_one_knob_and_several_variables(verifier: str | None, expected: dict[str, str]) -> None:
    assert launch({"verifier": verifier}).env == expected


def test_switches_off_are_zero_where_unset_is_not_off_and_absent_where_any_value_is_on() -> None:
    env = launch({"fast_rollback": False, "profile": False, "grammar_verify": True, "snapshot_fallback": False}).env
    assert env == {"LLAMA_DDTREE_FAST_ROLLBACK": "0", "LLAMA_DDTREE_SNAPSHOT_FALLBACK": "0"}
    env = launch({"fast_rollback": True, "profile": True, "grammar_verify": False}).env
    assert env == {
        "LLAMA_DDTREE_FAST_ROLLBACK": "1",
        "LLAMA_DDTREE_PROFILE": "1",
        "LLAMA_DDTREE_NO_GRAMMAR_VERIFY": "1",
    }


def test_knobs_left_out_are_left_to_the_engine() -> None:
    spec = launch({"budget": None, "top_k": None, "proposal_temp": None})
    assert not {"--ddtree-budget", "--ddtree-top-k"} & set(spec.argv)
    assert "None" not in " ".join(spec.argv)


def test_an_unknown_knob_and_a_bad_value_are_named() -> None:
    with pytest.raises(ConfigError, match="'block_size' is not known to engine ddtree"):
        launch({"block_size": 8})
    with pytest.raises(ConfigError, match="target_feat_ctx=4096 is not allowed: it takes 1 to 2048"):
        launch({"target_feat_ctx": 4096})


@pytest.mark.parametrize(
    ("knobs", "settings", "part"),
    [
        ({"cache_type_k": "tq3_0"}, {}, "tq3_0 is refused"),
        ({"cache_type_v": "q4_0", "flash_attn": "off"}, {}, "needs flash_attn=on"),
        ({"verifier": "trusted", "budget": 64, "n_ubatch": 64}, {}, "smaller than the tree of 65 nodes"),
        ({}, {"env": {"LLAMA_DDTREE_PROFILE": "0"}}, "on whenever it is set"),
        ({}, {"extra_args": ("--parallel", "4")}, "--parallel is set by this program"),
        ({"depth": 3}, {}, "depth: not a knob of ddtree"),
        ({"budget": 0}, {}, "budget=0 is not allowed"),
    ],
)
def test_problems_of_a_point_are_sentences(knobs: Knobs, settings: dict[str, Any], part: str) -> None:
    chosen = EngineSettings(name="ddtree", model="t", draft_model="d", **settings)
    assert any(part in problem for problem in ENGINE.check(chosen, BUILD, knobs))


def test_a_good_point_has_no_problems_and_a_build_without_the_flag_has() -> None:
    assert ENGINE.check(SETTINGS, BUILD, {"budget": 32, "top_k": 8}) == ()
    old = EngineBuild(engine="ddtree", version="old", binary="b", flags=frozenset({"--ddtree-budget"}))
    assert any("--ddtree-top-k" in problem for problem in ENGINE.check(SETTINGS, old, {"top_k": 4}))
    reads = EngineBuild(engine="ddtree", version="v", binary="b", flags=frozenset({"LLAMA_DDTREE_VERIFIER"}))
    problems = ENGINE.check(SETTINGS, reads, {"target_feat_ctx": 64})
    assert any("does not read LLAMA_DDTREE_TARGET_FEAT_CTX" in problem for problem in problems)


# ---------------------------------------------------------------- probe


def fake_binary(folder: Path, help_text: str, version: str = "version: 9021 (819cc8b8c)", code: int = 0) -> Path:
    binary = folder / "llama-server"
    binary.write_text(
        f'#!/bin/sh\ncase "$1" in\n--version) echo "{version}";;\n--help) cat <<END\n{help_text}\nEND\n;;\nesac\n'
        f"exit {code}\n# LLAMA_DDTREE_VERIFIER LLAMA_DDTREE_TARGET_FEAT_CTX\n"
    )
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    return binary


HELP = "\n".join(
    f"{flag:<40}some help"
    for flag in ("--speculative-mode MODE", "--ddtree-budget N", "--ddtree-top-k N", "-c, --ctx-size N")
)


def test_probe_reads_version_flags_and_variables(tmp_path: Path) -> None:
    binary = fake_binary(tmp_path, HELP)
    build = ENGINE.probe(EngineSettings(name="ddtree", binary=str(binary)))
    assert build.version == "9021 (819cc8b8c)"
    assert {
        "--ddtree-budget",
        "--ctx-size",
        "-c",
        "LLAMA_DDTREE_VERIFIER",
        "LLAMA_DDTREE_TARGET_FEAT_CTX",
    } <= build.flags
    assert build.binary_sha256 is not None
    assert len(build.binary_sha256) == 64


def test_probe_refuses_what_is_no_ddtree_build(tmp_path: Path) -> None:
    binary = fake_binary(tmp_path, "--speculative-mode MODE")
    with pytest.raises(EngineMissing, match="has no --ddtree-budget, --ddtree-top-k"):
        ENGINE.probe(EngineSettings(name="ddtree", binary=str(binary)))


def test_probe_says_why_a_binary_does_not_run(tmp_path: Path) -> None:
    broken = fake_binary(tmp_path, HELP, "libcuda.so.1: cannot open shared object file", code=127)
    with pytest.raises(EngineMissing, match="does not run: exit code 127: libcuda"):
        ENGINE.probe(EngineSettings(name="ddtree", binary=str(broken)))
    with pytest.raises(EngineMissing, match="no such file"):
        ENGINE.probe(EngineSettings(name="ddtree", binary=str(tmp_path / "missing")))


def test_models_need_both_files() -> None:
    with pytest.raises(EngineMissing, match=r"engine\.draft_model is not set"):
        ENGINE.models(EngineSettings(name="ddtree", model="/m/target.gguf"))


# ---------------------------------------------------------------- effective points


@pytest.mark.parametrize(
    ("knobs", "dead"),
    [
        ({"budget": 15, "top_k": 8, "proposal_temp": 0.7}, {"top_k", "proposal_temp"}),
        ({"budget": 8, "chain_seed": True, "top_k": 4, "proposal_temp": 1.0}, {"top_k", "proposal_temp"}),
        ({"budget": 16, "top_k": 8, "proposal_temp": 0.7}, set()),
        ({"budget": 32, "top_k": 1, "proposal_temp": 0.7, "chain_seed": False}, {"proposal_temp", "chain_seed"}),
        ({"budget": 8, "chain_seed": False, "top_k": 0, "proposal_temp": 0.7}, {"proposal_temp", "top_k"}),
        ({"budget": 8, "chain_seed": False, "top_k": 8, "proposal_temp": 0.7}, set()),
    ],
)
def test_dead_knobs(knobs: Knobs, dead: set[str]) -> None:
    point = ENGINE.effective_point(knobs)
    assert {name for name, value in point.items() if value is None} == dead
    assert set(point) == set(knobs)


def test_clamps_and_automatic_top_k_make_equal_servers_equal_points() -> None:
    def at(**knobs: Any) -> Knobs:
        return ENGINE.effective_point({"budget": 22, "target_feat_ctx": 128, **knobs})

    assert at(top_k=0) == at(top_k=8)
    assert at(target_feat_ctx=4096) == at(target_feat_ctx=2048)
    assert at(target_feat_ctx=0) == at(target_feat_ctx=128)
    assert effective_top_k(22, None) == 8
    # Searching with one candidate a depth is the seeded chain.
    assert at(budget=8, chain_seed=False, top_k=1) == at(budget=8, chain_seed=True, top_k=1)
    assert at(budget=30, chain_seed=False, top_k=1) == at(budget=30, chain_seed=True, top_k=1)


@given(
    budget=st.integers(1, 64),
    top_k=st.none() | st.integers(0, 16),
    seed=st.none() | st.booleans(),
    temperature=st.none() | st.floats(0.1, 2.0),
)
def test_effective_point_is_idempotent(
    budget: int, top_k: int | None, seed: bool | None, temperature: float | None
) -> None:
    knobs: Knobs = {"budget": budget, "top_k": top_k, "chain_seed": seed, "proposal_temp": temperature}
    once = ENGINE.effective_point(knobs)
    assert ENGINE.effective_point(once) == once


# ---------------------------------------------------------------- golden logs


def two_exchanges(log: bytes) -> list[Exchange]:
    second = log.index(b"slot launch_slot_: id  0 | task 42")
    first = log.index(b"slot launch_slot_: id  0 | task 0")
    return [exchange(0, log_start=first), exchange(1, log_start=second)]


def test_exact_log_without_any_json() -> None:
    log = log_of("exact.log")
    first, second = ENGINE.parse_trial(two_exchanges(log), log)
    assert (first.output_tokens, first.decode_tokens, first.decode_ms) == (95, 95, 9146.10)
    assert (first.timing_source, first.verify_steps, first.steps_source) == ("log", 41, "printed")
    assert (first.draft_tokens, first.accepted_draft_tokens, first.acceptance_kind) == (880, 53, "tree_nodes")
    assert first.prompt_tokens is None  # the log does not say what came from the cache
    stages = {stage.name: stage.total_ms for stage in first.stages}
    assert stages["draft_ms"] == pytest.approx(143.02 * 41)
    assert stages["exact_ms"] == pytest.approx(58.61 * 41)
    # 222.94 − (1.11 + 143.02 + 20.11 + 0.04 + 58.61) = 0.05 ms a step are nobody's.
    assert stages["other_ms"] == pytest.approx(0.05 * 41)
    assert first.flags == ()
    assert (second.output_tokens, second.verify_steps) == (48, 20)


def test_json_timings_come_before_the_log() -> None:
    log = log_of("exact.log")
    timings = {
        "cache_n": 1500, "prompt_n": 500, "prompt_ms": 700.0, "predicted_n": 95, "predicted_ms": 9100.0,
        "predicted_per_second": 10.44, "draft_n": 880, "draft_n_accepted": 53,
    }  # fmt: skip
    given_exchange = exchange(0, log_start=two_exchanges(log)[0].log_start, timings=timings)
    (turn,) = ENGINE.parse_trial([given_exchange], log)
    assert (turn.timing_source, turn.decode_ms, turn.server_tps_raw) == ("json", 9100.0, 10.44)
    assert (turn.prompt_tokens, turn.cached_tokens, turn.prompt_ms) == (2000, 1500, 700.0)
    assert turn.verify_steps == 41  # of two blocks in this piece, the one with 95 tokens


def test_batched_log_adds_tree_and_posterior_and_keeps_unknown_keys_out() -> None:
    (turn,) = ENGINE.parse_trial([exchange()], log_of("batched.log"))
    stages = {stage.name: stage.total_ms for stage in turn.stages}
    assert stages["verify_ms"] == pytest.approx((36.40 + 3.90) * 30)
    assert stages["ingest_ms"] == pytest.approx(0.14 * 30)  # tree_ingest, not the sum that includes prefill
    assert turn.flags == ()
    assert set(stages) <= set(ENGINE.facts.stages)


def test_plain_decoding_counts_its_first_token_to_prefill() -> None:
    timings = {"cache_n": 0, "prompt_n": 10, "prompt_ms": 50.0, "predicted_n": 11, "predicted_ms": 250.0}
    (turn,) = ENGINE.parse_trial([exchange(timings=timings)], b"")
    assert (turn.output_tokens, turn.decode_tokens) == (11, 10)
    assert turn.draft_tokens is None
    assert turn.verify_steps is None


@pytest.mark.parametrize("change", ["crlf", "colour", "prefix", "flood", "comma"])
def test_log_in_other_clothes_is_the_same_log(change: str) -> None:
    log = log_of("exact.log")
    lines = log.split(b"\n")
    dressed = {
        "crlf": b"\r\n".join(lines),
        "colour": b"\n".join(b"\x1b[32m" + line + b"\x1b[0m" for line in lines),
        "prefix": b"\n".join(b"0.12.345.678 I " + line if line else line for line in lines),
        "flood": b"\n".join([*lines[:13], b"request: \xff" + b"x" * 5_000_000, *lines[13:]]),
        "comma": log.replace(b"9146.10 ms", b"9146,10 ms"),
    }[change]
    start = dressed.index(b"slot launch_slot_: id  0 | task 0")
    second = dressed.index(b"slot launch_slot_: id  0 | task 42")
    turns = ENGINE.parse_trial([exchange(0, log_start=start), exchange(1, log_start=second)], dressed)
    assert turns == ENGINE.parse_trial(two_exchanges(log), log)


def test_truncated_and_foreign_logs_give_none_not_zero() -> None:
    log = log_of("exact.log")
    cut = log[: log.index(b"ddtree timing avg")]
    (turn,) = ENGINE.parse_trial([exchange(log_start=two_exchanges(log)[0].log_start)], cut)
    assert turn.verify_steps == 41
    assert turn.stages == ()
    (nothing,) = ENGINE.parse_trial([exchange()], b"INFO vllm engine 0.9\nAvg generation throughput: 12 tokens/s\n")
    assert nothing.decode_tokens is None
    assert nothing.decode_ms is None
    assert nothing.flags == ()
    (draft_only,) = ENGINE.parse_trial([exchange(timings={"predicted_n": 5, "predicted_ms": 9, "draft_n": 22})], b"")
    assert draft_only.flags == ("missing_ddtree_stats",)


def test_a_failed_step_is_flagged_and_has_no_stage_times() -> None:
    (turn,) = ENGINE.parse_trial([exchange()], log_of("persist-out-of-memory.log"))
    assert turn.stages == ()
    assert "all_steps_failed" in turn.flags
    assert turn.output_tokens == 0


@pytest.mark.parametrize(
    ("old", "new", "flag"),
    [
        (b"capture_clamps=0", b"capture_clamps=3", "capture_clamps"),
        (b"snapshot_replays=0", b"snapshot_replays=2", "snapshot_replays"),
        (b"fast_rollback=30", b"fast_rollback=29", "fast_rollback_incomplete"),
        (b"exact_avg_commit=8.367", b"exact_avg_commit=2.000", "commit_count_differs"),
        (b"target_tree=36.40", b"target_tree=66.40", "stages_exceed_step"),
        (b"  220 accepted", b"  620 accepted", "accepted_exceeds_emitted"),
    ],
)
def test_figures_that_cannot_be_right_are_flagged(old: bytes, new: bytes, flag: str) -> None:
    log = log_of("batched.log")
    assert old in log
    (turn,) = ENGINE.parse_trial([exchange()], log.replace(old, new, 1))
    assert flag in turn.flags


@given(noise=st.binary(max_size=400))
def test_any_bytes_are_read_without_an_exception(noise: bytes) -> None:
    (turn,) = ENGINE.parse_trial([exchange()], noise + log_of("batched.log") + noise)
    assert turn.verify_steps is None or turn.verify_steps >= 0


# ---------------------------------------------------------------- failures, memory, settings shown


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("llama_context: failed to allocate persist buffer for layer 3 (n_tokens=23)", FailureKind.OUT_OF_MEMORY),
        ("ggml_backend_cuda: cudaMalloc failed: out of memory", FailureKind.OUT_OF_MEMORY),
        ("CUDA error: out of memory", FailureKind.OUT_OF_MEMORY),
        ("CUDA error: an illegal memory access was encountered", FailureKind.CRASHED),
        ("error: invalid argument: --ddtree-depth", FailureKind.INVALID_CONFIG),
        ("--ddtree-budget must be >= 1", FailureKind.INVALID_CONFIG),
        ("error: --speculative-mode ddtree requires -md/--model-draft", FailureKind.INVALID_CONFIG),
        ("V cache quantization requires flash_attn", FailureKind.INVALID_CONFIG),
        ("Unsupported cache type: q3_1", FailureKind.INVALID_CONFIG),
        ("DDTree mode supports only --parallel 1 in Phase 5", FailureKind.INVALID_CONFIG),
        ("main: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 80", FailureKind.HEALTH_TIMEOUT),
        ("srv: failed to create DDTree draft context", FailureKind.LAUNCH_FAILED),
        ("DDTree driver step returned empty result, treating as EOS", FailureKind.CRASHED),
        ("chain validation llama_decode failed at depth 2: -3", FailureKind.CRASHED),
        ("requested n_dfs=512 but capture only has n_tokens=64; clamping", FailureKind.SETTING_NOT_APPLIED),
    ],
)
def test_failure_lines(line: str, kind: FailureKind) -> None:
    found = ENGINE.classify(f"main: loading\n{line}\nmain: exiting due to model loading error\n", 1)
    assert found is not None
    assert found[0] is kind
    assert line in found[1]


def test_the_cause_comes_before_its_effect() -> None:
    found = ENGINE.classify(log_of("persist-out-of-memory.log").decode(), None)
    assert found is not None
    assert found[0] is FailureKind.OUT_OF_MEMORY


@pytest.mark.parametrize(
    "effect",
    [
        "srv    load_model: failed to create DDTree draft context",
        "srv    load_model: failed to load draft model, 'draft.gguf'",
        "llama_model_load_from_file_impl: failed to load model",
        "graph_reserve: failed to allocate compute buffers",
        "",
    ],
)
@pytest.mark.parametrize("code", [1, -6, None])
def test_a_draft_that_does_not_fit_is_out_of_memory_whatever_the_server_says_of_the_draft(
    effect: str, code: int | None
) -> None:
    """The server ends, aborts, or lives on without listening: what it lacked is memory, so the sampler learns that."""
    cause = "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 3300.00 MiB on device 0: cudaMalloc failed: "
    log = f"{cause}out of memory\n{effect}\nmain: exiting due to model loading error\n"
    found = ENGINE.classify(log, code)
    assert found is not None
    assert found[0] is FailureKind.OUT_OF_MEMORY
    assert "3300.00 MiB" in found[1]


def test_a_healthy_log_shows_no_failure_though_it_speaks_of_the_chain_speculator() -> None:
    assert ENGINE.classify(log_of("exact.log").decode(), 0) is None
    assert ENGINE.classify(log_of("exact.log").decode(), None) is None


def test_an_exit_code_speaks_where_the_log_is_silent() -> None:
    found = ENGINE.classify("main: server is listening on http://127.0.0.1:80\n", -6)
    assert found is not None
    assert found[0] is FailureKind.CRASHED
    assert "SIGABRT" in found[1]


def test_settings_and_memory_that_the_log_shows() -> None:
    log = log_of("exact.log").decode()
    assert ENGINE.applied({}, True, {}, [], log) == {
        "cache_type_k": "q4_0", "cache_type_v": "q4_0", "n_batch": 512, "n_ubatch": 512, "target_feat_ctx": 128,
        "speculation": "ddtree",
    }  # fmt: skip
    assert ENGINE.memory_mib(log) == {"model": 16310.25, "kv": 1152.0, "compute": 1843.2}
    assert ENGINE.memory_mib(log_of("batched.log").decode()) == {"persist": 1785.38}
    assert ENGINE.applied({}, True, {}, [], "main: server is listening\n") == {"speculation": "none"}


@pytest.mark.parametrize(
    ("asked", "told", "different"), [(65, "65/65", 0), (99, "65/65", 0), (65, "20/65", 1), (30, "30/65", 0)]
)
def test_layers_that_stayed_on_the_cpu_show(asked: int, told: str, different: int) -> None:
    """With too little memory layers may stay on the CPU: the server serves, many times slower, and says nothing."""
    log = f"load_tensors: offloaded {told} layers to GPU\nload_tensors: offloaded 6/6 layers to GPU\n"
    shown = ENGINE.applied({}, True, {}, [], log)
    assert len(not_applied({"gpu_layers": asked}, shown)) == different


def test_a_window_cut_by_a_short_prompt_proves_nothing() -> None:
    line = "DDTree prompt cache reuse capped from 90 to 0 to rebuild the last 91 target-feature tokens\n"
    assert "target_feat_ctx" not in ENGINE.applied({}, True, {}, [], line)


def test_dump_lines_show_effective_top_k() -> None:
    line = "draft_top port: step=0 committed=2000 ctx_len=128 root=9 K=8 backend=dflash\n"
    assert ENGINE.applied({}, True, {}, [], line)["top_k"] == 8
