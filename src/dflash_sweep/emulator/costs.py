"""Milliseconds of each stage on one card for one setting, and the memory it takes. Imports `devices`, `setting`.

The laws (parameters in `devices/*.toml`, fitted by `fit.py`): pack and draft are linear in the feature window; topk
grows with the rows read; exact is one plain decode per committed token; a batched tree is one forward whose cost grows
with nodes and context. Nothing here is random: noise multiplies what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dflash_sweep.ddtree import effective_top_k
from dflash_sweep.emulator.devices import Card
from dflash_sweep.emulator.setting import Setting

FULL_DRAFT_LAYERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Per-step costs in ms at one context length. `*_per_token_ms` are per committed token of the step;
    `sample_per_token_ms` is the part of exact that sampler and grammar take."""

    pack_ms: float = 0.0
    first_pack_ms: float = 0.0
    draft_ms: float = 0.0
    topk_ms: float = 0.0
    build_ms: float = 0.0
    snapshot_ms: float = 0.0
    tree_ms: float = 0.0
    tree_per_node_ms: float = 0.0
    accept_per_token_ms: float = 0.0
    compact_per_token_ms: float = 0.0
    rollback_ms: float = 0.0
    replay_per_token_ms: float = 0.0
    exact_per_token_ms: float = 0.0
    sample_per_token_ms: float = 0.0

    def stages(self, steps: float, committed: float, nodes: float) -> dict[str, float]:
        """Total ms per stage of `steps` steps that committed `committed` tokens over trees of `nodes` nodes in all."""
        return {
            "pack": self.pack_ms * steps + (self.first_pack_ms if steps else 0.0),
            "draft": self.draft_ms * steps,
            "topk": self.topk_ms * steps,
            "build": self.build_ms * steps,
            "snap": self.snapshot_ms * steps,
            "target_tree": self.tree_ms * steps + self.tree_per_node_ms * nodes,
            "accept": self.accept_per_token_ms * committed,
            "compact": self.compact_per_token_ms * committed,
            "rollback": self.rollback_ms * steps,
            "replay": self.replay_per_token_ms * committed,
            "exact": self.exact_per_token_ms * committed,
        }


def plain_ms_per_token(card: Card, context: float) -> float:
    """One target decode with `context` tokens in the cache."""
    plain = card.costs["plain"]
    return float(plain["base_ms"] + plain["per_kctx_ms"] * context / 1000)


def step_costs(setting: Setting, card: Card, context: float, grammar: bool = False) -> StepCosts:
    """Costs of a speculative step at a mean context of `context` tokens. `grammar`: the request brings one (tools, a
    JSON schema), so that every pick of the walk runs the sampler with it unless grammar verify is off."""
    costs = card.costs
    window = min(setting.target_feat_ctx, context)
    shared = setting.draft_path == "shared"
    pack: dict[str, Any] = costs["pack"] if shared else {"per_position_ms": 0.0, "first_step_per_position_ms": 0.0}
    draft = costs["draft"][setting.draft_path]
    topk = costs["topk"]["on_gpu" if shared and setting.topk_on_gpu else setting.draft_path]
    wide = effective_top_k(setting.budget, setting.top_k, setting.block_size) > 1
    rows = setting.depths
    common = {
        "pack_ms": pack["per_position_ms"] * window,
        "first_pack_ms": pack["first_step_per_position_ms"] * window,
        "draft_ms": (draft["base_ms"] + draft["per_position_ms"] * window) * _offload(setting, draft),
        "topk_ms": topk["base_ms"] + topk["per_row_ms"] * rows + (topk["wide_ms"] if wide else 0.0),
        "build_ms": 0.0,
    }
    grammar_ms = _pick_ms(setting, costs["grammar"]) if grammar else 0.0
    plain = plain_ms_per_token(card, context)
    if not setting.batched:
        return StepCosts(**common, exact_per_token_ms=plain + grammar_ms, sample_per_token_ms=grammar_ms)
    tree, roll = costs["tree"], costs["rollback"]
    kctx = context / 1000
    fast = setting.rolls_back_fast
    return StepCosts(
        **common,
        snapshot_ms=0.0 if fast else roll["snapshot_ms"],
        tree_ms=tree["base_ms"] + tree["base_per_kctx_ms"] * kctx,
        tree_per_node_ms=tree["node_ms"] + tree["node_per_kctx_ms"] * kctx,
        accept_per_token_ms=grammar_ms,
        compact_per_token_ms=costs["commit"]["per_token_ms"],
        rollback_ms=roll["fast_ms"] if fast else 0.0,
        replay_per_token_ms=0.0 if fast else plain,
    )


def _offload(setting: Setting, draft: dict[str, Any]) -> float:
    """How much slower the draft is with some of its layers on the CPU."""
    layers = setting.draft_gpu_layers
    if layers >= FULL_DRAFT_LAYERS:
        return 1.0
    return float(draft.get(f"layers_{max(layers, 3)}", 1.0))


def _pick_ms(setting: Setting, grammar: dict[str, Any]) -> float:
    """Sampler and grammar callback per pick of the verify walk."""
    if not setting.grammar_verify:
        return 0.0
    return float(grammar["shortcircuit_ms"] if setting.batched_shortcircuit else grammar["callback_ms"])


def prefill_ms(setting: Setting, card: Card, tokens: int) -> float:
    """Processing `tokens` prompt tokens in chunks of the physical batch; small chunks cost more per token."""
    prefill = card.costs["prefill"]
    shrink = max(512 / setting.n_ubatch, 1.0) ** prefill["small_batch_power"] - 1
    per_token = prefill["per_token_ms"] + prefill["small_batch_ms"] * shrink
    return float(prefill["per_request_ms"] + per_token * tokens)


def load_s(card: Card) -> float:
    """Seconds from the start of the process to readiness."""
    return float(card.costs["load"]["base_s"])


# ---------------------------------------------------------------- memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """MiB taken by each part, and what is left of the card. `failure` names the part that does not fit; `stage` says
    when: load (the server does not start), reserve (the first request's buffers) or decode (while computing)."""

    parts: dict[str, float]
    free_mib: float
    failure: str | None = None
    stage: str | None = None


def memory(setting: Setting, card: Card) -> Memory:
    """What a server with this setting takes, and whether and where it runs out of memory."""
    costs = card.costs["memory"]
    kv_kib = costs["kv_kib_per_token_f16"] * setting.kv_bits_per_element / 16
    compute = max(costs["compute_mib_per_ubatch"] * setting.n_ubatch, costs["compute_floor_mib"])
    if setting.flash_attn == "off":
        compute += costs["no_flash_attn_mib"]
    layers = min(setting.draft_gpu_layers, FULL_DRAFT_LAYERS) if setting.speculative else 0
    parts = {
        "model": costs["fixed_mib"],
        "kv_cache": kv_kib * setting.n_ctx / 1024,
        "compute": compute,
        "draft": costs["draft_layer_mib"] * layers,
    }
    free = card.memory_mib
    for name, size in parts.items():
        free -= size
        if free < 0:
            return Memory(parts=parts, free_mib=free, failure=name, stage="load")
    if not setting.reserves_persist:
        return Memory(parts=parts, free_mib=free)
    persist = costs["persist_mib_per_node"] * setting.persist_nodes
    parts = {**parts, "persist": persist}
    if persist > free:
        return Memory(parts=parts, free_mib=free, failure="persist", stage="reserve")
    free -= persist
    if free < costs["headroom_mib"]:
        return Memory(parts=parts, free_mib=free, failure="graph", stage="decode")
    return Memory(parts=parts, free_mib=free)
