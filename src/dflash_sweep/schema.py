"""The reference of every configuration key: its type, its unit and what it does. Imports omegaconf only.

docs/configuration.md is printed from these schemas. They stay mutable because OmegaConf merges into them; everything
inside the program gets the frozen `settings.Settings`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class EngineConfig:
    """Which server is launched, and what stays the same over the study."""

    name: str = MISSING  # which engine: one of those in docs/engines.md
    binary: str | None = None  # path of the server executable; null = the engine's own default
    model: str | None = None  # target model: file, folder or owner/name of a hub; null = the default one
    draft_model: str | None = None  # draft model, likewise; null = none, or the default one
    n_ctx: int = 8192  # context size, tokens
    options: dict[str, Any] = field(default_factory=dict)  # engine-specific settings, see docs/engines.md
    extra_args: list[str] = field(default_factory=list)  # further command-line words, passed as they are
    env: dict[str, str] = field(default_factory=dict)  # further environment variables of the server
    startup_timeout_s: float = 600.0  # how long a server may take until its first answer, s


@dataclass
class TraceConfig:
    """What is replayed: a file in the canonical format, or the name of a shipped trace."""

    path: str = MISSING  # path, or shipped name: see `dflash-sweep traces list`
    max_turns: int | None = None  # only the first turns of each conversation; null = all


@dataclass
class ReplayConfig:
    """How the trace is played; part of every row's comparability key."""

    mode: str = "teacher_forced"  # teacher_forced | free_running
    warmup_turns: int = 1  # requests with other text before the first counted one
    max_tokens: int = 128  # most tokens generated per turn
    temperature: float = 0.0  # the target's sampling temperature
    cache_prompt: bool = True  # reuse the prompt within a conversation
    thinking: bool | None = None  # the template's thinking switch; null = the template's default
    tools: bool = True  # send the trace's tool schemas
    arms: list[str] = field(default_factory=lambda: ["as_recorded"])  # as_recorded, no_tools, no_grammar
    concurrency: int = 1  # conversations played at once
    pauses: str = "drop"  # drop | compress | keep: recorded pauses between turns
    min_decode_tokens: int = 8  # turns with fewer decoded tokens have no rate
    turn_timeout_s: float = 600.0  # longest time for one answer, s
    request_fields: dict[str, Any] = field(default_factory=dict)  # further fields of every request, e.g. top_p
    fresh_server: bool = False  # every trial starts a server of its own; false = equal launches may share one


@dataclass
class SamplerConfig:
    """Who proposes the next candidate."""

    name: str = "tpe"  # tpe | random | grid | cmaes | gp | nsga2 | hillclimb
    n_startup_trials: int = 10  # random candidates before the model is used
    forecast_every: int = 0  # every so manyth candidate is the one that all runs so far foretell as best; 0 = never
    options: dict[str, Any] = field(default_factory=dict)  # passed to Optuna's sampler


@dataclass
class ClusterConfig:
    """Where trials run."""

    kind: str = "ray"  # ray | inline (in this process, one worker)
    workers: int = 1  # workers, each owning one device
    address: str = "local"  # Ray address; "local" never joins a running cluster
    scheduling: str = "async"  # async | deterministic (same candidates at any speed of the workers)


@dataclass
class StorageConfig:
    """Where results are kept."""

    url: str = "sqlite:///studies.db"  # SQLAlchemy URL; relative SQLite paths count from the launch directory
    dashboard: bool = True  # keep notes, figures and files for Optuna's dashboard up to date while a study runs
    files: str | None = None  # folder of those files; null = `artifacts` beside the SQLite file, else here


@dataclass
class ReportConfig:
    """Where findings are written."""

    dir: str = "reports"  # directory; one folder per study is made in it
    lang: str = "en"  # en | zh
    formats: list[str] = field(default_factory=lambda: ["png", "svg"])  # picture formats


@dataclass
class ProtocolConfig:
    """How many runs each phase gets."""

    baseline_repeats: int = 3  # runs of plain decoding before the search, at least
    default_repeats: int = 2  # runs of the engine's default speculative setting before the search, at least; 0 = none
    max_repeats: int = 6  # most of these runs: either is repeated until its mean is known to `half_width`
    half_width: float | None = 0.1  # half of a mean's 95 % interval, relative, that ends repeating; null = never more
    pruning: bool = True  # end a search trial early once it is surely slower than the best candidate on the same turns
    prune_min_turns: int = 6  # paired turns (first ones of conversations left out) before a trial may be ended early
    on_throttle: str = "flag"  # flag | retry: what becomes of a trial during which the device slowed down
    gate: bool = True  # stop before the search if the measured stages show that no setting can win
    held_out: Any = None  # what confirm replays: null = the search's turns, a share of them, or another trace
    canary_every: int = 10  # search trials between two re-measurements of plain decoding and the best so far; 0 = never
    confirm_top: int = 3  # best candidates that are measured again
    confirm_blocks: int = 4  # interleaved blocks of the confirm phase; 0 = no confirm phase
    controls: bool = True  # confirm beside plain decoding with the best one's own threads, cache types and the like too
    trial_timeout_s: float = 3600.0  # longest time for one trial, s
    retries: int = 2  # further attempts after a transient failure
    max_failures_in_a_row: int = 8  # as many failures one after another end the study


