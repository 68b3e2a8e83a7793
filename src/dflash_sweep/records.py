"""Every frozen record that crosses a module or a process boundary. Imports `errors` only.

Rules: None means "not known" and is never 0 or NaN; times are integer nanoseconds of one monotonic
clock or milliseconds by name; tuples, not lists; dicts are never changed after construction.
All records can be pickled (Ray) and written or read as JSON by msgspec.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from dflash_sweep.errors import FailureKind

KnobValue: TypeAlias = bool | int | float | str | None
"""A value of a knob. None = leave the knob to the engine's default (no flag is passed)."""

Knobs: TypeAlias = dict[str, KnobValue]
"""Canonical knob name → value, e.g. {"budget": 22, "chain_seed": True}."""


class Measurement(StrEnum):
    """Where a number comes from. Rows of different kinds are never pooled."""

    MEASURED = "measured"
    EMULATED = "emulated"
    IMPORTED = "imported"


class Role(StrEnum):
    """Why a trial was run."""

    BASELINE = "baseline"
    CALIBRATE = "calibrate"
    SEARCH = "search"
    CANARY = "canary"
    CONFIRM = "confirm"
    RERUN = "rerun"


class VerdictStatus(StrEnum):
    HOLDS = "holds"
    DOES_NOT_HOLD = "does_not_hold"
    NOT_ENOUGH_DATA = "not_enough_data"


# ---------------------------------------------------------------- the trace


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswer:
    """What the model answered when the trace was recorded: for checking, never sent (later history holds it anyway)."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    ttft_ms: float | None = None
    duration_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call of a trace: the full request history up to the call, never the recorded answer.

    `messages` and `tools` are OpenAI chat objects, ready to send. `tools` is None (absent), never ().
    `pause_ms` is the recorded time between the previous answer and this request (tool run, human).
    `bucket` is one of code, tool_call, thinking, prose, long_context, other.
    """

    conversation: str
    index: int
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: Any = None
    max_tokens: int | None = None
    pause_ms: float | None = None
    bucket: str = "other"
    recorded: RecordedAnswer = field(default_factory=RecordedAnswer)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHeader:
    """Where a trace comes from and what it cannot tell. `sha256` is over the canonical turns."""

    name: str
    source: str
    format_version: int = 1
    sha256: str = ""
    license: str | None = None
    tokenizer: str | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    content_kind: str = "real"
    losses: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    header: TraceHeader
    turns: tuple[Turn, ...]


