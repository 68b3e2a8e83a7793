"""Whether an engine can run here: what is missing in words, what is there, pair and memory with a yes or a no."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from dflash_sweep import doctor, memory_fit
from dflash_sweep.engines import REGISTRY
from dflash_sweep.errors import ConfigError
from dflash_sweep.records import Device, EngineSettings, ModelFile
from fakes import micropair
from fakes.servers import arrange

CARD = Device(kind="gpu", index=0, name="Test GPU", uuid="GPU-1", memory_mib=24576)


def one_gpu() -> tuple[Device, ...]:
    return (CARD,)


def no_gpu() -> tuple[Device, ...]:
    return ()


def shown(report: doctor.DoctorReport, width: int = 110) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(doctor.render(report))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - {"emulator", "llamacpp"}))
def test_a_machine_without_the_engine(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = doctor.examine(EngineSettings(name=name), no_gpu)
    assert not report.ok
    assert report.build is None
    assert report.missing
    text = shown(report)
    assert f"{name}: cannot run here yet" in text
    assert any(word in report.missing[0] for word in ("Build", "Install", "Start a server"))
    assert all("\n" not in sentence for sentence in report.missing)


def test_the_emulator_runs_everywhere() -> None:
    report = doctor.examine(EngineSettings(name="emulator"), no_gpu)
    assert report.ok, report.missing
    assert report.memory is None
    assert "emulator: can run here" in shown(report)
    assert {knob.supported for knob in report.knobs} == {True}
    assert "does not say" not in shown(report)


@pytest.mark.parametrize(("engine", "variant", "dialect"), arrange.DIALECTS)
def test_a_machine_with_the_engine(engine: str, variant: str, dialect: str, tmp_path: Path) -> None:
    report = doctor.examine(arrange.settings_for(engine, variant, tmp_path), one_gpu)
    assert report.ok, report.missing
    assert report.build is not None
    assert report.build.dialect == dialect
    text = shown(report)
    assert "can run here" in text
    assert dialect in text
    assert "Test GPU, 24576 MiB" in text
    assert any(knob.supported for knob in report.knobs)


def test_knobs_of_another_generation_are_marked(tmp_path: Path) -> None:
    report = doctor.examine(arrange.settings_for("beellama", "B1", tmp_path), one_gpu)
    support = {knob.name: knob.supported for knob in report.knobs}
    assert support["draft_max"] is True
    assert support["target_feat_ctx"] is False
    assert support["budget"] is False
    reason = next(knob.reason for knob in report.knobs if knob.name == "target_feat_ctx")
    assert "--spec-dflash-cross-ctx" in reason


def test_variables_cannot_be_seen_in_a_help_text(tmp_path: Path) -> None:
    report = doctor.examine(arrange.settings_for("lucebox", "G2", tmp_path), one_gpu)
    assert {knob.name: knob.supported for knob in report.knobs}["rollback_threshold"] is None


def test_models_pair_and_memory_with_a_yes(tmp_path: Path) -> None:
    report = doctor.examine(arrange.settings_for("beellama", "B2", tmp_path), one_gpu)
    assert report.pair_fits is True
    assert report.memory is not None
    assert report.memory.fits is True
    text = shown(report)
    assert "the pair fits together: yes" in text
    assert "fits into memory: yes" in text
    assert "micro target" in text


def test_a_pair_that_does_not_fit(tmp_path: Path) -> None:
    settings = arrange.settings_for("beellama", "B2", tmp_path)
    other = micropair.write_target(tmp_path / "other.gguf", extra_tokens=3)
    report = doctor.examine(replace(settings, model=str(other)), one_gpu)
    assert not report.ok
    assert report.pair_fits is False
    assert [file.role for file in report.models] == ["target", "draft"]
    assert any("vocabulary" in sentence for sentence in report.missing)
    assert "the pair fits together: NO" in shown(report)


def test_a_card_that_is_too_small(tmp_path: Path) -> None:
    settings = arrange.settings_for("beellama", "B2", tmp_path)
    report = doctor.examine(settings, lambda: (replace(CARD, memory_mib=500),))
    assert not report.ok
    assert any(sentence.startswith("memory: about") for sentence in report.missing)
    assert "fits into memory: NO" in shown(report)


def test_no_card_at_all_is_missing(tmp_path: Path) -> None:
    report = doctor.examine(arrange.settings_for("vllm", "0.33.0", tmp_path), no_gpu)
    assert not report.ok
    assert any(sentence.startswith("no GPU") for sentence in report.missing)


def test_a_bad_option_is_reported_not_raised() -> None:
    report = doctor.examine(EngineSettings(name="vllm", options={"no_such": 1}), no_gpu)
    assert any("engine.options.no_such" in sentence for sentence in report.missing)
    with pytest.raises(ConfigError, match="unknown engine"):
        doctor.examine(EngineSettings(name="llama"), no_gpu)


def test_which_engines_of_a_list_can_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bee = arrange.settings_for("beellama", "B2", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = doctor.available([EngineSettings(name="emulator"), EngineSettings(name="lucebox"), bee], one_gpu)
    assert [settings.name for settings in found.here] == ["emulator", "beellama"]
    ((skipped, reason),) = found.skipped
    assert skipped.name == "lucebox"
    assert "no luce_server or dflash_server on the PATH" in reason


# ---------------------------------------------------------------- memory


def test_the_cache_of_a_gguf_model() -> None:
    """1024 tokens · 10 layers · 4 heads · (64 + 64) · 2 bytes = 10 MiB."""
    details = {
        "block_count": 10,
        "attention_head_count_kv": 4,
        "attention_key_length": 64,
        "attention_value_length": 64,
    }
    assert memory_fit.gguf_cache_mib(details, 1024) == pytest.approx(10.0)
    # without a stated length: width / heads = 512 / 8 = 64; recurrent layers have no heads: 3 of 10 layers have 4
    hybrid = {
        "block_count": 10, "embedding_length": 512, "attention_head_count": 8,
        "attention_head_count_kv": [0, 0, 4, 0, 0, 4, 0, 0, 4, 0],
    }  # fmt: skip
    assert memory_fit.gguf_cache_mib(hybrid, 1024) == pytest.approx(3.0)
    assert memory_fit.gguf_cache_mib({"block_count": None}, 1024) is None
    assert memory_fit.gguf_cache_mib({"block_count": 2}, 1024) is None


def test_the_cache_of_a_config() -> None:
    """The same 10 MiB, and 5 MiB if every second layer is linear attention."""
    config = {"num_hidden_layers": 10, "num_key_value_heads": 4, "num_attention_heads": 8, "head_dim": 64}
    assert memory_fit.config_cache_mib({"text_config": config}, 1024) == pytest.approx(10.0)
    mixed = config | {"layer_types": ["linear_attention", "full_attention"] * 5}
    assert memory_fit.config_cache_mib(mixed, 1024) == pytest.approx(5.0)
    assert memory_fit.config_cache_mib({}, 1024) is None


def model_file(folder: Path, size_mib: int) -> ModelFile:
    config = {"num_hidden_layers": 10, "num_key_value_heads": 4, "num_attention_heads": 8, "head_dim": 64}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return ModelFile(role="target", path=str(folder), size_bytes=size_mib << 20, sha256="0")


def test_need_against_room(tmp_path: Path) -> None:
    """100 MiB of weights + 10 MiB of cache + 1024 MiB allowance = 1134 MiB."""
    settings = EngineSettings(name="vllm", n_ctx=1024)
    files = [model_file(tmp_path / "m", 100)]
    fit = memory_fit.estimate(settings, files, 1134.0, "card")
    assert fit.need_mib == pytest.approx(1134.0)
    assert fit.fits is True
    assert memory_fit.estimate(settings, files, 1133.0, "card").fits is False
    assert memory_fit.estimate(settings, files, None, "card").fits is None
    assert memory_fit.estimate(settings, [], 9999.0, "card").fits is None


def test_an_unknown_cache_is_no_yes(tmp_path: Path) -> None:
    settings = EngineSettings(name="vllm", n_ctx=1024)
    unknown = ModelFile(role="target", path=str(tmp_path / "gone"), size_bytes=100 << 20, sha256="0")
    assert memory_fit.estimate(settings, [unknown], 9999.0, "card").fits is None
    assert memory_fit.estimate(settings, [unknown], 500.0, "card").fits is False
