"""BeeLlama: exact command lines per dialect, the two engines under one name, dead knobs, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_sweep.engines import LaunchRequest, get, probing
from dflash_sweep.engines.beellama import BeellamaEngine, dialect_of
from dflash_sweep.errors import ConfigError, EngineMissing
from dflash_sweep.records import EngineBuild, EngineSettings, Knobs
from fakes import micropair
from fakes.servers import arrange, beellama, llama_family, stub

ENGINE = BeellamaEngine()
SETTINGS = EngineSettings(name="beellama", model="/m/t.gguf", draft_model="/m/d.gguf", n_ctx=4096)


def build_of(dialect: str) -> EngineBuild:
    flags = probing.entry_help(llama_family.help_text(beellama.options(dialect))).with_values()
    return EngineBuild(engine="beellama", version="build 1", binary="/b/llama-server", dialect=dialect, flags=flags)


def launch(dialect: str, knobs: Knobs, *, speculative: bool = True, settings: EngineSettings = SETTINGS) -> list[str]:
    request = LaunchRequest(
        settings=settings, build=build_of(dialect), knobs=knobs, speculative=speculative, device=arrange.CPU,
        host="127.0.0.1", port=99,
    )  # fmt: skip
    return list(ENGINE.launch_spec(request).argv)


HEAD = [
    "/b/llama-server",
    "--model",
    "/m/t.gguf",
    "--host",
    "127.0.0.1",
    "--port",
    "99",
    "--ctx-size",
    "4096",
    "--parallel",
    "1",
    "--fit",
    "off",
    "--cache-ram",
    "0",
    "--log-colors",
    "off",
    "--verbosity",
    "4",
    "--reasoning-loop-guard",
    "off",
    "--metrics",
    "--offline",
    "--log-prefix",
    "--log-timestamps",
]


def test_the_whole_command_line_of_both_generations() -> None:
    knobs: Knobs = {"draft_max": 15, "draft_p_min": 0.0, "cache_type_k": "q8_0"}
    tail = ["--spec-draft-n-max", "15", "--spec-draft-p-min", "0", "--cache-type-k", "q8_0"]
    old = ["--spec-draft-model", "/m/d.gguf", "--spec-type", "dflash", "--no-spec-dm-adaptive"]
    new = ["--spec-draft-model", "/m/d.gguf", "--spec-type", "draft-dflash", "--spec-dm-controller", "off"]
    assert launch("A2", knobs) == [*HEAD, *old, *tail]
    assert launch("B1", knobs) == [*HEAD, *new, *tail]


def test_plain_decoding_keeps_the_caches_and_drops_speculation() -> None:
    knobs: Knobs = {"draft_max": 15, "cache_type_k": "q8_0", "n_ubatch": 256, "depth_controller": "profit"}
    assert launch("B2", knobs, speculative=False) == [*HEAD, "--cache-type-k", "q8_0", "--ubatch-size", "256"]


def test_the_tree_budget_is_counted_without_its_main_path() -> None:
    """22 nodes with a main path of 15 leave 7 branches; 15 or fewer leave none, and no word about trees."""
    words = launch("A1", {"draft_max": 15, "budget": 22, "top_k": 4})
    assert words[words.index("--spec-branch-budget") + 1] == "7"
    assert words[words.index("--spec-draft-top-k") + 1] == "4"
    flat = launch("A1", {"draft_max": 15, "budget": 15, "top_k": 4})
    assert "--spec-branch-budget" not in flat
    assert "--spec-draft-top-k" not in flat
    problems = ENGINE.check(SETTINGS, build_of("A1"), {"budget": 22})
    assert any("draft_max must be given" in problem for problem in problems)
    with pytest.raises(ConfigError, match="draft_max must be given"):
        launch("A1", {"budget": 22})


def test_controllers_are_named_in_each_generations_way() -> None:
    assert launch("A1", {"depth_controller": "fringe"})[-3:] == ["--spec-dm-adaptive", "--spec-dm-controller", "fringe"]
    assert launch("B1", {"depth_controller": "profit", "profit_min": 0.1})[-4:] == [
        "--spec-dm-controller", "profit", "--spec-dm-profit-min", "0.1",
    ]  # fmt: skip
    problems = ENGINE.check(SETTINGS, build_of("B1"), {"depth_controller": "fringe"})
    assert any("takes profit" in problem for problem in problems)


def test_dead_knobs() -> None:
    point: Knobs = {"draft_max": 15, "budget": None, "top_k": 8, "draft_p_split": 0.2, "profit_min": 0.1}
    assert ENGINE.effective_point(point) == {
        "draft_max": 15, "budget": None, "top_k": None, "draft_p_split": None, "profit_min": None,
    }  # fmt: skip
    alive: Knobs = {"draft_max": 15, "budget": 22, "top_k": 1, "depth_controller": "profit", "profit_min": 0.1}
    assert ENGINE.effective_point(alive) == alive | {"top_k": 2}
    assert ENGINE.effective_point({"depth_controller": None}) == {"depth_controller": "off"}


def test_knobs_of_the_other_generation_are_refused_by_flag_and_build() -> None:
    problems = ENGINE.check(SETTINGS, build_of("B1"), {"target_feat_ctx": 512, "draft_ubatch_size": 128})
    assert (
        "target_feat_ctx=512: beellama build 1 (B1) has no --spec-dflash-cross-ctx (known since v0.1.0 until v0.3.2)"
        in problems
    )
    assert any("--spec-draft-ubatch-size" in problem for problem in problems)
    problems = ENGINE.check(SETTINGS, build_of("A1"), {"kv_tail_tokens": "auto", "cache_type_k": "kvarn4"})
    assert any("--kv-tail-tokens" in problem for problem in problems)
    assert any("cache_type_k=kvarn4" in problem for problem in problems)


def test_silent_substitutions_are_refused() -> None:
    problems = ENGINE.check(SETTINGS, build_of("B2"), {"cache_type_k": "kvarn4", "cache_type_v": "q8_0"})
    assert any("give both the same type" in problem for problem in problems)
    problems = ENGINE.check(SETTINGS, build_of("B2"), {"cache_type_k": "turbo4"})
    assert any("takes another type instead" in problem for problem in problems)


def test_files_are_judged_before_launch(tmp_path: Path) -> None:
    pair = micropair.write_pair(tmp_path)
    settings = replace(SETTINGS, model=str(pair.target), draft_model=str(pair.draft))
    assert [file.role for file in ENGINE.models(settings)] == ["target", "draft"]
    # the pair's block of 8 holds 7 drafts beside the anchor
    assert any("7 drafts" in problem for problem in ENGINE.check(settings, build_of("B1"), {"draft_max": 8}))
    assert ENGINE.check(settings, build_of("B1"), {"draft_max": 7}) == ()
    other = micropair.write_target(tmp_path / "other.gguf", extra_tokens=3)
    with pytest.raises(EngineMissing, match="vocabulary"):
        ENGINE.models(replace(settings, model=str(other)))
    with pytest.raises(EngineMissing, match=r"engine\.model is not set"):
        ENGINE.models(EngineSettings(name="beellama"))


def test_environment_is_the_dialects_own() -> None:
    def env(dialect: str, **more: str) -> dict[str, str]:
        settings = replace(SETTINGS, env=more, options={"stage_profile": True})
        request = LaunchRequest(
            settings=settings, build=build_of(dialect), knobs={}, speculative=True, device=arrange.CPU, host="h", port=1
        )
        return ENGINE.launch_spec(request).env

    assert env("A2", GGML_DFLASH_MAX_CTX="0") == {
        "XDG_CONFIG_HOME": "/nonexistent", "GGML_DFLASH_PROFILE": "1", "GGML_DFLASH_MAX_CTX": "0",
    }  # fmt: skip
    assert env("B1") == {"XDG_CONFIG_HOME": "/nonexistent", "LLAMA_TRACE": "1"}
    with pytest.raises(ConfigError, match="GGML_DFLASH_MAX_CTX"):
        env("B1", GGML_DFLASH_MAX_CTX="0")


def test_options_become_words() -> None:
    options: Knobs = {"gpu_layers": "all", "draft_device": "CUDA1", "release": "v0.4.4"}
    settings = replace(SETTINGS, options=options, extra_args=("--no-host",))
    assert launch("B1", {}, settings=settings)[-5:] == [
        "--n-gpu-layers",
        "all",
        "--spec-draft-device",
        "CUDA1",
        "--no-host",
    ]
    assert launch("B1", {}, settings=settings, speculative=False)[-3:] == ["--n-gpu-layers", "all", "--no-host"]


@pytest.mark.parametrize(
    ("flags", "dialect"),
    [
        ({"--spec-dflash-cross-ctx", "--tree-budget"}, "A1"),
        ({"--spec-dflash-cross-ctx"}, "A2"),
        ({"--spec-dm-controller"}, "B1"),
        ({"--spec-dm-controller", "--spec-draft-ubatch-size"}, "B2"),
        ({"--spec-type"}, None),
    ],
)
def test_dialects(flags: set[str], dialect: str | None) -> None:
    assert dialect_of(probing.Help(frozenset(flags))) == dialect


def test_versions_of_both_forms(tmp_path: Path) -> None:
    old = get("beellama").probe(arrange.settings_for("beellama", "A1", tmp_path))
    assert old.version == "build 9311 47ad9b430"
    new = tmp_path / "new"
    new.mkdir()
    assert get("beellama").probe(arrange.settings_for("beellama", "B2", new)).version == "0.6.0-dev build 11201 036927a"


def test_a_plain_llama_server_is_not_taken_for_beellama(tmp_path: Path) -> None:
    binary = stub.install(tmp_path, "lucebox", "G2", name="llama-server")
    with pytest.raises(EngineMissing, match="llama-server --help failed"):
        ENGINE.probe(EngineSettings(name="beellama", binary=str(binary)))
    script = tmp_path / "upstream"
    script.write_text("#!/bin/sh\necho '--spec-type none,draft-dflash'\n", encoding="utf-8")
    script.chmod(0o755)
    with pytest.raises(EngineMissing, match="not BeeLlama"):
        ENGINE.probe(EngineSettings(name="beellama", binary=str(script)))


def test_slots_of_the_first_dialect_echo_the_settings() -> None:
    slots = [{"speculative": False, "params": {"speculative.n_max": 8, "speculative.p_min": 0.25, "other": 1}}]
    shown = ENGINE.applied({}, True, {}, slots, "")
    assert shown == {"speculative": False, "draft_max": 8, "draft_p_min": 0.25}
