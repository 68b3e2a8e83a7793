"""What differs between two runs, in words: what was asked for, and where it was measured. Pure; imports `records`.

Every difference has an effect. CONFLICT: another question was asked, and the rows of one study would not answer the
same one. ENVIRONMENT: the same question on other ground, so that earlier baselines are stale. NOTE: named for
completeness, no influence on speed is expected (paths, host names, versions of the client's packages).

The two sides are the plain data that the store keeps: a trial's spec (`Store.spec_json`, `spec_data`), a trial's
`environment` or a study's `provenance`, a resolved configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from dflash_sweep.records import EngineBuild, EngineSettings, ModelFile, ReplayPolicy, TrialSpec

_Record = TypeVar("_Record")
_SHORT_HASH = 12
_HASH_ENDINGS = ("sha256", "hash")


class Effect(StrEnum):
    """What a difference means for rows on both sides of it."""

    CONFLICT = "conflict"
    ENVIRONMENT = "environment"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One key with two values. `old` and `new` are words; "not set" = the knob or option was left alone."""

    key: str
    old: str
    new: str
    effect: Effect

    def __str__(self) -> str:
        return f"{self.key}: {self.old} → {self.new}"


def words(found: Iterable[Difference]) -> str:
    """All of them in one line, or "nothing"."""
    return "; ".join(map(str, found)) or "nothing"


def having(found: Iterable[Difference], *effects: Effect) -> tuple[Difference, ...]:
    """Those with one of these effects, in their order."""
    return tuple(entry for entry in found if entry.effect in effects)


# ---------------------------------------------------------------- what was asked for


def spec_data(spec: TrialSpec) -> dict[str, Any]:
    """A spec as the store keeps it: plain data, the trace as its header only."""
    data: dict[str, Any] = msgspec.to_builtins(spec, str_keys=True)
    data["trace"] = data["trace"]["header"]
    return data


_NOTED = frozenset({"engine.binary", "engine.startup_timeout_s", "build.binary", "trace.name", "trace.source"})
"""Keys of a spec that say how something is called or how long it may take."""

_ENGINE_LEFT_OUT = frozenset({"engine.options.launch_seed", "build.flags", "build.engine"})
"""Drawn anew for each run, or told by another key."""


