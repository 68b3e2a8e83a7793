"""SGLang: the block counts the anchor, renamed switches, versions, and what the draft runner says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_sweep.engines import LaunchRequest
from dflash_sweep.engines.sglang import SglangEngine
from dflash_sweep.errors import ConfigError, EngineMissing
from dflash_sweep.records import EngineBuild, EngineSettings, Exchange, Knobs
from fakes.servers import arrange, sglang, stub

ENGINE = SglangEngine()
SETTINGS = EngineSettings(name="sglang", n_ctx=4096, options={"model": "org/target", "draft_model": "org/draft"})


def build_of(version: str) -> EngineBuild:
    flags = frozenset((*sglang.values(version), *sglang.switches(version)))
    return EngineBuild(engine="sglang", version=version, binary="/s/python", flags=flags)


def launch(version: str, knobs: Knobs, *, speculative: bool = True, settings: EngineSettings = SETTINGS) -> str:
    request = LaunchRequest(
        settings=settings, build=build_of(version), knobs=knobs, speculative=speculative, device=arrange.CPU,
        host="127.0.0.1", port=99, n_parallel=3,
    )  # fmt: skip
    return " ".join(ENGINE.launch_spec(request).argv)


HEAD = (
    "/s/python -m sglang.launch_server --model-path org/target --host 127.0.0.1 --port 99 --context-length 4096 "
    "--enable-metrics --enable-cache-report"
)


def test_the_whole_command_line() -> None:
    """Fifteen drafts are a block of sixteen; the running set is always named."""
    assert launch("0.5.23", {"draft_max": 15, "draft_window": 2048, "radix_cache": False}) == (
        f"{HEAD} --speculative-algorithm DFLASH --speculative-draft-window-size 2048 --disable-radix-cache "
        "--max-running-requests 3 --speculative-draft-model-path org/draft --speculative-num-draft-tokens 16 "
        "--decode-log-interval 4 --random-seed 0"
    )


def test_a_renamed_switch_gets_the_builds_name() -> None:
    assert "--speculative-dflash-draft-window-size 64" in launch("0.5.14", {"draft_window": 64})
    assert ENGINE.check(SETTINGS, build_of("0.5.14"), {"draft_window": 64}) == ()
    problems = ENGINE.check(SETTINGS, build_of("0.5.14"), {"draft_cache_type": "fp8_e5m2"})
    assert any("--speculative-draft-kv-cache-dtype" in p and "0.5.14" in p for p in problems)


def test_plain_decoding_has_no_speculation() -> None:
    words = launch("0.5.23", {"draft_max": 15, "page_size": 1}, speculative=False)
    assert words == f"{HEAD} --page-size 1 --max-running-requests 3 --decode-log-interval 4 --random-seed 0"


def test_a_window_smaller_than_the_block_is_a_problem() -> None:
    assert ENGINE.check(SETTINGS, build_of("0.5.23"), {"draft_max": 15, "draft_window": 16}) == ()
    problems = ENGINE.check(SETTINGS, build_of("0.5.23"), {"draft_max": 15, "draft_window": 15})
    assert problems == ("draft_window=15: smaller than the block of 16 (draft_max + 1)",)


def test_a_draft_is_needed() -> None:
    bare = replace(SETTINGS, options={"model": "org/target"})
    with pytest.raises(ConfigError, match="cannot speculate without it"):
        launch("0.5.23", {"draft_max": 7}, settings=bare)
    assert any("draft_model is not set" in p for p in ENGINE.check(bare, build_of("0.5.23"), {"draft_max": 7}))


def test_versions(tmp_path: Path) -> None:
    old = stub.install(tmp_path, "sglang", "0.5.10", name="old")
    with pytest.raises(EngineMissing, match=r"SGLang 0\.5\.10 has no DFLASH"):
        ENGINE.probe(EngineSettings(name="sglang", binary=str(old)))
    none = stub.install(tmp_path, "sglang", "none", name="none")
    with pytest.raises(EngineMissing, match=r"cannot import sglang.*No module named"):
        ENGINE.probe(EngineSettings(name="sglang", binary=str(none)))


def test_what_the_draft_runner_says() -> None:
    log = (
        "Initialized DFLASH draft runner. attention_backend=fa3, model=DFlashDraftModel, block_size=16, "
        "draft_window_size=2048, compact_cache=False\nDFLASH non-greedy verification is unavailable on this device; "
        "falling back to greedy argmax verification.\n"
    )
    assert ENGINE.applied({}, True, {}, [], log) == {
        "speculative": True, "draft_attention_backend": "fa3", "draft_max": 15, "draft_window": 2048,
        "target_temperature": 0.0,
    }  # fmt: skip


def test_a_histogram_that_disagrees_is_dropped() -> None:
    details = {"spec_verify_ct": 5, "spec_num_correct_drafts": 3, "spec_correct_drafts_histogram": [1, 3]}
    answer = Exchange(turn_index=0, send_ns=0, usage={"completion_tokens": 9}, extra={"meta_info": details})
    (counters,) = ENGINE.parse_trial([answer], b"")
    assert counters.verify_steps == 5
    assert counters.acceptance_histogram is None
    assert "histogram_disagrees" in counters.flags


def test_counters_around_requests_that_ran_together_say_nothing() -> None:
    pages = {
        "metrics_before": "sglang:spec_verify_calls_total 1\n",
        "metrics_after": "sglang:spec_verify_calls_total 9\n",
    }
    answers = [
        Exchange(turn_index=0, send_ns=0, end_ns=100, **pages),  # type: ignore[arg-type]
        Exchange(turn_index=1, send_ns=50, end_ns=90, **pages),  # type: ignore[arg-type]
    ]
    assert [counters.verify_steps for counters in ENGINE.parse_trial(answers, b"")] == [None, None]


def test_requests_name_the_model_and_ask_for_details() -> None:
    assert ENGINE.request_fields(SETTINGS, {}, "code") == {"model": "org/target", "return_spec_tokens_details": True}
    options: Knobs = {"model": "org/target", "served_model_name": "m", "spec_details": False}
    assert ENGINE.request_fields(replace(SETTINGS, options=options), {}, "code") == {"model": "m"}
