"""What upstream llama.cpp's log says: draft times and acceptance of a request, settings in force, failures, buffers.

Imports `records`, `errors` and the shared readers `engines.logtext`, `engines.timings`, `engines.signatures`.
Line forms of builds b10605 to b11549.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dflash_sweep.engines import logtext, timings
from dflash_sweep.engines.logtext import LogLine, Statistics, TimingBlock
from dflash_sweep.engines.signatures import LLAMA_FAMILY, LLAMA_PHASES, Signature, first_failure, signature
from dflash_sweep.engines.timings import Draft
from dflash_sweep.errors import FailureKind
from dflash_sweep.records import Exchange, Knobs, KnobValue, StageTime, TurnCounters

MAX_EXACT_DRAFTS = 1000
"""Rates per position are printed with three decimals: up to this many drafts they give whole counts back."""

SYNTHETIC = "synthetic speculative acceptance is enabled"
"""What the server warns when acceptance is by dice (--spec-synth-len): the text is invalid, no speed means anything."""

_PER_POSITION = re.compile(r"\bacc per pos\s*=\s*\(([\d., ]*)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What the log adds to one request's timing block: its share of each drafter's totals, and rates per position."""

    drafters: tuple[Statistics, ...] = ()
    rates: tuple[float, ...] = ()

    def total(self, name: str) -> float | None:
        """Sum of a figure over the drafters; None if there is none or one does not print it."""
        values = [getattr(drafter, name) for drafter in self.drafters]
        return None if not values or any(value is None for value in values) else sum(values)


def shares(lines: Sequence[LogLine], blocks: Sequence[TimingBlock]) -> tuple[Share, ...]:
    """One share per timing block, in order.

    `statistics` lines hold totals of the whole process: a request's share is the difference to the last line of the
    same drafter before it. They stand after the request's timing block and before the next one.
    """
    ends = [*(block.offset for block in blocks[1:]), math.inf][: len(blocks)]
    rates = [(line.offset, hit[1]) for line in lines if (hit := _PER_POSITION.search(line.text))]
    totals = logtext.statistics(lines)
    before: dict[str, Statistics] = {}
    found = []
    for block, end in zip(blocks, ends, strict=True):
        latest = {entry.name: entry for entry in totals if block.offset <= entry.offset < end}
        share = tuple(entry.since(before.get(name)) for name, entry in latest.items())
        before |= latest
        texts = [text for offset, text in rates if block.offset <= offset < end]
        positions = tuple(float(part) for part in texts[-1].split(",") if part.strip()) if texts else ()
        found.append(Share(drafters=share, rates=positions))
    return tuple(found)


def histogram(rates: Sequence[float], drafts: int, accepted: int, steps: int) -> dict[int, int] | None:
    """Steps per number of accepted draft tokens, from the printed share of drafts accepted up to each position.

    Position i's rate × drafts = drafts with at least i + 1 tokens kept. Steps without a draft keep none. None unless
    the counts are falling and add up to the accepted tokens: nothing is filled in.
    """
    if not 0 < drafts <= MAX_EXACT_DRAFTS or drafts > steps:
        return None
    at_least = [steps, *(round(rate * drafts) for rate in rates), 0]
    falling = all(later <= earlier for earlier, later in pairwise(at_least))
    if not falling or sum(at_least[1:]) != accepted:
        return None
    counts = {kept: here - after for kept, (here, after) in enumerate(pairwise(at_least))}
    return {kept: count for kept, count in counts.items() if count > 0}


# ---------------------------------------------------------------- counters


def parse_trial(exchanges: Sequence[Exchange], log: bytes) -> tuple[TurnCounters, ...]:
    """Counters of each exchange: the answer's JSON first, the log for what only it says, the client's clock last."""
    lines = tuple(logtext.clean_lines(log))
    blocks, unparsed = logtext.timing_blocks(lines)
    own = timings.match_blocks(exchanges, blocks, len(log))
    by_block = {block.offset: share for block, share in zip(blocks, shares(lines, blocks), strict=True)}
    crowded, by_dice = logtext.overlapping(exchanges), any(SYNTHETIC in line.text for line in lines)
    found = []
    for index, (exchange, block) in enumerate(zip(exchanges, own, strict=True)):
        draft = timings.from_timings(exchange)
        if draft is None:
            draft = timings.from_usage(exchange) if block is None else timings.from_block(exchange, block)
        if draft.timing_source is None:
            timings.from_client_clock(draft, exchange)
        if unparsed:
            draft.flag("unparsed_timing_lines")
        if by_dice:
            draft.flag("synthetic_acceptance")
        share = None if block is None else by_block[block.offset]
        if share is not None and index in crowded:  # the drafters' totals hold other requests' work too
            draft.flag("ambiguous_log")
            share = None
        found.append(_counters(draft, share))
    return tuple(found)


