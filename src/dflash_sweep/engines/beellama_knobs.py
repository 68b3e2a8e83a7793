"""BeeLlama's switches as knobs, its options and the variables it reads. Imports `engines.base`.

Names, ranges and defaults: arguments page and parser source of Anbeeld/beellama.cpp, releases v0.1.0 to v0.4.7.
"""

from __future__ import annotations

from dflash_sweep.engines.base import KnobDef

KV_TYPES = (
    "f32", "f16", "bf16", "q8_0", "q6_1", "q6_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl",
    "q3_1", "q3_0", "q2_1", "q2_0", "kvarn8", "kvarn6", "kvarn5", "kvarn4", "kvarn3", "kvarn2",
    "turbo4", "turbo3", "turbo2", "turbo4_tcq", "turbo3_tcq", "turbo2_tcq",
)  # fmt: skip
"""Union over all builds; which of them a build has is read from its --help."""

DRAFT_KV_TYPES = tuple(kind for kind in KV_TYPES if not kind.endswith("_tcq"))

A, B, ALL = "v0.1.0 until v0.3.2", "v0.4.0", "v0.1.0"

KNOBS: tuple[KnobDef, ...] = (
    KnobDef(
        name="draft_max", kind="int", flag="--spec-draft-n-max", low=1, high=64, unit="tokens", since=ALL,
        doc="Most drafted tokens per step; capped at the draft's block size − 1. "
        "Default 16 (v0.1–v0.3), block size − 1 (v0.4).",
    ),
    KnobDef(
        name="draft_min", kind="int", flag="--spec-draft-n-min", low=0, high=64, default=0, unit="tokens", since=ALL,
        doc="Shorter drafts are not used.",
    ),
    KnobDef(
        name="draft_p_min", kind="float", flag="--spec-draft-p-min", low=0.0, high=1.0, default=0.0, since=ALL,
        doc="A draft is cut at its first token below this probability.",
    ),
    KnobDef(
        name="target_feat_ctx", kind="int", flag="--spec-dflash-cross-ctx", low=1, high=65536, default=512,
        unit="tokens", since=A, doc="Recent target states that the drafter sees.",
    ),
    KnobDef(
        name="budget", kind="int", flag="--spec-branch-budget", low=0, high=512, unit="nodes", since=A,
        doc="Tree nodes without the root. The server counts only branches: it gets max(0, budget − draft_max), "
        "so draft_max must be given too. Default: a chain. One GPU only.",
    ),
    KnobDef(
        name="top_k", kind="int", flag="--spec-draft-top-k", low=1, high=64, default=1, since=A,
        doc="Candidates per draft position. Dead without branches; with branches the server raises 1 to 2.",
    ),
    KnobDef(
        name="draft_p_split", kind="float", flag="--spec-draft-p-split", low=0.0, high=1.0, default=0.1, since=A,
        doc="Probability from which a position branches. Dead without branches.",
    ),
    KnobDef(
        name="proposal_temp", kind="float", flag="--spec-draft-temp", low=-1.0, high=4.0, default=0.0, since=A,
        doc="Temperature on draft logits; 0 = greedy, −1 = the target's.",
    ),
    KnobDef(
        name="depth_controller", kind="choice", flag="--spec-dm-controller", choices=("off", "profit", "fringe"),
        default="off", since=ALL,
        doc="Changes the draft depth while it runs. The server's own default is profit; this program pins off, because "
        "short turns would measure the controller's exploration. off is --no-spec-dm-adaptive before v0.4; "
        "fringe exists only before v0.4.",
    ),
    KnobDef(
        name="profit_min", kind="float", flag="--spec-dm-profit-min", low=0.0, high=0.5, default=0.05, since=ALL,
        doc="Gain over plain decoding below which the controller stops drafting.",
    ),
    KnobDef(
        name="profit_raise_margin", kind="float", flag="--spec-dm-profit-raise-margin", low=0.0, high=1.0,
        default=0.05, since=ALL, doc="Gain that a greater depth must promise.",
    ),
    KnobDef(
        name="profit_lower_margin", kind="float", flag="--spec-dm-profit-lower-margin", low=0.0, high=1.0,
        default=0.05, since=ALL, doc="Gain that a smaller depth must promise.",
    ),
    KnobDef(
        name="profit_ewma_alpha", kind="float", flag="--spec-dm-profit-ewma-alpha", low=0.01, high=1.0, default=0.15,
        since=ALL, doc="Weight of the newest step in the controller's averages.",
    ),
    KnobDef(
        name="profit_min_samples", kind="int", flag="--spec-dm-profit-min-samples", low=1, high=64, default=3,
        unit="steps", since=ALL, doc="Steps before the controller judges a depth.",
    ),
    KnobDef(
        name="profit_baseline_interval", kind="int", flag="--spec-dm-profit-baseline-interval", low=0, high=4096,
        default=1024, unit="steps", since=ALL, doc="Steps between two plain measurements; 0 = never.",
    ),
    KnobDef(
        name="cache_type_k", kind="choice", flag="--cache-type-k", choices=KV_TYPES, default="f16", since=ALL,
        doc="Target's K cache. turbo* and *_tcq until v0.3.2; kvarn* from v0.3.2.",
    ),
    KnobDef(
        name="cache_type_v", kind="choice", flag="--cache-type-v", choices=KV_TYPES, default="f16", since=ALL,
        doc="Target's V cache. kvarn* needs the same width on both sides.",
    ),
    KnobDef(
        name="draft_cache_type_k", kind="choice", flag="--spec-draft-type-k", choices=DRAFT_KV_TYPES, default="f16",
        since=ALL, doc="Draft's K cache; kvarn* from v0.4.5.",
    ),
    KnobDef(
        name="draft_cache_type_v", kind="choice", flag="--spec-draft-type-v", choices=DRAFT_KV_TYPES, default="f16",
        since=ALL, doc="Draft's V cache; kvarn* from v0.4.5.",
    ),
    KnobDef(
        name="draft_ctx_size", kind="int", flag="--spec-draft-ctx-size", low=0, high=262144, default=256,
        unit="tokens", since=A, doc="Draft's own context. From v0.4.0 it is the target's.",
    ),
    KnobDef(
        name="n_batch", kind="int", flag="--batch-size", low=1, high=16384, default=2048, unit="tokens", since=ALL,
        doc="Logical batch. v0.1–v0.2 lower it to 256 under DFlash unless it is given.",
    ),
    KnobDef(
        name="n_ubatch", kind="int", flag="--ubatch-size", low=1, high=16384, default=512, unit="tokens", since=ALL,
        doc="Physical batch. v0.1–v0.2 lower it to 64 under DFlash unless it is given.",
    ),
    KnobDef(
        name="draft_ubatch_size", kind="int", flag="--spec-draft-ubatch-size", low=1, high=4096, default=128,
        unit="tokens", since="v0.4.7", doc="Draft's physical batch: a memory knob more than a speed knob.",
    ),
    KnobDef(
        name="flash_attn", kind="choice", flag="--flash-attn", choices=("on", "off", "auto"), default="auto", since=ALL,
        doc="Flash attention; quantised V caches force it on.",
    ),
    KnobDef(
        name="kv_tail_tokens", kind="str", flag="--kv-tail-tokens", default=None, since=B,
        doc="Newest tokens kept unquantised: 0, auto, a number, or full=N,swa=N.",
    ),
)  # fmt: skip

