"""Re-encoded models: same weights within the precision, same metadata, made once, loaded by the real server."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from dflash_sweep import gguf_meta, precision
from dflash_sweep.engines.llamacpp import LlamacppEngine
from dflash_sweep.errors import ConfigError, EngineMissing
from dflash_sweep.records import Knobs
from fakes import micropair
from fakes.microserver import serving, settings


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dflash-sweep" / "precision"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return micropair.write_target(tmp_path / "target.gguf")


def weights(path: Path) -> dict[str, np.ndarray]:
    return {
        t.name: np.array(dequantize(t.data, t.tensor_type), np.float32).reshape(t.shape[::-1])
        for t in GGUFReader(str(path)).tensors
    }


@pytest.mark.parametrize(
    ("kind", "step", "types"),
    [
        ("f32", 0.0, {"F32": 47}),
        ("f16", 2.0**-11, {"F16": 30, "F32": 17}),  # half a unit of 11 bits, relative
        ("q8_0", 1 / 254 + 2.0**-11, {"Q8_0": 30, "F32": 17}),  # half a step of 127 to a block's largest, scale in F16
    ],
)
def test_weights_and_metadata_are_kept(target: Path, kind: str, step: float, types: dict[str, int]) -> None:
    made = precision.reencoded(target, kind)
    assert gguf_meta.details(made)["tensor_types"] == types
    before, after = weights(target), weights(made)
    for name, matrix in before.items():
        scale = np.abs(matrix).max() if kind == "q8_0" else np.maximum(np.abs(matrix), 1e-4)
        assert np.all(np.abs(after[name] - matrix) <= step * scale * 1.01 + (1e-7 if step else 0)), name
    same = {"quantisation", "tensor_types"}
    old, new = gguf_meta.details(target), gguf_meta.details(made)
    assert {k: v for k, v in new.items() if k not in same} == {k: v for k, v in old.items() if k not in same}
    assert new["quantisation"] == kind.upper()


def test_it_is_made_once(target: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = precision.reencoded(target, "f16")
    monkeypatch.setattr(precision, "_encode", lambda *_: pytest.fail("encoded again"))
    assert precision.reencoded(target, "f16") == first
    assert first.parent == cache


def test_other_weights_get_another_file(target: Path) -> None:
    first = precision.reencoded(target, "f16")
    micropair.write_target(target, seed=7)
    assert precision.reencoded(target, "f16") != first


def test_asked_at_once_it_is_made_once(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    encode = precision._encode

    def counted(source: Path, partial: Path, kind: str) -> None:
        made.append(kind)
        encode(source, partial, kind)

    monkeypatch.setattr(precision, "_encode", counted)
    threads = [threading.Thread(target=precision.reencoded, args=(target, "f16")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_nothing_half_written_is_left_behind(target: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: Path, partial: Path, kind: str) -> None:
        partial.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(precision, "_encode", broken)
    with pytest.raises(EngineMissing, match=r"cannot be written: No space left on device"):
        precision.reencoded(target, "f16")
    assert [file.suffix for file in cache.iterdir()] == [".lock"]


def test_a_full_disk_is_noticed_before(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1 << 20})())
    with pytest.raises(EngineMissing, match="has 1 MiB free, about"):
        precision.reencoded(target, "f32")


def test_another_precision_is_refused(target: Path) -> None:
    with pytest.raises(
        ConfigError, match="target_precision='q2_k' is not allowed: it takes as_shipped, q8_0, f16, f32"
    ):
        precision.reencoded(target, "q2_k")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["q8_0", "f16", "f32"])
def test_the_server_loads_it_and_shows_it(target: Path, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("xllamacpp")
    knobs: Knobs = {"target_precision": kind}
    with serving(settings(target), knobs, tmp_path, speculative=False) as micro:
        assert micro.ask("hello").error_type is None
        log = micro.log().decode()
    assert LlamacppEngine().applied(knobs, False, {}, [], log)["target_precision"] == kind
