"""Every metric of replayed turns as a figure: value, where it comes from, or why there is none. Imports `metrics`,
`objective`, `records`.

Per turn, per bucket, and pooled over all counted turns. Rates are pooled (sum over sum), never means of rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from dflash_sweep import metrics, objective
from dflash_sweep.records import TurnCounters, TurnRecord

CLIENT = "client"
SERVER = "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One metric over some turns. `value` None: `why_not` says in words why it cannot be known.

    `source`: json, log or client for what rests on the engine's or our clock (joined by + where turns differ);
    None with a value None. `n` counts the turns it rests on.
    """

    name: str
    value: float | None
    unit: str
    n: int
    source: str | None = None
    why_not: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSource:
    """What a metric needs. `clock`: client or server (server = json, log or client, as the adapter found it).

    `needs` are (field, reason if it is missing): fields of TurnCounters, or of the exchange where they end in _ns.
    """

    clock: str
    needs: tuple[tuple[str, str], ...]


_OUTPUT = ("output_tokens", "the server gave no token count (chunks are never counted as tokens)")
_DECODE = (
    ("decode_tokens", "the server gave no token count (chunks are never counted as tokens)"),
    ("decode_ms", "no decode-only time: neither answer nor log has one"),
)
_FIRST = ("first_token_ns", "no text came back")
_END = ("end_ns", "the request has no end")
_STEPS = ("verify_steps", "the engine prints no count of verify steps, or did not speculate")

SOURCES: dict[str, MetricSource] = {
    "decode_tps": MetricSource(clock=SERVER, needs=_DECODE),
    "api_tps": MetricSource(clock=CLIENT, needs=(_OUTPUT, _END)),
    "wall_tps": MetricSource(clock=CLIENT, needs=(_OUTPUT, _END)),
    "prefill_tps": MetricSource(
        clock=SERVER,
        needs=(
            ("prompt_tokens", "the server gave no prompt token count"),
            ("cached_tokens", "the server does not say how many prompt tokens came from its cache"),
            ("prompt_ms", "no prompt time: neither answer nor log has one"),
        ),
    ),
    "ttft_ms": MetricSource(clock=CLIENT, needs=(_FIRST,)),
    "tpot_ms": MetricSource(clock=CLIENT, needs=(_OUTPUT, _FIRST)),
    "chunk_gap_ms": MetricSource(clock=CLIENT, needs=(_FIRST,)),
    "acceptance_length": MetricSource(clock=SERVER, needs=(_DECODE[0], _STEPS)),
    "acceptance_length_macro": MetricSource(clock=SERVER, needs=(_DECODE[0], _STEPS)),
    "draft_acceptance_rate": MetricSource(
        clock=SERVER,
        needs=(
            ("draft_tokens", "the engine prints no count of drafted tokens, or did not speculate"),
            ("accepted_draft_tokens", "the engine prints no count of accepted tokens, or did not speculate"),
        ),
    ),
    "step_ms": MetricSource(clock=SERVER, needs=(_STEPS, _DECODE[1])),
}
"""Metrics that turns alone give. Others (energy, the baseline's plain_ms_per_token) need more than turns."""


def _sum(turns: Sequence[TurnRecord], field: str) -> float:
    return float(sum(getattr(turn.counters, field) for turn in turns))


def _rate(numerator: str, denominator: str, scale: float = 1.0) -> Callable[[Sequence[TurnRecord]], float | None]:
    return lambda turns: metrics.ratio(_sum(turns, numerator), _sum(turns, denominator), scale)


def _objective(name: str) -> Callable[[Sequence[TurnRecord]], float | None]:
    return lambda turns: objective.score([replace(turn, invalid_reason=None, warmup=False) for turn in turns], name)


def _prefill_tps(turns: Sequence[TurnRecord]) -> float | None:
    processed = _sum(turns, "prompt_tokens") - _sum(turns, "cached_tokens")
    if processed < metrics.PREFILL_MIN_TOKENS:
        return None
    return metrics.ratio(processed, _sum(turns, "prompt_ms"), 1000.0)


def _chunk_gap_ms(turns: Sequence[TurnRecord]) -> float | None:
    gaps = [gap for turn in turns for gap in turn.exchange.chunk_gaps_ms]
    return fmean(gaps) if gaps else None


