"""A study for others to read: METRIC lines, a pi-autoresearch log of it, and all rows as CSV or Parquet.

Imports `frames`, `records`, `errors`, `analysis` only. An agent loop can use `python sweep.py` as its benchmark script:
it reads the METRIC lines and keeps its own log; `read` of `importing` takes the log back.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from numbers import Real
from pathlib import Path
from typing import Any

import pandas as pd

from dflash_sweep import frames
from dflash_sweep.analysis import eligibility
from dflash_sweep.analysis.evidence import gather
from dflash_sweep.analysis.ledger import Step, steps
from dflash_sweep.analysis.rows import failed, objective_column, setting_text
from dflash_sweep.analysis.summary import candidate_table
from dflash_sweep.errors import ConfigError
from dflash_sweep.records import StoredTrial, StudyInfo

METRIC_NAME = re.compile(r"[\w.µ]+")
"""Names that pi-autoresearch accepts in a METRIC line."""

_STATUS = {"first": "keep", "keep": "keep", "discard": "discard", "undecided": "discard", "crash": "crash",
           "invalid": "checks_failed", "apart": "discard", "stopped": "discard"}  # fmt: skip
"""Our decisions in the four words of a pi-autoresearch log; the exact one is in `asi.decision`."""

_RUN_METRICS = (
    "decode_tps", "acceptance_length", "step_ms", "draft_ms", "topk_ms", "verify_ms", "exact_ms", "pack_ms",
    "prefill_tps", "peak_memory_mib", "wall_s", "decode_tokens", "verify_steps",
)  # fmt: skip


def metric_line(name: str, value: float) -> str:
    """One `METRIC name=value` line. Raises ConfigError for a name or a value that readers of such lines drop."""
    if not METRIC_NAME.fullmatch(name):
        raise ConfigError(f"metric {name!r}: a METRIC line takes letters, digits, underscores, dots and µ only")
    if not math.isfinite(value):
        raise ConfigError(f"metric {name}: {value} is no finite number; a METRIC line cannot carry it")
    return f"METRIC {name}={value:.10g}"


def metric_lines(trials: Iterable[StoredTrial], study: StudyInfo) -> tuple[str, ...]:
    """What an agent loop should read of a study: the objective first, one pair a line, only figures that are known.

    The setting is the confirmed one, else the best speculative one by its mean, among those run at least twice if there
    are any. The objective (e.g. decode_tps) and its interval, speed-up over plain decoding with its interval,
    acceptance length, step time, runs and failed runs; runs that were stopped early did not fail.
    """
    trials = list(trials)
    frame = frames.trial_frame(trials)
    table = candidate_table(frame, objective_column(frame, study.objective))
    barred = eligibility.ineligible(frame, frames.turn_frame(trials), eligibility.limits_of(study))
    chosen = _chosen(table, study, barred)
    figures: dict[str, Any] = {"failed_runs": int(failed(frame).sum()) if len(frame) else 0}
    if chosen is not None:
        names = ("decode_tps", "decode_tps_low", "decode_tps_high", "speedup", "speedup_low", "speedup_high",
                 "acceptance_length", "step_ms")  # fmt: skip
        renamed = {name.replace("decode_tps", study.objective): chosen[name] for name in names}
        figures = {**renamed, "runs": chosen["n"], **figures}
    plain = table[~table["speculative"].astype(bool) & (table["n"] > 0)] if len(table) else table
    if len(plain):
        figures[f"plain_{study.objective}"] = plain.iloc[0]["decode_tps"]
    return tuple(metric_line(name, float(value)) for name, value in figures.items() if _known(value))


def _chosen(table: pd.DataFrame, study: StudyInfo, barred: Collection[int]) -> pd.Series | None:
    spec = table[table["speculative"].astype(bool) & (table["n"] > 0)] if len(table) else table
    spec = spec[~spec["candidate"].isin(list(barred))] if len(spec) else spec
    if spec.empty:
        return None
    confirmed = spec[spec["candidate"].map(lambda number: number is not None and number == study.confirmed_candidate)]
    rows = next(rows for rows in (confirmed, spec[spec["n"] > 1], spec) if len(rows))
    return rows.sort_values("decode_tps", ascending=study.direction == "minimize", kind="stable").iloc[0]


def _known(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def autoresearch_log(trials: Sequence[StoredTrial], study: StudyInfo) -> tuple[str, ...]:
    """The study as lines of a pi-autoresearch log: a config line, then one run a trial.

    `status` is our own decision about the trial's setting (keep only with an interval), not a comparison of single
    runs. `asi` holds the exact decision and the parameters, so that an import gives the same settings back. A
    failed trial is a crash with metric 0, as that format wants, one that was ended early a discard with metric 0; plain
    rows have `speculative: false`.
    """
    ordered = sorted(trials, key=lambda trial: trial.number)
    frame = frames.trial_frame(ordered)
    evidence = gather(frame, frames.turn_frame([]), study)
    decisions = _decisions(evidence.trials, steps(evidence))
    column = study.objective if study.objective in frame.columns else frames.CLAIMED_PREFIX + study.objective
    lines: list[dict[str, Any]] = [
        {
            "type": "config",
            "name": study.name,
            "metricName": study.objective,
            "metricUnit": "tok/s" if study.objective.endswith("_tps") else "",
            "bestDirection": "lower" if study.direction == "minimize" else "higher",
        }
    ]
    for place, trial in enumerate(ordered):
        row = frame.iloc[place]
        decision = decisions.get(trial.uid, "crash" if trial.result.failure else "first")
        value: Any = row.get(column)
        metric = float(value) if trial.result.failure is None and _known(value) else 0.0
        lines.append(_run_line(place + 1, trial, row, metric, decision))
    return tuple(json.dumps(line, ensure_ascii=False, allow_nan=False) for line in lines)


def _decisions(keyed: pd.DataFrame, judged: Sequence[Step]) -> dict[str, str]:
    """uid → decision about its setting; `steps` gives settings in the order of their first run."""
    speculative = keyed[keyed["speculative"].map(bool)] if len(keyed) else keyed
    by_setting = dict(zip(speculative["setting"].drop_duplicates(), (step.decision for step in judged), strict=True))
    return dict(zip(speculative["uid"], speculative["setting"].map(by_setting), strict=True))


def _run_line(number: int, trial: StoredTrial, row: pd.Series, metric: float, decision: str) -> dict[str, Any]:
    failure = trial.result.failure
    stopped = failure is not None and failure.kind.is_stop
    status = "crash" if failure and not stopped else _STATUS[decision] if metric > 0 or stopped else "checks_failed"
    knobs = {name: value for name, value in trial.knobs.items() if value is not None}
    words = setting_text(knobs) if trial.speculative else "plain decoding"
    return {
        "run": number,
        "commit": "",
        "metric": metric,
        "metrics": {name: float(row[name]) for name in _RUN_METRICS if failure is None and _known(row.get(name))},
        "status": status,
        "description": f"{trial.role}: {words}" + (f" ({failure.kind}: {failure.message})" if failure else ""),
        "timestamp": _epoch_ms(trial.result.started_utc),
        "segment": 0,
        "confidence": None,
        "asi": {
            "params": {**knobs, "speculative": trial.speculative},
            "decision": decision,
            "measurement": str(trial.result.measurement),
            "uid": trial.uid,
        },
    }


def _epoch_ms(started_utc: str) -> int:
    """0 where the time is not known, as the format wants a number."""
    try:
        return round(datetime.fromisoformat(started_utc).timestamp() * 1000)
    except ValueError:
        return 0


def write_log(path: Path, trials: Sequence[StoredTrial], study: StudyInfo) -> Path:
    """Write `autoresearch_log` to `path` and return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(autoresearch_log(trials, study)) + "\n", encoding="utf-8")
    return path


def write_rows(path: Path, trials: Sequence[StoredTrial], *, turns: bool = False) -> Path:
    """Write every trial (or every turn) as a table: `.csv` or `.parquet` by the name's ending, else ConfigError.

    Missing figures are empty cells (CSV) or nulls (Parquet); knob columns keep their types in Parquet where all values
    of a column have one type, else they are text.
    """
    table = frames.turn_frame(trials) if turns else frames.trial_frame(trials)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        _one_type_a_column(table).to_parquet(path, index=False)
    else:
        raise ConfigError(f"{path.name}: rows are written as .csv or .parquet")
    return path


def _one_type_a_column(table: pd.DataFrame) -> pd.DataFrame:
    """Parquet knows one type a column: mixed object columns and mappings become text."""
    typed = table.copy()
    for name in typed.columns:
        if typed[name].dtype == object:
            kinds = {type(value) for value in typed[name] if value is not None and value == value}
            if kinds <= {int, float} and kinds:
                typed[name] = pd.to_numeric(typed[name])
            elif len(kinds) > 1 or kinds & {dict, tuple, list}:
                typed[name] = typed[name].map(lambda value: None if value is None else str(value))
    return typed