def _counters(draft: Draft, share: Share | None) -> TurnCounters:
    _tell_zero_from_off(draft, share)
    timings.plausible(draft)
    steps, source = _steps(draft, share)
    drafts = share.total("generated_drafts") if share is not None else None
    accepted, kept = draft.accepted_draft_tokens, None
    if share is not None and drafts and accepted is not None and steps is not None:
        kept = histogram(share.rates, int(drafts), accepted, steps)
    return draft.counters(
        verify_steps=steps,
        steps_source=source,
        acceptance_kind="unknown" if draft.draft_tokens is None else "chain",
        acceptance_histogram=kept,
        stages=() if share is None else _stages(share, draft.decode_ms),
    )


def _tell_zero_from_off(draft: Draft, share: Share | None) -> None:
    """The JSON leaves draft counts out both when nothing was drafted and when there is no drafter: the drafters' own
    totals tell the one (0) from the other (unknown)."""
    if draft.draft_tokens is not None or share is None:
        return
    generated, accepted = share.total("generated_tokens"), share.total("accepted_tokens")
    if generated is not None and accepted is not None:
        draft.draft_tokens, draft.accepted_draft_tokens = int(generated), int(accepted)


def _steps(draft: Draft, share: Share | None) -> tuple[int | None, str | None]:
    """Decode steps after the first token: output − 1 − accepted, each step adding one token of the target's own.

    An answer cut inside a step (end of text among accepted drafts) has more accepted tokens than it shows: the
    printed number of drafter calls then stands for the steps (every step calls, but a last one too short to draft in).
    """
    if draft.output_tokens is None or draft.accepted_draft_tokens is None:
        return None, None
    derived = draft.output_tokens - 1 - draft.accepted_draft_tokens
    calls = max((drafter.draft_calls or 0 for drafter in share.drafters), default=0) if share is not None else 0
    if derived < max(calls, 1):
        return (calls, "printed") if calls else (None, None)
    return derived, "derived"


def _stages(share: Share, decode_ms: float | None) -> tuple[StageTime, ...]:
    """Draft time as printed. What is left of the decode time is the target's verification, for which the log has no
    field: it also holds sampling and the feeding of the target's features into the draft's cache."""
    draft, accept = share.total("draft_ms"), share.total("accept_ms")
    if draft is None or accept is None:
        return ()
    stages = [StageTime(name="draft_ms", total_ms=draft), StageTime(name="accept_ms", total_ms=accept)]
    if decode_ms is not None and decode_ms >= draft + accept:
        stages.append(StageTime(name="verify_ms", total_ms=decode_ms - draft - accept, source="derived"))
        stages.append(StageTime(name="step_ms", total_ms=decode_ms, source="json"))
    return tuple(stages)


# ---------------------------------------------------------------- settings in force

_CONTEXT = re.compile(r"llama_context: (n_ctx|n_batch|n_ubatch|flash_attn)\s+= (\w+)")
_CACHE = re.compile(r"llama_kv_cache: size =.*\bK \((\w+)\):.*\bV \((\w+)\):")
_THREADS = re.compile(r"system_info: n_threads = (\d+)(?: \(n_threads_batch = (\d+)\))?")
_DRAFT_LIMITS = re.compile(r"- n_max=(\d+), n_min=(\d+), p_min=([\d.]+)")
_CLAMP = re.compile(r"exceeds the trained block size \d+ -- clamping to (\d+)")
_ADDED = re.compile(r"adding speculative implementation '([\w-]+)'")
_NGRAM = re.compile(r"- size_(?:n|key)=(\d+), size_(?:m|value)=(\d+),.*min_hits=(\d+)")
_NGRAM_MOD = re.compile(r"- n_match=(\d+), n_max=(\d+), n_min=(\d+)")
_FILE_TYPE = re.compile(r"print_info: file type\s+= (?:all )?(\w+)")
_WITHOUT_DRAFTER = (
    "no implementations specified for speculative decoding",
    "failed to initialize speculative decoding context",
)
_FLASH = {"enabled": "on", "disabled": "off", "auto": "auto"}


