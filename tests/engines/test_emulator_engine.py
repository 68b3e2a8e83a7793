"""The emulator's adapter: what it launches is understood by the process exactly as it was meant."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep import engines
from dflash_sweep.emulator import devices, dials, launch
from dflash_sweep.emulator.setting import DRAFT_PATHS, from_knobs
from dflash_sweep.engines.base import LaunchRequest
from dflash_sweep.engines.emulator import EmulatorEngine
from dflash_sweep.errors import ConfigError
from dflash_sweep.records import Device, EngineSettings, Knobs, Measurement

ENGINE = EmulatorEngine()
CARD = Device(kind="emulated", index=0, name="rtx4090")


def spec_of(knobs: Knobs, *, speculative: bool = True, **settings: Any) -> Any:
    chosen = EngineSettings(name="emulator", **{"n_ctx": 32768, **settings})
    request = LaunchRequest(
        settings=chosen,
        build=ENGINE.probe(chosen),
        knobs=knobs,
        speculative=speculative,
        device=CARD,
        host="127.0.0.1",
        port=4321,
    )
    return ENGINE.launch_spec(request)


def read(spec: Any) -> launch.Launch:
    return launch.read(spec.argv[3:], spec.env)


def option(name: str) -> Any:
    return next(entry for entry in ENGINE.options if entry.name == name)


def test_it_never_passes_for_a_measurement() -> None:
    assert engines.get("emulator").facts.measurement is Measurement.EMULATED
    assert ENGINE.facts.accelerator == "none"
    assert ENGINE.models(EngineSettings(name="emulator")) == ()


def test_options_offer_what_the_package_has() -> None:
    assert option("card").choices == tuple(sorted(devices.names(), reverse=True))
    assert set(option("workload").choices) == {"auto", *dials.names()}
    assert option("draft_path").choices == DRAFT_PATHS
    assert {entry.flag for entry in ENGINE.options} == {
        flag for flag in launch.FLAG_NAMES if flag.startswith("--emulator-")
    }


KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "target_feat_ctx": st.integers(1, 2048),
        "budget": st.integers(1, 64),
        "proposal_temp": st.floats(1e-6, 3.0),
        "top_k": st.integers(0, 16),
        "chain_seed": st.booleans(),
        "cache_type_k": st.sampled_from(["f16", "q8_0", "q4_0"]),
        "cache_type_v": st.sampled_from(["f16", "q8_0", "q4_0"]),
        "verifier": st.sampled_from(["exact", "paper", "trusted", "fast_batched"]),
        "fast_rollback": st.booleans(),
        "grammar_verify": st.booleans(),
        "batched_shortcircuit": st.booleans(),
        "snapshot_fallback": st.booleans(),
        "rollback_graph": st.booleans(),
        "capture_direct": st.booleans(),
        "profile": st.booleans(),
        "draft_gpu_layers": st.integers(3, 6),
        "n_batch": st.integers(32, 2048),
        "n_ubatch": st.integers(32, 1024),
    },
)


@given(knobs=KNOBS)
def test_every_knob_arrives_in_the_process_as_it_was_given(knobs: Knobs) -> None:
    assert read(spec_of(knobs)).setting == from_knobs(knobs, n_ctx=32768)


def test_plain_decoding_has_no_tree() -> None:
    spec = spec_of({"budget": 40, "cache_type_k": "q8_0"}, speculative=False)
    assert spec.argv[:3] == (sys.executable, "-m", "dflash_sweep.emulator")
    setting = read(spec).setting
    assert not setting.speculative
    assert setting.cache_type_k == "q8_0"


def test_options_arrive_too() -> None:
    options: Knobs = {
        "card": "rtx3090", "clock": "real", "workload": "code", "draft_path": "dedicated", "seed": 5, "launch_seed": 9,
        "noise": 0.0, "drift": 0.1, "throttle_after": 60.0, "fault": "log_flood:2",
    }  # fmt: skip
    wanted = read(spec_of({}, options=options))
    assert (wanted.device, wanted.clock, wanted.workload, wanted.seed) == ("rtx3090", "real", "code", 5)
    assert wanted.setting.draft_path == "dedicated"
    assert (wanted.noise.launch_seed, wanted.noise.scale, wanted.noise.drift_per_hour) == (9, 0.0, 0.1)
    assert wanted.noise.throttle_after_s == 60.0
    assert wanted.faults.number("log_flood", 1) == 2


def test_wrong_options_are_named_before_anything_starts() -> None:
    settings = EngineSettings(name="emulator", options={"card": "rtx5090", "colour": "red"})
    problems = ENGINE.check(settings, ENGINE.probe(settings), {})
    assert any("card='rtx5090' is not allowed: it takes rtx4090, rtx3090" in problem for problem in problems)
    assert any("colour is not an option" in problem for problem in problems)
    with pytest.raises(ConfigError, match=r"engine\.options\."):
        spec_of({}, options={"colour": "red"})


def test_requests_say_which_kind_of_text_is_meant() -> None:
    assert ENGINE.request_fields(EngineSettings(name="emulator"), {}, "code") == {"emulator_bucket": "code"}


def test_build_is_the_package_and_its_data() -> None:
    build = ENGINE.probe(EngineSettings(name="emulator"))
    assert build.dialect == "emulated"
    assert build.binary == sys.executable
    assert build.binary_sha256 == ENGINE.probe(EngineSettings(name="emulator")).binary_sha256
