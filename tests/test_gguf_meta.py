"""What GGUF files say about themselves, whether pairs fit, and what is remembered."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from dflash_sweep import gguf_meta
from dflash_sweep.errors import EngineMissing
from fakes import micropair


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gguf_meta, "_REMEMBERED", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dflash-sweep" / "gguf"


@pytest.fixture
def pair(tmp_path: Path) -> micropair.MicroPair:
    return micropair.write_pair(tmp_path / "pair")


def test_identity(pair: micropair.MicroPair) -> None:
    model = gguf_meta.read(pair.target, "target")
    assert (model.role, model.name, model.architecture, model.quantisation) == (
        "target", "micro target", "qwen3", "F32",
    )  # fmt: skip
    assert model.size_bytes == pair.target.stat().st_size
    assert model.sha256 == hashlib.sha256(pair.target.read_bytes()).hexdigest()


def test_details_of_a_draft(pair: micropair.MicroPair) -> None:
    found = gguf_meta.details(pair.draft)
    expected = {
        "architecture": "dflash", "block_count": 1, "embedding_length": 64, "block_size": 8, "block_size_stated": True,
        "target_layers": [1, 2, 3], "target_width": 192, "vocab_size": 260, "mask_token_id": 259,
        "tensor_types": {"F32": 14}, "attention_key_length": 32,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert found["tokenizer_sha256"] == gguf_meta.details(pair.target)["tokenizer_sha256"]
    assert gguf_meta.max_draft_tokens(pair.draft) == 7
    assert gguf_meta.max_draft_tokens(pair.target) is None


def test_a_draft_that_states_no_block_size_has_16(tmp_path: Path) -> None:
    draft = micropair.write_draft(tmp_path / "draft.gguf", block_size=None)
    found = gguf_meta.details(draft)
    assert (found["block_size"], found["block_size_stated"]) == (16, False)
    assert gguf_meta.max_draft_tokens(draft) == 15


def test_a_pair_that_fits(pair: micropair.MicroPair) -> None:
    assert gguf_meta.check_pair(pair.target, pair.draft) == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"width": 96}, "hidden size: the draft has 96, the target 64; they must be equal"),
        ({"target_layers": (1, 2, 4)}, "target layers: the draft reads [4], the target has layers 0 to 3"),
        ({"target_layers": (-1, 2)}, "target layers: the draft reads [-1], the target has layers 0 to 3"),
        ({"extra_tokens": 2}, "vocabulary: the draft has 262 tokens, the target 260"),
        ({"block_size": 1}, "block size: 1 leaves no place for a drafted token"),
    ],
)
def test_pairs_that_do_not_fit(tmp_path: Path, pair: micropair.MicroPair, change: dict[str, Any], problem: str) -> None:
    draft = micropair.write_draft(tmp_path / "draft.gguf", **change)
    assert problem in gguf_meta.check_pair(pair.target, draft)


def test_equally_many_other_tokens_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = micropair.write_target(tmp_path / "target.gguf")
    swapped = micropair.byte_tokens()
    swapped[65], swapped[66] = swapped[66], swapped[65]
    monkeypatch.setattr(micropair, "byte_tokens", lambda: swapped)
    draft = micropair.write_draft(tmp_path / "draft.gguf")
    (problem,) = gguf_meta.check_pair(target, draft)
    assert problem == "tokenizer: draft and target have equally many tokens, but not the same ones"


def test_architectures_that_do_not_go_together(tmp_path: Path, pair: micropair.MicroPair) -> None:
    gemma = micropair.write_target(tmp_path / "gemma.gguf", architecture="gemma3")
    assert "'gemma3' target does not hand out" in gguf_meta.check_pair(gemma, pair.draft)[0]
    (problem,) = gguf_meta.check_pair(pair.target, pair.draft, architectures=("dflash-draft",))
    assert problem == "architecture: the draft is 'dflash', this engine loads dflash-draft"
    assert "is itself a DFlash draft" in gguf_meta.check_pair(pair.draft, pair.draft)[0]


def test_an_ordinary_small_draft_is_judged_by_its_vocabulary(tmp_path: Path, pair: micropair.MicroPair) -> None:
    small = micropair.write_target(tmp_path / "small.gguf", seed=9)
    assert gguf_meta.check_pair(pair.target, small) == ()


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100, b"GGUF\x03\x00\x00\x00" + b"\xff" * 64])
def test_files_that_are_no_gguf(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(content)
    with pytest.raises(EngineMissing, match=r"x\.gguf is not a readable GGUF file"):
        gguf_meta.details(file)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match=r"none\.gguf does not exist"):
        gguf_meta.read(tmp_path / "none.gguf", "target")
    with pytest.raises(EngineMissing, match=r"none\.gguf: cannot be read"):
        gguf_meta.file_sha256(tmp_path / "none.gguf")


def test_what_was_read_is_remembered_until_the_file_changes(
    pair: micropair.MicroPair, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = gguf_meta.read(pair.target, "target")
    assert len(list(cache.glob("*.json"))) == 2  # details and hash
    monkeypatch.setattr(gguf_meta, "_REMEMBERED", {})  # another process
    monkeypatch.setattr(gguf_meta, "_read", lambda file: pytest.fail("read again"))
    assert gguf_meta.read(pair.target, "target") == before
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent.parent))
    micropair.write_target(pair.target, seed=5)
    assert gguf_meta.read(pair.target, "target").sha256 != before.sha256


def test_a_file_changed_in_place_is_read_again_even_with_the_same_size(pair: micropair.MicroPair) -> None:
    first = gguf_meta.file_sha256(pair.draft)
    content = bytearray(pair.draft.read_bytes())
    content[-1] ^= 1
    pair.draft.write_bytes(bytes(content))
    os.utime(pair.draft, ns=(0, 0))
    assert gguf_meta.file_sha256(pair.draft) != first


def test_a_cache_that_cannot_be_written_or_read_costs_only_time(
    pair: micropair.MicroPair, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gguf_meta.details(pair.draft)
    monkeypatch.setattr(gguf_meta, "_REMEMBERED", {})
    for entry in cache.glob("*.json"):
        entry.write_text("{ torn")
    assert gguf_meta.details(pair.draft) == expected
    blocker = cache.parent.parent / "file"
    blocker.write_text("")
    monkeypatch.setattr(gguf_meta, "_REMEMBERED", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    assert gguf_meta.details(pair.draft) == expected
