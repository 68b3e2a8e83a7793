"""The DDTree fork's log: stage times, failure signatures, memory figures and shown settings. Imports `records`,
`errors` and the shared helpers of this package.

Line shapes and their meaning: the public source of Leechael/llama.cpp-dflash-ggml (branch track-a/llama).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_sweep.engines.buffers import buffer_mib, kv_types
from dflash_sweep.engines.logtext import LogLine, TimingBlock, clean_lines, number, overlapping, pairs, spans, texts
from dflash_sweep.engines.logtext import timing_blocks as read_timing_blocks
from dflash_sweep.engines.signatures import LLAMA_FAMILY, LLAMA_PHASES, Signature, first_failure, signature
from dflash_sweep.engines.timings import count, finite
from dflash_sweep.errors import FailureKind
from dflash_sweep.records import Exchange, Knobs, StageTime, TurnCounters

STAGE_KEYS: dict[str, tuple[str, ...]] = {
    "pack_ms": ("pack",),
    "draft_ms": ("draft",),
    "topk_ms": ("topk",),
    "build_ms": ("build",),
    "snapshot_ms": ("snap",),
    "verify_ms": ("target_tree", "posterior"),
    "accept_ms": ("accept",),
    "compact_ms": ("compact",),
    "rollback_ms": ("rollback",),
    "ingest_ms": ("tree_ingest",),
    "replay_ms": ("replay",),
    "exact_ms": ("exact",),
}
"""Our stage → keys of the `ddtree timing avg` line. `exact_decode/_sample/_advance` and `replay_ingest` are parts of
others, `ingest` includes prefill, and `exact_nodes` is a count: none of them is a member of the step."""

SUM_TOLERANCE = 0.05
"""Stages may fall short of the step by an untimed remainder; above it they cannot be."""

_STATS = "ddtree stats:"
_AVERAGE = "ddtree timing avg:"


def parse_trial(exchanges: Sequence[Exchange], log: bytes) -> tuple[TurnCounters, ...]:
    """One TurnCounters per exchange: counts and decode time from the JSON where it has them, stages from the log."""
    together = overlapping(exchanges)
    return tuple(
        _parse_turn(exchange, list(clean_lines(log, start, end)), index in together)
        for index, (exchange, (start, end)) in enumerate(zip(exchanges, spans(exchanges, len(log)), strict=True))
    )


def _parse_turn(exchange: Exchange, lines: list[LogLine], shared: bool) -> TurnCounters:
    flags: list[str] = ["shared_log"] if shared else []
    blocks, unparsed = read_timing_blocks(lines)
    if unparsed:
        flags.append(f"unparsed_timing_lines={unparsed}")
    block = _own_block(exchange, blocks, flags)
    stats, average = _ddtree_lines(lines, block, blocks)
    timings = exchange.timings if isinstance(exchange.timings, Mapping) else {}
    figures = _figures(exchange, timings, block)
    speculative = bool(stats) or count(timings.get("draft_n")) is not None
    output = figures["output"]
    decode = output if speculative or output is None else max(output - 1, 0)
    steps = _printed(stats.get("steps")) if stats else None
    accepted, drafted = _accepted(timings, block)
    flags += _count_flags(stats, output, accepted, drafted, speculative)
    stages, stage_flags = _stages(average, steps)
    return TurnCounters(
        output_tokens=output,
        prompt_tokens=figures["prompt"],
        cached_tokens=figures["cached"],
        prompt_ms=figures["prompt_ms"],
        decode_tokens=decode,
        decode_ms=figures["decode_ms"],
        timing_source=figures["source"],
        verify_steps=steps if steps else None,
        steps_source="printed" if steps else None,
        draft_tokens=drafted,
        accepted_draft_tokens=accepted,
        acceptance_kind="tree_nodes" if drafted is not None else "unknown",
        stages=stages,
        server_tps_raw=finite(timings.get("predicted_per_second")),
        flags=tuple(flags + stage_flags),
    )


def _own_block(exchange: Exchange, blocks: Sequence[TimingBlock], flags: list[str]) -> TimingBlock | None:
    finished = [block for block in blocks if block.eval_ms is not None]
    if not finished:
        return None
    if len(finished) == 1:
        return finished[0]
    timings = exchange.timings if isinstance(exchange.timings, Mapping) else {}
    expected, decode_ms = count(timings.get("predicted_n")), finite(timings.get("predicted_ms"))
    matching = [block for block in finished if block.eval_tokens == expected] or finished
    if decode_ms is not None:  # the answer says which block is its own
        nearest = min(matching, key=lambda block: abs((block.eval_ms or 0.0) - decode_ms))
        if abs((nearest.eval_ms or 0.0) - decode_ms) <= 0.02:
            return nearest
    flags.append("ambiguous_log")
    return matching[0]


def _ddtree_lines(
    lines: Sequence[LogLine], block: TimingBlock | None, blocks: Sequence[TimingBlock]
) -> tuple[dict[str, str], dict[str, str]]:
    """The stats and average pairs that follow the turn's own timing block (and precede the next one)."""
    start = block.offset if block else 0
    later = [other.offset for other in blocks if other.offset > start and other.eval_ms is not None]
    end = min(later) if later else None
    stats: dict[str, str] = {}
    average: dict[str, str] = {}
    for line in lines:
        if line.offset < start or (end is not None and line.offset >= end):
            continue
        if _STATS in line.text:
            stats = pairs(line.text.split(_STATS, 1)[1])
        elif _AVERAGE in line.text:
            average = pairs(line.text.split(_AVERAGE, 1)[1])
    return stats, average


