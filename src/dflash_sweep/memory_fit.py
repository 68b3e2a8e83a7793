"""Do target, draft and their caches fit into memory? An estimate before launch. Imports `gguf_meta`, `engines.models`.

weights = size of the model files; cache = tokens × Σ over layers of KV heads × (key + value length) × bytes a value;
buffers = a fixed allowance. Recurrent state and vision parts are not counted, so a narrow yes is no promise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_sweep.records import EngineSettings, ModelFile

MIB = 1024.0 * 1024.0
CACHE_BYTES = 2.0
"""Bytes a cached value takes unquantised (f16 or bf16): what every engine starts with or above."""

BUFFER_MIB = 1024.0
"""Allowance for compute buffers and the driver's context: an assumption, not a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """An estimate. `fits` None = need or room is not known. All figures MiB."""

    fits: bool | None
    parts_mib: Mapping[str, float]
    need_mib: float | None
    room_mib: float | None
    where: str
    unknown: tuple[str, ...] = ()


def _heads(value: Any, layers: int) -> float | None:
    """KV heads summed over layers; models with recurrent layers list one number a layer."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return float(sum(value))
    return float(value * layers) if isinstance(value, int) else None


def gguf_cache_mib(details: Mapping[str, Any], n_ctx: int) -> float | None:
    """Cache of one GGUF model; None if its metadata does not say enough."""
    layers, width, heads = (details.get(key) for key in ("block_count", "embedding_length", "attention_head_count"))
    if not isinstance(layers, int):
        return None
    kv_heads = details.get("attention_head_count_kv")
    total = _heads(kv_heads if kv_heads is not None else heads, layers)
    default = width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None
    key = details.get("attention_key_length") or default
    value = details.get("attention_value_length") or default
    if total is None or key is None or value is None:
        return None
    return n_ctx * total * (key + value) * CACHE_BYTES / MIB


def config_cache_mib(config: Mapping[str, Any], n_ctx: int) -> float | None:
    """Cache of one Hugging Face model by its config.json; layers that are not full attention are left out if listed."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    layers, heads = text.get("num_hidden_layers"), text.get("num_attention_heads")
    kv_heads, width = text.get("num_key_value_heads", heads), text.get("hidden_size")
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        layers = sum("linear" not in str(kind) for kind in kinds)
    length = text.get("head_dim") or (width // heads if isinstance(width, int) and isinstance(heads, int) else None)
    if not (isinstance(layers, int) and isinstance(kv_heads, int) and isinstance(length, int)):
        return None
    return n_ctx * layers * kv_heads * 2 * length * CACHE_BYTES / MIB


def _cache_mib(file: ModelFile, n_ctx: int) -> float | None:
    if file.path.endswith(".gguf"):
        from dflash_sweep import gguf_meta

        return gguf_cache_mib(gguf_meta.details(file.path), n_ctx)
    from dflash_sweep.engines import models

    config = models.config(file.path)
    return None if config is None else config_cache_mib(config, n_ctx)


def estimate(settings: EngineSettings, files: Sequence[ModelFile], room_mib: float | None, where: str) -> MemoryFit:
    """Need against room. `room_mib` None = the device does not say; `where` names it."""
    parts: dict[str, float] = {}
    unknown = [] if files else ["no model file of this machine was read"]
    for file in files:
        parts[f"{file.role} weights"] = file.size_bytes / MIB
        cache = _cache_mib(file, settings.n_ctx)
        if cache is None:
            unknown.append(f"the {file.role}'s cache size")
        else:
            parts[f"{file.role} cache, {settings.n_ctx} tokens at 16 bits"] = cache
    if files:
        parts["buffers (allowance)"] = BUFFER_MIB
    need = sum(parts.values()) if files else None
    fits = None if need is None or room_mib is None else need <= room_mib
    if fits and unknown:
        fits = None  # what is known fits, but not everything is known
    return MemoryFit(
        fits=fits, parts_mib=parts, need_mib=need, room_mib=room_mib, where=where, unknown=tuple(unknown)
    )  # fmt: skip
