"""What a GGUF file says about itself: sizes, vocabulary, DFlash keys, hash; and whether target and draft fit.

Imports `records`, `errors` and the `gguf` package. Reading a large vocabulary and hashing gigabytes take seconds, so
both are remembered: in this process and in `$XDG_CACHE_HOME/dflash-sweep/gguf/`, keyed by path, size, inode and change
time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dflash_sweep.errors import EngineMissing
from dflash_sweep.records import ModelFile

CACHE_FORMAT = 1
"""Part of every cache key: raised whenever a remembered field changes its meaning."""

DRAFT_ARCHITECTURES = ("dflash", "dflash-draft")
"""`dflash` is upstream llama.cpp's (pull request 22105), `dflash-draft` the forks' older layout of tensors and keys."""

DEFAULT_BLOCK_SIZE = 16
"""Block size of a draft that does not state one (llama.cpp's own default)."""

NO_LAYER_INPUTS = ("gemma3", "qwen2")
"""Target architectures that upstream b11549 runs but cannot feed a DFlash draft from: the server aborts."""

_SIZES = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "block_size",
)  # fmt: skip

_REMEMBERED: dict[tuple[Any, ...], dict[str, Any]] = {}


def cache_dir() -> Path:
    """Where this program may keep what it can make again: `$XDG_CACHE_HOME/dflash-sweep` or `~/.cache/dflash-sweep`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "dflash-sweep"


def _identity(path: Path) -> tuple[Any, ...]:
    status = path.stat()
    return (str(path.resolve()), status.st_mtime_ns, status.st_size, status.st_ino, CACHE_FORMAT)


def _entry(path: Path, kind: str) -> Path:
    key = hashlib.sha256(repr((kind, *_identity(path))).encode()).hexdigest()[:32]
    return cache_dir() / "gguf" / f"{key}.json"


def _recall(path: Path, kind: str) -> dict[str, Any] | None:
    key = (kind, *_identity(path))
    if key not in _REMEMBERED:
        with contextlib.suppress(OSError, ValueError):
            stored = json.loads(_entry(path, kind).read_text(encoding="utf-8"))
            if isinstance(stored, dict):
                _REMEMBERED[key] = stored
    return _REMEMBERED.get(key)


def _remember(path: Path, kind: str, value: dict[str, Any]) -> dict[str, Any]:
    _REMEMBERED[(kind, *_identity(path))] = value
    entry = _entry(path, kind)
    with contextlib.suppress(OSError):  # a read-only home costs time, not correctness
        entry.parent.mkdir(parents=True, exist_ok=True)
        partial = entry.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(json.dumps(value), encoding="utf-8")
        partial.replace(entry)
    return value


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file in hex, remembered while the file stays the same. Raises EngineMissing if unreadable."""
    file = Path(path)
    try:
        if known := _recall(file, "sha256"):
            return str(known["sha256"])
        with file.open("rb") as handle:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
        _remember(file, "sha256", {"sha256": digest})
    except OSError as error:
        raise EngineMissing(f"{file}: cannot be read: {error.strerror or error}") from None
    return digest


def details(path: str | Path) -> dict[str, Any]:
    """What the file says, for people and for checks. Keys that the file does not have are None.

    `tokenizer_sha256` is over model, tokens, token types and merges; `tensor_types` counts tensors by type;
    `block_size` is the stated one, or 16 for a DFlash draft that states none (`block_size_stated` False);
    `target_layers` are the target's layers whose inputs a draft reads; `target_width` is the width of the features
    that its `fc` matrix expects. Raises EngineMissing: no such file, or not a GGUF file.
    """
    file = Path(path)
    if not file.is_file():
        raise EngineMissing(f"model file {file} does not exist")
    known = _recall(file, "details")
    return dict(known) if known is not None else dict(_remember(file, "details", _read(file)))