def _macro(turns: Sequence[TurnRecord]) -> float | None:
    values = [metrics.acceptance_length(turn.counters) for turn in turns]
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _step_ms(turns: Sequence[TurnRecord]) -> float | None:
    printed = [_printed_step_ms(turn.counters) for turn in turns]
    total = sum(p for p in printed if p is not None) if None not in printed else _sum(turns, "decode_ms")
    return metrics.ratio(total, _sum(turns, "verify_steps"))


def _printed_step_ms(counters: TurnCounters) -> float | None:
    return next((stage.total_ms for stage in counters.stages if stage.name == "step_ms"), None)


_FORMULAS: dict[str, Callable[[Sequence[TurnRecord]], float | None]] = {
    "decode_tps": _rate("decode_tokens", "decode_ms", 1000.0),
    "api_tps": _objective("api_tps"),
    "wall_tps": _objective("wall_tps"),
    "prefill_tps": _prefill_tps,
    "ttft_ms": _objective("ttft_ms"),
    "tpot_ms": _objective("tpot_ms"),
    "chunk_gap_ms": _chunk_gap_ms,
    "acceptance_length": _rate("decode_tokens", "verify_steps"),
    "acceptance_length_macro": _macro,
    "draft_acceptance_rate": _rate("accepted_draft_tokens", "draft_tokens"),
    "step_ms": _step_ms,
}

TOO_LITTLE = {
    "prefill_tps": f"fewer than {metrics.PREFILL_MIN_TOKENS} prompt tokens were processed, the others were cached",
    "tpot_ms": "fewer than two output tokens",
    "chunk_gap_ms": "all text came in one chunk",
}


def _missing(turns: Sequence[TurnRecord], source: MetricSource) -> str | None:
    """The first reason why a needed field is not there, and in how many turns."""
    for field, reason in source.needs:
        lacking = sum(
            getattr(turn.exchange if field.endswith("_ns") else turn.counters, field) is None for turn in turns
        )
        if lacking:
            return reason if len(turns) == 1 else f"{reason} ({lacking} of {len(turns)} turns)"
    return None


def _source(turns: Sequence[TurnRecord], metric: MetricSource) -> str:
    if metric.clock == CLIENT:
        return CLIENT
    return "+".join(sorted({turn.counters.timing_source or "log" for turn in turns}))


def _figure(name: str, turns: Sequence[TurnRecord]) -> Figure:
    unit, source = metrics.METRIC[name].unit, SOURCES[name]
    if not turns:
        return Figure(name=name, value=None, unit=unit, n=0, why_not="no turn counts")
    if (reason := _missing(turns, source)) is not None:
        return Figure(name=name, value=None, unit=unit, n=len(turns), why_not=reason)
    if name == "draft_acceptance_rate" and len({turn.counters.acceptance_kind for turn in turns}) > 1:
        return Figure(name=name, value=None, unit=unit, n=len(turns), why_not="turns count drafted tokens differently")
    value = _FORMULAS[name](turns)
    if value is None:
        reason = TOO_LITTLE.get(name, "the denominator is zero")
        return Figure(name=name, value=None, unit=unit, n=len(turns), why_not=reason)
    return Figure(name=name, value=value, unit=unit, n=len(turns), source=_source(turns, source))


def turn_figures(turn: TurnRecord) -> dict[str, Figure]:
    """All figures of one turn, whether or not it counts; metrics that only make sense pooled are left out."""
    names = [name for name in SOURCES if metrics.METRIC[name].scope != "pooled"]
    return {name: _figure(name, [turn]) for name in names}


def pooled_figures(turns: Iterable[TurnRecord]) -> dict[str, Figure]:
    """All figures over the turns that count (valid, no warm-up)."""
    counted = [turn for turn in turns if turn.invalid_reason is None and not turn.warmup]
    return {name: _figure(name, counted) for name in SOURCES}


def bucket_figures(turns: Iterable[TurnRecord]) -> dict[str, dict[str, Figure]]:
    """Bucket → its pooled figures, in the order in which the buckets occur. wall_tps is of the whole replay only."""
    by_bucket: dict[str, list[TurnRecord]] = {}
    for turn in turns:
        if turn.invalid_reason is None and not turn.warmup:
            by_bucket.setdefault(turn.bucket, []).append(turn)
    return {
        bucket: {name: _figure(name, members) for name in SOURCES if name != "wall_tps"}
        for bucket, members in by_bucket.items()
    }
