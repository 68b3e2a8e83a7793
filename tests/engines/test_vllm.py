"""vLLM: the JSON of its speculation, versions, what it would change by itself, and pairs of model directories."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_sweep.engines import LaunchRequest, models
from dflash_sweep.engines.vllm import VllmEngine, dialect_of, release
from dflash_sweep.errors import ConfigError, EngineMissing
from dflash_sweep.records import EngineBuild, EngineSettings, Knobs, LaunchSpec
from fakes.servers import arrange, stub

ENGINE = VllmEngine()
SETTINGS = EngineSettings(name="vllm", n_ctx=4096, options={"model": "org/target", "draft_model": "org/draft"})


def build_of(version: str) -> EngineBuild:
    return EngineBuild(engine="vllm", version=version, binary="/v/vllm", dialect=dialect_of(version))


def launch(version: str, knobs: Knobs, *, speculative: bool = True, settings: EngineSettings = SETTINGS) -> LaunchSpec:
    return ENGINE.launch_spec(
        LaunchRequest(
            settings=settings, build=build_of(version), knobs=knobs, speculative=speculative, device=arrange.CPU,
            host="127.0.0.1", port=99,
        )
    )  # fmt: skip


def config_of(spec: LaunchSpec) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(spec.argv[spec.argv.index("--speculative-config") + 1])
    return found


def test_the_whole_command_line() -> None:
    spec = launch("0.33.0", {"draft_max": 15, "max_num_seqs": 4, "prefix_caching": False, "enforce_eager": False})
    words = [
        "/v/vllm",
        "serve",
        "org/target",
        "--host",
        "127.0.0.1",
        "--port",
        "99",
        "--max-model-len",
        "4096",
        "--enable-per-request-metrics",
        "--per-request-spec-decode-metrics",
        "summary",
        "--enable-prompt-tokens-details",
        "--max-num-seqs",
        "4",
        "--no-enable-prefix-caching",
        "--speculative-config",
    ]
    assert list(spec.argv[: len(words)]) == words
    assert config_of(spec) == {"method": "dflash", "model": "org/draft", "num_speculative_tokens": 15}
    assert list(spec.argv[len(words) + 1 :]) == ["--seed", "0"]


def test_knobs_inside_the_json_keep_their_types() -> None:
    knobs: Knobs = {
        "draft_max": 7, "draft_model": "org/other", "draft_attention_backend": "FLASH_ATTN", "draft_cache_type": "fp8",
        "draft_sample_method": "greedy", "rejection_sample_method": None,
    }  # fmt: skip
    assert config_of(launch("0.33.0", knobs)) == {
        "method": "dflash", "model": "org/other", "num_speculative_tokens": 7, "attention_backend": "FLASH_ATTN",
        "kv_cache_dtype": "fp8", "draft_sample_method": "greedy",
    }  # fmt: skip


def test_plain_decoding_has_no_speculation() -> None:
    argv = launch("0.33.0", {"draft_max": 7, "kv_cache_dtype": "auto"}, speculative=False).argv
    assert "--speculative-config" not in argv
    assert "--kv-cache-dtype" in argv


def test_older_versions_are_not_asked_for_what_they_lack() -> None:
    assert "--enable-per-request-metrics" not in launch("0.24.0", {"draft_max": 7}).argv
    middle = launch("0.28.0", {"draft_max": 7}).argv
    assert "--enable-per-request-metrics" in middle
    assert "--per-request-spec-decode-metrics" not in middle


def test_speculation_needs_a_depth_and_a_draft() -> None:
    with pytest.raises(ConfigError, match="draft_max is not set"):
        launch("0.33.0", {})
    with pytest.raises(ConfigError, match=r"engine\.options\.draft_model is not set"):
        launch("0.33.0", {"draft_max": 7}, settings=replace(SETTINGS, options={"model": "org/target"}))
    problems = ENGINE.check(SETTINGS, build_of("0.33.0"), {"draft_sample_method": "greedy"})
    assert any("derives no num_speculative_tokens" in problem for problem in problems)


def test_versions_set_limits() -> None:
    old = ENGINE.check(
        SETTINGS, build_of("0.24.0"), {"draft_max": 7, "kv_cache_dtype": "fp8", "draft_cache_type": "fp8"}
    )
    assert sum("since 0.28.0" in problem for problem in old) == 2
    assert ENGINE.check(SETTINGS, build_of("0.24.0"), {"kv_cache_dtype": "fp8"}) == ()
    assert ENGINE.check(SETTINGS, build_of("0.28.0"), {"draft_max": 7, "kv_cache_dtype": "fp8"}) == ()


def test_a_batch_without_room_is_a_problem() -> None:
    """8192 // 16 = 512 sequences have room; 513 have not."""
    point: Knobs = {"draft_max": 15, "max_num_batched_tokens": 8192, "max_num_seqs": 512}
    assert ENGINE.check(SETTINGS, build_of("0.33.0"), point) == ()
    problems = ENGINE.check(SETTINGS, build_of("0.33.0"), point | {"max_num_seqs": 513})
    assert any("room for 512 sequences" in problem for problem in problems)


