"""BeeLlama's per-step lines, statistics and counters → one turn's counters. Imports `engines.*` readers and `records`.

Until v0.3.2 (dialect A) a profile prints every cycle; from v0.4.0 (dialect B) only totals exist, which are differenced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_sweep.engines import prometheus, timings
from dflash_sweep.engines.buffers import kv_types
from dflash_sweep.engines.logtext import (
    LogLine,
    Places,
    Statistics,
    TimingBlock,
    clean_lines,
    number,
    overlapping,
    pairs,
    statistics,
    texts,
    timing_blocks,
)
from dflash_sweep.records import Exchange, Knobs, StageTime, TurnCounters

_CYCLE = re.compile(r"dflash cycle: task=(\d+)")
_SLOT_CYCLE = re.compile(r"spec cycle \(\d+ slots?\):")
_PROFILE = re.compile(r"dflash profile: draft ctx=")
_TREE = re.compile(r"ddtree: built tree with (\d+) nodes .* in ([\d.]+)\s*ms")
_ACCEPTED = re.compile(r"\baccepted\s+(\d+)\s*/\s*(\d+) draft tokens(?!, new n_tokens)")
_NOTES = (
    (re.compile(r"invalid reduced-logits token|fail-closed after"), "invalid_draft_logits"),
    (re.compile(r"drafter decode failed with"), "draft_decode_failed"),
    (re.compile(r"adaptive-dm: disabling speculative depth"), "controller_stopped_drafting"),
    (re.compile(r"reasoning loop guard (?:force-closing|.*stopping generation)"), "loop_guard"),
    (re.compile(r"\(restore checkpoint\)"), "restored_checkpoints"),
)
PLAIN_SHARE = 0.05
"""More than this share of steps without a draft is flagged: the depth was not what was asked for."""


@dataclass(slots=True)
class Piece:
    """What the log holds of one turn."""

    cycles: list[dict[str, str]] = field(default_factory=list)
    slot_cycles: list[dict[str, str]] = field(default_factory=list)
    argmax_ms: list[float] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    build_ms: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    change: Statistics | None = None


def _milliseconds(cycle: dict[str, str], *names: str) -> float | None:
    for name in names:
        if name in cycle:
            return number(cycle[name].removesuffix("ms"))
    return None


def _take(piece: Piece, text: str) -> None:
    """One line into a turn's piece."""
    if _CYCLE.search(text):
        piece.cycles.append(pairs(text))
    elif _SLOT_CYCLE.search(text):
        piece.slot_cycles.append(pairs(text))
    elif _PROFILE.search(text):
        argmax = number(pairs(text).get("argmax"))
        if argmax is not None:
            piece.argmax_ms.append(argmax)
    elif tree := _TREE.search(text):
        piece.build_ms.append(number(tree[2]) or 0.0)
    elif accepted := _ACCEPTED.search(text):
        piece.accepted.append(int(accepted[1]))
    for pattern, note in _NOTES:
        if note not in piece.notes and pattern.search(text):
            piece.notes.append(note)


def _turn_of_task(blocks: Sequence[TimingBlock | None]) -> dict[int, int]:
    return {block.task: index for index, block in enumerate(blocks) if block is not None and block.task is not None}


def _pieces(
    exchanges: Sequence[Exchange], lines: Sequence[LogLine], blocks: Sequence[TimingBlock | None], log_size: int
) -> list[Piece]:
    """Lines by turn: by task id where a line names one that is known, else by place."""
    pieces = [Piece() for _ in exchanges]
    places, tasks = Places(exchanges, log_size), _turn_of_task(blocks)
    for line in lines:
        cycle = _CYCLE.search(line.text)
        turn = tasks.get(int(cycle[1])) if cycle else None
        if turn is None:
            turn = places.owner(line.offset)
        if turn is not None:
            _take(pieces[turn], line.text)
    return pieces


def _assign_statistics(
    pieces: list[Piece],
    found: Iterable[Statistics],
    blocks: Sequence[TimingBlock | None],
    places: Places,
) -> None:
    """Totals belong to the turn whose block they follow, or in whose piece they stand; neighbours are subtracted."""
    last: Statistics | None = None
    for entry in found:
        if "dflash" not in entry.name:
            continue
        before = [(block.offset, index) for index, block in enumerate(blocks) if block and block.offset <= entry.offset]
        turn = max(before)[1] if before else places.owner(entry.offset)
        if turn is not None:
            pieces[turn].change = entry.since(last)
        last = entry


