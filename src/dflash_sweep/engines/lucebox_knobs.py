"""Lucebox's switches as knobs, its options, the variables it reads and the KV pairs it has kernels for.

Imports `engines.base`. Names, ranges and defaults: server sources of the LuceBox hub (May to September 2026), which
differ from their own README and help text in places; the source counts.
"""

from __future__ import annotations

from dflash_sweep.engines.base import KnobDef

KV_TYPES = ("f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq3_0")
TQ3_PARTNERS = ("f16", "bf16", "q4_0", "q8_0", "tq3_0")
"""A tq3_0 K cache has kernels only for these V types; every other K type takes all eight (CUDA, all-quants build)."""

AUTO_TQ3_ABOVE = 6144
"""G0 and G1 switch an unnamed KV type to tq3_0 above this context size (CUDA builds)."""

G0, G1, G2, G3 = "G0", "G1 (2026-05)", "G2 (2026-06)", "G3 (2026-08)"

KNOBS: tuple[KnobDef, ...] = (
    KnobDef(
        name="ddtree", kind="bool", flag="--ddtree", default=False, since=G0,
        doc="Tree instead of chain drafting. Runs for qwen35 and laguna targets from G2 on and in G0; G1 accepts the "
        "flag and drafts a chain all the same. Implies fast rollback.",
    ),
    KnobDef(
        name="budget", kind="int", flag="--ddtree-budget", low=1, high=256, default=22, unit="nodes", since=G0,
        doc="Tree nodes without the root; every verify is budget + 1 wide. Up to 15 it is a cut chain (one candidate a "
        "position); one build failed below 15. Dead without ddtree. G0 spells it --budget.",
    ),
    KnobDef(
        name="rollback_mode", kind="choice", flag="--fast-rollback", choices=("fast", "replay"), default="fast",
        since=G2,
        doc="After a partial accept: restore stored state, or decode the kept path again (--no-fast-rollback). "
        "replay switches the tree off. Acceptance lengths compare only within a mode.",
    ),
    KnobDef(
        name="cache_type_k", kind="choice", flag="--cache-type-k", choices=KV_TYPES, since=G0,
        doc="K cache. Default by model family: q4_0 (qwen35), q8_0 (laguna).",
    ),
    KnobDef(
        name="cache_type_v", kind="choice", flag="--cache-type-v", choices=KV_TYPES, since=G0,
        doc="V cache. tq3_0 keys take only f16, bf16, q4_0, q8_0 or tq3_0 values.",
    ),
    KnobDef(
        name="draft_swa", kind="int", flag="--draft-swa", low=0, high=65536, default=0, unit="tokens", since=G1,
        doc="Sliding window of the draft; 0 = full, 2048 for drafts of the Qwen3.6 time.",
    ),
    KnobDef(
        name="fa_window", kind="int", flag="--fa-window", low=0, high=262144, default=0, unit="tokens", since=G0,
        doc="Attention window of the target. Above 0 it drops context (tool definitions among it) and is lossy: "
        "pinned to 0 unless given.",
    ),
    KnobDef(
        name="prefill_keep_ratio", kind="float", flag="--prefill-keep-ratio", low=0.0, high=1.0, default=0.05, since=G0,
        doc="Share of the prompt kept by prefill compression: changes what the model reads. Dead unless "
        "options.prefill_compression is on.",
    ),
    KnobDef(
        name="verify_width", kind="int", flag="--verify-width", low=0, high=64, default=0, unit="tokens", since=G2,
        doc="Verify width of laguna targets; 0 = adaptive. Some builds clamp it without saying so.",
    ),
    KnobDef(
        name="chunk", kind="int", flag="--chunk", low=1, high=16384, default=512, unit="tokens", since=G1,
        doc="Prefill chunk.",
    ),
    KnobDef(
        name="prefix_cache_slots", kind="int", flag="--prefix-cache-slots", low=0, high=64, default=32, unit="slots",
        since=G0, doc="Kept turn boundaries. Changes time to first token, not decoding; costs memory.",
    ),
    KnobDef(
        name="rollback_threshold", kind="int", env="DFLASH_FAST_ROLLBACK_THRESHOLD", low=1, high=5, default=5,
        unit="tokens", since=G2,
        doc="Shorter accepts are replayed instead of restored. Chain only; exact checkpoints are switched on with it.",
    ),
    KnobDef(
        name="ddtree_tau", kind="float", flag="--ddtree-tau", low=0.0, high=32.0, since=G3,
        doc="Candidates this far below the best first token's log-probability are dropped. Dead without a tree.",
    ),
    KnobDef(
        name="specla", kind="bool", flag="--specla", default=False, since=G3,
        doc="SpecLA drafting; not together with rollback_mode=replay.",
    ),
    KnobDef(
        name="top_k", kind="int", flag="--specla-top-k", low=1, high=64, default=4, since=G3,
        doc="Candidates per position. Dead without specla; the plain tree's 8 (budget over 15) or 1 is compiled in.",
    ),
    KnobDef(
        name="block_size", kind="int", flag="--draft-block-size", low=2, high=32, unit="tokens", since=G3,
        doc="Draft block, anchor included. Above the draft's own size some builds refuse it.",
    ),
)  # fmt: skip