def of_specs(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Every difference between two trials' specs: engine, build, models, trace, replay policy, knobs.

    A field that the older side's version did not have counts as its default; a hash that is not known on one side is
    no difference. A model or a trace under another name with the same content is a NOTE. Raises ValueError if a side
    is no spec.
    """
    found = [
        _difference(key, before, after, _spec_effect(key))
        for key, before, after in _pairs(_spec_leaves(old), _spec_leaves(new))
        if key not in _ENGINE_LEFT_OUT and not (None in (before, after) and _is_fact(key))
    ]
    same = _same_content(old, new)
    return tuple(
        Difference(key=entry.key, old=entry.old, new=entry.new, effect=Effect.NOTE) if entry.key in same else entry
        for entry in found
    )


def _is_fact(key: str) -> bool:
    """True for what is found out, not asked for: None is "not known" there."""
    return key.endswith(_HASH_ENDINGS) or key.startswith("models.")


def _spec_effect(key: str) -> Effect:
    if key in _NOTED or key.endswith(".path"):
        return Effect.NOTE
    return Effect.ENVIRONMENT if key.startswith("build.") else Effect.CONFLICT


def _spec_leaves(spec: Mapping[str, Any]) -> dict[str, Any]:
    trace = spec.get("trace") or {}
    models = {model["role"]: model for model in spec.get("models") or ()}
    return {
        **_leaves("engine", _whole(spec.get("engine"), EngineSettings)),
        **_leaves("build", _whole(spec.get("build"), EngineBuild)),
        **_leaves("models", {role: {k: models[role].get(k) for k in ("path", "sha256")} for role in models}),
        **_leaves("trace", {name: trace.get(name) for name in ("name", "source", "sha256", "template_kwargs")}),
        **_leaves("replay", _whole(spec.get("policy"), ReplayPolicy)),
        **_leaves("knobs", spec.get("knobs") or {}),
        "speculative": spec.get("speculative", True),
    }


def _whole(data: Any, kind: type[_Record]) -> dict[str, Any]:
    """Plain data of a record with today's fields; raises ValueError if it is none."""
    try:
        whole: dict[str, Any] = msgspec.to_builtins(msgspec.convert(data, kind, str_keys=True), str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(f"no {kind.__name__}: {error}") from error
    return whole


def _same_content(old: Mapping[str, Any], new: Mapping[str, Any]) -> set[str]:
    """Keys of model paths behind which both sides have the same file."""
    hashes = [{model["role"]: model.get("sha256") for model in side.get("models") or ()} for side in (old, new)]
    return {
        key
        for role, key in (("target", "engine.model"), ("draft", "engine.draft_model"))
        if hashes[0].get(role) and hashes[0].get(role) == hashes[1].get(role)
    }


def of_models(old: Iterable[ModelFile], new: Iterable[ModelFile]) -> tuple[Difference, ...]:
    """Model files by content, role by role; a path alone is a NOTE."""
    sides = [
        _leaves("models", {model.role: {"path": model.path, "sha256": model.sha256} for model in side})
        for side in (old, new)
    ]
    return tuple(_difference(key, before, after, _spec_effect(key)) for key, before, after in _pairs(*sides))


# ---------------------------------------------------------------- where it was measured

_GROUND = (
    "gpu.driver", "gpu.cuda", "gpu.power_limit_w", "gpu.max_sm_clock_mhz", "gpu.max_memory_clock_mhz", "gpu.ecc", "cpu",
    "memory_mib",
)  # fmt: skip
"""Keys of a trial's environment that the speed of a server can hang on."""

_NAMED = ("host", "os", "kernel", "python", "git", "packages", "cpu_cores", "cpu_threads", "usable_cpus")
"""Keys of an environment that are named without an effect on the baseline."""


def of_environments(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Every lasting difference between two environments: devices, driver, limits, machine, packages, code.

    Each side is a trial's `environment` (one card under `gpu`) or a study's `provenance` (`devices`). What one side
    does not tell is no difference. Passing states (temperature, clocks of the moment, load) are left out.
    """
    before, after = _environment_leaves(old), _environment_leaves(new)
    return tuple(
        _difference(key, before[key], after[key], _environment_effect(key))
        for key in before
        if key in after and None not in (before[key], after[key]) and before[key] != after[key]
    )


def _environment_effect(key: str) -> Effect:
    return Effect.ENVIRONMENT if key in _GROUND or key == "devices" or key.startswith("device.") else Effect.NOTE


def _environment_leaves(data: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {name: data[name] for name in (*_NAMED, "cpu", "memory_mib") if name in data}
    cards = [card for card in data.get("devices") or () if isinstance(card, Mapping)]
    if isinstance(data.get("gpu"), Mapping):
        kept["gpu"] = data["gpu"]
    elif cards:
        kept["gpu"] = {
            name: ", ".join(sorted({str(card[name]) for card in cards if card.get(name) is not None})) or None
            for name in dict.fromkeys(name for card in cards for name in card)
        }
        kept["devices"] = sorted(_card_words(card) for card in cards)
    if isinstance(data.get("device"), Mapping):
        kept["device"] = {name: data["device"].get(name) for name in ("kind", "name", "uuid", "memory_mib")}
    leaves = _leaves("", kept)
    return {key: value for key, value in leaves.items() if not key.startswith("gpu.") or key in _GROUND}


def _card_words(card: Mapping[str, Any]) -> str:
    return f"{card.get('name')} ({card['uuid']})" if card.get("uuid") else str(card.get("name"))


# ---------------------------------------------------------------- any two mappings


def of_mappings(
    old: Mapping[str, Any], new: Mapping[str, Any], *, prefix: str = "", effect: Effect = Effect.NOTE
) -> tuple[Difference, ...]:
    """Every difference between two nested mappings (two resolved configurations), by dotted key; absent = not set."""
    pairs = _pairs(_leaves(prefix, old), _leaves(prefix, new))
    return tuple(_difference(key, before, after, effect) for key, before, after in pairs)


def _leaves(prefix: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key → value; lists are values, an empty mapping is nothing."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping):
            found.update(_leaves(key, value))
        else:
            found[key] = value
    return found


def _pairs(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Keys whose values differ, with both values; 1, 1.0 and True are different values."""
    keys = dict.fromkeys([*old, *new])
    return [(key, old.get(key), new.get(key)) for key in keys if repr(old.get(key)) != repr(new.get(key))]


def _difference(key: str, old: Any, new: Any, effect: Effect) -> Difference:
    return Difference(key=key, old=_text(key, old), new=_text(key, new), effect=effect)


def _text(key: str, value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text("", entry) for entry in value) + "]"
    text = str(value)
    return f"{text[:_SHORT_HASH]}…" if key.endswith(_HASH_ENDINGS) and len(text) > _SHORT_HASH else text
