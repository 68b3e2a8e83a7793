"""The words of foreign logs: which name means which knob, figure or part of the workload. Imports `records` only."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dflash_sweep.records import KnobValue

KNOB_NAMES: Mapping[str, tuple[str, ...]] = {
    "target_feat_ctx": ("target_feat_ctx", "feature_window", "feat_ctx", "window", "cross_ctx", "dflash_cross_ctx"),
    "budget": ("budget", "ddtree_budget", "tree_budget"),
    "proposal_temp": ("proposal_temp", "proposal_temperature", "ddtree_temp", "draft_temp"),
    "top_k": ("top_k", "topk", "ddtree_top_k", "ddtree_k"),
    "chain_seed": ("chain_seed",),
    "chain_depth_cap": ("chain_depth_cap",),
    "tree_rows": ("tree_rows",),
    "block_size": ("block_size", "draft_block_size"),
    "draft_max": ("draft_max", "draft_n", "num_speculative_tokens", "spec_draft_n_max"),
    "draft_min": ("draft_min", "spec_draft_n_min"),
    "draft_p_min": ("draft_p_min", "p_min"),
    "draft_n_ctx": ("draft_n_ctx", "draft_ctx", "draft_ctx_size"),
    "draft_gpu_layers": ("draft_gpu_layers", "ngld", "draft_ngl"),
    "gpu_layers": ("gpu_layers", "n_gpu_layers", "ngl"),
    "cache_type_k": ("cache_type_k", "type_k", "ctk", "kv_type_k"),
    "cache_type_v": ("cache_type_v", "type_v", "ctv", "kv_type_v"),
    "kv_type": ("kv_type", "kv_cache_type", "cache_type", "kv"),
    "n_ctx": ("n_ctx", "ctx_size", "context", "ctx", "context_size"),
    "n_batch": ("n_batch", "batch", "batch_size"),
    "n_ubatch": ("n_ubatch", "ubatch", "ubatch_size"),
    "threads": ("threads", "n_threads", "num_threads"),
    "flash_attn": ("flash_attn", "fa", "flash_attention"),
    "fast_rollback": ("fast_rollback",),
    "fast_batched": ("fast_batched",),
    "skip_exact_seq_rm": ("skip_exact_seq_rm",),
    "force_chain_kernel": ("force_chain_kernel",),
    "profile": ("profile", "stage_profile"),
    "trace": ("trace", "trace_diagnostics"),
    "speculative": ("speculative", "speculation", "spec"),
}
"""Canonical knob → names it goes by in logs. `kv_type` sets both cache types; `speculative` is no knob of ours."""

WORKLOAD_NAMES = frozenset({"gen", "n_gen", "n_predict", "max_tokens", "n_prompt", "prompt_tokens", "model", "test"})
"""Parameters that change what is measured, not how it is served: they go into the comparability key."""

CODE_NAMES = frozenset({"code_change", "source_change", "patch"})
"""Marks of a changed build."""

FLAGS = frozenset(
    {
        "chain_seed", "flash_attn", "fast_rollback", "fast_batched", "skip_exact_seq_rm", "force_chain_kernel",
        "profile", "trace", "speculative",
    }
)  # fmt: skip
"""Knobs that are on or off."""

FIGURES = frozenset(
    {
        "tps", "decode_tps", "e2e_tps", "api_tps", "wall_tps", "prefill_tps", "pp_tps", "tg_tps", "spec_sec",
        "gen_tokens", "output_tokens", "decode_tokens", "steps", "verify_steps", "committed", "accepted",
        "drafted", "step_ms", "pack_ms", "draft_ms", "topk_ms", "build_ms", "snapshot_ms", "verify_ms",
        "accept_ms", "compact_ms", "rollback_ms", "ingest_ms", "replay_ms", "exact_ms", "other_ms",
        "acceptance", "acceptance_length", "memory_gb", "peak_memory_mib", "avg_ts", "stddev_ts", "avg_ns",
        "stddev_ns", "ttft_ms", "tpot_ms", "confidence",
    }
)  # fmt: skip
"""Names of figures: results, never parameters."""

_LOOKUP = {name: knob for knob, names in KNOB_NAMES.items() for name in names}


def plain_name(name: str) -> str:
    """A name without dashes, prefix or case: --Cache-Type-K → cache_type_k."""
    return re.sub(r"[^a-z0-9_]", "_", name.strip().lower().lstrip("-").removeprefix("params_")).strip("_")


def canonical(name: str) -> str | None:
    """The knob (or workload or code mark) that a log's name means; None = not known."""
    key = plain_name(name)
    if key in WORKLOAD_NAMES or key in CODE_NAMES:
        return key
    return _LOOKUP.get(key)


def is_figure(name: str) -> bool:
    return plain_name(name) in FIGURES


def value_of(knob: str, raw: object) -> KnobValue:
    """A parameter's value by its kind: flags as bool, 64k as 65536, numbers as int or float, else the text."""
    if isinstance(raw, bool) or raw is None:
        return raw
    text = str(raw).strip().lower()
    if knob in FLAGS:
        return _flag(text)
    thousands = re.fullmatch(r"(\d+)k", text)
    if thousands and knob in ("n_ctx", "draft_n_ctx", "target_feat_ctx"):
        return int(thousands.group(1)) * 1024
    try:
        number = float(text)
    except ValueError:
        return str(raw).strip()
    return int(number) if number.is_integer() and abs(number) < 1e15 else number


def _flag(text: str) -> KnobValue:
    if text in ("1", "1.0", "true", "on", "yes", "enabled"):
        return True
    if text in ("0", "0.0", "false", "off", "no", "none", "disabled"):
        return False
    return text


PHRASES: tuple[tuple[str, str], ...] = (
    ("target_feat_ctx", r"\bwindow(?: of)? (\d+)\b"),
    ("budget", r"\bbudget(?: of| to)?[ =:]+(\d+)\b"),
    ("proposal_temp", r"\b(?:proposal |draft )temp(?:erature)?(?: of| to)?[ =:]+(\d*\.?\d+)\b"),
    ("top_k", r"\b(?:top[-_ ]?k|K)(?: capped at| of| to)?[ =:]+(\d+)\b"),
    ("n_ctx", r"\b(?:context|ctx|at) (?:of )?(\d+k)\b"),
    ("n_batch", r"(?<![a-z])batch(?: size)?[ =:]+(\d+)\b"),
    ("n_ubatch", r"\bubatch(?: size)?[ =:]+(\d+)\b"),
    ("block_size", r"\bblock size[ =:]+(\d+)\b"),
    ("draft_gpu_layers", r"\b(\d+) draft GPU layers\b"),
    ("kv_type", r"\bKV(?: cache)?(?: type)?[ =:]+(f16|bf16|f32|tq\d_\d|i?q\d_\w+)\b"),
    ("threads", r"\b(\d+) threads\b"),
)
"""Knob → pattern with one group, tried on descriptions without regard to case."""

PLAIN_NOTE = r"\bchain decode\b[^.]*?(\d+(?:\.\d+)?) ?ms|\bplain (?:target )?decod\w+[^.]*?(\d+(?:\.\d+)?) ?ms"
"""A remark that gives plain (one token a step) decoding's time per token."""
