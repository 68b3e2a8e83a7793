"""Command line and environment as the fork reads them, its refusals in its own words."""

from __future__ import annotations

import pytest

from dflash_sweep.emulator import launch
from dflash_sweep.emulator.faults import parse
from dflash_sweep.emulator.launch import ArgumentError
from dflash_sweep.errors import ConfigError

DDTREE = ["--speculative-mode", "ddtree", "-md", "d.gguf", "--parallel", "1"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--ddtree-depth", "3"], "error: invalid argument: --ddtree-depth"),
        (["--ddtree-budget", "0"], "--ddtree-budget must be >= 1"),
        (["--ddtree-top-k", "-1"], "--ddtree-top-k must be >= 0"),
        (["--speculative-mode", "tree"], "--speculative-mode must be 'chain' or 'ddtree'"),
        (["--speculative-mode", "ddtree"], "error: --speculative-mode ddtree requires -md/--model-draft"),
        ([*DDTREE[:-1], "2"], "DDTree mode supports only --parallel 1 in Phase 5"),
        (DDTREE[:4], "DDTree mode supports only --parallel 1 in Phase 5"),  # the server's own default is more than one
        (["-ctk", "q3_1"], "Unsupported cache type: q3_1"),
        (["-c"], 'error while handling argument "-c": expected value for argument'),
        (["-c", "many"], 'error while handling argument "-c": stoi'),
        (["-fa", "maybe"], "unknown value for -fa: 'maybe'"),
        (["--emulator-card", "rtx5090"], "emulator device 'rtx5090' is unknown; allowed: rtx3090, rtx4090"),
        (["--emulator-clock", "fast"], "--emulator-clock must be one of virtual, real"),
        (["--emulator-fault", "flood"], "emulator fault 'flood' is unknown"),
        (["--emulator-fault", "log_flood:much"], "the argument must be a number"),
    ],
)
def test_refusals(argv: list[str], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        launch.read(argv, {})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("env", "name", "value"),
    [
        ({"LLAMA_DDTREE_TARGET_FEAT_CTX": "4096"}, "target_feat_ctx", 2048),
        ({"LLAMA_DDTREE_TARGET_FEAT_CTX": "0"}, "target_feat_ctx", 128),
        ({"LLAMA_DDTREE_TARGET_FEAT_CTX": "wide"}, "target_feat_ctx", 128),
        ({"LLAMA_DDTREE_PROPOSAL_TEMP": "0.7"}, "proposal_temp", 0.7),
        ({"LLAMA_DDTREE_PROPOSAL_TEMP": "-1"}, "proposal_temp", 1.0),
        ({"LLAMA_DDTREE_VERIFIER": "chain"}, "verifier", "exact"),
        ({"LLAMA_DDTREE_VERIFIER": "tree", "LLAMA_DDTREE_TRUST_BATCHED": "1"}, "verifier", "trusted"),
        ({"LLAMA_DDTREE_UNSAFE_TRUST_BATCHED": "1"}, "verifier", "trusted"),
        ({"LLAMA_DDTREE_EXACT_VALIDATION": "1"}, "verifier", "exact"),
        ({"LLAMA_DDTREE_EXACT_VALIDATION": "1", "LLAMA_DDTREE_VERIFIER": "paper"}, "verifier", "paper"),
        ({"LLAMA_DDTREE_VERIFIER": "exact", "LLAMA_DDTREE_FAST_BATCHED": "1"}, "verifier", "fast_batched"),
        ({}, "verifier", "paper"),
        ({"LLAMA_DDTREE_PROFILE": "0"}, "profile", True),  # on by being there
        ({"LLAMA_DDTREE_FAST_ROLLBACK": "0"}, "fast_rollback", False),
        ({}, "fast_rollback", None),
        ({"LLAMA_DDTREE_NO_GRAMMAR_VERIFY": "1"}, "grammar_verify", False),
        ({"LLAMA_ARG_DDTREE_BUDGET": "40"}, "budget", 40),
    ],
)
def test_environment(env: dict[str, str], name: str, value: object) -> None:
    assert getattr(launch.read(DDTREE, env).setting, name) == value


def test_a_flag_wins_over_its_variable_and_the_temperature_variable_over_its_flag() -> None:
    env = {"LLAMA_ARG_DDTREE_BUDGET": "40", "LLAMA_DDTREE_PROPOSAL_TEMP": "0.5"}
    setting = launch.read([*DDTREE, "--ddtree-budget", "8", "--ddtree-temp", "0.9"], env).setting
    assert (setting.budget, setting.proposal_temp) == (8, 0.5)


def test_batches_are_capped_by_the_context() -> None:
    setting = launch.read([*DDTREE, "-c", "1024", "-b", "2048", "-ub", "4096"], {}).setting
    assert (setting.n_batch, setting.n_ubatch) == (1024, 1024)


def test_an_ignored_setting_is_the_default() -> None:
    argv = [*DDTREE, "--ddtree-budget", "8", "--emulator-fault", "ignored_setting:budget"]
    assert launch.read(argv, {}).setting.budget == 22


def test_faults_of_a_launch_are_refused_in_a_request() -> None:
    assert parse("crash, slow_stream:5").number("slow_stream", 200) == 5
    with pytest.raises(ConfigError, match="oom_at_load"):
        parse("oom_at_load")
    assert parse(None).active == {}