def _figures(exchange: Exchange, timings: Mapping[str, object], block: TimingBlock | None) -> dict[str, Any]:
    usage = exchange.usage if isinstance(exchange.usage, Mapping) else {}
    given = usage.get("prompt_tokens_details")
    details = given if isinstance(given, Mapping) else {}
    output, decode_ms = count(timings.get("predicted_n")), finite(timings.get("predicted_ms"))
    processed, cached = count(timings.get("prompt_n")), count(timings.get("cache_n"))
    prompt_ms = finite(timings.get("prompt_ms"))
    source = "json" if decode_ms is not None else None
    if block is not None:
        if decode_ms is None and block.eval_ms is not None:
            decode_ms, source = block.eval_ms, "log"
        output = block.eval_tokens if output is None else output
        prompt_ms = block.prompt_ms if prompt_ms is None else prompt_ms
        processed = block.prompt_tokens if processed is None else processed
    output = count(usage.get("completion_tokens")) if output is None else output
    cached = count(details.get("cached_tokens")) if cached is None else cached
    prompt = processed + cached if processed is not None and cached is not None else None
    prompt = count(usage.get("prompt_tokens")) if prompt is None else prompt
    return {
        "output": output, "decode_ms": decode_ms, "cached": cached, "prompt": prompt, "prompt_ms": prompt_ms,
        "source": source,
    }  # fmt: skip


def _accepted(timings: Mapping[str, object], block: TimingBlock | None) -> tuple[int | None, int | None]:
    """(accepted, drafted) as the fork counts them: without the last step; drafted is steps × budget, a nominal size."""
    drafted, accepted = count(timings.get("draft_n")), count(timings.get("draft_n_accepted"))
    if drafted is None and block is not None:
        return block.accepted, block.generated
    return accepted, drafted


