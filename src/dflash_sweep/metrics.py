"""The vocabulary of measurement: every metric's name, unit, direction and formula, and the stages of a verify step.

Imports `records` only. Formulas are pure functions over `TurnCounters` and `Exchange`; a figure that cannot be
computed is None. docs/metrics.md is printed from the tables below.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dflash_sweep.records import Exchange, TurnCounters, TurnRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDef:
    """One metric. `direction`: maximize, minimize or none (not an objective). `scope`: turn, pooled or both."""

    name: str
    unit: str
    direction: str
    formula: str
    scope: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDef:
    """One stage of a verify step. `in_sum`: a member of the sum that makes up step_ms."""

    name: str
    meaning: str
    in_sum: bool = True


STAGES: tuple[StageDef, ...] = (
    StageDef(name="step_ms", meaning="one draft + verify + accept cycle", in_sum=False),
    StageDef(name="pack_ms", meaning="host packing of target features"),
    StageDef(name="draft_ms", meaning="draft model's forward pass"),
    StageDef(name="topk_ms", meaning="reading the draft's top-k candidates (may hold the wait for the draft)"),
    StageDef(name="build_ms", meaning="building the tree"),
    StageDef(name="snapshot_ms", meaning="saving recurrent state before a batched verify"),
    StageDef(name="verify_ms", meaning="batched target forward over block or tree, with read-back"),
    StageDef(name="accept_ms", meaning="walk over the verified tree, sampling and grammar included"),
    StageDef(name="compact_ms", meaning="moving the accepted path's KV together"),
    StageDef(name="rollback_ms", meaning="restoring recurrent state after a partial accept"),
    StageDef(name="ingest_ms", meaning="storing target features of accepted tokens"),
    StageDef(name="replay_ms", meaning="decoding the kept path again after a snapshot restore"),
    StageDef(name="exact_ms", meaning="sequential target decodes of the kept path"),
    StageDef(name="other_ms", meaning="remainder of step_ms that no stage accounts for"),
)

STAGE_NAMES: tuple[str, ...] = tuple(stage.name for stage in STAGES)
SUMMED_STAGES: tuple[str, ...] = tuple(stage.name for stage in STAGES if stage.in_sum)

METRICS: tuple[MetricDef, ...] = (
    MetricDef(
        name="decode_tps",
        unit="tok/s",
        direction="maximize",
        scope="both",
        formula="1000 · Σ decode_tokens / Σ decode_ms",
        note="decode only; decode_tokens leaves out a first token that comes from prefill",
    ),
    MetricDef(
        name="api_tps",
        unit="tok/s",
        direction="maximize",
        scope="both",
        formula="Σ output_tokens / Σ (end − send)",
        note="whole request as the client sees it, time to first token included",
    ),
    MetricDef(
        name="wall_tps",
        unit="tok/s",
        direction="maximize",
        scope="pooled",
        formula="Σ output_tokens / (last end − first send)",
        note="pauses included: depends on the pace of the replay",
    ),
    MetricDef(
        name="prefill_tps",
        unit="tok/s",
        direction="maximize",
        scope="both",
        formula="1000 · Σ (prompt_tokens − cached_tokens) / Σ prompt_ms",
        note="None where fewer than 16 tokens were processed",
    ),
    MetricDef(
        name="ttft_ms",
        unit="ms",
        direction="minimize",
        scope="both",
        formula="first non-empty content or reasoning delta − send",
        note="in a turn that is nothing but a tool call, the call's first piece; such turns are flagged",
    ),
    MetricDef(
        name="tpot_ms",
        unit="ms",
        direction="minimize",
        scope="both",
        formula="(last − first token time) / (output_tokens − 1)",
        note="over several turns: the mean of their values",
    ),
    MetricDef(
        name="chunk_gap_ms",
        unit="ms",
        direction="none",
        scope="both",
        formula="mean gap between chunks that carried text",
        note="a chunk can hold several tokens: never an inter-token latency",
    ),
    MetricDef(
        name="acceptance_length",
        unit="tokens/step",
        direction="none",
        scope="both",
        formula="Σ decode_tokens / Σ verify_steps",
        note="pooled over steps; the target's own token counts",
    ),
    MetricDef(
        name="acceptance_length_macro",
        unit="tokens/step",
        direction="none",
        scope="pooled",
        formula="mean over turns of decode_tokens / verify_steps",
    ),
    MetricDef(
        name="draft_acceptance_rate",
        unit="1",
        direction="none",
        scope="both",
        formula="Σ accepted_draft_tokens / Σ draft_tokens",
        note="only between rows of the same acceptance_kind",
    ),
    MetricDef(
        name="step_ms",
        unit="ms",
        direction="minimize",
        scope="both",
        formula="Σ step time / Σ verify_steps; decode_ms where no step time is printed",
    ),
    MetricDef(
        name="plain_ms_per_token",
        unit="ms",
        direction="minimize",
        scope="pooled",
        formula="Σ decode_ms / Σ decode_tokens of the baseline",
    ),
    MetricDef(
        name="joules_per_token",
        unit="J",
        direction="minimize",
        scope="pooled",
        formula="energy / Σ output_tokens",
        note="over all measured turns; None where the device does not tell its power",
    ),
    MetricDef(
        name="vram_mib",
        unit="MiB",
        direction="minimize",
        scope="pooled",
        formula="peak of the device's memory; where it is not read, the sum of what the server's log names",
    ),
    MetricDef(
        name="max_temperature_c",
        unit="°C",
        direction="none",
        scope="pooled",
        formula="highest reading of the device over the measured turns",
        note="can be constrained: a card near its limit slows down",
    ),
)

METRIC: dict[str, MetricDef] = {metric.name: metric for metric in METRICS}

PREFILL_MIN_TOKENS = 16
"""Below this many processed prompt tokens a prefill rate says nothing (one batch's fixed cost)."""


def ratio(numerator: float | None, denominator: float | None, scale: float = 1.0) -> float | None:
    """numerator · scale / denominator; None if either is missing or the denominator is not positive."""
    if numerator is None or denominator is None or denominator <= 0:
        return None
    return scale * numerator / denominator


def decode_tps(counters: TurnCounters) -> float | None:
    """Decode-only tokens per second of one turn, recomputed from raw counts (never the server's own rate)."""
    return ratio(counters.decode_tokens, counters.decode_ms, 1000.0)


def acceptance_length(counters: TurnCounters) -> float | None:
    """Tokens emitted per verify step of one turn."""
    return ratio(counters.decode_tokens, counters.verify_steps)


def prefill_tps(counters: TurnCounters) -> float | None:
    """Prompt tokens really processed per second; `prompt_tokens` counts cached ones too."""
    if counters.prompt_tokens is None or counters.cached_tokens is None:
        return None
    processed = counters.prompt_tokens - counters.cached_tokens
    if processed < PREFILL_MIN_TOKENS:
        return None
    return ratio(processed, counters.prompt_ms, 1000.0)


def ttft_ms(exchange: Exchange) -> float | None:
    """Request sent → first non-empty content or reasoning delta."""
    if exchange.first_token_ns is None:
        return None
    return (exchange.first_token_ns - exchange.send_ns) / 1e6


def tpot_ms(exchange: Exchange, output_tokens: int | None) -> float | None:
    """Mean time per output token after the first, by the client's clock."""
    first, last = exchange.first_token_ns, exchange.last_token_ns
    if first is None or last is None or output_tokens is None or output_tokens < 2:
        return None
    return (last - first) / 1e6 / (output_tokens - 1)


def pooled_decode_tps(turns: Iterable[TurnRecord]) -> float | None:
    """Pooled tokens over pooled time of the valid, measured turns: the default objective. Never a mean of rates."""
    counted = [turn.counters for turn in turns if turn.invalid_reason is None and not turn.warmup]
    tokens = sum(counters.decode_tokens or 0 for counters in counted)
    return ratio(tokens, sum(counters.decode_ms or 0.0 for counters in counted), 1000.0) if tokens else None