def _cycle_stages(piece: Piece) -> tuple[StageTime, ...]:
    """Sums over the printed cycles. The top-k share is split off the draft time only if every cycle printed it."""
    cycles = piece.cycles or piece.slot_cycles
    sums: dict[str, float] = {}
    for name, keys in (
        ("draft_ms", ("draft_ms", "draft")), ("verify_ms", ("verify_ms", "verify")),
        ("accept_ms", ("accept_ms", "accept")), ("step_ms", ("total_ms", "total")),
    ):  # fmt: skip
        values = [_milliseconds(cycle, *keys) for cycle in cycles]
        known = [value for value in values if value is not None]
        if len(known) == len(cycles):
            sums[name] = sum(known)
    if len(sums) == 4:
        rest = sums["step_ms"] - sums["draft_ms"] - sums["verify_ms"] - sums["accept_ms"]
        sums["other_ms"] = max(0.0, rest)
    if len(piece.argmax_ms) == len(cycles) and "draft_ms" in sums:
        sums["topk_ms"] = min(sum(piece.argmax_ms), sums["draft_ms"])
        sums["draft_ms"] -= sums["topk_ms"]
    return tuple(StageTime(name=name, total_ms=round(value, 4)) for name, value in sums.items())


def _stages(piece: Piece) -> tuple[StageTime, ...]:
    if piece.cycles or piece.slot_cycles:
        return _cycle_stages(piece)
    if piece.change is not None and piece.change.draft_ms is not None:
        return (StageTime(name="draft_ms", total_ms=round(piece.change.draft_ms, 4)),)
    return ()


def _histogram(accepted: list[int]) -> dict[int, int] | None:
    if not accepted:
        return None
    return {value: accepted.count(value) for value in range(max(accepted) + 1)}


def _steps(piece: Piece, draft: timings.Draft, change: prometheus.Change | None) -> tuple[int | None, str | None]:
    """Verify steps from the best printed counter; derived from token counts only where nothing is printed."""
    printed = None
    if piece.cycles or piece.slot_cycles:
        printed = len(piece.cycles or piece.slot_cycles)
    elif change is not None and (drafts := change.count("llamacpp:spec_decode_num_drafts")):
        printed = drafts
    elif piece.accepted:
        printed = len(piece.accepted)
    elif piece.change is not None and piece.change.accept_calls:
        printed = piece.change.accept_calls
    if printed is not None:
        return printed, "printed"
    derived = timings.derived_steps(draft)
    return derived, None if derived is None else "derived"


def _counters(exchange: Exchange, block: TimingBlock | None, piece: Piece, alone: bool) -> TurnCounters:
    draft = timings.from_timings(exchange)
    if draft is None:
        draft = timings.from_block(exchange, block) if block is not None else timings.from_usage(exchange)
    if draft.timing_source is None and "too_few_tokens" not in draft.flags:
        timings.from_client_clock(draft, exchange)
    change = prometheus.change(exchange.metrics_before, exchange.metrics_after) if alone else None
    steps, source = _steps(piece, draft, change)
    if change is not None and change.went_back("llamacpp:tokens_predicted"):
        draft.flag("server_restarted")
    histogram = _histogram(
        [int(c["n_accept"]) for c in piece.cycles if c.get("n_accept", "").isdigit()] or piece.accepted
    )
    if histogram is None and change is not None:
        reached = change.by_position("llamacpp:spec_decode_num_accepted_tokens_per_pos")
        histogram = prometheus.histogram(steps if source == "printed" else None, reached)
    timings.plausible(draft, steps)
    for note in piece.notes:
        draft.flag(note)
    _flag_plain_steps(draft, steps, source)
    return draft.counters(
        verify_steps=steps,
        steps_source=source,
        acceptance_kind="unknown" if draft.draft_tokens is None else "tree_nodes" if piece.build_ms else "chain",
        acceptance_histogram=histogram,
        stages=_stages(piece),
    )


