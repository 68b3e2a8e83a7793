"""Model files before launch: GGUF pairs, and the Python servers' model directories. Imports `gguf_meta`, `records`.

A name such as `org/model` is looked up in the local Hugging Face cache only; nothing is downloaded here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_sweep.errors import EngineMissing
from dflash_sweep.records import EngineSettings, ModelFile

WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")


def gguf_files(engine: str, settings: EngineSettings) -> tuple[ModelFile, ...]:
    """Target and draft by their own metadata; a draft that is no GGUF is named and hashed, not read.

    Raises EngineMissing: a file is missing or the two do not fit.
    """
    from dflash_sweep import gguf_meta

    if settings.model is None:
        raise EngineMissing(f"engine.model is not set: {engine} needs a GGUF file of the target model")
    files = [gguf_meta.read(settings.model, "target")]
    draft = settings.draft_model
    if draft is None:
        return tuple(files)
    if draft.endswith(".safetensors"):
        path = Path(draft)
        if not path.is_file():
            raise EngineMissing(f"engine.draft_model={draft}: there is no such file")
        sha256 = gguf_meta.file_sha256(path)
        return (*files, ModelFile(role="draft", path=draft, size_bytes=path.stat().st_size, sha256=sha256))
    files.append(gguf_meta.read(draft, "draft"))
    problems = gguf_meta.check_pair(settings.model, draft, no_layer_inputs=())
    if problems:
        raise EngineMissing(f"target and draft do not fit together: {'; '.join(problems)}")
    return tuple(files)


# ---------------------------------------------------------------- Hugging Face directories


def _cache() -> Path:
    """The hub's cache as its own client finds it."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub)
    home = os.environ.get("HF_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "huggingface") / "hub"


def directory(name: str) -> Path | None:
    """Directory of a model: the path itself, or the cached snapshot of `org/model`. None = not on this machine."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    repository = _cache() / f"models--{name.replace('/', '--')}"
    revision = repository / "refs" / "main"
    if revision.is_file():
        snapshot = repository / "snapshots" / revision.read_text(encoding="utf-8").strip()
        return snapshot if snapshot.is_dir() else None
    return None


def config(name: str) -> dict[str, Any] | None:
    """A model's config.json; None = not on this machine. Raises EngineMissing: it is there but unreadable."""
    folder = directory(name)
    if folder is None:
        return None
    file = folder / "config.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineMissing(f"{file}: cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise EngineMissing(f"{file}: a JSON object is needed")
    return found


def _text(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config: multimodal models keep it one level down."""
    inner = found.get("text_config")
    return inner if isinstance(inner, Mapping) else found


def record(name: str, role: str) -> ModelFile | None:
    """A directory as a record; None = not on this machine. `sha256`: over config.json, names and sizes of weights."""
    folder, found = directory(name), config(name)
    if folder is None or found is None:
        return None
    weights = sorted(file for file in folder.iterdir() if file.suffix in WEIGHTS)
    sizes = [(file.name, file.stat().st_size) for file in weights]
    digest = hashlib.sha256((folder / "config.json").read_bytes() + repr(sizes).encode()).hexdigest()
    architectures = found.get("architectures")
    quantisation = found.get("quantization_config")
    return ModelFile(
        role=role,
        path=name,
        size_bytes=sum(size for _, size in sizes),
        sha256=digest,
        name=folder.name if directory(name) == Path(name).expanduser() else name,
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else None,
        quantisation=str(quantisation.get("quant_method")) if isinstance(quantisation, Mapping) else None,
    )


def block_size(draft: str | None) -> int | None:
    """A draft's block, anchor included, as its config states it; None = not stated or not on this machine."""
    found = config(draft) if draft is not None else None
    size = None if found is None else found.get("block_size", _dflash(found).get("block_size"))
    return size if isinstance(size, int) else None


def _dflash(found: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = found.get("dflash_config")
    return inner if isinstance(inner, Mapping) else {}


def pair_problems(target: str, draft: str) -> tuple[str, ...]:
    """What keeps two models from working together, one sentence each; empty = they fit or cannot be judged here."""
    full, small = config(target), config(draft)
    if full is None or small is None:
        return ()
    text, own = _text(full), _text(small)
    problems = [
        f"{key.replace('_', ' ')}: the draft has {own[key]}, the target {text[key]}; they must be equal"
        for key in ("hidden_size", "vocab_size")
        if isinstance(own.get(key), int) and isinstance(text.get(key), int) and own[key] != text[key]
    ]
    return (*problems, *_layer_problems(text, small))


def _layer_problems(text: Mapping[str, Any], small: Mapping[str, Any]) -> list[str]:
    problems = []
    count, dflash = text.get("num_hidden_layers"), _dflash(small)
    layers = dflash.get("target_layer_ids", small.get("target_layer_ids"))
    trained_for = small.get("num_target_layers")
    if isinstance(trained_for, int) and isinstance(count, int) and trained_for != count:
        problems.append(f"target layers: the draft was trained for {trained_for}, the target has {count}")
    if isinstance(layers, list) and isinstance(count, int):
        beyond = [layer for layer in layers if isinstance(layer, int) and layer >= count]
        if beyond:
            problems.append(f"target layers: the draft reads {beyond}, the target has layers 0 to {count - 1}")
    if dflash and dflash.get("mask_token_id", small.get("mask_token_id")) is None:
        problems.append("mask token: the draft's dflash_config names no mask_token_id")
    return problems


def hub_files(target: str | None, draft: str | None, engine: str) -> tuple[ModelFile, ...]:
    """Records of the models on this machine. Raises EngineMissing: no target named, or the pair does not fit."""
    if target is None:
        raise EngineMissing(
            f"engine.options.model is not set: {engine} needs a model directory or a name such as org/model"
        )
    for key, name in (("model", target), ("draft_model", draft)):
        if name is not None and name.startswith(("/", "./", "~")) and directory(name) is None:
            raise EngineMissing(f"engine.options.{key}={name}: there is no such directory")
    if draft is not None and (problems := pair_problems(target, draft)):
        raise EngineMissing(f"target and draft do not fit together: {'; '.join(problems)}")
    named = ((target, "target"), (draft, "draft"))
    found = [record(name, role) for name, role in named if name is not None]
    return tuple(entry for entry in found if entry is not None)
