"""A finalist is confirmed beside plain decoding with its own threads and cache types, where that is another server."""

from __future__ import annotations

import pytest

from dflash_sweep import engines
from dflash_sweep.controls import controls, plain_settings
from dflash_sweep.jobs import confirm_blocks
from dflash_sweep.records import EngineBuild, EngineSettings, Knobs, Role

SETTINGS = EngineSettings(name="llamacpp", model="/models/target.gguf", options={"draft": "none"})
BUILD = EngineBuild(engine="llamacpp", version="b1", binary="/bin/llama-server")


def found(plain: Knobs, finalists: dict[int, Knobs]) -> dict[int, Knobs]:
    return controls(engines.get("llamacpp"), SETTINGS, BUILD, plain=plain, finalists=finalists)


def test_only_what_plain_decoding_reads_too_is_shared() -> None:
    finalist: Knobs = {"spec_type": "ngram-simple", "ngram_size_n": 8, "threads": 2, "cache_type_k": "q8_0"}
    assert found({"threads": 1}, {3: finalist}) == {3: {"threads": 2, "cache_type_k": "q8_0"}}


def test_the_baseline_is_not_measured_twice() -> None:
    assert found({"threads": 2}, {3: {"spec_type": "ngram-simple", "threads": 2}}) == {}


def test_finalists_with_the_same_shared_settings_have_one_control() -> None:
    finalists: dict[int, Knobs] = {
        number: {"spec_type": "ngram-simple", "ngram_size_n": number, "threads": threads}
        for number, threads in ((4, 2), (8, 2), (12, 3))
    }
    assert found({"threads": 1}, finalists) == {4: {"threads": 2}, 12: {"threads": 3}}


def test_a_server_that_somebody_else_runs_has_no_control() -> None:
    attached = EngineSettings(name="attach")
    assert controls(engines.get("attach"), attached, BUILD, plain={}, finalists={0: {"threads": 2}}) == {}


def test_a_control_has_nothing_that_plain_decoding_does_not_read() -> None:
    plain: Knobs = {"threads": 1, "spec_type": None}
    finalist: Knobs = {"spec_type": "ngram-simple", "threads": 1, "threads_batch": 2, "cache_type_v": "f16"}
    # a cache type that is the default anyway makes no other server
    assert found(plain, {3: finalist}) == {3: {"threads": 1, "threads_batch": 2}}


@pytest.mark.parametrize("knobs", [{}, {"cache_type_k": "f16", "spec_type": "ngram-simple", "ngram_size_n": 4}])
def test_a_default_that_is_spelt_out_is_no_setting_of_its_own(knobs: Knobs) -> None:
    assert plain_settings(engines.get("llamacpp"), SETTINGS, BUILD, knobs) == "engine defaults"


def test_what_plain_decoding_reads_is_told_in_words() -> None:
    knobs: Knobs = {"spec_type": "ngram-simple", "threads": 2, "cache_type_k": "q8_0", "cache_type_v": None}
    assert plain_settings(engines.get("llamacpp"), SETTINGS, BUILD, knobs) == "cache_type_k=q8_0 threads=2"
    attached = EngineSettings(name="attach")
    assert plain_settings(engines.get("attach"), attached, BUILD, knobs) is None


def test_controls_run_in_every_block_under_names_of_their_own() -> None:
    plan = confirm_blocks({3: {"threads": 2}}, {"threads": 1}, 2, seed=7, controls={3: {"threads": 2}})
    uids = [sorted(job.uid("s") for job in block) for block in plan]
    assert uids == [[f"s/confirm/3/{n}/0", f"s/confirm/plain/{n}/0", f"s/control/3/{n}/0"] for n in (0, 1)]
    assert [job.speculative for block in plan for job in block if job.role is Role.CONTROL] == [False, False]