def _flag_plain_steps(draft: timings.Draft, steps: int | None, source: str | None) -> None:
    accepted, decoded = draft.accepted_draft_tokens, draft.decode_tokens
    if source != "printed" or steps is None or accepted is None or decoded is None:
        return
    plain = decoded - accepted - steps
    if plain > PLAIN_SHARE * max(1, steps + plain):
        draft.flag("plain_steps")


def turn_counters(exchanges: Sequence[Exchange], log: bytes) -> tuple[TurnCounters, ...]:
    """One record per exchange, in order."""
    lines = list(clean_lines(log))
    found, unparsed = timing_blocks(lines)
    blocks = timings.match_blocks(exchanges, found, len(log))
    pieces = _pieces(exchanges, lines, blocks, len(log))
    _assign_statistics(pieces, statistics(lines), blocks, Places(exchanges, len(log)))
    crowded = overlapping(exchanges)
    results = []
    for index, exchange in enumerate(exchanges):
        if unparsed and "unparsed_timing_lines" not in pieces[index].notes:
            pieces[index].notes.append("unparsed_timing_lines")
        results.append(_counters(exchange, blocks[index], pieces[index], index not in crowded))
    return tuple(results)


# ---------------------------------------------------------------- what the server shows

_SHOWN = (
    ("draft_max", re.compile(r"- n_max=(\d+), n_min=\d+, p_min=")),
    ("draft_min", re.compile(r"- n_max=\d+, n_min=(\d+), p_min=")),
    ("draft_max", re.compile(r"exceeds the trained block size \d+ -- clamping to (\d+)")),
    ("target_feat_ctx", re.compile(r"dflash: contract ok:.*\bcross_ctx=(\d+)")),
)
_P_MIN = re.compile(r"- n_max=\d+, n_min=\d+, p_min=([\d.]+)")
_CONTROLLER_ACTS = re.compile(r"adaptive draft-max profit:|adaptive dm profit:|adaptive dm: fringe=")
_SLOT_KEYS = {
    "speculative.n_max": "draft_max",
    "speculative.n_min": "draft_min",
    "speculative.p_min": "draft_p_min",
}


def _shown_draft(log: str) -> Knobs:
    """Drafting as the server announced it when it started, and as it acts. Later lines (a clamp) win."""
    shown: Knobs = {}
    for line in texts(log):
        for name, pattern in _SHOWN:
            if found := pattern.search(line):
                shown[name] = int(found[1])
        if found := _P_MIN.search(line):
            shown["draft_p_min"] = float(found[1])
        if _CONTROLLER_ACTS.search(line):
            shown["depth_controller"] = "fringe" if "fringe=" in line else "profit"
    return shown


def _shown_by_slot(slot: Mapping[str, Any]) -> Knobs:
    """Dialect A1 echoes its speculation settings in /slots."""
    params = slot.get("params")
    if not isinstance(params, Mapping):
        return {}
    return {name: params[key] for key, name in _SLOT_KEYS.items() if isinstance(params.get(key), int | float)}


def _shown_caches(speculative: bool, log: str) -> Knobs:
    caches = kv_types(log)
    shown: Knobs = {}
    if caches:
        shown["cache_type_k"], shown["cache_type_v"] = caches[0]
        if speculative and len(caches) > 1:
            shown["draft_cache_type_k"], shown["draft_cache_type_v"] = caches[-1]
    return shown


def _as_asked(shown: Any, asked: Any) -> Any:
    """A float that the server prints with two decimals is the asked one if it rounds to it."""
    if isinstance(shown, float) and isinstance(asked, int | float) and not isinstance(asked, bool):
        return asked if abs(shown - asked) <= 0.0051 else shown
    return shown


def shown_settings(knobs: Knobs, speculative: bool, slots: Sequence[Any], log: str) -> Knobs:
    """Settings that slots and log show to be in force, and `speculative` where a slot says so."""
    shown: Knobs = {}
    slot = next((slot for slot in slots if isinstance(slot, Mapping)), {})
    if isinstance(slot.get("speculative"), bool):
        shown["speculative"] = slot["speculative"]
    shown |= _shown_caches(speculative, log) | _shown_by_slot(slot)
    if speculative:
        shown |= _shown_draft(log)
    return {name: _as_asked(value, knobs.get(name)) for name, value in shown.items()}
