"""Configuration in, checked settings out: the only module that knows Hydra's config objects and OmegaConf.

The schemas below are the reference of every key: its type, its unit and what it does (docs/configuration.md is
printed from them). They stay mutable because OmegaConf merges into them; everything inside the program gets the
frozen `Settings`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dflash_sweep.errors import ConfigError
from dflash_sweep.records import EngineSettings, Knobs, KnobValue, ReplayPolicy
from dflash_sweep.space import SearchSpace, parse_space


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
    concurrency: int = 1  # conversations played at once
    pauses: str = "drop"  # drop | compress | keep: recorded pauses between turns
    min_decode_tokens: int = 8  # turns with fewer decoded tokens have no rate
    turn_timeout_s: float = 600.0  # longest time for one answer, s
    request_fields: dict[str, Any] = field(default_factory=dict)  # further fields of every request, e.g. top_p


@dataclass
class SamplerConfig:
    """Who proposes the next candidate."""

    name: str = "tpe"  # tpe | random | grid | cmaes | gp | nsga2
    n_startup_trials: int = 10  # random candidates before the model is used
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

    baseline_repeats: int = 3  # runs of plain decoding before the search
    default_repeats: int = 2  # runs of the engine's default speculative setting before the search
    gate: bool = True  # stop before the search if the measured stages show that no setting can win
    canary_every: int = 10  # search trials between two re-measurements of plain decoding; 0 = never
    confirm_top: int = 3  # best candidates that are measured again
    confirm_blocks: int = 4  # interleaved blocks of the confirm phase; 0 = no confirm phase
    trial_timeout_s: float = 3600.0  # longest time for one trial, s
    retries: int = 2  # further attempts after a transient failure
    max_failures_in_a_row: int = 8  # as many failures one after another end the study


@dataclass
class BudgetConfig:
    """When to stop early; null = no limit."""

    hours: float | None = None  # wall time of the whole study, h


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
    objective: str = "decode_tps"  # what is maximised or minimised, see docs/metrics.md
    verbose: bool = False  # tracebacks and debug messages
    metric_lines: bool = False  # print `METRIC name=value` lines in the end, for scripts and agent loops
    progress: str = "auto"  # auto | live | plain | quiet
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

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/(?!.*\.gguf$)[\w.-]+")
"""owner/model of a model hub; a name that ends in .gguf is a file."""

CHOICES: dict[str, tuple[str, ...]] = {
    "replay.mode": ("teacher_forced", "free_running"),
    "replay.pauses": ("drop", "compress", "keep"),
    "sampler.name": ("tpe", "random", "grid", "cmaes", "gp", "nsga2"),
    "cluster.kind": ("ray", "inline"),
    "cluster.scheduling": ("async", "deterministic"),
    "report.lang": ("en", "zh"),
    "progress": ("auto", "live", "plain", "quiet"),
    "objective": ("decode_tps", "api_tps", "wall_tps", "ttft_ms"),
}
"""Keys that take one of a few words."""

MINIMA: dict[str, float] = {
    "n_trials": 0,
    "engine.n_ctx": 1,
    "engine.startup_timeout_s": 1,
    "replay.warmup_turns": 0,
    "replay.max_tokens": 2,
    "replay.concurrency": 1,
    "replay.min_decode_tokens": 1,
    "cluster.workers": 1,
    "protocol.baseline_repeats": 1,
    "protocol.default_repeats": 0,
    "protocol.confirm_top": 1,
    "protocol.confirm_blocks": 0,
    "protocol.retries": 0,
    "rerun.repeats": 2,
}
"""Smallest value of numeric keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one run does. Paths are absolute; `config` is the resolved configuration as plain data."""

    study_name: str
    space: SearchSpace
    fixed: Knobs
    plain: Knobs
    seed_points: tuple[Knobs, ...]
    engine: EngineSettings
    policy: ReplayPolicy
    trace_path: str
    storage_url: str
    report_dir: Path
    run_dir: Path
    config: Config
    resolved: dict[str, Any]


def key_names(node: Any = None, prefix: str = "") -> list[str]:
    """Every dotted key of the schema, sections included."""
    names: list[str] = []
    for entry in fields(Config if node is None else node):
        name = prefix + entry.name
        names.append(name)
        section = SECTIONS.get(str(entry.type))
        if section is not None:
            names += key_names(section, name + ".")
    return names


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _check(config: Config) -> None:
    plain = OmegaConf.structured(config)
    for key, allowed in CHOICES.items():
        value = OmegaConf.select(plain, key)
        if value not in allowed:
            raise ConfigError(f"{key}={value}: not known; allowed: {', '.join(allowed)}")
    for key, minimum in MINIMA.items():
        value = OmegaConf.select(plain, key)
        if value < minimum:
            raise ConfigError(f"{key}={value}: must be at least {minimum:g}")
    if not config.study_name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ConfigError(f"study_name={config.study_name!r}: only letters, digits, '-', '_' and '.' are allowed")


def _knobs(section: str, values: dict[str, Any]) -> Knobs:
    knobs: Knobs = {}
    for name, value in values.items():
        if not (value is None or isinstance(value, bool | int | float | str)):
            raise ConfigError(f"{section}.{name}={value!r}: a single value is needed here")
        knobs[name] = None if value == "default" else value
    return knobs


def _absolute(path: str | None, base: Path, key: str) -> str | None:
    """An absolute path of a file; links are kept, since a virtual environment's python is one."""
    if path is None:
        return None
    full = base / Path(path).expanduser()
    if not full.is_file():
        raise ConfigError(f"{key}={path}: there is no such file")
    return str(full.absolute())


