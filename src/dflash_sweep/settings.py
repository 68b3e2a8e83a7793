"""Configuration in, checked settings out: with `schema`, the only module that knows OmegaConf's objects.

Imports `schema`, `space`, `objective`, `constraints`, `phases`, `records` and `errors`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dflash_sweep import constraints, objective, phases
from dflash_sweep.constraints import Limit
from dflash_sweep.errors import ConfigError
from dflash_sweep.records import EngineSettings, Knobs, KnobValue, ReplayPolicy
from dflash_sweep.schema import CHOICES, MINIMA, PICTURE_FORMATS, POSITIVE, SECTIONS, Config, EngineConfig
from dflash_sweep.space import SearchSpace, parse_space

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/(?!.*\.gguf$)[\w.-]+")
"""owner/model of a model hub; a name that ends in .gguf is a file."""


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
    objectives: tuple[str, ...]
    limits: tuple[Limit, ...]
    phases: tuple[str, ...]
    held_out: float | str | None
    config: Config
    resolved: dict[str, Any]

    @property
    def objective(self) -> str:
        """The objective that decides."""
        return self.objectives[0]


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


def check(config: Config) -> None:
    """Raises ConfigError for a value that no study can have, whatever its engine and trace."""
    plain = OmegaConf.structured(config)
    for key, allowed in CHOICES.items():
        value = OmegaConf.select(plain, key)
        if value not in allowed:
            raise ConfigError(f"{key}={value}: not known; allowed: {', '.join(allowed)}")
    for key, minimum in MINIMA.items():
        value = OmegaConf.select(plain, key)
        if value is not None and not value >= minimum:  # so that nan is refused too
            raise ConfigError(f"{key}={value}: must be at least {minimum:g}")
    for key in POSITIVE:
        value = OmegaConf.select(plain, key)
        if not value > 0:
            raise ConfigError(f"{key}={value:g}: must be more than 0")
    if len(config.replay.arms) > 1 and "wall_tps" in objective.names(config.objective):
        raise ConfigError("objective=wall_tps: the wall time would hold every one of replay.arms; play one arm")
    if not config.report.formats or not set(config.report.formats) <= set(PICTURE_FORMATS):
        raise ConfigError(f"report.formats={config.report.formats}: one or both of {', '.join(PICTURE_FORMATS)}")
    constraints.parse(config.constraints)
    _check_phases(config)
    _check_budget(config)
    if not config.study_name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ConfigError(f"study_name={config.study_name!r}: only letters, digits, '-', '_' and '.' are allowed")


def _check_phases(config: Config) -> None:
    if phases.chosen(config.phases) == ("gate",) and not config.protocol.gate:
        raise ConfigError("phases=[gate]: protocol.gate is false, so there is nothing to do")


def _check_budget(config: Config) -> None:
    budget = config.budget
    for name in ("hours", "money", "price_per_hour"):
        value = getattr(budget, name)
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"budget.{name}={value}: must be more than 0")
    if budget.money is not None and budget.price_per_hour is None:
        raise ConfigError(f"budget.money={budget.money:g}: budget.price_per_hour (of one device) is needed with it")
    width = config.protocol.half_width
    if width is not None and not 0 < width < 1:
        raise ConfigError(f"protocol.half_width={width:g}: must lie between 0 and 1, or be null")


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


def _held_out(value: object, base: Path) -> float | str | None:
    """`protocol.held_out`: a share, or a trace as in `_trace`. Raises ConfigError."""
    if isinstance(value, str):
        return _trace(value, base)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise ConfigError(f"protocol.held_out={value}: must be null, a share between 0 and 1, or another trace")


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
    check(config)
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
            arms=tuple(replay.arms),
            fresh_server=replay.fresh_server,
        ),
        trace_path=_trace(config.trace.path, launch_dir),
        storage_url=absolute_url(config.storage.url, launch_dir),
        report_dir=(launch_dir / config.report.dir).resolve(),
        run_dir=run_dir,
        objectives=objective.names(config.objective),
        limits=constraints.parse(config.constraints),
        phases=phases.chosen(config.phases),
        held_out=_held_out(config.protocol.held_out, launch_dir),
        config=config,
        resolved={str(key): value for key, value in resolved.items()} if isinstance(resolved, dict) else {},
    )