def _read(file: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(str(file))
    except Exception as error:  # noqa: BLE001 the reader raises what numpy and struct raise on foreign bytes
        raise EngineMissing(f"model file {file} is not a readable GGUF file: {error}") from None
    architecture = _scalar(reader, "general.architecture")
    found: dict[str, Any] = {
        "architecture": architecture,
        "name": _scalar(reader, "general.name"),
        "license": _scalar(reader, "general.license"),
        "size_label": _scalar(reader, "general.size_label"),
        "quantisation": _quantisation(_scalar(reader, "general.file_type")),
    }
    for key in _SIZES:
        found[key.replace(".", "_")] = _scalar(reader, f"{architecture}.{key}")
    found["tensor_types"] = dict(Counter(tensor.tensor_type.name for tensor in reader.tensors))
    found["parameters"] = sum(int(tensor.n_elements) for tensor in reader.tensors)
    return found | _tokenizer(reader) | _draft_keys(reader, architecture)


def _scalar(reader: Any, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _quantisation(file_type: int | None) -> str | None:
    from gguf import LlamaFileType

    if file_type is None:
        return None
    with contextlib.suppress(ValueError):
        return LlamaFileType(file_type).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    return f"type {file_type}"


def _raw(reader: Any, key: str) -> tuple[int, bytes]:
    """(number of entries, their bytes) of an array field, without making a Python object of each entry."""
    field = reader.get_field(key)
    if field is None:
        return 0, b""
    return len(field.data), b"\0".join(field.parts[index].tobytes() for index in field.data)


def _tokenizer(reader: Any) -> dict[str, Any]:
    size, tokens = _raw(reader, "tokenizer.ggml.tokens")
    digest = hashlib.sha256(str(_scalar(reader, "tokenizer.ggml.model")).encode())
    for part in (tokens, _raw(reader, "tokenizer.ggml.token_type")[1], _raw(reader, "tokenizer.ggml.merges")[1]):
        digest.update(part)
    template = _scalar(reader, "tokenizer.chat_template")
    return {
        "vocab_size": size or None,
        "tokenizer_model": _scalar(reader, "tokenizer.ggml.model"),
        "tokenizer_pre": _scalar(reader, "tokenizer.ggml.pre"),
        "tokenizer_sha256": digest.hexdigest() if size else None,
        "mask_token_id": _scalar(reader, "tokenizer.ggml.mask_token_id"),
        "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest() if template else None,
        "chat_template_knows_tools": None if template is None else "tools" in template,
    }


def _draft_keys(reader: Any, architecture: Any) -> dict[str, Any]:
    if architecture not in DRAFT_ARCHITECTURES:
        return {"target_layers": None, "target_width": None, "block_size_stated": None}
    layers = _scalar(reader, f"{architecture}.target_layers")
    width = next((int(tensor.shape[0]) for tensor in reader.tensors if tensor.name == "fc.weight"), None)
    stated = _scalar(reader, f"{architecture}.block_size")
    return {
        "target_layers": None if layers is None else [int(layer) for layer in layers],
        "target_width": width,
        "block_size": DEFAULT_BLOCK_SIZE if stated is None else int(stated),
        "block_size_stated": stated is not None,
    }


def read(path: str | Path, role: str) -> ModelFile:
    """A model file's identity. `role`: target or draft. Raises EngineMissing: no such file, not a GGUF file."""
    found, file = details(path), Path(path)
    return ModelFile(
        role=role, path=str(file), size_bytes=file.stat().st_size, sha256=file_sha256(file), name=found["name"],
        architecture=found["architecture"], quantisation=found["quantisation"],
    )  # fmt: skip


def max_draft_tokens(draft_path: str | Path) -> int | None:
    """The most tokens a DFlash draft can propose per step: its block size − 1 (the anchor takes one place).

    None for a draft of another kind, which has no such limit.
    """
    found = details(draft_path)
    return int(found["block_size"]) - 1 if found["architecture"] in DRAFT_ARCHITECTURES else None


def check_pair(
    target_path: str | Path,
    draft_path: str | Path,
    *,
    architectures: Iterable[str] = DRAFT_ARCHITECTURES,
    no_layer_inputs: Iterable[str] = NO_LAYER_INPUTS,
) -> tuple[str, ...]:
    """What keeps a target and a draft from working together, one sentence each; empty = they fit.

    `architectures`: the draft layouts that the engine at hand loads; `no_layer_inputs`: targets it cannot draft for.
    A draft of another architecture (a small ordinary model) is judged by its vocabulary alone.
    """
    target, draft = details(target_path), details(draft_path)
    problems = [*_vocabulary_problems(target, draft)]
    if draft["architecture"] in DRAFT_ARCHITECTURES:
        problems += _dflash_problems(target, draft, tuple(architectures), tuple(no_layer_inputs))
    if target["architecture"] in DRAFT_ARCHITECTURES:
        problems.insert(0, f"the target file {target_path} is itself a DFlash draft ({target['architecture']})")
    return tuple(problems)


def _vocabulary_problems(target: Mapping[str, Any], draft: Mapping[str, Any]) -> list[str]:
    if draft["vocab_size"] is None or target["vocab_size"] is None:
        return []
    if draft["vocab_size"] != target["vocab_size"]:
        return [f"vocabulary: the draft has {draft['vocab_size']} tokens, the target {target['vocab_size']}"]
    if draft["tokenizer_sha256"] != target["tokenizer_sha256"]:
        return ["tokenizer: draft and target have equally many tokens, but not the same ones"]
    return []


def _dflash_problems(
    target: Mapping[str, Any], draft: Mapping[str, Any], architectures: tuple[str, ...], refused: tuple[str, ...]
) -> list[str]:
    problems = []
    if draft["architecture"] not in architectures:
        problems.append(
            f"architecture: the draft is {draft['architecture']!r}, this engine loads {' or '.join(architectures)}"
        )
    if target["architecture"] in refused:
        problems.append(
            f"architecture: a {target['architecture']!r} target does not hand out the inputs of its layers, "
            "which a DFlash draft reads"
        )
    hidden, width = target["embedding_length"], draft["embedding_length"]
    if None not in (hidden, width) and hidden != width:
        problems.append(f"hidden size: the draft has {width}, the target {hidden}; they must be equal")
    return problems + _layer_problems(target, draft)


def _layer_problems(target: Mapping[str, Any], draft: Mapping[str, Any]) -> list[str]:
    layers, count, hidden = draft["target_layers"], target["block_count"], target["embedding_length"]
    if draft["architecture"] != "dflash":  # the older layout's builds have layers and mask token built in
        return []
    if not layers:
        return ["target layers: the draft does not say which layers of the target it reads"]
    problems = []
    beyond = [layer for layer in layers if count is not None and not 0 <= layer < count]
    if beyond:
        problems.append(f"target layers: the draft reads {beyond}, the target has layers 0 to {count - 1}")
    width = draft["target_width"]
    if None not in (width, hidden) and width != hidden * len(layers):
        problems.append(
            f"target layers: the draft's fc matrix takes {width} features, "
            f"{len(layers)} layers of the target give {hidden * len(layers)}"
        )
    if draft["block_size"] < 2:
        problems.append(f"block size: {draft['block_size']} leaves no place for a drafted token")
    if draft["mask_token_id"] is None:
        problems.append("mask token: the draft names no tokenizer.ggml.mask_token_id")
    return problems
