"""What a study optimises: turns of one trial → one number, or None. Imports `metrics` and `records` only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from dflash_sweep import metrics
from dflash_sweep.records import TurnRecord


def _counted(turns: Iterable[TurnRecord]) -> list[TurnRecord]:
    return [turn for turn in turns if turn.invalid_reason is None and not turn.warmup]


def _api_tps(turns: Sequence[TurnRecord]) -> float | None:
    if any(turn.counters.output_tokens is None or turn.exchange.end_ns is None for turn in turns):
        return None
    tokens = sum(turn.counters.output_tokens or 0 for turn in turns)
    return metrics.ratio(tokens, sum((turn.exchange.end_ns or 0) - turn.exchange.send_ns for turn in turns), 1e9)


def _wall_tps(turns: Sequence[TurnRecord]) -> float | None:
    if any(turn.counters.output_tokens is None or turn.exchange.end_ns is None for turn in turns):
        return None
    first = min(turn.exchange.send_ns for turn in turns)
    last = max(turn.exchange.end_ns or 0 for turn in turns)
    return metrics.ratio(sum(turn.counters.output_tokens or 0 for turn in turns), last - first, 1e9)


def _ttft_ms(turns: Sequence[TurnRecord]) -> float | None:
    times = [metrics.ttft_ms(turn.exchange) for turn in turns]
    known = [time for time in times if time is not None]
    return fmean(known) if len(known) == len(times) else None


_SCORES = {
    "decode_tps": metrics.pooled_decode_tps,
    "api_tps": _api_tps,
    "wall_tps": _wall_tps,
    "ttft_ms": _ttft_ms,
}


def score(turns: Iterable[TurnRecord], objective: str) -> float | None:
    """The objective over the valid, counted turns; None if there are none or a needed figure is missing.

    Units are those of metrics.METRIC[objective]. Raises KeyError for a name that is no objective.
    """
    counted = _counted(turns)
    return _SCORES[objective](counted) if counted else None


def direction(objective: str) -> str:
    """maximize or minimize."""
    return metrics.METRIC[objective].direction
