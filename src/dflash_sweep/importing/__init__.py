"""Logs of other tools as studies: readers, parameters with provenance, stored trials marked as imported.

Imports `errors`, `records`, `metrics` only. `read` is the entrance; docs/importing.md describes formats and rules.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dflash_sweep.errors import ConfigError
from dflash_sweep.importing import aliases as alias_rules
from dflash_sweep.importing import axes, companion, outcomes, pi_log, table_log
from dflash_sweep.importing.companion import Context
from dflash_sweep.importing.convert import Converter, Row, failed_kinds
from dflash_sweep.importing.coverage import Coverage
from dflash_sweep.importing.direction import direction_of
from dflash_sweep.importing.rawlog import RawLog
from dflash_sweep.records import Measurement, StoredTrial, StudyInfo

__all__ = ["Coverage", "Imported", "read"]

MAX_BYTES = 256 * 1024 * 1024
"""Larger files are no autoresearch logs (224 runs make about 100 KiB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A log as a study. `trials` are Measurement.IMPORTED and never pooled with measured rows."""

    trials: tuple[StoredTrial, ...]
    study: StudyInfo
    coverage: Coverage


def read(
    path: str | Path, *, aliases: Iterable[str] = (), study: str | None = None, direction: str | None = None
) -> Imported:
    """Read a pi-autoresearch log, an autoresearch TSV, or a CSV of runs.

    `path` may also be a folder that holds `.auto/log.jsonl` or `autoresearch.jsonl`. `aliases`: rules of
    importing.aliases; `study`: name of the study (default: the file's); `direction`: maximize or minimize where the
    log does not say. Raises ConfigError, in one line, if there is no such file, no known format or no run in it.
    """
    file = _file(Path(path))
    content = _content(file)
    log = _log(file, content.decode("utf-8-sig", errors="replace"))
    if direction not in (None, "maximize", "minimize"):
        raise ConfigError(f"direction {direction!r}: use maximize or minimize")
    context = companion.find(file, content)
    rules = alias_rules.parse([*(context.aliases if context else ()), *aliases])
    name = study or re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("-") or "imported"
    converter = Converter(log=log, study=name, aliases=rules, context=context)
    trials = converter.run()
    better, reason = direction_of(log, direction)
    coverage = _coverage(log, converter, context, reason)
    return Imported(
        trials=trials,
        study=_study(log, converter.rows, trials, name, better, coverage, file, content, context),
        coverage=coverage,
    )


def _file(path: Path) -> Path:
    if path.is_dir():
        for name in (".auto/log.jsonl", "log.jsonl", "autoresearch.jsonl", "results.tsv", "autoresearch-results.tsv"):
            if (path / name).is_file():
                return path / name
        raise ConfigError(f"{path}: a folder without .auto/log.jsonl, autoresearch.jsonl or results.tsv")
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    return path


def _content(file: Path) -> bytes:
    if file.stat().st_size > MAX_BYTES:
        raise ConfigError(f"{file}: larger than {MAX_BYTES // 2**20} MiB; this is no log of runs")
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error


def _log(file: Path, text: str) -> RawLog:
    if pi_log.looks_like(text):
        log = pi_log.read(text)
    elif table_log.looks_like(text):
        log = table_log.read(text)
    else:
        raise ConfigError(
            f"{file}: no known format; allowed are a pi-autoresearch JSONL, an autoresearch TSV, "
            "or a CSV with a metric column such as tps, value or avg_ts"
        )
    if not log.rows:
        raise ConfigError(f"{file}: a {log.format} log without a run")
    return log


def _coverage(log: RawLog, converter: Converter, context: Context | None, reason: str) -> Coverage:
    rows = converter.rows
    notes = [reason] if reason else []
    if context is not None:
        notes.append(f"facts from outside the rows: {context.source or 'a context file'}")
        notes += context.notes
    differing = [row.raw.run for row in rows if row.counters and "claimed_rate_differs" in row.counters.flags]
    if differing:
        notes.append(
            f"claimed rate differs by more than 1 % from its own counts in run(s) {', '.join(map(str, differing))}; "
            "the counts are used"
        )
    return Coverage(
        format=log.format,
        runs=len(rows),
        usable=sum(row.failure is None for row in rows),
        failed=failed_kinds(rows),
        skipped=log.skipped,
        torn=log.torn,
        values=Counter(source for row in rows for source in row.parameters.provenance.values()),
        knobs=Counter(name for row in rows for name in row.parameters.knobs),
        unknown=Counter(name for row in rows for name in row.parameters.unknown) + log.unused,
        odd_status=Counter(row.raw.status for row in rows if row.raw.status not in outcomes.KNOWN_STATUS),
        without_parameters=sum(not row.parameters.knobs for row in rows),
        conflicts=tuple(text for row in rows for text in row.parameters.conflicts),
        notes=(*notes, *converter.notes),
    )


def _study(
    log: RawLog,
    rows: list[Row],
    trials: tuple[StoredTrial, ...],
    name: str,
    better: str,
    coverage: Coverage,
    file: Path,
    content: bytes,
    context: Context | None,
) -> StudyInfo:
    good = [row for row in rows if row.failure is None]
    counted = sum(row.counters is not None for row in good)
    objective = "decode_tps" if counted and 2 * counted >= len(good) and better == "maximize" else log.segments[-1]
    started = [trial.result.started_utc for trial in trials if trial.result.started_utc]
    return StudyInfo(
        name=name,
        engine=trials[0].engine,
        measurement=Measurement.IMPORTED,
        objective=objective,
        direction=better,
        axes=axes.infer(trials),
        n_trials=len(rows),
        status="finished",
        created_utc=min(started, default=""),
        finished_utc=max(started, default=None),
        provenance={
            "imported_from": file.name,
            "sha256": hashlib.sha256(content).hexdigest(),
            "format": log.format,
            "log_name": log.name,
            "context": context.source if context else None,
            "coverage": list(coverage.lines()),
        },
    )