def _model(name: str | None, base: Path, key: str) -> str | None:
    """A model: a file, a folder, or a hub name such as org/model, which only the engine can look up."""
    if name is None or (_HUB_NAME.fullmatch(name) and not (base / name).exists()):
        return name
    if (base / Path(name).expanduser()).is_dir():
        return str((base / Path(name).expanduser()).absolute())
    return _absolute(name, base, key)


def _trace(path: str, base: Path) -> str:
    """A trace: a file, counted from `base`, or a shipped name, which stays as it is."""
    full = base / Path(path).expanduser()
    return str(full.absolute()) if full.is_file() else path


def absolute_url(url: str, base: Path) -> str:
    """A storage URL; a relative SQLite path counts from `base`, the launch directory."""
    prefix = "sqlite:///"
    if url.startswith(prefix) and not url.startswith(prefix + "/") and ":memory:" not in url:
        return prefix + str((base / url[len(prefix) :]).resolve())
    if "://" not in url:
        raise ConfigError(f"storage.url={url}: not a database URL; for example sqlite:///studies.db")
    return url


def _check_words(engine: object, where: str) -> None:
    """Command-line words and variables reach a server letter by letter, so they must not have been read as anything
    else: YAML makes True of on, 181 of 3:1, 8 of 010 and 1.1 of 1.10. Raises ConfigError."""
    if not isinstance(engine, DictConfig):
        return
    for section, taken in (("extra_args", (str,)), ("env", (str, int))):
        given = engine.get(section) or {}
        for key, value in given.items() if isinstance(given, DictConfig) else enumerate(given):
            if value is not None and (isinstance(value, bool) or not isinstance(value, taken)):
                raise ConfigError(
                    f"{where}.{section}[{key!s}]={value!r} was read as a {type(value).__name__}, not as text; "
                    "write what the server shall get in quotes, for example 'on' or '3:1'"
                )


def merge(cfg: DictConfig) -> Config:
    """Check a composed configuration against the schema. Raises ConfigError naming the key and what is allowed."""
    _check_words(cfg.get("engine"), "engine")
    for name, engine in (cfg.get("compare") or {}).items():
        _check_words(engine, f"compare.{name}")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Config), cfg)
        OmegaConf.resolve(merged)
        missing = sorted(OmegaConf.missing_keys(merged))
        if missing:
            raise ConfigError(
                f"{missing[0]} is not set; choose a study with +study=NAME or give it on the command line"
            )
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or getattr(error, "key", None)
        raise ConfigError(f"{key}: {_one_line(error)}" if key else _one_line(error)) from error
    if not isinstance(config, Config):
        raise ConfigError("the configuration is not a mapping of keys")
    return config


def engine_settings(engine: EngineConfig, launch_dir: Path) -> EngineSettings:
    """The engine section as the adapters want it, with absolute paths. Raises ConfigError for a missing file."""
    return EngineSettings(
        name=engine.name,
        binary=_absolute(engine.binary, launch_dir, "engine.binary"),
        model=_model(engine.model, launch_dir, "engine.model"),
        draft_model=_model(engine.draft_model, launch_dir, "engine.draft_model"),
        n_ctx=engine.n_ctx,
        options=_knobs("engine.options", engine.options),
        extra_args=tuple(engine.extra_args),
        env={key: str(value) for key, value in engine.env.items()},
        startup_timeout_s=engine.startup_timeout_s,
    )


def seed_point(index: int, value: object) -> Knobs:
    """One entry of `seed_points`. Raises ConfigError."""
    if not isinstance(value, dict):
        raise ConfigError(f"seed_points[{index}]: a map of knob names to values is needed, got {value!r}")
    return _knobs(f"seed_points[{index}]", value)


def build(cfg: DictConfig, *, launch_dir: Path, run_dir: Path, sampling_seed: int) -> Settings:
    """A composed Hydra configuration → Settings. Nothing is started or written. Raises ConfigError."""
    config = merge(cfg)
    _check(config)
    engine = engine_settings(config.engine, launch_dir)
    replay = config.replay
    space_section: dict[str, str | KnobValue] = dict(config.space)
    overlap = sorted(set(space_section) & set(config.fixed))
    if overlap:
        raise ConfigError(f"fixed.{overlap[0]}: also an axis of the space; write it in one place")
    resolved = OmegaConf.to_container(OmegaConf.structured(config), resolve=True)
    return Settings(
        study_name=config.study_name,
        space=parse_space(space_section),
        fixed=_knobs("fixed", config.fixed),
        plain=_knobs("plain", config.plain),
        seed_points=tuple(seed_point(index, point) for index, point in enumerate(config.seed_points)),
        engine=engine,
        policy=ReplayPolicy(
            mode=replay.mode,
            warmup_turns=replay.warmup_turns,
            max_tokens=replay.max_tokens,
            temperature=replay.temperature,
            sampling_seed=sampling_seed,
            cache_prompt=replay.cache_prompt,
            thinking=replay.thinking,
            tools=replay.tools,
            concurrency=replay.concurrency,
            pauses=replay.pauses,
            min_decode_tokens=replay.min_decode_tokens,
            turn_timeout_s=replay.turn_timeout_s,
            request_fields=dict(replay.request_fields),
        ),
        trace_path=_trace(config.trace.path, launch_dir),
        storage_url=absolute_url(config.storage.url, launch_dir),
        report_dir=(launch_dir / config.report.dir).resolve(),
        run_dir=run_dir,
        config=config,
        resolved={str(key): value for key, value in resolved.items()} if isinstance(resolved, dict) else {},
    )
