"""`dflash-sweep compare A B`: two stored studies or trials, what differs first, ranked only where they may be.

Imports `store`, `originals`, `differences`, `analysis` and `report`. Reads only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_sweep.analysis.contrast import Side, contrast, side
from dflash_sweep.differences import Difference, Effect, of_environments, of_mappings, of_specs, words
from dflash_sweep.errors import ConfigError, StorageError
from dflash_sweep.frames import trial_frame, turn_frame
from dflash_sweep.objective import sign
from dflash_sweep.originals import study_of
from dflash_sweep.records import StoredTrial, StudyInfo
from dflash_sweep.report.compare_page import Comparison
from dflash_sweep.report.rerun_page import texts
from dflash_sweep.store import Store

_TOLD_ELSEWHERE = ("engine", "trace", "replay", "fixed", "plain", "storage", "report", "rerun", "compare")
"""Sections of a configuration that specs tell better, or that say nothing about a measurement."""

_NOT_MEASURED = ("study_name", "resume", "verbose", "metric_lines", "progress")
_NAME = re.compile(r"(?P<study>.+?)(?::(?P<trial>\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """One side as it is stored. `trial` None = the whole study; `spec` of the trial, or of the study's plain decoding
    (else of its first trial); {} where the rows were imported."""

    name: str
    info: StudyInfo
    rows: tuple[StoredTrial, ...]
    trial: StoredTrial | None
    spec: Mapping[str, Any]
    device: Mapping[str, Any]


def _stored(store: Store, given: str) -> _Stored:
    found = _NAME.fullmatch(given)
    study, number = (found["study"], found["trial"]) if found else (given, None)
    info = study_of(store, study)
    rows = store.trials(study)
    if not rows:
        raise StorageError(f"study {study!r} has no finished trial: there is nothing to compare")
    trial = None
    if number is not None:
        trial = next((row for row in rows if row.number == int(number)), None)
        if trial is None:
            raise StorageError(f"{given}: study {study!r} has no trial {number}: its trials are 0 to {rows[-1].number}")
    shown = trial or next((row for row in rows if not row.speculative), rows[0])
    device = shown.result.device
    return _Stored(
        name=given,
        info=info,
        rows=rows,
        trial=trial,
        spec=store.spec_json(shown.uid) or {},
        device={"kind": device.kind, "name": device.name, "uuid": device.uuid, "memory_mib": device.memory_mib},
    )


def _differences(a: _Stored, b: _Stored) -> tuple[Difference, ...]:
    """Configuration, build, models, trace, policy, device, environment, and the knobs of two trials."""
    found: list[Difference] = []
    if a.spec and b.spec:
        found += [entry for entry in of_specs(a.spec, b.spec) if _is_told(entry, a, b)]
    elif bool(a.spec) != bool(b.spec):
        kinds = ["imported" if not side.spec else "measured or emulated here" for side in (a, b)]
        found.append(Difference(key="rows", old=kinds[0], new=kinds[1], effect=Effect.CONFLICT))
    found += of_environments({"device": a.device}, {"device": b.device})
    environments = [side.trial.result.environment if side.trial else side.info.provenance for side in (a, b)]
    found += of_environments(environments[0], environments[1])
    if a.info.name != b.info.name:
        left_out = _NOT_MEASURED + (_TOLD_ELSEWHERE if a.spec and b.spec else ())
        configs = [{k: v for k, v in side.info.config.items() if k not in left_out} for side in (a, b)]
        found += of_mappings(configs[0], configs[1])
    return tuple(found)


def _is_told(entry: Difference, a: _Stored, b: _Stored) -> bool:
    """The knobs of two studies' plain decoding say little; those of two trials are what is compared."""
    return (a.trial is not None and b.trial is not None) or not entry.key.startswith(("knobs.", "speculative"))


def _apart(a: _Stored, b: _Stored, sides: tuple[Side, Side], found: tuple[Difference, ...]) -> tuple[str, ...]:
    """Why the rows may not be ranked: their keys differ. The differences behind it are named where they are known."""
    if a.info.objective != b.info.objective:
        return (f"objective: {a.info.objective} → {b.info.objective}",)
    keys = [side.keys for side in sides]
    if keys[0] == keys[1] or not keys[0] or not keys[1]:
        return ()
    reasons = [
        entry
        for entry in found
        if not entry.key.startswith(("knobs.", "speculative"))
        and (entry.effect is Effect.CONFLICT or entry.key.startswith(("build.", "device.name", "device.kind")))
    ]
    return (words(reasons),) if reasons else (f"comparability keys {', '.join(keys[0])} and {', '.join(keys[1])}",)


def compared(store: Store, first: str, second: str, *, force: bool = False) -> Comparison:
    """B = `second` against A = `first`; each is a study, or STUDY:NUMBER. Raises ConfigError or StorageError."""
    if first == second:
        raise ConfigError(f"compare {first} {second}: this is the same thing twice")
    a, b = _stored(store, first), _stored(store, second)
    objective = a.info.objective
    better = sign(objective)
    sides = tuple(
        side(one.name, trial_frame(one.rows), objective, None if one.trial is None else one.trial.number, sign=better)
        for one in (a, b)
    )
    found = _differences(a, b)
    kinds = str(a.info.measurement), str(b.info.measurement)
    apart = _apart(a, b, (sides[0], sides[1]), found)
    if kinds[0] != kinds[1]:
        apart = (f"{kinds[0]} against {kinds[1]} figures", *apart)
    return Comparison(
        a=sides[0],
        b=sides[1],
        objective=objective,
        sign=better,
        kinds=kinds,
        contrast=contrast(sides[0], sides[1], turn_frame(a.rows), turn_frame(b.rows)),
        found=found,
        apart=apart,
        never=kinds[0] != kinds[1],
        forced=force,
        text=_text(a, b),
    )


def _text(a: _Stored, b: _Stored) -> str | None:
    """Whether two trials wrote the same; None where a side is a whole study or no turn is in both."""
    if a.trial is None or b.trial is None:
        return None
    found = [turn for turn in texts(a.trial, [b.trial]) if turn.runs]
    if not found:
        return None
    differing = [turn for turn in found if turn.divergence is not None]
    if not differing:
        return f"All {len(found)} turns that both answered have the same text."
    first = differing[0]
    where = f"{first.conversation}, turn {first.index}"
    return f"{len(differing)} of {len(found)} turns differ in their text; the first is {where}, {first.divergence}."