def _count_flags(
    stats: Mapping[str, str], output: int | None, accepted: int | None, drafted: int | None, speculative: bool
) -> list[str]:
    flags = []
    if accepted is not None and output is not None and accepted > output:
        flags.append("accepted_exceeds_emitted")
    if accepted is not None and drafted is not None and 0 < drafted == accepted:
        flags.append("acceptance_constant_1")
    if speculative and not stats:
        flags.append("missing_ddtree_stats")
    steps = _printed(stats.get("steps"))
    if _printed(stats.get("capture_clamps")):
        flags.append("capture_clamps")
    if _printed(stats.get("snapshot_replays")):
        flags.append("snapshot_replays")
    rollbacks = _printed(stats.get("fast_rollback"))
    if steps and rollbacks and rollbacks < steps:
        flags.append("fast_rollback_incomplete")
    average = number(stats.get("exact_avg_commit"))
    if steps and average and output is not None and not (output - 1 <= round(steps * average) <= output + 16):
        flags.append("commit_count_differs")  # the last step may overshoot a stop by up to a block
    return flags


def _stages(average: Mapping[str, str], steps: int | None) -> tuple[tuple[StageTime, ...], list[str]]:
    if not average or not steps:
        return (), []
    values = {key: number(value) for key, value in average.items()}
    step = values.get("step")
    totals: dict[str, float] = {}
    for name, keys in STAGE_KEYS.items():
        known = [value for key in keys if (value := values.get(key)) is not None]
        if known:
            totals[name] = sum(known) * steps
    if step is None:
        return tuple(StageTime(name=name, total_ms=value) for name, value in totals.items()), ["step_time_missing"]
    if step <= 0:
        return (), ["all_steps_failed"]
    total = step * steps
    remainder = total - sum(totals.values())
    flags = ["stages_exceed_step"] if remainder < -SUM_TOLERANCE * total else []
    stages = [StageTime(name="step_ms", total_ms=total)]
    stages += [StageTime(name=name, total_ms=value) for name, value in totals.items()]
    stages.append(StageTime(name="other_ms", total_ms=max(remainder, 0.0), source="derived"))
    return tuple(stages), flags


def _printed(value: str | None) -> int | None:
    """A printed count; None for anything else."""
    figure = number(value)
    return None if figure is None or figure < 0 else int(figure)


# ---------------------------------------------------------------- failures

_K = FailureKind
_OWN: tuple[Signature, ...] = (
    signature(
        _K.OUT_OF_MEMORY,
        r"failed to allocate persist buffer|failed to create ggml context for persist buffers",
        "out of memory for persist buffers (77.625 MiB a tree node)",
    ),
    signature(
        _K.OUT_OF_MEMORY,
        r"failed to allocate (?:graph|compute)|CUDA error: out of memory|cudaMalloc failed: out of memory",
        "out of memory",
    ),
    signature(
        _K.INVALID_CONFIG,
        r"V cache quantization requires flash_attn|quantized V cache was requested, but this requires Flash",
        "a quantised V cache needs flash attention",
    ),
    signature(
        _K.INVALID_CONFIG,
        r"--ddtree-[\w-]+ must be |--speculative-mode (?:must be|ddtree requires)|supports only --parallel 1 in Phase",
        "the server refused a value",
    ),
    signature(_K.INVALID_CONFIG, r"n_tokens_all <= cparams\.n_batch", "the tree is larger than the batch"),
    signature(
        _K.INVALID_CONFIG,
        r"parent_id \(tree-mode batch\) is only supported|invalid model dimensions n_embd=|null model pointer"
        r"|capture n_embd=\S+ != driver n_embd=",
        "the model files do not fit this engine",
    ),
    signature(
        _K.LAUNCH_FAILED,
        r"failed to create DDTree draft context|failed to load draft model|failed to initialize draft backend",
        "the draft could not be loaded",
    ),
    signature(_K.CRASHED, r"accepted_dfs_node=\S+ >= persist capacity=", "recurrent state may be corrupt"),
    signature(
        _K.CRASHED,
        r"failed to allocate DDTree driver|DDTree driver missing at GENERATING|failed to compute graph, compute status"
        r"|fast rollback failed and snapshot fallback is unavailable|no snapshot/replay fallback is allowed"
        r"|target_feat ring is empty|no hidden capture data available|dflash draft encode-topK failed"
        r"|dflash draft top-K unavailable|target_feat cache update failed|token_embd_lookup failed for"
        r"|llama_decode failed(?: at depth -?\d+)?: -?\d+|target logits\[\d+\] unavailable"
        r"|llama_seq_(?:snapshot|restore) failed before|exact gate failed to restore snapshot",
        "a verify step failed (the server answers 200 and ends the text there)",
    ),
    signature(
        _K.SETTING_NOT_APPLIED,
        r"requested n_dfs=\d+ but capture only has n_tokens=\d+; clamping",
        "the feature ring is incomplete",
    ),
    signature(
        _K.SETTING_NOT_APPLIED,
        r"fast rollback failed at DFS node|after fast rollback; falling back to snapshot replay",
        "fast rollback fell back to snapshot and replay",
    ),
    signature(_K.CRASHED, r"DDTree driver step returned empty result, treating as EOS", "a verify step failed"),
)
"""Most telling first: a step that "returned empty" is the effect, a failed allocation before it the cause."""

