"""The fork's log lines, printed from emulated figures. Imports `costs`, `launch`, `model`.

Formats: the public source of Leechael/llama.cpp-dflash-ggml (tools/server, branch track-a/llama).
"""

from __future__ import annotations

from dflash_sweep.ddtree import effective_top_k
from dflash_sweep.emulator.costs import Memory
from dflash_sweep.emulator.launch import Launch
from dflash_sweep.emulator.model import TurnFigures
from dflash_sweep.emulator.setting import KV_BITS

ATTENTION_LAYERS = 16
"""Layers of the target that keep a KV cache; the other 48 are recurrent."""

_AVERAGES = (
    "pack draft topk build snap target_tree posterior accept compact rollback ingest tree_ingest replay_ingest replay "
    "exact exact_decode exact_sample exact_advance"
)
AVERAGE_KEYS = tuple(_AVERAGES.split(" "))


def loading(launch: Launch, memory: Memory, version: str) -> list[str]:
    """What the server prints while it loads, up to but without the line that says it listens."""
    setting = launch.setting
    parts = memory.parts
    total_bits = KV_BITS[setting.cache_type_k] + KV_BITS[setting.cache_type_v]
    k_mib = parts["kv_cache"] * KV_BITS[setting.cache_type_k] / total_bits
    lines = [
        f"build: {version} (emulated) with the dflash-sweep emulator; times are {launch.clock}, not measured",
        f"main: loading model '{launch.model}'",
        f"load_tensors:        CUDA0 model buffer size = {parts['model']:9.2f} MiB",
        f"llama_context: n_ctx         = {setting.n_ctx}",
        f"llama_context: n_batch       = {setting.n_batch}",
        f"llama_context: n_ubatch      = {setting.n_ubatch}",
        f"llama_context: flash_attn    = {setting.flash_attn}",
        f"llama_kv_cache:      CUDA0 KV buffer size = {parts['kv_cache']:8.2f} MiB",
        f"llama_kv_cache: size = {parts['kv_cache']:7.2f} MiB ({setting.n_ctx:6d} cells, {ATTENTION_LAYERS:3d} layers,"
        f"  1/1 seqs), K ({setting.cache_type_k}): {k_mib:7.2f} MiB, V ({setting.cache_type_v}): "
        f"{parts['kv_cache'] - k_mib:7.2f} MiB",
        f"llama_context:      CUDA0 compute buffer size = {parts['compute']:8.2f} MiB",
    ]
    if memory.failure and memory.stage == "load":
        return [*lines, *load_failure(memory)]
    if setting.speculative:
        lines += [
            f"load_tensors:        CUDA0 model buffer size = {parts['draft']:9.2f} MiB",
            "srv    load_model: DDTree draft context initialized (n_ctx = 2064, n_batch = 16)",
            "srv    load_model: DDTree: hidden capture enabled on target context (5 layers)",
        ]
    return [*lines, "srv    load_model: initializing slots, n_slots = 1", "main: model loaded"]


def load_failure(memory: Memory) -> list[str]:
    """The lines with which a server that does not fit ends."""
    size = memory.parts[memory.failure or "model"]
    lines = [f"ggml_backend_cuda_buffer_type_alloc_buffer: allocating {size:.2f} MiB on device 0: cudaMalloc failed: "
             "out of memory"]  # fmt: skip
    if memory.failure == "compute":
        lines.append("graph_reserve: failed to allocate compute buffers")
    if memory.failure == "draft":
        lines.append("srv    load_model: failed to create DDTree draft context")
    return [*lines, "main: exiting due to model loading error"]


def reserve(launch: Launch, memory: Memory) -> list[str]:
    """What the first request prints about persist buffers; nothing where none are needed."""
    setting = launch.setting
    if not setting.reserves_persist:
        return []
    if memory.failure == "persist":
        return [
            f"llama_context: failed to allocate persist buffer for layer 0 (n_tokens={setting.persist_nodes})",
            "DDTree driver step returned empty result, treating as EOS",
        ]
    return [
        f"llama_context: allocated dflash persist buffers: 48 layers, {setting.persist_nodes} tokens, "
        f"{memory.parts['persist']:.2f} MiB across 48 backend buffers"
    ]


def out_of_memory_in_decode() -> list[str]:
    """A step that runs out of memory: the fork calls it the end of the text."""
    return [
        "CUDA error: out of memory",
        "ggml_gallocr_reserve_n: failed to allocate graph",
        "target tree llama_decode failed: -3",
        "DDTree driver step returned empty result, treating as EOS",
    ]


