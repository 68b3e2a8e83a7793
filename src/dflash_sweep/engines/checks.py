"""Is a point launchable on this build? Problems in sentences that name the knob, its flag and the build.

Imports `engines.base`, `engines.rendering`, `errors`, `records`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dflash_sweep.engines.base import KnobDef
from dflash_sweep.engines.rendering import check_value
from dflash_sweep.errors import ConfigError
from dflash_sweep.records import EngineBuild, EngineSettings, Knobs, KnobValue


def build_name(build: EngineBuild) -> str:
    """How a build is called in messages: engine, version, dialect."""
    return f"{build.engine} {build.version}" + (f" ({build.dialect})" if build.dialect else "")


def has_flag(build: EngineBuild, flag: str | None) -> bool:
    """True if the binary has the switch, or if nothing is known about its switches. `--flag.key` counts as --flag."""
    return not build.flags or flag is None or flag.split(".", 1)[0] in build.flags or flag in build.flags


def slot_only(settings: EngineSettings, build: EngineBuild, shared: bool) -> list[str]:
    """Words by which llama-server keeps no prompts in the host's memory (its default: 8192 MiB), so that a server that
    serves several trials has nothing of the earlier ones but what its slot holds. The user's own word wins."""
    own = {"-cram", "--cache-ram"} & {word.partition("=")[0] for word in settings.extra_args}
    return ["--cache-ram", "0"] if shared and not own and has_flag(build, "--cache-ram") else []


def knob_problems(
    definitions: Sequence[KnobDef], build: EngineBuild, knobs: Knobs, flags: Mapping[str, str] | None = None
) -> list[str]:
    """Unknown knobs, values that are not allowed, switches that the binary lacks. `flags`: this build's spellings."""
    by_name = {definition.name: definition for definition in definitions}
    problems = []
    for name, value in knobs.items():
        definition = by_name.get(name)
        if definition is None:
            problems.append(f"{name}: not a knob of {build.engine}; known: {', '.join(sorted(by_name))}")
        elif problem := check_value(definition, value):
            problems.append(problem)
        elif value is not None and definition.scope == "launch":
            problems += _missing(definition, (flags or {}).get(name, definition.flag), build, value)
    return problems


def _missing(definition: KnobDef, flag: str | None, build: EngineBuild, value: KnobValue) -> list[str]:
    if not has_flag(build, flag):
        since = f" (known since {definition.since})" if definition.since else ""
        return [f"{definition.name}={value}: {build_name(build)} has no {flag}{since}"]
    listed = sorted(word.split("=", 1)[1] for word in build.flags if flag and word.startswith(f"{flag}="))
    if listed and isinstance(value, str) and value not in listed:
        return [f"{definition.name}={value}: {flag} of {build_name(build)} takes {', '.join(listed)}"]
    return []


def option_values(engine: str, definitions: Iterable[KnobDef], options: Knobs) -> Knobs:
    """An engine's own settings with defaults filled in. Raises ConfigError for an unknown name or a bad value."""
    by_name = {definition.name: definition for definition in definitions}
    for name, value in options.items():
        if name not in by_name:
            allowed = ", ".join(sorted(by_name)) or "none"
            raise ConfigError(f"engine.options.{name}: {engine} has no such option; allowed: {allowed}")
        if problem := check_value(by_name[name], value):
            raise ConfigError(f"engine.options.{problem}")
    return {name: options.get(name, definition.default) for name, definition in by_name.items()}


def added_environment(engine: str, settings_env: Mapping[str, str], allowed: Iterable[str]) -> dict[str, str]:
    """The user's own variables, if the engine reads them. Raises ConfigError for any other name."""
    known = frozenset(allowed)
    for name in settings_env:
        if name not in known:
            raise ConfigError(f"engine.env.{name}: not a variable {engine} reads; allowed: {', '.join(sorted(known))}")
    return dict(settings_env)


def chosen(knobs: Knobs, name: str, default: KnobValue) -> KnobValue:
    """A knob's value, or what the engine does without it."""
    value = knobs.get(name)
    return default if value is None else value
