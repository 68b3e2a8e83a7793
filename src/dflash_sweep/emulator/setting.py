"""What a server was started with, as the emulator acts on it. Imports `records` and `errors` only."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields
from typing import Any

from dflash_sweep.errors import ConfigError
from dflash_sweep.records import Knobs

KV_BITS: dict[str, float] = {
    "f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q4_0": 4.5, "q4_1": 5.0, "iq4_nl": 4.5, "q5_0": 5.5,
    "q5_1": 6.0, "tq3_0": 3.5,
}  # fmt: skip
"""Bits per cached element, scales included."""

DRAFT_PATHS = ("shared", "dedicated")
"""shared: the draft runs in the target's scheduler (the published runs, step near 220 ms). dedicated: it has its own
path (step near 86 ms); those builds also reserve persist buffers for the root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Effective settings of one server. Defaults are the fork's; `block_size`, `tree_rows` and `chain_depth_cap` are
    experiments of the published runs that no build offers as a flag. `topk_on_gpu`: the last builds before the
    dedicated draft path, which read the best candidates of a row instead of all its scores."""

    speculative: bool = True
    target_feat_ctx: int = 128
    budget: int = 22
    proposal_temp: float = 1.0
    top_k: int = 0
    chain_seed: bool = True
    verifier: str = "paper"
    fast_rollback: bool | None = None
    grammar_verify: bool = True
    batched_shortcircuit: bool = False
    snapshot_fallback: bool = True
    rollback_graph: bool = True
    capture_direct: bool = False
    profile: bool = False
    draft_gpu_layers: int = 6
    gpu_layers: int = 65
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    n_batch: int = 2048
    n_ubatch: int = 512
    flash_attn: str = "on"
    n_ctx: int = 8192
    draft_path: str = "shared"
    block_size: int = 16
    tree_rows: int | None = None
    chain_depth_cap: int | None = None
    topk_on_gpu: bool = False

    @property
    def depths(self) -> int:
        """Levels that a tree can have."""
        rows = self.block_size - 1
        return rows if self.tree_rows is None else min(rows, self.tree_rows)

    @property
    def batched(self) -> bool:
        """Whether one forward over the tree replaces the one-by-one decode of committed tokens."""
        return self.speculative and self.verifier in ("trusted", "fast_batched")

    @property
    def rolls_back_fast(self) -> bool:
        """Persist buffers instead of snapshot and replay (trusted has no other way)."""
        return self.batched and (self.verifier == "trusted" or bool(self.fast_rollback))

    @property
    def reserves_persist(self) -> bool:
        """Whether memory for per-node recurrent state is taken. The paper verifier takes it without using it."""
        return self.speculative and (self.rolls_back_fast or (self.verifier == "paper" and self.fast_rollback is True))

    @property
    def persist_nodes(self) -> int:
        """Nodes that persist buffers are made for: the budget, and the root too in builds with the dedicated path."""
        return self.budget + (1 if self.draft_path == "dedicated" else 0)

    @property
    def kv_bits_per_element(self) -> float:
        return (KV_BITS[self.cache_type_k] + KV_BITS[self.cache_type_v]) / 2

    @property
    def numerics(self) -> int:
        """A number that differs where rounding differs: it re-draws the dials' `numeric_share` of the luck."""
        return zlib.crc32(f"{self.target_feat_ctx}/{self.n_ubatch}/{self.cache_type_k}/{self.cache_type_v}".encode())


_NAMES = {entry.name for entry in fields(Setting)}


def from_knobs(knobs: Knobs, **others: Any) -> Setting:
    """Setting from canonical knobs (None = default) and other fields. Clamps as the fork does, silently. Raises
    ConfigError for a name that the emulator does not have."""
    values: dict[str, Any] = {name: value for name, value in {**knobs, **others}.items() if value is not None}
    if unknown := sorted(set(values) - _NAMES):
        raise ConfigError(f"the emulator has no setting {unknown[0]!r}; known: {', '.join(sorted(_NAMES))}")
    window = values.get("target_feat_ctx", 128)
    values["target_feat_ctx"] = min(int(window), 2048) if window > 0 else 128
    for name in ("cache_type_k", "cache_type_v"):
        if values.get(name, "f16") not in KV_BITS:
            raise ConfigError(f"Unsupported cache type: {values[name]}")
    setting = Setting(**values)
    return _fitted(setting)


def _fitted(setting: Setting) -> Setting:
    """-b is capped by the context, -ub by -b."""
    batch = min(setting.n_batch, setting.n_ctx)
    ubatch = min(setting.n_ubatch, batch)
    if (batch, ubatch) == (setting.n_batch, setting.n_ubatch):
        return setting
    values = {entry.name: getattr(setting, entry.name) for entry in fields(Setting)}
    return Setting(**{**values, "n_batch": batch, "n_ubatch": ubatch})
