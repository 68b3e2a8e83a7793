"""Lucebox: exact command lines per generation, dead knobs, the KV pair matrix, and what a generation cannot do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_sweep.engines import LaunchRequest, probing
from dflash_sweep.engines.lucebox import LuceboxEngine, generation_of
from dflash_sweep.engines.lucebox_knobs import KV_TYPES
from dflash_sweep.errors import ConfigError, EngineMissing
from dflash_sweep.records import EngineBuild, EngineSettings, Knobs, LaunchSpec
from fakes.servers import arrange, lucebox

ENGINE = LuceboxEngine()
SETTINGS = EngineSettings(name="lucebox", model="/m/t.gguf", draft_model="/m/d.gguf", n_ctx=4096)


def build_of(generation: str) -> EngineBuild:
    text = lucebox.usage(generation) if generation != "G0" else " ".join((*lucebox.G0, *lucebox.G0_SWITCHES))
    binary = "/l/server.py" if generation == "G0" else "/l/dflash_server"
    return EngineBuild(
        engine="lucebox", version="x", binary=binary, dialect=generation, flags=probing.usage_flags(text)
    )  # fmt: skip


def launch(
    generation: str, knobs: Knobs, *, speculative: bool = True, settings: EngineSettings = SETTINGS
) -> LaunchSpec:
    return ENGINE.launch_spec(
        LaunchRequest(
            settings=settings, build=build_of(generation), knobs=knobs, speculative=speculative, device=arrange.CPU,
            host="localhost", port=99,
        )
    )  # fmt: skip


HEAD = ["/l/dflash_server", "/m/t.gguf", "--host", "127.0.0.1", "--port", "99", "--max-ctx", "4096"]


def test_the_whole_command_line_of_a_native_server() -> None:
    spec = launch("G2", {"ddtree": True, "budget": 22, "cache_type_k": "q8_0", "draft_swa": 0})
    words = [
        "--draft",
        "/m/d.gguf",
        "--fa-window",
        "0",
        "--ddtree",
        "--ddtree-budget",
        "22",
        "--cache-type-k",
        "q8_0",
        "--draft-swa",
        "0",
    ]
    assert list(spec.argv) == [*HEAD, *words]
    assert spec.env == {"DFLASH_SINGLE_CHAIN_ROLLBACK_DIAG": "1"}


def test_the_third_generation_reads_variables_under_another_prefix() -> None:
    spec = launch("G3", {"rollback_threshold": 3}, settings=replace(SETTINGS, options={"sampled_verify": True}))
    assert spec.env == {
        "LUCE_FAST_ROLLBACK_THRESHOLD": "3",
        "LUCE_SINGLE_CHAIN_CHECKPOINT_F32": "1",
        "LUCE_SINGLE_CHAIN_ROLLBACK_DIAG": "1",
        "LUCE_SAMPLED_VERIFY": "1",
    }


def test_the_python_generation_has_its_own_words() -> None:
    settings = replace(SETTINGS, options={"daemon_binary": "/l/test_dflash"})
    argv = launch("G0", {"ddtree": True, "budget": 16, "cache_type_k": "q8_0"}, settings=settings).argv
    assert " ".join(argv) == (
        "python3 /l/server.py --target /m/t.gguf --host 127.0.0.1 --port 99 --max-ctx 4096 --bin /l/test_dflash "
        "--draft /m/d.gguf --verify-mode ddtree --verbose-daemon --fa-window 0 --cache-type-k q8_0 --budget 16"
    )
    assert "replay" in launch("G0", {"rollback_mode": "replay"}).argv


def test_plain_decoding_has_no_draft_and_no_tree() -> None:
    argv = launch("G2", {"ddtree": True, "budget": 22, "cache_type_v": "q4_0"}, speculative=False).argv
    assert list(argv) == [*HEAD, "--fa-window", "0", "--cache-type-v", "q4_0"]


def test_rollback_modes() -> None:
    assert "--no-fast-rollback" in launch("G2", {"rollback_mode": "replay"}).argv
    assert "--fast-rollback" in launch("G2", {"rollback_mode": "fast"}).argv
    assert not {"--fast-rollback", "--no-fast-rollback"} & set(launch("G1", {"rollback_mode": "fast"}).argv)


def test_several_requests_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="one request at a time"):
        ENGINE.launch_spec(
            LaunchRequest(
                settings=SETTINGS, build=build_of("G2"), knobs={}, speculative=True, device=arrange.CPU, host="h",
                port=1, n_parallel=2,
            )
        )  # fmt: skip


def test_dead_knobs() -> None:
    point: Knobs = {"ddtree": False, "budget": 22, "ddtree_tau": 6.0, "top_k": 4, "rollback_threshold": 3}
    assert ENGINE.effective_point(point) == {
        "ddtree": False, "budget": None, "ddtree_tau": None, "top_k": None, "rollback_threshold": 3,
    }  # fmt: skip
    tree: Knobs = {"ddtree": True, "budget": 22, "rollback_mode": "fast", "rollback_threshold": 3, "top_k": 4}
    assert ENGINE.effective_point(tree) == {
        "ddtree": True, "budget": 22, "rollback_mode": None, "rollback_threshold": None, "top_k": None,
    }  # fmt: skip
    assert ENGINE.effective_point({"specla": True, "budget": 8, "top_k": 4})["top_k"] == 4


def test_what_a_generation_cannot_do() -> None:
    first = ENGINE.check(replace(SETTINGS, n_ctx=8192), build_of("G1"), {"ddtree": True})
    assert any("always drafts a chain" in problem for problem in first)
    # above 6144 tokens of context an unnamed cache type is tq3_0 there
    assert sum("takes tq3_0 by itself" in problem for problem in first) == 2
    assert not any("tq3_0" in p for p in ENGINE.check(SETTINGS, build_of("G1"), {}))
    assert any("--ddtree-tau" in p for p in ENGINE.check(SETTINGS, build_of("G2"), {"ddtree_tau": 6.0}))
    assert any("since G2" in p for p in ENGINE.check(SETTINGS, build_of("G1"), {"rollback_threshold": 3}))
    both: Knobs = {"ddtree": True, "rollback_mode": "replay"}
    assert any("switches the tree off" in p for p in ENGINE.check(SETTINGS, build_of("G2"), both))
    bare = EngineSettings(name="lucebox", model="/m/t.gguf")
    assert any("decodes plainly" in p for p in ENGINE.check(bare, build_of("G2"), {"ddtree": True}))


def test_the_kv_pair_matrix() -> None:
    """Seven K types go with all eight V types; tq3_0 with five: 7 · 8 + 5 = 61 of 64 pairs."""
    allowed = [
        (key, value)
        for key in KV_TYPES
        for value in KV_TYPES
        if not ENGINE.check(SETTINGS, build_of("G2"), {"cache_type_k": key, "cache_type_v": value})
    ]
    assert len(allowed) == 61
    assert ("tq3_0", "q5_0") not in allowed


@pytest.mark.parametrize("generation", ["G1", "G2", "G3"])
def test_generations_by_usage_text(generation: str) -> None:
    assert generation_of("/x/dflash_server", probing.usage_flags(lucebox.usage(generation))) == generation


def test_other_programs_are_not_lucebox(tmp_path: Path) -> None:
    assert generation_of("/x/server", frozenset({"--port"})) is None
    assert generation_of("/x/server.py", frozenset({"--port"})) is None
    script = tmp_path / "tool"
    script.write_text("#!/bin/sh\necho 'usage: tool --port N' >&2; exit 2\n", encoding="utf-8")
    script.chmod(0o755)
    with pytest.raises(EngineMissing, match="not a Lucebox server"):
        ENGINE.probe(EngineSettings(name="lucebox", binary=str(script)))


def test_compression_options_reach_the_server_only_when_on() -> None:
    assert "--prefill-keep-ratio" not in launch("G2", {"prefill_keep_ratio": 0.1}).argv
    options: Knobs = {"prefill_compression": "always", "prefill_drafter": "/m/q.gguf"}
    argv = launch("G2", {"prefill_keep_ratio": 0.1}, settings=replace(SETTINGS, options=options)).argv
    assert " ".join(argv).endswith("--prefill-keep-ratio 0.1 --prefill-compression always --prefill-drafter /m/q.gguf")


def test_props_say_what_was_parsed() -> None:
    props = {
        "runtime": {"kv_cache_k": "q8_0", "kv_cache_v": "family default", "fa_window": 0},
        "speculative": {"ddtree_budget": 22},
    }
    shown = ENGINE.applied({}, True, props, [], "")
    assert shown == {"cache_type_k": "q8_0", "fa_window": 0, "budget": 22}


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("[ar-decode] tokens=1 time=0.1 s", False),
        ("[spec-decode] tokens=4 time=0.1 s speed=40 tok/s steps=2 accepted=4/32", None),
        ("", None),
    ],
)
def test_a_tree_is_only_denied_by_a_request_that_tells(log: str, shown: bool | None) -> None:
    assert ENGINE.applied({"ddtree": True}, True, {}, [], log).get("ddtree") is shown