# The fork prints this about its *chain* speculator in every ddtree run: it means nothing here.
_SHARED = tuple(entry for entry in LLAMA_FAMILY if "speculative decoding not supported" not in entry.pattern.pattern)


def classify(log: str, exit_code: int | None) -> tuple[FailureKind, str] | None:
    """The most telling failure line; without one, what the exit code says; None if nothing went wrong."""
    return first_failure((*_OWN, *_SHARED), log, exit_code, LLAMA_PHASES)


# ---------------------------------------------------------------- memory and settings shown

_PERSIST = re.compile(r"allocated dflash persist buffers: .*?([\d.]+) MiB")


def memory_mib(log: str) -> dict[str, float]:
    """MiB by kind of buffer, summed over devices and contexts, and `persist` (the largest allocation printed)."""
    sizes = [float(hit[1]) for text in texts(log) if "persist buffers" in text and (hit := _PERSIST.search(text))]
    return {**buffer_mib(log), **({"persist": max(sizes)} if sizes else {})}


_BATCH = re.compile(r"llama_context: n_(batch|ubatch)\s*=\s*(\d+)")
_REBUILD = re.compile(r"reuse capped from (\d+) to (\d+) to rebuild the last (\d+) target-feature tokens")
_DRAFT_TOP = re.compile(r"draft_top port: .*\bK=(\d+)")
_PARTLY = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_DUMP = re.compile(r"ddtree_(?:dump|trace): step=.*\bbudget=(\d+)")


def shown_settings(log: str) -> Knobs:
    """Settings that the log itself shows, by canonical name.

    `gpu_layers` shows only where layers stayed on the CPU: a server may run that way without a word of failure.
    `speculation` is "ddtree" once the draft context and the hidden-state capture have announced themselves. Only the
    first context's lines count (the target's): the draft context prints the same ones later.
    """
    types = kv_types(log)[:1]
    shown: Knobs = {name: value for k, v in types for name, value in (("cache_type_k", k), ("cache_type_v", v))}
    context = capture = False
    seen: set[str] = set()
    for text in texts(log):
        context = context or "DDTree draft context initialized" in text
        capture = capture or "DDTree: hidden capture enabled on target context" in text
        if hit := _BATCH.search(text):
            shown.setdefault(f"n_{hit[1]}", int(hit[2]))
        elif "gpu_layers" not in seen and (hit := _PARTLY.search(text)):
            seen.add("gpu_layers")
            shown |= {"gpu_layers": int(hit[1])} if int(hit[1]) < int(hit[2]) else {}
        elif (hit := _REBUILD.search(text)) and int(hit[2]) > 0:
            shown["target_feat_ctx"] = int(hit[3])  # with positions left over, the window was not cut by the prompt
        elif hit := _DRAFT_TOP.search(text):
            shown["top_k"] = int(hit[1])
        elif hit := _DUMP.search(text):
            shown["budget"] = int(hit[1])
    if context and capture:
        shown["speculation"] = "ddtree"
    return shown