@dataclass
class BudgetConfig:
    """When to stop early; null = no limit."""

    hours: float | None = None  # wall time of the whole study over all its runs, h
    money: float | None = None  # hours x devices x price_per_hour of the whole study, in the price's currency
    price_per_hour: float | None = None  # of one device, in any currency


@dataclass
class RerunConfig:
    """What of the store is measured again; see docs/reruns.md."""

    study: str | None = None  # repeat this whole stored study under a new name; null = none
    trial: int | None = None  # repeat the trial of this number of the study `study_name`; null = none
    repeats: int = 3  # runs of the trial, each beside a run of plain decoding
    margin: float | None = None  # largest difference that counts as the same, %; null = from the study's own noise
    force: bool = False  # measure although build, model, trace or device differ; the result is marked


@dataclass
class Config:
    """The whole configuration. Groups: study engine trace sampler cluster storage report."""

    study_name: str = MISSING  # name in the database and of the folders
    n_trials: int = 40  # candidates measured in the search; 0 = plain decoding and the default setting only
    seed: int = 7  # the one seed; every other seed is derived from it
    resume: bool = False  # go on with a stored study of this name
    objective: Any = "decode_tps"  # what is maximised or minimised: one name, or a list; see docs/objectives.md
    constraints: dict[str, Any] = field(default_factory=dict)  # figure -> '<= number' or '>= number'; bit_equal -> true
    phases: list[str] = field(default_factory=lambda: ["calibrate", "gate", "search", "confirm"])  # what is played
    seed_from: list[str] = field(default_factory=list)  # stored studies whose best settings are measured first
    verbose: bool = False  # tracebacks and debug messages
    metric_lines: bool = False  # print `METRIC name=value` lines in the end, for scripts and agent loops
    progress: str = "auto"  # auto | live | plain | quiet | json: how a run shows itself, see docs/terminal.md
    space: dict[str, Any] = field(default_factory=dict)  # knob -> values, in Hydra's sweep grammar
    fixed: dict[str, Any] = field(default_factory=dict)  # knob -> value for every candidate
    plain: dict[str, Any] = field(default_factory=dict)  # knob -> value for plain decoding only, beside `fixed`
    compare: dict[str, Any] = field(default_factory=dict)  # engine -> its engine section, for engines side by side
    seed_points: list[Any] = field(default_factory=list)  # knob -> value maps measured first
    engine: EngineConfig = field(default_factory=EngineConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    protocol: ProtocolConfig = field(default_factory=ProtocolConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    rerun: RerunConfig = field(default_factory=RerunConfig)


SECTIONS: dict[str, Any] = {
    section.__name__: section
    for section in (
        EngineConfig, TraceConfig, ReplayConfig, SamplerConfig, ClusterConfig, StorageConfig, ReportConfig,
        ProtocolConfig, BudgetConfig, RerunConfig,
    )
}  # fmt: skip
"""Schemas of the groups and sections, by name."""

CHOICES: dict[str, tuple[str, ...]] = {
    "replay.mode": ("teacher_forced", "free_running"),
    "replay.pauses": ("drop", "compress", "keep"),
    "sampler.name": ("tpe", "random", "grid", "cmaes", "gp", "nsga2", "hillclimb"),
    "protocol.on_throttle": ("flag", "retry"),
    "cluster.kind": ("ray", "inline"),
    "cluster.scheduling": ("async", "deterministic"),
    "report.lang": ("en", "zh"),
    "progress": ("auto", "live", "plain", "quiet", "json"),
}
"""Keys that take one of a few words."""

PICTURE_FORMATS = ("png", "svg")
"""What `report.formats` may hold."""

MINIMA: dict[str, float] = {
    "n_trials": 0,
    "sampler.n_startup_trials": 0,
    "sampler.forecast_every": 0,
    "engine.n_ctx": 1,
    "engine.startup_timeout_s": 1,
    "replay.warmup_turns": 0,
    "replay.max_tokens": 2,
    "replay.temperature": 0,
    "replay.concurrency": 1,
    "replay.min_decode_tokens": 1,
    "trace.max_turns": 1,
    "cluster.workers": 1,
    "protocol.baseline_repeats": 1,
    "protocol.max_repeats": 0,
    "protocol.prune_min_turns": 1,
    "protocol.default_repeats": 0,
    "protocol.confirm_top": 1,
    "protocol.confirm_blocks": 0,
    "protocol.canary_every": 0,
    "protocol.retries": 0,
    "protocol.max_failures_in_a_row": 1,
    "rerun.trial": 0,
    "rerun.repeats": 1,
}
"""Smallest value of numeric keys; null is taken where the schema has it."""

POSITIVE = ("replay.turn_timeout_s", "protocol.trial_timeout_s")
"""Numeric keys that must be more than 0, however little."""