# ---------------------------------------------------------------- engine, device, launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a worker owns. `uuid` is passed to the child as it is (GPU-…, MIG-…); None for a CPU or an emulated card."""

    kind: str  # gpu | cpu | emulated
    index: int
    name: str
    uuid: str | None = None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The user's choice of engine: everything that stays the same over a study.

    `options` are engine-specific settings declared by the adapter (e.g. the emulator's card and clock).
    """

    name: str
    binary: str | None = None
    model: str | None = None
    draft_model: str | None = None
    n_ctx: int = 8192
    options: Knobs = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    startup_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBuild:
    """What the probe found. `dialect` names the parser variant; `flags` the binary's switches (empty = unknown)."""

    engine: str
    version: str
    binary: str
    binary_sha256: str | None = None
    dialect: str = ""
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """An exact command line. `env` holds only what is added to the allow-listed parent environment."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    role: str  # target | draft
    path: str
    size_bytes: int
    sha256: str
    name: str | None = None
    architecture: str | None = None
    quantisation: str | None = None


# ---------------------------------------------------------------- replay policy and the trial


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPolicy:
    """How a trace is played. Part of the comparability key: rows with different policies are not ranked together.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One run of one candidate on one device: the only thing sent to a worker.

    `uid` is unique in the database; `candidate` is Optuna's number (None for baseline, canary and calibration
    rows); `repeat` counts runs of the same candidate; `attempt` counts retries of the same run.
    """

    uid: str
    study: str
    role: Role
    candidate: int | None
    repeat: int = 0
    attempt: int = 0
    speculative: bool = True
    knobs: Knobs = field(default_factory=dict)
    engine: EngineSettings
    build: EngineBuild
    trace: Trace
    policy: ReplayPolicy
    evidence_dir: str
    timeout_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What the client saw of one request: raw, nothing derived.

    All `*_ns` are of the client's monotonic clock; None where the event did not happen. `chunk_gaps_ms` are gaps
    between chunks that carried text (with speculation a chunk can hold several tokens; never count them as tokens).
    `log_start` is the size of the server's log in bytes when the request was sent. `extra` holds top-level fields of
    the stream that are neither usage nor timings (vLLM's metrics, SGLang's sglext …; the last of each name wins);
    `metrics_before`/`metrics_after` the text of the metrics page around the request, where the engine counts there.
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
    log_start: int = 0
    response_id: str | None = None
    extra: dict[str, Any] | None = None
    metrics_before: str | None = None
    metrics_after: str | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    kind: FailureKind
    message: str
    exit_code: int | None = None
    log_path: str | None = None
    log_tail: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySummary:
    """Device readings over the measured turns; None where the device does not say."""

    samples: int = 0
    peak_memory_mib: float | None = None
    mean_power_w: float | None = None
    energy_j: float | None = None
    max_temperature_c: float | None = None
    min_sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    throttled: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What a worker sends back: turns or a failure, and how it was run. `effective`: settings the server showed.

    `claimed`: figures that the author of an imported row states (metric name → number), kept as they were stated.
    """

    uid: str
    measurement: Measurement
    clock: str  # real | virtual
    device: Device
    turns: tuple[TurnRecord, ...] = ()
    failure: Failure | None = None
    launch: LaunchSpec | None = None
    effective: Knobs = field(default_factory=dict)
    memory_mib: dict[str, float] = field(default_factory=dict)
    telemetry: TelemetrySummary = field(default_factory=TelemetrySummary)
    environment: dict[str, Any] = field(default_factory=dict)
    worker: str = ""
    started_utc: str = ""
    load_s: float | None = None
    wall_s: float | None = None
    claimed: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrial:
    """A spec and its result, as the store returns them; imported rows have the same shape.

    `number` counts trials of the study in the order they were finished. `spec_json`-only fields that a report does
    not need (the trace, the policy) are not repeated here.
    """

    uid: str
    study: str
    number: int
    role: Role
    candidate: int | None
    repeat: int
    attempt: int
    speculative: bool
    knobs: Knobs
    engine: str
    build: str
    trace_name: str
    trace_sha256: str
    comparability_key: str
    result: TrialResult
    label: str | None = None
    status_claimed: str | None = None  # imported rows: what their author decided (keep, discard, crash …)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisInfo:
    """One axis of a search space as reports see it. `values` in order of size where the axis is ordered.

    `values` None = a continuous range from `low` to `high`. `active_when` is in words; None = always active.
    """

    name: str
    kind: str  # int | float | bool | choice
    values: tuple[KnobValue, ...] | None = None
    low: float | None = None
    high: float | None = None
    ordered: bool = False
    unit: str = ""
    doc: str = ""
    active_when: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyInfo:
    """A study as it is stored, without its trials. `config` is the whole resolved configuration.

    `status`: running, finished, interrupted or failed; `stop_reason` says in words why a study ended before its budget.
    `confirmed_candidate` None = no winner was named.
    """

    name: str
    engine: str
    measurement: Measurement
    objective: str = "decode_tps"
    direction: str = "maximize"
    axes: tuple[AxisInfo, ...] = ()
    seed: int = 0
    n_trials: int = 0
    status: str = "running"
    stop_reason: str | None = None
    confirmed_candidate: int | None = None
    created_utc: str = ""
    finished_utc: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)


# ---------------------------------------------------------------- conclusions


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One conclusion: a sentence and what it rests on. The ids are those of docs/verdicts.md.

    `value`, `ci_low` and `ci_high` share `unit`; None where a verdict has no single figure. `n` counts the
    independent observations behind the interval (never turns of one run counted as runs).
    """

    id: str
    subject: str
    status: VerdictStatus
    statement: str
    value: float | None = None
    unit: str | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int = 0
    details: dict[str, Any] = field(default_factory=dict)
    how_to_check: str | None = None

    def __post_init__(self) -> None:
        for name in ("value", "ci_low", "ci_high"):
            number = getattr(self, name)
            if number is not None and not math.isfinite(number):
                raise ValueError(f"verdict {self.id}: {name} must be finite or None, got {number}")
