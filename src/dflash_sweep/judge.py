"""Whether what a trial measured is what it was asked to measure.

Imports `engines.base`, `arms`, `metrics`, `records`, `errors`. Pure functions over turns and settings; the verdict is a
TrialFailed with its kind, or nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from dflash_sweep import arms, metrics
from dflash_sweep.engines.base import Engine
from dflash_sweep.errors import FailureKind, TrialFailed
from dflash_sweep.records import Knobs, KnobValue, TrialSpec, TurnRecord

REPORTED_VALUE_TOLERANCE = 5e-3
"""Relative: servers print floats with few digits (0.125 as 0.12 stays a mismatch, 0.333 as 0.3333 does not)."""

REFUSED = range(400, 429)
"""HTTP answers by which a server says that it does not take this request: asking again would not help."""


def judge(engine: Engine, spec: TrialSpec, turns: Sequence[TurnRecord], effective: Knobs) -> None:
    """Raises TrialFailed if what was measured is not what was asked for, or if nothing was measured.

    request_failed: a counted turn broke off or got a server error (a trial with fewer turns is another trial);
    setting_not_applied, draft_inactive, degenerate_output (half of the turns or more), no_measurement.
    """
    counted = [turn for turn in turns if not turn.warmup]
    for turn in counted:
        exchange = turn.exchange
        status = exchange.error_code or exchange.http_status
        if exchange.error_type is not None and status not in REFUSED:
            message = f"turn {turn.conversation}/{turn.index}: {exchange.error_type}: {exchange.error}"
            raise TrialFailed(FailureKind.REQUEST_FAILED, message)
    if different := not_applied(engine.effective_point(spec.knobs), effective):
        raise TrialFailed(FailureKind.SETTING_NOT_APPLIED, "; ".join(different))
    answered = [turn for turn in counted if turn.exchange.error_type is None]
    looks_up = "ngram" in str(effective.get("speculation"))  # it drafts what it finds in the text, and may find nothing
    if spec.speculative and answered and not looks_up and not _drafted(answered, engine.facts.launches):
        message = "speculation was asked for, but no turn shows a draft token or a verify step"
        raise TrialFailed(FailureKind.DRAFT_INACTIVE, message)
    own = [turn for turn in counted if not arms.is_other(turn.invalid_reason)]
    reasons = Counter(turn.invalid_reason for turn in own)
    if 2 * reasons["degenerate_output"] >= max(1, len(own)):
        message = f"{reasons['degenerate_output']} of {len(own)} turns repeat themselves over and over"
        raise TrialFailed(FailureKind.DEGENERATE_OUTPUT, message)
    if not reasons[None] or metrics.pooled_decode_tps(turns) is None:
        listed = ", ".join(f"{count} × {reason}" for reason, count in reasons.most_common() if reason) or "none played"
        first = next((f"; first: {turn.exchange.error}" for turn in counted if turn.exchange.error), "")
        raise TrialFailed(FailureKind.NO_MEASUREMENT, f"no turn can be counted: {listed}{first}")


def _drafted(turns: Sequence[TurnRecord], launched: bool) -> bool:
    """Whether drafting shows anywhere. A foreign server that tells nothing about it is believed; ours is not."""
    drafts = [turn.counters.draft_tokens for turn in turns if turn.counters.draft_tokens is not None]
    steps = [turn.counters.verify_steps for turn in turns if turn.counters.verify_steps is not None]
    if not drafts and not steps:
        return not launched
    return any(drafts or steps)


def _same(asked: KnobValue, shown: KnobValue) -> bool:
    if isinstance(asked, int | float) and isinstance(shown, int | float):
        return math.isclose(asked, shown, rel_tol=REPORTED_VALUE_TOLERANCE, abs_tol=1e-9)
    return asked == shown


def not_applied(asked: Knobs, shown: Knobs) -> tuple[str, ...]:
    """One sentence for each knob whose shown value is not the one asked for. Knobs not shown say nothing."""
    return tuple(
        f"{name}: asked for {value!r}, the server runs with {shown[name]!r}"
        for name, value in asked.items()
        if value is not None and name in shown and not _same(value, shown[name])
    )
