"""llama-server's `timings` and end-of-request block → one turn's raw counters. Imports `engines.logtext`, `records`.

The rates that servers print are kept as `server_tps_raw` and used for nothing: their definition changed between builds
(all tokens over the decode time, or one less). Both clocks start when the first token, which prefill gives, is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_sweep.engines.logtext import Places, TimingBlock, overlapping
from dflash_sweep.records import Exchange, TurnCounters

MANY_STEPS, NEVER_RIGHT = 50, 0.02
"""An acceptance length of at most 1.02 over 50 steps: a wrong pair or a broken back end, not a slow setting."""

MANY_DRAFTS = 50
"""As many drafted tokens without one rejected: a counter that reports its own input, or text that repeats itself."""

SAME_MS = 0.0051
"""A log prints milliseconds with two decimals: a JSON figure within half a unit of it is the same one."""


def finite(value: object) -> float | None:
    """A number from JSON; None for null, NaN, infinities, booleans and text."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def count(value: object) -> int | None:
    """A whole number ≥ 0 from JSON; None for anything else."""
    number = finite(value)
    return int(number) if number is not None and number >= 0 and number == int(number) else None


@dataclass(slots=True, kw_only=True)
class Draft:
    """Counters while they are collected; `flags` may grow."""

    output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    prompt_ms: float | None = None
    decode_tokens: int | None = None
    decode_ms: float | None = None
    timing_source: str | None = None
    draft_tokens: int | None = None
    accepted_draft_tokens: int | None = None
    server_tps_raw: float | None = None
    flags: list[str] = field(default_factory=list)

    def flag(self, name: str) -> None:
        if name not in self.flags:
            self.flags.append(name)

    def counters(self, **more: Any) -> TurnCounters:
        """The frozen record. `more`: steps, stages, acceptance kind and histogram."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "flags"}
        return TurnCounters(**plain, **more, flags=tuple(self.flags))


def from_usage(exchange: Exchange) -> Draft:
    """Token counts of the answer's `usage`; everything else unknown."""
    usage = exchange.usage or {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return Draft(
        output_tokens=count(usage.get("completion_tokens")),
        prompt_tokens=count(usage.get("prompt_tokens")),
        cached_tokens=count(cached),
    )


def set_decode(draft: Draft, decode_tokens: int | None, decode_ms: float | None, source: str) -> None:
    """Decode work and its clock. No figure for fewer than one token or a clock that did not run."""
    if decode_tokens is None or decode_ms is None:
        return
    if decode_tokens < 1 or decode_ms <= 0:
        draft.decode_tokens = max(0, decode_tokens)
        draft.flag("too_few_tokens")
        return
    draft.decode_tokens, draft.decode_ms, draft.timing_source = decode_tokens, decode_ms, source


def from_client_clock(draft: Draft, exchange: Exchange) -> None:
    """Decode time between the first and the last token the client saw, where the server gives none."""
    first, last, tokens = exchange.first_token_ns, exchange.last_token_ns, draft.output_tokens
    if first is None or last is None or tokens is None or exchange.error_type is not None:
        return
    set_decode(draft, tokens - 1, (last - first) / 1e6, "client")


def from_timings(exchange: Exchange) -> Draft | None:
    """Counters of llama-server's JSON `timings`; None if the answer had none or its counts are unreadable."""
    timings = exchange.timings
    if not timings:
        return None
    predicted = count(timings.get("predicted_n"))
    if predicted is None:
        return None
    draft = from_usage(exchange)
    processed, cached = count(timings.get("prompt_n")), count(timings.get("cache_n"))
    draft.output_tokens = predicted
    if processed is not None:
        # Builds before the cache was reported send no cache_n: the total is then what usage says.
        if cached is not None:
            draft.prompt_tokens = processed + cached
        elif draft.prompt_tokens is not None:
            cached = max(0, draft.prompt_tokens - processed)
        draft.cached_tokens = cached
    draft.prompt_ms = finite(timings.get("prompt_ms"))
    draft.server_tps_raw = finite(timings.get("predicted_per_second"))
    draft.draft_tokens = count(timings.get("draft_n"))
    draft.accepted_draft_tokens = count(timings.get("draft_n_accepted"))
    set_decode(draft, predicted - 1, finite(timings.get("predicted_ms")), "json")
    return draft


def from_block(exchange: Exchange, block: TimingBlock) -> Draft:
    """Counters of a log's end-of-request block, with usage where the block is silent."""
    draft = from_usage(exchange)
    if block.eval_tokens is not None:
        draft.output_tokens = block.eval_tokens
    draft.prompt_ms = block.prompt_ms
    if block.prompt_tokens is not None and draft.prompt_tokens is not None:
        draft.cached_tokens = max(0, draft.prompt_tokens - block.prompt_tokens)
    draft.draft_tokens, draft.accepted_draft_tokens = block.generated, block.accepted
    if block.ambiguous:
        draft.flag("ambiguous_log")
    elif block.eval_tokens is not None:
        set_decode(draft, block.eval_tokens - 1, block.eval_ms, "log")
    return draft


def _same(exchange: Exchange, block: TimingBlock) -> bool:
    timings = exchange.timings or {}
    milliseconds = finite(timings.get("predicted_ms"))
    return (
        milliseconds is not None
        and block.eval_ms is not None
        and count(timings.get("predicted_n")) == block.eval_tokens
        and abs(milliseconds - block.eval_ms) <= SAME_MS
    )


def match_blocks(
    exchanges: Sequence[Exchange], blocks: Sequence[TimingBlock], log_size: int
) -> tuple[TimingBlock | None, ...]:
    """The block of each exchange: by its JSON figures, else by place in the log. None = no block is surely its own.

    A server writes its log from another thread, so a block can land behind the next request's start: figures decide
    first. Place decides only for exchanges without `timings` that ran alone and whose piece holds exactly one block.
    """
    found: list[TimingBlock | None] = [None] * len(exchanges)
    left = list(blocks)
    for index, exchange in enumerate(exchanges):
        same = next((block for block in left if _same(exchange, block)), None)
        if same is not None:
            found[index] = same
            left.remove(same)
    places, crowded = Places(exchanges, log_size), overlapping(exchanges)
    by_place: dict[int | None, list[TimingBlock]] = {}
    for block in left:
        by_place.setdefault(places.owner(block.offset), []).append(block)
    for index, exchange in enumerate(exchanges):
        inside = by_place.get(index, [])
        if found[index] is None and not exchange.timings and index not in crowded and len(inside) == 1:
            found[index] = inside[0]
    return tuple(found)


def plausible(draft: Draft, steps: int | None = None) -> None:
    """Flag relations between counters that cannot hold, and a draft that is never right; nothing is changed."""
    accepted, drafted, decoded = draft.accepted_draft_tokens, draft.draft_tokens, draft.decode_tokens
    if accepted is not None and drafted is not None and accepted > drafted:
        draft.flag("accepted_exceeds_drafted")
    if drafted and accepted == drafted >= MANY_DRAFTS:
        draft.flag("acceptance_constant_1")
    if accepted is not None and decoded is not None and accepted > decoded:
        draft.flag("accepted_exceeds_emitted")
    if accepted is not None and steps is not None and steps >= MANY_STEPS and accepted <= NEVER_RIGHT * steps:
        draft.flag("drafts_never_accepted")


def derived_steps(draft: Draft) -> int | None:
    """Verify steps where no counter is printed: every step emits its accepted drafts and one token of the target.

    decode_tokens − accepted; exact only if every step drafted and the last was not cut. None without drafting, or
    where the result is not positive.
    """
    if draft.decode_tokens is None or draft.accepted_draft_tokens is None or not draft.draft_tokens:
        return None
    steps = draft.decode_tokens - draft.accepted_draft_tokens
    return steps if steps > 0 else None