def cache_cap(task: int, reusable: int, cached: int, window: int) -> list[str]:
    """Why part of a reusable prompt is decoded again."""
    if cached >= reusable:
        return []
    return [
        f"slot update_slots: id  0 | task {task} | DDTree prompt cache reuse capped from {reusable} to {cached} to "
        f"rebuild the last {window} target-feature tokens"
    ]


def draft_top(launch: Launch, context: int) -> str:
    """The dump line with the candidates per depth and the window that are really in force."""
    setting = launch.setting
    top_k = effective_top_k(setting.budget, setting.top_k, setting.block_size)
    window = min(setting.target_feat_ctx, context)
    return f"draft_top port: step=0 committed={context} ctx_len={window} root=0 K={top_k} backend=dflash"


def profile(figures: TurnFigures, window: int) -> list[str]:
    """One line per draft forward."""
    each = figures.stages_ms["draft"] / max(figures.steps, 1)
    line = (
        f"dflash_draft_ubatch_timing: tokens=16 outputs=16 ctx_len={window} reused=0 apply=0.002 "
        f"build_alloc={each * 0.01:.3f} set_inputs={each * 0.005:.3f} compute={each * 0.985:.3f} total={each:.3f} ms"
    )
    return [line] * figures.steps


def request_end(task: int, figures: TurnFigures, batched: bool, fast_rollback: bool, budget: int) -> list[str]:
    """The timing block, and after it the DDTree lines (with speculation only)."""
    processed = figures.prompt_tokens - figures.cached_tokens
    prefix = f"slot print_timing: id  0 | task {task} | "
    total = figures.prompt_ms + figures.decode_ms
    lines = [
        prefix,
        f"prompt eval time = {_rates(figures.prompt_ms, processed)}",
        f"       eval time = {_rates(figures.decode_ms, figures.output_tokens)}",
        f"      total time = {total:10.2f} ms / {processed + figures.output_tokens:5d} tokens",
    ]
    if figures.steps:
        drafted, accepted = draft_counts(figures, budget)
        if drafted:
            lines.append(
                f"draft acceptance rate = {accepted / drafted:0.5f} ({accepted:5d} accepted / {drafted:5d} generated)"
            )
        lines += _ddtree_lines(figures, batched, fast_rollback)
    return [*lines, f"slot      release: id  0 | task {task} | stop processing: n_tokens = "
            f"{figures.prompt_tokens + figures.output_tokens}, truncated = 0"]  # fmt: skip


def draft_counts(figures: TurnFigures, budget: int) -> tuple[int, int]:
    """(draft_n, draft_n_accepted): the last step adds to neither; draft_n is steps × budget, not what was drafted."""
    earlier = figures.commits[:-1]
    return len(earlier) * budget, sum(earlier) - len(earlier)


def _rates(total_ms: float, tokens: int) -> str:
    per_token = total_ms / tokens if tokens else 0.0
    rate = 1000 * tokens / total_ms if total_ms > 0 else 0.0
    return f"{total_ms:10.2f} ms / {tokens:5d} tokens ({per_token:8.2f} ms per token, {rate:8.2f} tokens per second)"


def _ddtree_lines(figures: TurnFigures, batched: bool, fast_rollback: bool) -> list[str]:
    steps, committed = figures.steps, figures.committed
    average, longest = committed / steps, max(figures.commits)
    own = average if batched else 0.0
    replays = steps if batched and not fast_rollback else 0
    stats = (
        f"ddtree stats: steps={steps} exact_avg_commit={average:0.3f} batched_avg_commit={own:0.3f} "
        f"exact_max={longest} batched_max={longest if batched else 0} snapshot_replays={replays} "
        f"fast_batched_replays=0 fast_batched_cb=0 fast_rollback={steps if batched and fast_rollback else 0} "
        "batched_exact_diff=0 batched_longer=0 batched_shorter=0 capture_clamps=0"
    )
    stages = figures.stages_ms
    values = {key: stages.get(key, 0.0) / steps for key in AVERAGE_KEYS}
    values["exact_sample"] = figures.sample_ms / steps
    values["exact_decode"] = values["exact"] - values["exact_sample"]
    values["ingest"] = 0.0
    pairs = " ".join(f"{key}={values[key]:0.2f}" for key in AVERAGE_KEYS)
    nodes = average if not batched else 0.0
    return [
        stats,
        f"ddtree timing avg: step={stages['step'] / steps:0.2f} ms {pairs} exact_nodes={nodes:0.2f}",
        "ddtree timing total: prompt_ingest=0.00 ms tree_ingest=0.00 ms replay_ingest=0.00 ms",
    ]
