"""One run of one candidate: the spec sent to a worker, the result sent back, the row that is stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dflash_sweep.errors import FailureKind
from dflash_sweep.records.engine import Device, EngineBuild, EngineSettings, LaunchSpec, ModelFile
from dflash_sweep.records.trace import Trace
from dflash_sweep.records.turn import ReplayPolicy, TurnRecord
from dflash_sweep.records.words import Knobs, Measurement, Role


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
class TurnCost:
    """What one turn of the best candidate took: `cost` per token (ms) or per turn (ms), by the objective; less is
    better. `prompt_sha256` tells whether another run's turn is the same one; `source` whose clock it was."""

    conversation: str
    index: int
    prompt_sha256: str
    cost: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRule:
    """When a trial on one kind of device may be ended early: see `pruning`.

    `candidate` is the best so far, with its `turns` (first turns of conversations left out); `margin` is how much
    slower a candidate must surely be, as a share (0.1 = 10 %); `alpha` the level of all looks together; no look before
    `min_turns` paired turns.
    """

    candidate: int
    device: str
    objective: str
    turns: tuple[TurnCost, ...]
    margin: float
    alpha: float
    min_turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One run of one candidate on one device: the only thing sent to a worker.

    `uid` is unique in the database; `candidate` is Optuna's number (None for baseline, canary and calibration
    rows); `repeat` counts runs of the same candidate; `attempt` counts retries of the same run. `models`: the engine's
    files as the preflight read them; () = not known. `devices`: names
    or ids of all devices that this study runs on. `plain_settings`: those of its settings that plain decoding reads
    too (see `controls`); None = not known. `origin`: state of the code, packages, hash of the configuration and seeds
    of the run of the program that made this trial.
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
    own_server: bool = False
    prune: tuple[PruneRule, ...] = ()
    retry_throttled: bool = False
    models: tuple[ModelFile, ...] = ()
    devices: tuple[str, ...] = ()
    plain_settings: str | None = None
    origin: dict[str, Any] = field(default_factory=dict)


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
