"""The DFlash studies for the CPU: every point can be launched, plain decoding shares what it must, the pair fits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from dflash_sweep import gguf_meta, models, settings, traces
from dflash_sweep.engines.llamacpp import LlamacppEngine
from dflash_sweep.engines.llamacpp_knobs import SPEC_NAMES
from dflash_sweep.errors import EngineMissing
from dflash_sweep.settings import Settings
from fakes.microserver import UNKNOWN_BUILD

CONF = Path(__file__).parent.parent / "conf"
STUDIES = ("dflash_cpu", "dflash_cpu_f16", "dflash_cpu_f32", "dflash_cpu_agent")
ENGINE = LlamacppEngine()


def load(study: str, folder: Path) -> Settings:
    with initialize_config_dir(str(CONF), version_base=None):
        cfg = compose("config", overrides=[f"+study={study}"])
    return settings.build(cfg, launch_dir=folder, run_dir=folder, sampling_seed=1)


@pytest.fixture(scope="module")
def target() -> Path:
    try:
        return models.target_path()
    except EngineMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("study", STUDIES)
def test_every_point_can_be_launched(study: str, tmp_path: Path, target: Path) -> None:
    chosen = load(study, tmp_path)
    assert chosen.study_name == study
    points = [*chosen.space.points(), *chosen.seed_points]
    problems = {p for point in points for p in ENGINE.check(chosen.engine, UNKNOWN_BUILD, {**chosen.fixed, **point})}
    assert problems == set()


@pytest.mark.parametrize("study", STUDIES)
def test_every_axis_is_one_of_speculation_so_that_plain_decoding_is_a_fair_reference(
    study: str, tmp_path: Path
) -> None:
    chosen = load(study, tmp_path)
    assert {axis.name for axis in chosen.space.axes} <= SPEC_NAMES
    assert {"target_precision", "threads", "threads_batch", "cache_type_k", "cache_type_v"} <= set(chosen.fixed)


def test_the_studies_differ_in_precision_and_trace_alone(tmp_path: Path) -> None:
    loaded = {study: load(study, tmp_path) for study in STUDIES}
    assert {study: chosen.fixed["target_precision"] for study, chosen in loaded.items()} == {
        "dflash_cpu": "as_shipped", "dflash_cpu_f16": "f16", "dflash_cpu_f32": "f32", "dflash_cpu_agent": "as_shipped",
    }  # fmt: skip
    assert {study: chosen.trace_path for study, chosen in loaded.items()} == {
        "dflash_cpu": "workloads", "dflash_cpu_f16": "workloads", "dflash_cpu_f32": "workloads",
        "dflash_cpu_agent": "agent",
    }  # fmt: skip
    spaces = {str(chosen.space) for chosen in loaded.values()}
    assert len(spaces) == 1


def test_the_shipped_draft_fits_the_default_target(target: Path) -> None:
    assert gguf_meta.check_pair(target, models.draft_path()) == ()
    assert gguf_meta.max_draft_tokens(models.draft_path()) == 7
    assert gguf_meta.file_sha256(target) == models.TARGET_SHA256


def test_the_workloads_hold_three_kinds_of_requests() -> None:
    trace = traces.load(traces.shipped("workloads"))
    kinds = [turn.bucket for turn in trace.turns]
    assert {kind: kinds.count(kind) for kind in kinds} == {"code": 4, "tool_call": 5, "prose": 4}
    assert all(turn.messages[-1]["role"] == "user" for turn in trace.turns)
    assert trace.header.content_kind == "real"
