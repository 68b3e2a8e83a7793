"""SGLang's switches as knobs, its options and variables. Imports `engines.base`. Names of wheels 0.5.11 to 0.5.23."""

from __future__ import annotations

from dflash_sweep.engines.base import KnobDef

BACKENDS = ("flashinfer", "fa3", "fa4", "triton", "ascend", "intel_xpu", "trtllm_mha")
"""Draft attention back ends; trtllm_mha only for causal or all-sliding drafts."""

OLD_SPELLINGS = {"draft_window": "--speculative-dflash-draft-window-size"}
"""Switches of 0.5.11 that have another name later."""

KNOBS: tuple[KnobDef, ...] = (
    KnobDef(
        name="draft_max", kind="int", flag="--speculative-num-draft-tokens", low=1, high=63, unit="tokens",
        since="0.5.11",
        doc="Drafts per step, anchor not counted: the server gets draft_max + 1, its block. Default: the draft's.",
    ),
    KnobDef(
        name="draft_model", kind="str", flag="--speculative-draft-model-path", since="0.5.11",
        doc="Draft model: directory or org/name. Default: engine.options.draft_model.",
    ),
    KnobDef(
        name="draft_attention_backend", kind="choice", flag="--speculative-draft-attention-backend", choices=BACKENDS,
        since="0.5.11", doc="Attention of the draft; one that is not supported is replaced with a warning.",
    ),
    KnobDef(
        name="draft_window", kind="int", flag="--speculative-draft-window-size", low=2, unit="tokens", since="0.5.11",
        doc="Sliding window of the draft; at least the block.",
    ),
    KnobDef(
        name="draft_cache_type", kind="str", flag="--speculative-draft-kv-cache-dtype", since="0.5.19",
        doc="Draft's cache type. Default: the target's.",
    ),
    KnobDef(
        name="draft_quantization", kind="str", flag="--speculative-draft-model-quantization", since="0.5.11",
        doc="Quantisation of the draft's weights.",
    ),
    KnobDef(
        name="block_verification", kind="bool", flag="--speculative-use-block-verification", default=False,
        since="0.5.19", doc="Verify the block as a whole when sampling.",
    ),
    KnobDef(
        name="kv_cache_dtype", kind="str", flag="--kv-cache-dtype", default="auto", since="0.5.11",
        doc="Target's cache type.",
    ),
    KnobDef(name="attention_backend", kind="str", flag="--attention-backend", since="0.5.11",
            doc="Attention of the target."),
    KnobDef(
        name="max_running_requests", kind="int", flag="--max-running-requests", low=1, unit="requests", since="0.5.11",
        doc="Requests running at once; under speculation the server would take 48, so it is always named.",
    ),
    KnobDef(
        name="mem_fraction_static", kind="float", flag="--mem-fraction-static", low=0.05, high=1.0, since="0.5.11",
        doc="Share of the GPU's memory for weights and cache.",
    ),
    KnobDef(name="page_size", kind="int", flag="--page-size", low=1, unit="tokens", since="0.5.11",
            doc="Page of the KV cache."),
    KnobDef(name="cuda_graph_max_bs", kind="int", flag="--cuda-graph-max-bs", low=1, unit="requests", since="0.5.11",
            doc="Largest batch with a captured graph."),
    KnobDef(name="chunked_prefill_size", kind="int", flag="--chunked-prefill-size", low=-1, unit="tokens",
            since="0.5.11", doc="Prefill chunk; −1 = none."),
    KnobDef(name="radix_cache", kind="bool", flag="--disable-radix-cache", flag_when=False, default=True,
            since="0.5.11", doc="Reuse of earlier prompts."),
)  # fmt: skip

COMMON = (
    "kv_cache_dtype", "attention_backend", "max_running_requests", "mem_fraction_static", "page_size",
    "cuda_graph_max_bs", "chunked_prefill_size", "radix_cache",
)  # fmt: skip
"""Knobs that also act on plain decoding."""

OPTIONS: tuple[KnobDef, ...] = (
    KnobDef(name="model", kind="str", flag="--model-path", doc="Target: directory or org/name."),
    KnobDef(name="draft_model", kind="str", flag="--speculative-draft-model-path", doc="Draft: directory or org/name."),
    KnobDef(name="served_model_name", kind="str", flag="--served-model-name", doc="Name that requests use."),
    KnobDef(name="tensor_parallel", kind="int", flag="--tp-size", low=1, unit="GPUs", doc="GPUs of the target."),
    KnobDef(name="decode_log_interval", kind="int", flag="--decode-log-interval", low=1, default=4, unit="steps",
            doc="Steps between two log lines; the server's 40 is too coarse for short turns."),
    KnobDef(name="random_seed", kind="int", flag="--random-seed", low=0, default=0, doc="Seed of the server."),
    KnobDef(name="tool_parser", kind="str", flag="--tool-call-parser", doc="Reads tool calls out of the text."),
    KnobDef(name="reasoning_parser", kind="str", flag="--reasoning-parser", doc="Splits thinking from the answer."),
    KnobDef(name="spec_details", kind="bool", flag="(return_spec_tokens_details)", default=True,
            doc="Ask for acceptance per request (from 0.5.19 on)."),
)  # fmt: skip

VARIABLES = (
    "SGLANG_DFLASH_EAGER_DRAFT_SAMPLER", "SGLANG_ENABLE_OVERLAP_PLAN_STREAM",
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
)  # fmt: skip
"""Simulated acceptance (SGLANG_SIMULATE_ACC_*) is left out: its text is not the model's."""
