"""vLLM's switches as knobs, its options and variables. Imports `engines.base`. Names of the wheels 0.20.0 to 0.33.0."""

from __future__ import annotations

from dflash_sweep.engines.base import KnobDef

_SPEC = "--speculative-config."
DRAFT_BACKENDS = (
    "FLASH_ATTN", "FLEX_ATTENTION", "TRITON_ATTN", "FLASHINFER", "CPU_ATTN", "ROCM_ATTN", "ROCM_AITER_FA",
    "ROCM_AITER_UNIFIED_ATTN", "FLASHINFER_MLA", "TRITON_MLA", "TOKENSPEED_MLA",
)  # fmt: skip
"""Attention back ends with the non-causal form that a DFlash draft needs."""

KNOBS: tuple[KnobDef, ...] = (
    KnobDef(
        name="draft_max", kind="int", flag=f"{_SPEC}num_speculative_tokens", low=1, high=64, unit="tokens",
        since="0.20.0", doc="Drafts per step, anchor not counted: a draft of block 16 takes up to 15. Required.",
    ),
    KnobDef(
        name="draft_model", kind="str", flag=f"{_SPEC}model", since="0.20.0",
        doc="Draft model: directory or org/name. Default: engine.options.draft_model.",
    ),
    KnobDef(
        name="draft_attention_backend", kind="choice", flag=f"{_SPEC}attention_backend", choices=DRAFT_BACKENDS,
        since="0.22.1", doc="Attention of the draft. Default: the target's. FLASH_ATTN is the safe choice.",
    ),
    KnobDef(
        name="draft_cache_type", kind="str", flag=f"{_SPEC}kv_cache_dtype", since="0.28.0",
        doc="Draft's cache type. Default: the target's.",
    ),
    KnobDef(
        name="draft_tensor_parallel", kind="int", flag=f"{_SPEC}draft_tensor_parallel_size", low=1, unit="GPUs",
        since="0.20.0", doc="1 or the target's.",
    ),
    KnobDef(
        name="draft_sample_method", kind="choice", flag=f"{_SPEC}draft_sample_method",
        choices=("greedy", "probabilistic"), since="0.22.1", doc="Acts only at a temperature above 0.",
    ),
    KnobDef(
        name="rejection_sample_method", kind="choice", flag=f"{_SPEC}rejection_sample_method",
        choices=("standard", "block"), since="0.22.1",
        doc="Lossy and synthetic methods are left out: their text is not the target's.",
    ),
    KnobDef(
        name="kv_cache_dtype", kind="str", flag="--kv-cache-dtype", default="auto", since="0.20.0",
        doc="Target's cache type; with DFlash other than auto only since 0.28.0.",
    ),
    KnobDef(
        name="attention_backend", kind="str", flag="--attention-backend", since="0.20.0",
        doc="Attention of the target.",
    ),
    KnobDef(
        name="max_num_seqs", kind="int", flag="--max-num-seqs", low=1, unit="requests", since="0.20.0",
        doc="Requests running at once; lowered by the server if the batch has no room for all their drafts.",
    ),
    KnobDef(
        name="max_num_batched_tokens", kind="int", flag="--max-num-batched-tokens", low=1, unit="tokens",
        since="0.20.0", doc="Tokens per pass. Default by GPU memory: 2048 to 16384.",
    ),
    KnobDef(
        name="gpu_memory_utilization", kind="float", flag="--gpu-memory-utilization", low=0.05, high=1.0,
        since="0.20.0", doc="Share of the GPU's memory that vLLM takes.",
    ),
    KnobDef(name="kv_block_size", kind="int", flag="--block-size", low=1, unit="tokens", since="0.20.0",
            doc="Page of the KV cache; not the draft's block."),
    KnobDef(name="enforce_eager", kind="bool", flag="--enforce-eager", default=False, since="0.20.0",
            doc="No CUDA graphs."),
    KnobDef(name="async_scheduling", kind="bool", flag="--async-scheduling", since="0.20.0",
            doc="Scheduling beside the GPU's work."),
    KnobDef(name="prefix_caching", kind="bool", flag="--no-enable-prefix-caching", flag_when=False, since="0.20.0",
            doc="Reuse of earlier prompts; on by default where the model allows it."),
)  # fmt: skip

CONFIG = {
    knob.name: knob.flag.removeprefix(_SPEC) for knob in KNOBS if knob.flag is not None and knob.flag.startswith(_SPEC)
}
"""Knobs that are keys of --speculative-config → the key."""

COMMON = tuple(knob.name for knob in KNOBS if knob.name not in CONFIG)
"""Knobs that also act on plain decoding."""

OPTIONS: tuple[KnobDef, ...] = (
    KnobDef(name="model", kind="str", flag="(first word)", doc="Target: directory or org/name."),
    KnobDef(name="draft_model", kind="str", flag=f"{_SPEC}model", doc="Draft: directory or org/name."),
    KnobDef(name="served_model_name", kind="str", flag="--served-model-name", doc="Name that requests use."),
    KnobDef(name="tensor_parallel", kind="int", flag="--tensor-parallel-size", low=1, unit="GPUs",
            doc="GPUs of the target."),
    KnobDef(name="seed", kind="int", flag="--seed", low=0, default=0, doc="Seed of the server."),
    KnobDef(name="language_model_only", kind="bool", flag="--language-model-only", default=False,
            doc="No vision encoder in memory."),
    KnobDef(name="tool_parser", kind="str", flag="--tool-call-parser",
            doc="Needed by traces with tools, together with extra_args=[--enable-auto-tool-choice]."),
    KnobDef(name="reasoning_parser", kind="str", flag="--reasoning-parser", doc="Splits thinking from the answer."),
)  # fmt: skip

VARIABLES = (
    "VLLM_USE_V2_MODEL_RUNNER", "VLLM_SERVER_DEV_MODE", "VLLM_LOG_STATS_INTERVAL", "VLLM_LOGGING_LEVEL",
    "VLLM_BATCH_INVARIANT", "VLLM_CACHE_ROOT",
)  # fmt: skip
