"""The knobs of upstream llama.cpp's server and which of them a speculation type leaves alive. Imports `engines.base`.

Spellings of build b11549 (the wheel `xllamacpp` 2026.10.11549); `since` names the first build seen with them.
"""

from __future__ import annotations

from dflash_sweep.engines.base import KnobDef
from dflash_sweep.records import Knobs, KnobValue

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
UNQUANTISED = ("f32", "f16", "bf16")
DRAFT_TYPES = ("draft-dflash", "draft-simple", "draft-eagle3", "draft-mtp", "draft-dspark")
NGRAM_TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
SIZED_NGRAM_TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
"""N-gram types with a lookup length, a draft length and a least number of hits of their own."""

SPEC_TYPES = ("none", *DRAFT_TYPES, *NGRAM_TYPES)
PRECISIONS = ("as_shipped", "q8_0", "f16", "f32")

SERVER_KNOBS: tuple[KnobDef, ...] = (
    KnobDef(name="target_precision", kind="choice", flag="--model", choices=PRECISIONS, default="as_shipped",
            doc="the target's file as it is, or re-encoded once (kept in the cache folder): small quantised models are "
                "compute bound on a CPU, F16 and F32 are bound by memory like decoding on a GPU"),
    KnobDef(name="threads", kind="int", flag="--threads", low=1, unit="threads", doc="CPU threads while decoding"),
    KnobDef(name="threads_batch", kind="int", flag="--threads-batch", low=1, unit="threads",
            doc="CPU threads for prompts; default: as threads"),
    KnobDef(name="poll", kind="int", flag="--poll", low=0, high=100, default=50,
            doc="how hard idle threads poll for work; 0 = they sleep"),
    KnobDef(name="cache_type_k", kind="choice", flag="--cache-type-k", choices=CACHE_TYPES, default="f16",
            doc="type of the target's K cache"),
    KnobDef(name="cache_type_v", kind="choice", flag="--cache-type-v", choices=CACHE_TYPES, default="f16",
            doc="type of the target's V cache; a quantised one needs flash attention"),
    KnobDef(name="flash_attn", kind="choice", flag="--flash-attn", choices=("on", "off", "auto"), default="auto",
            doc="flash attention"),
    KnobDef(name="n_batch", kind="int", flag="--batch-size", low=1, default=2048, unit="tokens", doc="logical batch"),
    KnobDef(name="n_ubatch", kind="int", flag="--ubatch-size", low=1, default=512, unit="tokens",
            doc="physical batch: prefill chunk and size of the compute buffer"),
    KnobDef(name="gpu_layers", kind="int", flag="--gpu-layers", low=0, unit="layers",
            doc="target layers on the GPU; default: as many as fit"),
)  # fmt: skip

SPEC_KNOBS: tuple[KnobDef, ...] = (
    KnobDef(name="spec_type", kind="str", flag="--spec-type", default="none", since="b9873",
            doc=f"one of {', '.join(SPEC_TYPES)}, or several by comma (tried in the server's own order)"),
    KnobDef(name="spec_draft_n_max", kind="int", flag="--spec-draft-n-max", low=1, default=3, unit="tokens",
            since="b9873", doc="most tokens drafted per step; a DFlash draft's limit is its block size − 1"),
    KnobDef(name="spec_draft_n_min", kind="int", flag="--spec-draft-n-min", low=0, default=0, unit="tokens",
            since="b9873", doc="shorter drafts are thrown away"),
    KnobDef(name="spec_draft_p_min", kind="float", flag="--spec-draft-p-min", low=0, high=1, default=0.0,
            since="b9873", doc="a draft ends before the first token less likely than this"),
    KnobDef(name="draft_cache_type_k", kind="choice", flag="--spec-draft-type-k", choices=CACHE_TYPES, default="f16",
            since="b9873", doc="type of the draft's K cache"),
    KnobDef(name="draft_cache_type_v", kind="choice", flag="--spec-draft-type-v", choices=CACHE_TYPES, default="f16",
            since="b9873", doc="type of the draft's V cache; a quantised one needs flash attention"),
    KnobDef(name="draft_threads", kind="int", flag="--spec-draft-threads", low=1, unit="threads",
            since="b9873", doc="CPU threads of the draft; default: as threads"),
    KnobDef(name="draft_threads_batch", kind="int", flag="--spec-draft-threads-batch", low=1, unit="threads",
            since="b9873", doc="CPU threads of the draft for prompts; default: as draft_threads"),
    KnobDef(name="draft_gpu_layers", kind="int", flag="--spec-draft-ngl", low=0, unit="layers",
            since="b9873", doc="draft layers on the GPU; default: as many as fit"),
    KnobDef(name="ngram_size_n", kind="int", flag="--spec-ngram-TYPE-size-n", low=1, default=12, unit="tokens",
            since="b9873", doc="ngram-simple, map-k, map-k4v: length of the n-gram looked up"),
    KnobDef(name="ngram_size_m", kind="int", flag="--spec-ngram-TYPE-size-m", low=1, default=48, unit="tokens",
            since="b9873", doc="ngram-simple, map-k, map-k4v: tokens drafted after a hit"),
    KnobDef(name="ngram_min_hits", kind="int", flag="--spec-ngram-TYPE-min-hits", low=1, default=1,
            since="b9873", doc="ngram-simple, map-k, map-k4v: hits needed before a draft"),
    KnobDef(name="ngram_mod_n_match", kind="int", flag="--spec-ngram-mod-n-match", low=1, default=24, unit="tokens",
            since="b9873", doc="ngram-mod: length looked up; the server warns below 16"),
    KnobDef(name="ngram_mod_n_min", kind="int", flag="--spec-ngram-mod-n-min", low=0, default=48, unit="tokens",
            since="b9873", doc="ngram-mod: fewest tokens drafted"),
    KnobDef(name="ngram_mod_n_max", kind="int", flag="--spec-ngram-mod-n-max", low=1, default=64, unit="tokens",
            since="b9873", doc="ngram-mod: most tokens drafted"),
)  # fmt: skip

