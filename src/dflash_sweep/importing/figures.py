"""The raw counts of one foreign row: what its figures allow, nothing more. Imports `rawlog`, `records`, `metrics`."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_sweep import metrics
from dflash_sweep.importing.rawlog import RawRow
from dflash_sweep.records import StageTime, TurnCounters

RATE_NAMES = frozenset(
    {
        "tps",
        "decode_tps",
        "tok_s",
        "tok/s",
        "tokens_per_sec",
        "tokens_per_second",
        "tg_tps",
        "gen_tps",
        "avg_ts",
        "throughput",
    }
)
"""Metric names that mean decoded tokens per second."""

CLAIM_TOLERANCE = 0.01
"""A claimed rate further than this from the one its own counts give is flagged."""


def counters(row: RawRow, metric_name: str) -> TurnCounters | None:
    """Counts and stage times of a row; None if its figures do not allow a decode rate.

    Either steps, step_ms and tokens are given (decode_ms = steps · step_ms), or tokens and a decode rate (decode_ms =
    1000 · tokens / rate). `accepted_draft_tokens` = committed − steps, or from the acceptance length if that gives a
    whole number. A stage of 0 ms was not run or not printed and is left out.
    """
    figures = row.metrics
    tokens = _positive(figures, "decode_tokens", "gen_tokens", "output_tokens")
    steps = _positive(figures, "verify_steps", "steps")
    step_ms = _positive(figures, "step_ms")
    if tokens is None:
        return None
    if steps is not None and step_ms is not None:
        decode_ms, source = steps * step_ms, "log"
    elif row.metric is not None and row.metric > 0 and metric_name in RATE_NAMES:
        decode_ms, source = 1000.0 * tokens / row.metric, "claimed"
    else:
        return None
    return TurnCounters(
        output_tokens=int(tokens),
        decode_tokens=int(tokens),
        decode_ms=decode_ms,
        timing_source=source,
        verify_steps=int(steps) if steps is not None else None,
        steps_source="printed" if steps is not None else None,
        accepted_draft_tokens=_accepted(figures, steps),
        acceptance_kind="unknown",
        stages=_stages(figures, steps),
        server_tps_raw=row.metric,
        flags=_flags(row, metric_name, tokens, decode_ms),
    )


def _positive(figures: Mapping[str, float], *names: str) -> float | None:
    return next((value for name in names if (value := figures.get(name, 0.0)) > 0), None)


def _accepted(figures: Mapping[str, float], steps: float | None) -> int | None:
    if steps is None:
        return None
    accepted = _positive(figures, "accepted")
    if accepted is not None:
        return int(accepted)
    committed = _positive(figures, "committed")
    if committed is None:
        length = _positive(figures, "acceptance", "acceptance_length")
        product = length * steps if length is not None and length >= 1 else 0.0
        committed = round(product) if abs(product - round(product)) <= 0.001 * steps + 0.001 else None
    return int(committed - steps) if committed is not None and committed >= steps else None


def _stages(figures: Mapping[str, float], steps: float | None) -> tuple[StageTime, ...]:
    if steps is None:
        return ()
    return tuple(
        StageTime(name=name, total_ms=steps * figures[name], source="log")
        for name in metrics.STAGE_NAMES
        if figures.get(name, 0.0) > 0
    )


def _flags(row: RawRow, metric_name: str, tokens: float, decode_ms: float) -> tuple[str, ...]:
    if row.metric is None or metric_name not in RATE_NAMES:
        return ()
    rate = 1000.0 * tokens / decode_ms
    return ("claimed_rate_differs",) if abs(row.metric / rate - 1) > CLAIM_TOLERANCE else ()
