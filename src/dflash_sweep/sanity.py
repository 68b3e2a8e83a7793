"""Whether one replayed turn may count: complete, finished as expected, long enough, not repeating itself.

Imports `records`. Pure functions; every reason is one word so that rows can be counted by it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_sweep.records import Exchange, ReplayPolicy, TurnCounters

FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "function_call", "eos"})
"""How a generation may end by itself or at the token limit; anything else (abort, content_filter …) is a fault."""

FOREIGN_PROCESS = "foreign_process"
"""A flag of `TurnCounters.flags`: the answer did not come from the process that the trial launched."""

MIN_UNITS = 48
"""Shorter texts are not judged: a tool call of 30 words repeats its own punctuation."""

MIN_LOOPS, LOOP_SHARE = 5, 0.5
"""A text is a loop if its end is one passage repeated at least 5 times that makes up half of it or more."""

MIN_DISTINCT_4 = 0.2
"""Below this share of distinct 4-grams a text says the same over and over: a passage repeated n times has about 1/n.
Of 1,324 pieces of 2,500 characters of Python's own standard library none is below 0.29; half of them are above 0.86."""

_UNIT = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]"  # scripts written without spaces: one character each
    r"|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]{1,12}"  # words, long ones in pieces
    r"|[^\w\s]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """How much a text repeats itself. `units` are words, punctuation marks, or characters of unspaced scripts.

    `distinct_2`, `distinct_4`: share of different n-grams among all (1 = none occurs twice; None = no n-gram).
    `loop_units`: length of the passage that the text's end repeats, 0 if none; `loops`: how often; `loop_share`: the
    share of the text these repeats make up.
    """

    units: int
    distinct_2: float | None
    distinct_4: float | None
    loop_units: int = 0
    loops: int = 0
    loop_share: float = 0.0

    @property
    def is_degenerate(self) -> bool:
        if self.units < MIN_UNITS:
            return False
        looped = self.loops >= MIN_LOOPS and self.loop_share >= LOOP_SHARE
        return looped or (self.distinct_4 is not None and self.distinct_4 < MIN_DISTINCT_4)


def _distinct(units: Sequence[str], n: int) -> float | None:
    count = len(units) - n + 1
    return len({tuple(units[i : i + n]) for i in range(count)}) / count if count > 0 else None


def _common_prefixes(units: Sequence[str]) -> list[int]:
    """For each i > 0 how many units from i on equal the beginning (the Z function, in linear time)."""
    lengths, left, right = [0] * len(units), 0, 0
    for i in range(1, len(units)):
        length = min(right - i, lengths[i - left]) if i < right else 0
        while i + length < len(units) and units[length] == units[i + length]:
            length += 1
        lengths[i] = length
        if i + length > right:
            left, right = i, i + length
    return lengths


def repetition(text: str) -> Repetition:
    """Measure a text. A partial last repeat counts; of several loops the one that covers most is reported."""
    units = _UNIT.findall(text)
    # Read backwards, a text that ends in repeats of p units begins with them: its Z value at p is the repeated length.
    same = _common_prefixes(units[::-1])
    best = max(range(1, len(units)), key=lambda p: (same[p] + p if same[p] >= p else 0, -p), default=0)
    loop = best if best and same[best] >= best else 0
    covered = same[loop] + loop if loop else 0
    return Repetition(
        units=len(units),
        distinct_2=_distinct(units, 2),
        distinct_4=_distinct(units, 4),
        loop_units=loop,
        loops=covered // loop if loop else 0,
        loop_share=covered / len(units) if units else 0.0,
    )


def answer_text(exchange: Exchange) -> str:
    """Everything the model wrote in one turn: reasoning, content, tool-call names and arguments."""
    parts = [exchange.reasoning, exchange.content]
    for call in exchange.tool_calls:
        function = call.get("function") or {}
        parts += [str(function.get("name") or ""), str(function.get("arguments") or "")]
    return "\n".join(part for part in parts if part)


def invalid_reason(exchange: Exchange, counters: TurnCounters, policy: ReplayPolicy) -> str | None:
    """Why a turn may not enter any aggregate; None = it counts.

    One of: the exchange's own error_type; foreign_process; no_finish, unexpected_finish; no_token_count,
    too_few_tokens (fewer decode tokens than policy.min_decode_tokens); no_decode_time; degenerate_output.
    """
    if exchange.error_type is not None:
        return exchange.error_type
    if FOREIGN_PROCESS in counters.flags:
        return FOREIGN_PROCESS
    if exchange.finish_reason is None:
        return "no_finish"
    if exchange.finish_reason not in FINISH_REASONS:
        return "unexpected_finish"
    if counters.decode_tokens is None:
        return "no_token_count"
    if counters.decode_tokens < policy.min_decode_tokens:
        return "too_few_tokens"
    if counters.decode_ms is None or counters.decode_ms <= 0:
        return "no_decode_time"
    return "degenerate_output" if repetition(answer_text(exchange)).is_degenerate else None
