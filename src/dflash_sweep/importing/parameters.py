"""The settings of one foreign row, each with where it was found.

Imports `vocabulary`, `aliases`, `rawlog` and `records` only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dflash_sweep.importing.aliases import Aliases
from dflash_sweep.importing.rawlog import RawRow
from dflash_sweep.importing.vocabulary import CODE_NAMES, PHRASES, WORKLOAD_NAMES, canonical, plain_name, value_of
from dflash_sweep.records import Knobs, KnobValue

_PHRASES = tuple((knob, re.compile(pattern, re.IGNORECASE)) for knob, pattern in PHRASES)
_PAIR = re.compile(r"(?<![\w.-])(?:--)?([A-Za-z][\w-]*)=([\w.:-]+)")
_BOTH_CACHES = ("cache_type_k", "cache_type_v")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What a row set. `provenance`: knob → asi, column, rule, description or default.

    `workload` is what was measured (tokens, model); `code_changed` marks a changed build; `speculative` False = the
    row says that it ran without speculation. `unknown`: fields no rule knows; `conflicts`: sentences.
    """

    knobs: Knobs = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    workload: Knobs = field(default_factory=dict)
    code_changed: bool = False
    speculative: bool = True
    unknown: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()


def of_row(row: RawRow, aliases: Aliases) -> Parameters:
    """Parameters by falling weight: the structured field, the user's patterns, phrases of the description, defaults."""
    found: dict[str, tuple[KnobValue, str]] = {}
    unknown: list[str] = []
    conflicts: list[str] = []
    for name, raw in row.structured.items():
        knob = aliases.names.get(plain_name(name)) or canonical(name)
        if knob is None:
            unknown.append(name)
        else:
            _put(found, knob, value_of(knob, raw), row.structured_source)
    for source, pairs in (("rule", _by_rules(row, aliases)), ("description", _by_phrases(row))):
        for knob, value in pairs:
            _add(found, conflicts, knob, value, source, row)
    for knob, value in aliases.defaults.items():
        for name in _spread(knob):
            found.setdefault(name, (value, "default"))
    return _sorted_out(found, tuple(unknown), tuple(conflicts))


def _by_rules(row: RawRow, aliases: Aliases) -> list[tuple[str, KnobValue]]:
    return [
        (knob, value_of(knob, match.group(1)))
        for pattern, knob in aliases.patterns
        if (match := pattern.search(row.description)) and match.group(1)
    ]


def _by_phrases(row: RawRow) -> list[tuple[str, KnobValue]]:
    """`name=value` pairs of the description, then the phrases."""
    pairs = [(canonical(name), value) for name, value in _PAIR.findall(row.description)]
    found = [(knob, value_of(knob, value)) for knob, value in pairs if knob is not None and len(plain_name(knob)) > 1]
    for knob, pattern in _PHRASES:
        match = pattern.search(row.description)
        if match:
            found.append((knob, value_of(knob, match.group(1))))
    return found


def _spread(knob: str) -> tuple[str, ...]:
    return _BOTH_CACHES if knob == "kv_type" else (knob,)


def _put(found: dict[str, tuple[KnobValue, str]], knob: str, value: KnobValue, source: str) -> None:
    for name in _spread(knob):
        found[name] = (value, source)


def _add(
    found: dict[str, tuple[KnobValue, str]],
    conflicts: list[str],
    knob: str,
    value: KnobValue,
    source: str,
    row: RawRow,
) -> None:
    """Take a weaker source's value only where nothing stronger spoke; note a contradiction."""
    for name in _spread(knob):
        known = found.get(name)
        if known is None:
            found[name] = (value, source)
        elif known[0] != value:
            conflicts.append(
                f"run {row.run}: {name} is {known[0]} by its {known[1]} but {value} by its {source}; the first is used"
            )


def _sorted_out(
    found: dict[str, tuple[KnobValue, str]], unknown: tuple[str, ...], conflicts: tuple[str, ...]
) -> Parameters:
    knobs: Knobs = {}
    provenance: dict[str, str] = {}
    workload: Knobs = {}
    changed, speculative = False, True
    for name, (value, source) in found.items():
        if name in WORKLOAD_NAMES:
            workload[name] = value
        elif name in CODE_NAMES:
            changed = value not in (None, 0, False, "", "0", "no")
        elif name == "speculative":
            speculative = value is not False
        else:
            knobs[name], provenance[name] = value, source
    return Parameters(
        knobs=knobs,
        provenance=provenance,
        workload=workload,
        code_changed=changed,
        speculative=speculative,
        unknown=unknown,
        conflicts=conflicts,
    )
