"""Rules a user gives for names a log uses: `--alias`. Imports `errors` and `vocabulary` only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from dflash_sweep.errors import ConfigError
from dflash_sweep.importing.vocabulary import plain_name, value_of
from dflash_sweep.records import KnobValue

_KNOB = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Aliases:
    """`names`: log's field → knob; `patterns`: (pattern with one group, knob); `defaults`: knob → value where unset."""

    names: dict[str, str] = field(default_factory=dict)
    patterns: tuple[tuple[re.Pattern[str], str], ...] = ()
    defaults: dict[str, KnobValue] = field(default_factory=dict)


def parse(rules: Iterable[str]) -> Aliases:
    """Read rules of three forms; anything else is a ConfigError that names the rule.

    `FIELD=KNOB` renames a field or column; `/REGEX/=KNOB` takes the regex's one group from descriptions;
    `KNOB:=VALUE` is the value in force where a row does not set the knob.
    """
    names: dict[str, str] = {}
    patterns: list[tuple[re.Pattern[str], str]] = []
    defaults: dict[str, KnobValue] = {}
    for rule in rules:
        if rule.startswith("/") and "/=" in rule[1:]:
            text, _, knob = rule[1:].rpartition("/=")
            patterns.append((_pattern(rule, text), _knob(rule, knob)))
        elif ":=" in rule:
            knob, _, text = rule.partition(":=")
            name = _knob(rule, knob)
            defaults[name] = value_of(name, text)
        elif "=" in rule:
            field_name, _, knob = rule.partition("=")
            if not plain_name(field_name):
                raise ConfigError(f"alias {rule!r}: FIELD is missing before the =")
            names[plain_name(field_name)] = _knob(rule, knob)
        else:
            raise ConfigError(f"alias {rule!r}: use FIELD=KNOB, /REGEX/=KNOB or KNOB:=VALUE")
    return Aliases(names=names, patterns=tuple(patterns), defaults=defaults)


def _knob(rule: str, knob: str) -> str:
    name = knob.strip()
    if not _KNOB.fullmatch(name):
        raise ConfigError(f"alias {rule!r}: {name!r} is no knob name (lower-case letters, digits, underscores)")
    return name


def _pattern(rule: str, text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise ConfigError(f"alias {rule!r}: not a regular expression: {error}") from error
    if pattern.groups != 1:
        raise ConfigError(f"alias {rule!r}: the expression needs exactly one (group), it has {pattern.groups}")
    return pattern