def test_lossy_methods_are_not_offered() -> None:
    for method in ("fly", "synthetic"):
        problems = ENGINE.check(SETTINGS, build_of("0.33.0"), {"draft_max": 7, "rejection_sample_method": method})
        assert any("is not allowed" in problem for problem in problems)


@pytest.mark.parametrize(
    ("text", "parts"), [("0.33.0", (0, 33, 0)), ("0.28.1rc2+cu128", (0, 28, 1)), ("v0.30", (0, 30, 0))]
)
def test_release_numbers(text: str, parts: tuple[int, ...]) -> None:
    assert release(text) == parts


def test_a_version_before_dflash_is_refused(tmp_path: Path) -> None:
    binary = stub.install(tmp_path, "vllm", "0.19.1")
    with pytest.raises(EngineMissing, match=r"vLLM 0\.19\.1 has no DFlash"):
        ENGINE.probe(EngineSettings(name="vllm", binary=str(binary)))


def test_the_back_end_that_really_runs_is_shown() -> None:
    log = "INFO [cuda.py:300] Using FLASHINFER attention backend\nINFO Capturing model for DFlash speculator...\n"
    shown = ENGINE.applied({"attention_backend": "FLASH_ATTN"}, True, {}, [], log)
    assert shown == {"attention_backend": "FLASHINFER", "speculative": True}
    same = ENGINE.applied({"attention_backend": "flashinfer"}, True, {}, [], log)
    assert same["attention_backend"] == "flashinfer"


# ---------------------------------------------------------------- model directories

TARGET = {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "vocab_size": 1000, "num_hidden_layers": 12,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
DRAFT = {
    "architectures": ["DFlashDraftModel"], "hidden_size": 64, "vocab_size": 1000, "num_hidden_layers": 2,
    "block_size": 16,
    "num_target_layers": 12, "dflash_config": {"mask_token_id": 999, "target_layer_ids": [1, 6, 11]},
}  # fmt: skip


def write(folder: Path, content: dict[str, Any]) -> str:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"0" * 1000)
    return str(folder)


def pair(tmp_path: Path, target: dict[str, Any] = TARGET, draft: dict[str, Any] = DRAFT) -> EngineSettings:
    names: Knobs = {"model": write(tmp_path / "target", target), "draft_model": write(tmp_path / "draft", draft)}
    return replace(SETTINGS, options=names)


def test_a_pair_that_fits(tmp_path: Path) -> None:
    settings = pair(tmp_path)
    target, draft = ENGINE.models(settings)
    assert (target.role, target.architecture, target.size_bytes) == ("target", "Qwen3ForCausalLM", 1000)
    assert (draft.role, draft.architecture) == ("draft", "DFlashDraftModel")
    assert target.sha256 != draft.sha256
    assert ENGINE.check(settings, build_of("0.33.0"), {"draft_max": 15}) == ()
    problems = ENGINE.check(settings, build_of("0.33.0"), {"draft_max": 16})
    assert problems == ("draft_max=16: the draft's block of 16 holds 15 drafts beside the anchor",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": 32}, "hidden size"),
        ({"vocab_size": 900}, "vocab size"),
        ({"num_target_layers": 36}, "trained for 36, the target has 12"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 12]}}, r"reads \[12\]"),
        ({"dflash_config": {"target_layer_ids": [1]}}, "mask_token_id"),
    ],
)
def test_pairs_that_do_not_fit(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match=said):
        ENGINE.models(pair(tmp_path, draft=DRAFT | change))


def test_the_text_part_of_a_multimodal_target_counts(tmp_path: Path) -> None:
    wrapped = {"architectures": ["VL"], "text_config": {key: TARGET[key] for key in ("hidden_size", "vocab_size")}}
    assert len(ENGINE.models(pair(tmp_path, target=wrapped))) == 2


def test_names_are_looked_up_in_the_local_cache_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert models.config("org/target") is None
    assert ENGINE.models(SETTINGS) == ()
    repository = tmp_path / "models--org--target"
    write(repository / "snapshots" / "abc", TARGET)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc", encoding="utf-8")
    (found,) = ENGINE.models(SETTINGS)
    assert (found.role, found.path, found.name) == ("target", "org/target", "org/target")


def test_missing_and_broken_models_are_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match=r"engine\.options\.model is not set"):
        ENGINE.models(EngineSettings(name="vllm"))
    with pytest.raises(EngineMissing, match="there is no such directory"):
        ENGINE.models(replace(SETTINGS, options={"model": str(tmp_path / "no")}))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(EngineMissing, match="cannot be read as JSON"):
        ENGINE.models(replace(SETTINGS, options={"model": str(broken)}))