def settings_in_force(log: str) -> Knobs:
    """Knobs as the server's own log shows them (at verbosity 4). The first context is the target's, the last the
    draft's. `speculation` lists the drafters that were set up, by comma, "none" if the log says there is none."""
    found: Knobs = {}
    contexts, added = 0, []
    for text in logtext.texts(log):
        if "constructing llama_context" in text:
            contexts += 1
        elif hit := _ADDED.search(text):
            added.append(hit[1])
        elif any(mark in text for mark in _WITHOUT_DRAFTER):
            found["speculation"] = "none"
            added = []
        else:
            _read_setting(text, found, is_draft=contexts > 1)
    if added:
        found["speculation"] = ",".join(added)
    return found


def _read_setting(text: str, found: Knobs, is_draft: bool) -> None:
    if (hit := _CONTEXT.search(text)) and not is_draft:
        value: KnobValue = _FLASH.get(hit[2], hit[2]) if hit[1] == "flash_attn" else int(hit[2])
        found.setdefault(hit[1], value)
    elif hit := _CACHE.search(text):
        prefix = "draft_" if is_draft else ""
        found |= {f"{prefix}cache_type_k": hit[1], f"{prefix}cache_type_v": hit[2]}
    elif hit := _THREADS.search(text):
        found |= {"threads": int(hit[1]), "threads_batch": int(hit[2] or hit[1])}
    elif hit := _DRAFT_LIMITS.search(text):
        found |= {"spec_draft_n_max": int(hit[1]), "spec_draft_n_min": int(hit[2]), "spec_draft_p_min": float(hit[3])}
    elif hit := _CLAMP.search(text):
        found["spec_draft_n_max"] = int(hit[1])
    elif hit := _NGRAM.search(text):
        found |= {"ngram_size_n": int(hit[1]), "ngram_size_m": int(hit[2]), "ngram_min_hits": int(hit[3])}
    elif hit := _NGRAM_MOD.search(text):
        found |= {"ngram_mod_n_match": int(hit[1]), "ngram_mod_n_max": int(hit[2]), "ngram_mod_n_min": int(hit[3])}
    elif hit := _FILE_TYPE.search(text):
        found.setdefault("file_type", hit[1].lower())


# ---------------------------------------------------------------- failures and memory

_UPSTREAM: tuple[Signature, ...] = (
    signature(
        FailureKind.OUT_OF_MEMORY,
        r"insufficient memory \(attempted to allocate|failed to allocate buffer|std::bad_alloc",
        "out of memory",
    ),
    signature(
        FailureKind.LAUNCH_FAILED,
        r"DFlash model has no target_layer_ids|GGML_ASSERT\(lid <= model\.hparams\.n_layer",
        "draft and target do not fit together",
    ),
)
"""What builds for the CPU print beyond the family's common texts (seen in b11549)."""

SIGNATURES: tuple[Signature, ...] = (*_UPSTREAM, *LLAMA_FAMILY)

_HARMLESS = ("this warning is normal", "failed to measure the memory of the extra model")
"""Lines of level E or W that every good start with a DFlash draft prints (b11549)."""


def classify(log: str, exit_code: int | None) -> tuple[FailureKind, str] | None:
    """The failure that log and exit code show, with the line that shows it; None if they show none."""
    telling = "\n".join(text for text in logtext.texts(log) if not any(mark in text for mark in _HARMLESS))
    return first_failure(SIGNATURES, telling, exit_code, LLAMA_PHASES)


_BUFFER = re.compile(r"(\S+?)(?:_Mapped)?\s+(model|KV|RS|compute|output) buffer size\s*=\s*([\d.]+) MiB")


def buffers_mib(log: str) -> dict[str, float]:
    """Buffers the log prints, summed by kind (model, kv, rs, compute, output) and, for a draft's own, `draft_<kind>`.

    A compute buffer is printed again each time it is planned anew; the largest counts.
    """
    found: dict[str, float] = {}
    contexts = models = 0
    for text in logtext.texts(log):
        contexts += "constructing llama_context" in text
        models += "loaded meta data with" in text
        if hit := _BUFFER.search(text):
            is_draft = (models if hit[2] == "model" else contexts) > 1
            name = ("draft_" if is_draft else "") + hit[2].lower()
            size = float(hit[3])
            found[name] = max(found.get(name, 0.0), size) if hit[2] == "compute" else found.get(name, 0.0) + size
    return found