TREE_ONLY = ("top_k", "draft_p_split")
"""Dead while there are no branches."""

PROFIT_ONLY = tuple(knob.name for knob in KNOBS if knob.name.startswith("profit_"))
"""Dead unless the profit controller runs."""

COMMON = ("cache_type_k", "cache_type_v", "n_batch", "n_ubatch", "flash_attn", "kv_tail_tokens")
"""Knobs that also act on plain decoding."""

OPTIONS: tuple[KnobDef, ...] = (
    KnobDef(name="gpu_layers", kind="str", flag="--n-gpu-layers", doc="Target layers on the GPU: number, auto, all."),
    KnobDef(name="draft_gpu_layers", kind="str", flag="--spec-draft-ngl", doc="Draft layers on the GPU."),
    KnobDef(name="draft_device", kind="str", flag="--spec-draft-device", doc="Device of the draft model."),
    KnobDef(name="split_mode", kind="choice", flag="--split-mode", choices=("none", "layer", "row", "tensor"),
            doc="How the target is spread over GPUs."),
    KnobDef(name="tensor_split", kind="str", flag="--tensor-split", doc="Share of each GPU, for example 3,1."),
    KnobDef(name="chat_template_file", kind="str", flag="--chat-template-file", doc="Template instead of the model's."),
    KnobDef(name="release", kind="str", flag="(none)", doc="Release name for the records; the binary does not say it."),
    KnobDef(name="stage_profile", kind="bool", flag="(GGML_DFLASH_PROFILE=1 or LLAMA_TRACE=1)", default=False,
            doc="Per-step lines in the log. They cost time: use it for stage times, not for scores."),
)  # fmt: skip

VARIABLES_A = (
    "GGML_DFLASH_PROFILE", "GGML_DFLASH_PROFILE_SYNC_SPLIT", "GGML_DFLASH_GPU_RING", "GGML_DFLASH_MAX_CTX",
    "GGML_DFLASH_KV_CACHE_MODE", "GGML_DFLASH_DISABLE_KV_CACHE", "GGML_DFLASH_FORCE_CPU_CROSS",
    "GGML_DFLASH_VERIFY_PAD", "GGML_DFLASH_SHARED_DRAFT_BATCH", "GGML_DFLASH_MULTI_GPU_TAPE",
    "GGML_DFLASH_ALLOW_TENSOR_SPLIT", "GGML_DFLASH_GPU_RING_DEVICE", "GGML_TURBO_DECODE_NATIVE",
    "GGML_TURBO_MMA_FUSED", "TURBO_LAYER_ADAPTIVE", "TURBO_PREFILL_VEC",
)  # fmt: skip
VARIABLES_B = (
    "LLAMA_TRACE", "LLAMA_GRAPH_REUSE_DISABLE", "GGML_CUDA_DISABLE_GRAPHS", "GGML_KVARN_WINDOW_CHUNK",
    "LLAMA_KV_TAIL_ALLOW_GENERIC",
)  # fmt: skip
"""Variables a build reads. Those of dialect A do nothing in B and are refused there."""
