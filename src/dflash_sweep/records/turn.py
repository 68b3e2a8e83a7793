"""One replayed turn: what the client saw, what the engine counted, what is stored. Imports nothing of ours."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

AS_RECORDED = "as_recorded"
"""The arm in which a turn is asked as its trace has it; see `arms` for the others."""

OTHER_ARM = "other_arm"
"""How the invalid_reason of turns begins that were played in another arm than the policy's first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPolicy:
    """How a trace is played. Part of the comparability key: rows with different policies are not ranked together.

    `arms`: in which ways each turn is asked within one trial; only the first counts for the study's figures.

    `fresh_server`: every trial starts a server of its own; False = trials of one launch may share one, warm.
    """

    mode: str = "teacher_forced"  # | free_running
    warmup_turns: int = 1
    max_tokens: int = 128
    temperature: float = 0.0
    sampling_seed: int = 0
    cache_prompt: bool = True
    thinking: bool | None = None
    tools: bool = True
    concurrency: int = 1
    pauses: str = "drop"  # | keep | compress
    min_decode_tokens: int = 8
    turn_timeout_s: float = 600.0
    fresh_server: bool = True
    request_fields: dict[str, Any] = field(default_factory=dict)
    arms: tuple[str, ...] = (AS_RECORDED,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What the client saw of one request: raw, nothing derived.

    All `*_ns` are of the client's monotonic clock; None where the event did not happen. `chunk_gaps_ms` are gaps
    between chunks that carried text (with speculation a chunk can hold several tokens; never count them as tokens).
    `log_start` is the size of the server's log in bytes when the request was sent. `extra` holds top-level fields of
    the stream that are neither usage nor timings (vLLM's metrics, SGLang's sglext …; the last of each name wins);
    `error_code` is the HTTP status that an error event inside a stream names (the stream itself began with 200);
    `metrics_before`/`metrics_after` the text of the metrics page around the request, where the engine counts there;
    `token_ids` the answer's, where the request asked for them and the server gives them; `arm` in which of the policy's
    arms the turn was asked.
    """

    turn_index: int
    send_ns: int
    headers_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    end_ns: int | None = None
    chunks: int = 0
    chunk_gaps_ms: tuple[float, ...] = ()
    http_status: int | None = None
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    error_type: str | None = None
    error: str | None = None
    error_code: int | None = None
    log_start: int = 0
    response_id: str | None = None
    extra: dict[str, Any] | None = None
    metrics_before: str | None = None
    metrics_after: str | None = None
    token_ids: tuple[int, ...] | None = None
    arm: str = AS_RECORDED


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Total time of one stage over all verify steps of a turn. `name` is one of metrics.STAGE_NAMES."""

    name: str
    total_ms: float
    source: str = "log"  # log | json | derived

    def __post_init__(self) -> None:
        if not math.isfinite(self.total_ms):
            raise ValueError(f"stage {self.name}: total_ms must be finite, got {self.total_ms}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCounters:
    """What an engine's adapter makes of one exchange and its piece of the log.

    `decode_tokens` are tokens produced by decode steps within `decode_ms` (one less than `output_tokens` where the
    first token comes from prefill). `acceptance_kind`: chain, tree_nodes or unknown: what `draft_tokens` counts.
    `steps_source`: printed or derived. `flags` are plausibility marks such as accepted_exceeds_emitted.
    """

    output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    prompt_ms: float | None = None
    decode_tokens: int | None = None
    decode_ms: float | None = None
    timing_source: str | None = None  # json | log | client
    verify_steps: int | None = None
    steps_source: str | None = None
    draft_tokens: int | None = None
    accepted_draft_tokens: int | None = None
    acceptance_kind: str = "unknown"
    acceptance_histogram: dict[int, int] | None = None
    stages: tuple[StageTime, ...] = ()
    server_tps_raw: float | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One replayed turn as it is stored. `invalid_reason` None = counts in every aggregate."""

    conversation: str
    index: int
    bucket: str
    order: int
    counters: TurnCounters
    exchange: Exchange
    prompt_sha256: str
    text_sha256: str
    warmup: bool = False
    invalid_reason: str | None = None