COMMON = ("cache_type_k", "cache_type_v", "fa_window", "prefill_keep_ratio", "chunk", "prefix_cache_slots")
"""Knobs that also act on plain decoding."""

OPTIONS: tuple[KnobDef, ...] = (
    KnobDef(
        name="prefill_compression", kind="choice", flag="--prefill-compression", choices=("off", "auto", "always"),
        default="off", doc="Prompt compression (PFlash); needs prefill_drafter.",
    ),
    KnobDef(name="prefill_drafter", kind="str", flag="--prefill-drafter", doc="Model file of the compressor."),
    KnobDef(
        name="prefill_threshold", kind="int", flag="--prefill-threshold", low=0, unit="tokens",
        doc="Shorter prompts are not compressed in mode auto.",
    ),
    KnobDef(name="target_device", kind="str", flag="--target-device", doc="For example cuda:0."),
    KnobDef(name="draft_device", kind="str", flag="--draft-device", doc="For example cuda:1."),
    KnobDef(
        name="draft_residency", kind="choice", flag="--draft-residency",
        choices=("auto", "persistent", "request-scoped"),
        doc="Whether the draft stays in memory between requests (G2).",
    ),
    KnobDef(name="chat_template_file", kind="str", flag="--chat-template-file", doc="Template file."),
    KnobDef(name="daemon_binary", kind="str", flag="--bin", doc="G0: the test_dflash binary to drive."),
    KnobDef(name="python", kind="str", flag="(none)", default="python3", doc="G0 only: interpreter of server.py."),
    KnobDef(
        name="sampled_verify", kind="bool", flag="(DFLASH_SAMPLED_VERIFY=1)", default=False,
        doc="Speculation at a temperature above 0; without it such requests are decoded plainly.",
    ),
    KnobDef(
        name="stage_profile", kind="bool", flag="(DFLASH_PROF=step)", default=False,
        doc="Stage times in the log; only laguna targets print them in G2. G0 prints them always.",
    ),
)  # fmt: skip

NOT_RENDERED = ("python", "sampled_verify", "stage_profile", "daemon_binary")

VARIABLES = (
    "DFLASH27B_PREFILL_UBATCH", "DFLASH27B_DRAFT_SWA", "DFLASH_DRAFT_KV", "DFLASH_GPU_DRAFT_TOPK", "DFLASH_TOPK_SPLIT",
    "DFLASH_GPU_VERIFY_ARGMAX", "DFLASH_FEATURE_DTYPE", "DFLASH_FP_USE_BSA", "DFLASH_FP_ALPHA",
    "DFLASH_LAGUNA_VERIFY_WIDTH", "DFLASH_ADAPTIVE_WIDTH_THETA", "DFLASH_ADAPTIVE_WIDTH_MIN", "DFLASH_MODEL_CARDS_DIR",
    "DFLASH_SHARE_DIR",
)  # fmt: skip
"""Variables a user may set; G3 reads them as LUCE_… instead of DFLASH…."""
