"""Knob values as command-line words and environment variables, by declared type. Imports `engines.base` only."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dflash_sweep.engines.base import KnobDef
from dflash_sweep.errors import ConfigError
from dflash_sweep.records import Knobs, KnobValue


def check_value(definition: KnobDef, value: KnobValue) -> str | None:
    """What is wrong with a value for this knob, as one sentence; None = it is allowed. None is always allowed."""
    if value is None:
        return None
    name, allowed = definition.name, None
    if definition.kind == "bool":
        allowed = None if isinstance(value, bool) else "true or false"
    elif definition.kind == "int":
        allowed = None if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    elif definition.kind == "float":
        real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        allowed = None if real else "a number"
    elif not isinstance(value, str):
        words = ", ".join(map(str, definition.choices or ()))
        allowed = f"{words}, in quotes" if words else "text in quotes"  # YAML makes other things of on, 3:1 and 1.10
    if allowed is None and definition.choices and value not in definition.choices:
        allowed = ", ".join(map(str, definition.choices))
    if allowed is None and isinstance(value, int | float) and not isinstance(value, bool):
        low, high = definition.low, definition.high
        if (low is not None and value < low) or (high is not None and value > high):
            allowed = f"{'-∞' if low is None else f'{low:g}'} to {'∞' if high is None else f'{high:g}'}"
    return None if allowed is None else f"{name}={value!r} is not allowed: it takes {allowed}"


def render_value(definition: KnobDef, value: KnobValue) -> str:
    """A non-bool value as the engine reads it: 0 stays "0", floats in shortest exact form, never "True"."""
    if definition.kind == "float" and isinstance(value, int | float):
        return f"{float(value):g}" if float(f"{float(value):g}") == float(value) else repr(float(value))
    if definition.kind == "int" and isinstance(value, int):
        return str(int(value))
    return str(value)


def _words(definition: KnobDef, value: KnobValue) -> tuple[list[str], dict[str, str]]:
    if definition.kind == "bool":
        if value != definition.flag_when:
            return [], {}
        return ([], {definition.env: "1"}) if definition.env else ([definition.flag or ""], {})
    text = render_value(definition, value)
    return ([], {definition.env: text}) if definition.env else ([definition.flag or "", text], {})


def render(definitions: Iterable[KnobDef], knobs: Knobs) -> tuple[tuple[str, ...], dict[str, str]]:
    """Launch-time knobs → (command-line words, environment). None is omitted; request-time knobs are left out.

    Raises ConfigError for a knob that no definition names, or a value that its definition does not allow.
    """
    by_name = {definition.name: definition for definition in definitions}
    argv: list[str] = []
    env: dict[str, str] = {}
    for name, value in knobs.items():
        if name not in by_name:
            raise ConfigError(f"knob {name!r} is not known to this engine; known: {', '.join(sorted(by_name))}")
        if problem := check_value(by_name[name], value):
            raise ConfigError(problem)
        if value is not None and by_name[name].scope == "launch":
            words, variables = _words(by_name[name], value)
            argv += words
            env |= variables
    return tuple(argv), env
