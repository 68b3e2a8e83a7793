"""Whole trials on stub servers, one per engine and dialect: probe, launch, replay, parse, judge; what is refused."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_sweep import metrics, trial
from dflash_sweep.engines import LaunchRequest, get
from dflash_sweep.errors import FailureKind
from dflash_sweep.records import EngineSettings, Knobs, TrialResult
from fakes.servers import arrange

pytestmark = pytest.mark.long

VARIANTS = [(engine, variant) for engine, variant, _ in arrange.DIALECTS]
STEPS = {"beellama": 9, "lucebox": 10, "vllm": 9, "sglang": 9}
DECODED = {"beellama": 24, "lucebox": 40, "vllm": 24, "sglang": 24}


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def run(settings: EngineSettings, folder: Path, *, speculative: bool = True, knobs: Knobs | None = None) -> TrialResult:
    return trial.run_trial(arrange.spec_for(settings, folder, speculative=speculative, knobs=knobs), arrange.CPU)


@pytest.mark.parametrize(("engine", "variant", "dialect"), arrange.DIALECTS)
def test_probe_finds_the_dialect_and_the_flags(engine: str, variant: str, dialect: str, tmp_path: Path) -> None:
    settings = arrange.settings_for(engine, variant, tmp_path)
    build = get(engine).probe(settings)
    assert build.dialect == dialect
    assert build.engine == engine
    assert build.version
    assert len(build.flags) > 10
    assert get(engine).check(settings, build, arrange.POINTS[engine]) == ()


@pytest.mark.parametrize(("engine", "variant"), VARIANTS)
def test_a_speculative_trial_is_measured(engine: str, variant: str, tmp_path: Path) -> None:
    settings = arrange.settings_for(engine, variant, tmp_path)
    result = run(settings, tmp_path)
    assert result.failure is None, result.failure
    assert len(result.turns) == 3
    for turn in result.turns:
        counters = turn.counters
        assert turn.invalid_reason is None
        assert counters.decode_tokens == DECODED[engine]
        assert counters.verify_steps == STEPS[engine]
        assert counters.steps_source == "printed"
        assert counters.draft_tokens
        assert counters.timing_source in ("json", "log", "metrics", "client")
    assert metrics.pooled_decode_tps(result.turns)


@pytest.mark.parametrize(
    ("engine", "variant"), [v for v in VARIANTS if v[1] in ("A1", "B2", "G0", "G2", "0.33.0", "0.5.23")]
)
def test_a_plain_trial_drafts_nothing(engine: str, variant: str, tmp_path: Path) -> None:
    settings = arrange.settings_for(engine, variant, tmp_path)
    result = run(settings, tmp_path, speculative=False, knobs={})
    assert result.failure is None, result.failure
    assert result.launch is not None
    draft = settings.draft_model or "org/draft"
    assert draft not in result.launch.argv
    assert not any(word.startswith("-") and "draft" in word for word in result.launch.argv)
    for turn in result.turns:
        assert not turn.counters.draft_tokens
        assert not turn.counters.verify_steps
        assert turn.counters.decode_ms


@pytest.mark.parametrize(("engine", "variant"), VARIANTS)
def test_a_flag_that_the_server_does_not_know_is_an_invalid_configuration(
    engine: str, variant: str, tmp_path: Path
) -> None:
    settings = arrange.settings_for(engine, variant, tmp_path)
    spec = arrange.spec_for(settings, tmp_path)
    request = LaunchRequest(
        settings=arrange.with_flag(settings, "--no-such-flag"), build=spec.build, knobs=spec.knobs, speculative=True,
        device=arrange.CPU, host="127.0.0.1", port=1,
    )  # fmt: skip
    launch = get(engine).launch_spec(request)
    done = subprocess.run(launch.argv, env=launch.env, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode in (1, 2)
    found = get(engine).classify(done.stdout + done.stderr, done.returncode)
    assert found is not None
    assert found[0] is FailureKind.INVALID_CONFIG
    assert "--no-such-flag" in found[1]


def test_exact_rates_of_a_beellama_trial(tmp_path: Path) -> None:
    """24 decoded tokens in 400 ms a turn: 60 tok/s; 15 of 63 drafts accepted in 9 steps: AL 24/9; 90 ms of drafting."""
    result = run(arrange.settings_for("beellama", "B2", tmp_path), tmp_path)
    assert metrics.pooled_decode_tps(result.turns) == pytest.approx(60.0)
    counters = result.turns[-1].counters
    assert (counters.draft_tokens, counters.accepted_draft_tokens) == (63, 15)
    assert [(stage.name, stage.total_ms) for stage in counters.stages] == [("draft_ms", 90.0)]
    assert (counters.prompt_tokens, counters.cached_tokens, counters.prompt_ms) == (30, 10, 100.0)
    assert result.effective["draft_max"] == 7
    assert result.effective["cache_type_k"] == "q8_0"
    assert result.effective["speculative"] is True
    assert result.memory_mib == {"model": 900.0, "kv": 180.0, "compute": 120.5}


def test_a_depth_that_the_server_clamps_is_not_applied(tmp_path: Path) -> None:
    settings = arrange.settings_for("beellama", "B1", tmp_path)
    result = run(settings, tmp_path, knobs={"draft_max": 30})
    assert result.failure is not None
    assert result.failure.kind is FailureKind.SETTING_NOT_APPLIED
    assert "draft_max" in result.failure.message


@pytest.mark.parametrize(("variant", "mode"), [("G2", "mode_tree"), ("G3", "mode_tree")])
def test_a_lucebox_tree_is_told_from_a_chain(variant: str, mode: str, tmp_path: Path) -> None:
    settings = arrange.settings_for("lucebox", variant, tmp_path)
    tree = run(settings, tmp_path, knobs={"ddtree": True, "budget": 22})
    assert tree.failure is None, tree.failure
    assert mode in tree.turns[-1].counters.flags
    assert tree.effective["ddtree"] is True
    assert tree.effective["budget"] == 22
    chain = run(settings, tmp_path, knobs={"ddtree": False})
    assert "mode_chain" in chain.turns[-1].counters.flags
    # 10 steps of 4 tokens: the printed 40/160 counts the anchor of every step on both sides
    assert (chain.turns[-1].counters.draft_tokens, chain.turns[-1].counters.accepted_draft_tokens) == (150, 30)
    assert chain.turns[-1].counters.acceptance_histogram is not None
    assert chain.turns[-1].counters.acceptance_histogram[3] == 10


def test_a_lucebox_tree_that_never_ran_is_not_applied(tmp_path: Path) -> None:
    """The first native generation accepts --ddtree and drafts a chain; check says so, and so does a launched trial."""
    settings = arrange.settings_for("lucebox", "G2", tmp_path)
    spec = arrange.spec_for(settings, tmp_path, knobs={"ddtree": True})
    quiet = replace(spec, engine=replace(settings, extra_args=("--no-fast-rollback",)))
    result = trial.run_trial(quiet, arrange.CPU)
    assert result.failure is not None
    assert result.failure.kind is FailureKind.SETTING_NOT_APPLIED
    assert "ddtree" in result.failure.message


def test_stage_times_of_the_python_generation(tmp_path: Path) -> None:
    """Ten steps: 20 + 5 + 18 + 1 = 44 ms of stages in 50 ms of wall time, so 6 ms a step are left over."""
    result = run(arrange.settings_for("lucebox", "G0", tmp_path), tmp_path)
    assert result.failure is None, result.failure
    stages = {stage.name: stage.total_ms for stage in result.turns[-1].counters.stages}
    assert stages == pytest.approx(
        {"draft_ms": 200.0, "topk_ms": 50.0, "verify_ms": 180.0, "accept_ms": 10.0, "step_ms": 500.0, "other_ms": 60.0}
    )


def test_an_unsupported_kv_pair_is_an_invalid_configuration(tmp_path: Path) -> None:
    settings = arrange.settings_for("lucebox", "G2", tmp_path)
    point: Knobs = {"cache_type_k": "tq3_0", "cache_type_v": "q5_0"}
    problems = get("lucebox").check(settings, get("lucebox").probe(settings), point)
    assert any("no kernel" in problem for problem in problems)
    result = run(settings, tmp_path, knobs=point)
    assert result.failure is not None
    assert result.failure.kind is FailureKind.INVALID_CONFIG
    assert result.failure.exit_code == -6


def test_a_replaced_draft_attention_is_not_applied(tmp_path: Path) -> None:
    settings = arrange.settings_for("sglang", "0.5.23", tmp_path)
    result = run(settings, tmp_path, knobs={"draft_max": 7, "draft_attention_backend": "trtllm_mha"})
    assert result.failure is not None
    assert result.failure.kind is FailureKind.SETTING_NOT_APPLIED
    assert "flashinfer" in result.failure.message


def test_a_lowered_running_set_is_not_applied(tmp_path: Path) -> None:
    settings = arrange.settings_for("vllm", "0.33.0", tmp_path)
    point: Knobs = {"draft_max": 7, "max_num_seqs": 8, "max_num_batched_tokens": 32}
    problems = get("vllm").check(settings, get("vllm").probe(settings), point)
    assert any("room for 4 sequences" in problem for problem in problems)
    result = run(settings, tmp_path, knobs=point)
    assert result.failure is not None
    assert result.failure.kind is FailureKind.SETTING_NOT_APPLIED


def test_a_missing_model_is_a_failed_launch(tmp_path: Path) -> None:
    settings = arrange.settings_for("beellama", "B2", tmp_path)
    spec = arrange.spec_for(settings, tmp_path)
    Path(str(settings.model)).unlink()
    result = trial.run_trial(spec, arrange.CPU)
    assert result.failure is not None
    assert result.failure.kind is FailureKind.LAUNCH_FAILED
    assert "error loading model" in result.failure.message


@pytest.mark.parametrize(
    ("engine", "variant"), [("beellama", "B1"), ("lucebox", "G2"), ("vllm", "0.33.0"), ("sglang", "0.5.23")]
)
def test_a_taken_port_in_the_log_is_tried_again(engine: str, variant: str) -> None:
    lines = {
        "beellama": "srv  start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 80",
        "lucebox": "[server] bind(127.0.0.1:80) failed",
        "vllm": "OSError: [Errno 98] address already in use",
        "sglang": "ERROR: [Errno 98] error while attempting to bind on address: address already in use",
    }
    found = get(engine).classify(lines[engine], 1)
    assert found is not None
    assert found[0].is_transient
