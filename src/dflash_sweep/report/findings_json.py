"""The machine-readable twin of the findings page. Imports `records` and `report` siblings.

Its shape is docs/findings.schema.json (the same file travels in the package); a change of shape is a new version.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from typing import Any

import msgspec

from dflash_sweep.analysis import rows
from dflash_sweep.analysis.intervals import Interval
from dflash_sweep.records import Verdict
from dflash_sweep.report.answer import Answer, command_line, launch_trial
from dflash_sweep.report.assumptions import assumptions
from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.failures import failed_rows
from dflash_sweep.report.front import front_json
from dflash_sweep.report.material import Material
from dflash_sweep.report.provenance import provenance_rows
from dflash_sweep.report.texts import Texts

SCHEMA_VERSION = 1


def schema() -> dict[str, Any]:
    """The JSON schema of findings.json as it travels in the package."""
    text = resources.files("dflash_sweep.report").joinpath("findings.schema.json").read_bytes()
    loaded: dict[str, Any] = msgspec.json.decode(text)
    return loaded


def plain(value: Any) -> Any:
    """A value as JSON can hold it: NaN and infinities become null, tuples lists, anything unknown its text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return str(value)  # sentences become ordinary text
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    item = getattr(value, "item", None)  # numpy scalars
    return plain(item()) if callable(item) else str(value)


def _interval(interval: Interval | None) -> dict[str, Any]:
    if interval is None:
        return {"value": None, "ci_low": None, "ci_high": None}
    return {"value": interval.value, "ci_low": interval.low, "ci_high": interval.high}


def _candidate(entry: Candidate, material: Material) -> dict[str, Any]:
    trial = launch_trial(entry, material.stored)
    return {
        "candidate": entry.number, "label": entry.label, "speculative": entry.speculative, "confirmed": entry.confirmed,
        "knobs": entry.knobs, "unit": material.metric.unit, **_interval(entry.result), "n": entry.n,
        "n_failed": entry.n_failed, "speedup": _interval(entry.gain), "plain_unlike": entry.unlike,
        "decode_tps": entry.tps, "acceptance_length": entry.acceptance_length, "step_ms": entry.step_ms,
        "stages_ms": entry.stages,
        "peak_memory_mib": entry.peak_memory_mib, "command": command_line(trial) if trial is not None else None,
        "trials": list(entry.numbers), "uids": list(entry.uids),
    }  # fmt: skip


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {**asdict(verdict), "status": str(verdict.status)}


def _failures(material: Material) -> list[dict[str, Any]]:
    found = []
    for kind, group in failed_rows(material).groupby("failure_kind", sort=True):
        messages = dict.fromkeys(str(message) for message in group["failure_message"])
        found.append(
            {"kind": str(kind), "count": len(group), "messages": list(messages),
             "trials": [int(number) for number in group["number"]], "uids": list(group["uid"])}
        )  # fmt: skip
    return found


def findings_json(
    material: Material, found: Answer, texts: Texts, server_command: str | None, files: Mapping[str, list[str]]
) -> bytes:
    """findings.json: sorted keys, two spaces, a newline at the end; the same rows give the same bytes."""
    study = material.study
    trial = launch_trial(found.run, material.stored)
    content = {
        "schema_version": SCHEMA_VERSION,
        "study": study.name,
        "engine": study.engine,
        "measurement": str(study.measurement),
        "status": study.status,
        "stop_reason": study.stop_reason,
        "objective": {"name": material.metric.name, "asked_for": study.objective, "unit": material.metric.unit,
                      "direction": material.metric.direction},
        "answer": {
            "outcome": found.outcome, "statement": found.statement, "n": found.n, "is_advice": found.is_advice,
            "unit": material.metric.unit, **_interval(found.value), "speedup": _interval(found.speedup),
            "candidate": found.run.number if found.run is not None else None,
            "command": server_command or (command_line(trial) if trial is not None else None),
            "trials": list(found.numbers),
        },
        "front": front_json(material),
        "verdicts": [_verdict(verdict) for verdict in material.verdicts],
        "settings": [_candidate(entry, material) for entry in material.everyone],
        "failures": _failures(material),
        "counts": {
            "trials": len(material.trials), "failed": int(rows.failed(material.trials).sum()),
            "stopped_early": int(rows.stopped_early(material.trials).sum()),
            "ranked": len(material.ranked), "turns": len(material.turns),
        },
        "arms": [asdict(effect) for effect in material.arm_effects],
        "assumptions": list(assumptions(material, texts)),
        "provenance": dict(provenance_rows(material, texts)),
        "axes": [asdict(axis) for axis in study.axes],
        "files": dict(files),
    }  # fmt: skip
    return msgspec.json.format(msgspec.json.encode(plain(content), order="sorted"), indent=2) + b"\n"