KNOBS: tuple[KnobDef, ...] = (*SERVER_KNOBS, *SPEC_KNOBS)
SPEC_NAMES = frozenset(definition.name for definition in SPEC_KNOBS)
DRAFT_NAMES = frozenset(name for name in SPEC_NAMES if name.startswith(("spec_draft_", "draft_")))
SIZED_NGRAM_NAMES = frozenset({"ngram_size_n", "ngram_size_m", "ngram_min_hits"})
NGRAM_MOD_NAMES = frozenset({"ngram_mod_n_match", "ngram_mod_n_min", "ngram_mod_n_max"})


def types_of(spec_type: KnobValue) -> tuple[str, ...]:
    """The speculation types a value names; () for None and "none"."""
    parts = () if spec_type is None else tuple(part.strip() for part in str(spec_type).split(","))
    return tuple(part for part in parts if part and part != "none")


def dead_names(spec_type: KnobValue) -> frozenset[str]:
    """Knobs that change nothing under a speculation type.

    None (the flag is left out) means that the server takes the type from the draft file: n-gram knobs are dead then.
    The n-gram types ignore `spec_draft_*` (seen in b11549: drafts of 8 tokens with n_max 2).
    """
    types = types_of(spec_type)
    dead: set[str] = set()
    if not (spec_type is None or any(name.startswith("draft-") for name in types)):
        dead |= DRAFT_NAMES
    if not any(name in SIZED_NGRAM_TYPES for name in types):
        dead |= SIZED_NGRAM_NAMES
    if "ngram-mod" not in types:
        dead |= NGRAM_MOD_NAMES
    return frozenset(dead)


def spellings(name: str, flag: str | None, spec_type: KnobValue) -> tuple[str, ...]:
    """The switch(es) that one knob stands for: a shared n-gram size is passed to every n-gram type in use."""
    if name not in SIZED_NGRAM_NAMES or flag is None:
        return () if flag is None else (flag,)
    kinds = [kind.removeprefix("ngram-") for kind in types_of(spec_type) if kind in SIZED_NGRAM_TYPES]
    return tuple(flag.replace("TYPE", kind) for kind in kinds)


def combination_problems(knobs: Knobs, n_max_limit: int | None) -> list[str]:
    """Values that are each allowed but not together. `n_max_limit`: block size − 1 of the DFlash draft in use."""
    problems = []
    spec_type = knobs.get("spec_type")
    unknown = [kind for kind in types_of(spec_type) if kind not in SPEC_TYPES]
    if unknown:
        problems.append(f"spec_type={spec_type}: unknown type {unknown[0]}; it takes {', '.join(SPEC_TYPES)}")
    for prefix in ("", "draft_"):
        value = knobs.get(f"{prefix}cache_type_v")
        if knobs.get("flash_attn") == "off" and value is not None and value not in UNQUANTISED:
            problems.append(f"{prefix}cache_type_v={value} with flash_attn=off: a quantised V cache needs flash_attn")
    low, high = knobs.get("spec_draft_n_min"), knobs.get("spec_draft_n_max")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        problems.append(f"spec_draft_n_min={low} is above spec_draft_n_max={high}: no draft would ever be used")
    if n_max_limit is not None and isinstance(high, int) and high > n_max_limit:
        problems.append(
            f"spec_draft_n_max={high}: the draft's block size allows {n_max_limit}; the server would clamp it to that"
        )
    fewest, most = knobs.get("ngram_mod_n_min"), knobs.get("ngram_mod_n_max")
    if isinstance(fewest, int) and isinstance(most, int) and fewest > most:
        problems.append(f"ngram_mod_n_min={fewest} is above ngram_mod_n_max={most}")
    batch, ubatch = knobs.get("n_batch"), knobs.get("n_ubatch")
    if isinstance(batch, int) and isinstance(ubatch, int) and ubatch > batch:
        problems.append(f"n_ubatch={ubatch} is above n_batch={batch}: the server would lower it to that")
    return problems
