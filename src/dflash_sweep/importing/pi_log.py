"""Reader of pi-autoresearch logs: config, run and hook lines, one JSON object a line. Imports `rawlog` only.

The form is that of pi-autoresearch 1.6 and before (`.auto/log.jsonl`, earlier `autoresearch.jsonl`). Unlike its own
reader, this one does not take an unknown status for a keep nor a missing metric for 0, and counts what it cannot read.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from dflash_sweep.importing.rawlog import RawLog, RawRow


def looks_like(text: str) -> bool:
    """True if one of the first lines is a config, hook or run object."""
    for line in text.splitlines()[:50]:
        entry = _json(line)
        if entry is not None and ("run" in entry or entry.get("type") in ("config", "hook")):
            return True
    return False


def read(text: str) -> RawLog:
    """Read a log's text. A new config line opens a segment once the open one holds a run; run numbers go on."""
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), start=1):
        reader.take(number, line)
    return reader.log()


class _Reader:
    def __init__(self) -> None:
        self.rows: list[RawRow] = []
        self.skipped: Counter[str] = Counter()
        self.torn: list[str] = []
        self.segments: list[str] = ["metric"]
        self.directions: list[str | None] = [None]
        self.name: str | None = None
        self.segment_has_run = False

    def take(self, number: int, line: str) -> None:
        if not line.strip():
            return
        entry = _json(line)
        if entry is None:
            self.torn.append(f"line {number}: no JSON object: {line.strip()[:60]}")
        elif entry.get("type") == "config":
            self._config(entry)
        elif entry.get("type") == "hook":
            self.skipped["hook line"] += 1
        elif _number(entry.get("run")) is not None:
            self._run(number, entry)
        else:
            self.skipped[f"line of unknown type {entry.get('type')!r}"] += 1

    def _config(self, entry: dict[str, Any]) -> None:
        if self.segment_has_run:
            self.segments.append("metric")
            self.directions.append(None)
            self.segment_has_run = False
        self.segments[-1] = str(entry.get("metricName") or "metric")
        self.directions[-1] = "maximize" if entry.get("bestDirection") == "higher" else "minimize"
        self.name = self.name or (str(entry["name"]) if entry.get("name") else None)

    def _run(self, number: int, entry: dict[str, Any]) -> None:
        self.segment_has_run = True
        status = str(entry.get("status") or "").strip().lower() or "missing"
        metric = _number(entry.get("metric"))
        figures = entry.get("metrics") if isinstance(entry.get("metrics"), dict) else {}
        self.rows.append(
            RawRow(
                line=number,
                run=int(_number(entry["run"]) or 0),
                segment=len(self.segments) - 1,
                status=status,
                metric=None if status == "crash" and not metric else metric,
                metrics={str(k): v for k, raw in (figures or {}).items() if (v := _number(raw)) is not None},
                description=_text(entry.get("description")),
                structured=_parameters(entry.get("asi")),
                structured_source="asi",
                timestamp_ms=_number(entry.get("timestamp")),
                commit=_text(entry.get("commit")),
            )
        )

    def log(self) -> RawLog:
        directions = [direction for direction in self.directions if direction]
        return RawLog(
            format="pi-autoresearch",
            rows=tuple(self.rows),
            segments=tuple(self.segments),
            direction=directions[-1] if directions else None,
            name=self.name,
            skipped=self.skipped,
            torn=tuple(self.torn),
        )


def _parameters(asi: Any) -> dict[str, Any]:
    """Parameters of the free `asi` object: its `params` (an object, or "name=value name=value") or its own fields."""
    if not isinstance(asi, dict):
        return {}
    for key in ("params", "parameters", "config", "knobs"):
        if key in asi:
            return _pairs(asi[key])
    return {str(key): value for key, value in asi.items() if isinstance(value, (bool, int, float))}


def _pairs(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {str(key): entry for key, entry in value.items() if not isinstance(entry, (dict, list))}
    if not isinstance(value, str):
        return {}
    words: Iterable[str] = value.replace(",", " ").split()
    return {name.lstrip("-"): text for name, found, text in (word.partition("=") for word in words) if found and text}


def _json(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
