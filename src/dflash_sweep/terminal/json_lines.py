"""`progress=json`: each event as one JSON object a line on standard output, for programs. Imports `terminal` siblings.

The shape is progress.schema.json beside this module; a change of shape is a new version. Every line says which study
and which kind of numbers it is about; the last line of a run is an `end` event.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from types import TracebackType
from typing import IO, Any

import msgspec

from dflash_sweep.records import AxisInfo, StoredTrial, TrialSpec, Verdict
from dflash_sweep.report.findings_json import plain as json_value
from dflash_sweep.terminal.board import Board, step_of
from dflash_sweep.terminal.ending import Ending
from dflash_sweep.terminal.preflight_table import Overview
from dflash_sweep.terminal.scene import Scene
from dflash_sweep.watcher import Best

SCHEMA_VERSION = 1


def schema() -> dict[str, Any]:
    """The JSON schema of one line."""
    text = resources.files("dflash_sweep.terminal").joinpath("progress.schema.json").read_bytes()
    loaded: dict[str, Any] = msgspec.json.decode(text)
    return loaded


def write(out: IO[str], event: str, study: str | None, measurement: str | None, fields: dict[str, Any]) -> None:
    """One line, flushed. Numbers that JSON cannot hold become null."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"event": event, "time_utc": now, "study": study, "measurement": measurement, **fields}
    out.write(msgspec.json.encode(json_value(line)).decode() + "\n")
    out.flush()


def write_end(out: IO[str], study: str | None, code: int, **fields: Any) -> None:
    """The end of what is no single study: an error before one began, or a comparison of several."""
    empty: dict[str, Any] = {
        "error": None, "findings": None, "status": None, "stop_reason": None, "answer": None, "command": None,
        "verdicts": [], "metrics": {}, "runs": 0, "failed": 0,
    }  # fmt: skip
    write(out, "end", study, None, {"exit_code": code, **empty, **fields})


class JsonLines:
    """A watcher for programs."""

    def __init__(self, out: IO[str], scene: Scene) -> None:
        self._out, self._scene = out, scene
        self._board = Board(scene)

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None: ...

    def _write(self, event: str, **fields: Any) -> None:
        write(self._out, event, self._scene.study, str(self._scene.measurement), fields)

    def begin(self, overview: Overview, notices: Sequence[str]) -> None:
        preflight = overview.preflight
        self._write(
            "start",
            schema_version=SCHEMA_VERSION,
            unit=self._scene.unit,
            engine=preflight.build.engine,
            build=preflight.build.version,
            models=[{"role": file.role, "name": file.name or file.path, "sha256": file.sha256}
                    for file in preflight.models],
            devices=[{"kind": device.kind, "index": device.index, "name": device.name, "uuid": device.uuid}
                     for device in preflight.devices],
            trace={"name": preflight.trace.header.name, "sha256": preflight.trace.header.sha256,
                   "turns": len(preflight.trace.turns)},
            axes={axis.name: _axis(axis) for axis in preflight.axes},
            dead_axes=list(preflight.dead_axes),
            planned=dict(self._scene.planned),
            notes=[*preflight.warnings, *notices],
        )  # fmt: skip

    def phase(self, name: str, total: int) -> None:
        self._board.phase(name, total)
        self._write("phase", phase=name, total=total)

    def started(self, spec: TrialSpec) -> None:
        self._board.started(spec)
        self._write("started", **_run(spec))

    def finished(self, trial: StoredTrial, value: float | None, best: Best | None) -> None:
        board = self._board
        board.finished(trial, best)
        step, failure = step_of(trial), trial.result.failure
        self._write(
            "finished",
            **_run(trial),
            number=trial.number,
            value=value,
            unit=self._scene.unit,
            device=trial.result.device.name,
            wall_s=trial.result.wall_s,
            step_ms=None if step is None else step.step_ms,
            stages_ms={} if step is None else step.stages,
            acceptance_length=None if step is None else step.tokens,
            failure=None if failure is None else {
                "kind": str(failure.kind), "message": failure.message, "log": failure.log_path,
            },
            best=None if best is None else {
                "candidate": best.candidate, "value": best.value, "low": best.low, "high": best.high,
                "gain": best.gain, "gain_low": best.gain_low, "gain_high": best.gain_high, "device": best.device,
            },
            plain=None if best is None else best.plain,
            phase=board.phase_name,
            done=board.done,
            total=board.total,
            phase_left_s=board.phase_left_s(),
            study_left_s=board.study_left_s(),
        )  # fmt: skip

    def note(self, text: str) -> None:
        self._write("note", note=text)

    def verdict(self, verdict: Verdict) -> None:
        self._write("verdict", **_verdict(verdict))

    def end(self, ending: Ending) -> None:
        study, outcome = ending.study, ending.outcome
        value = next((entry.value for entry in outcome.settings if entry.advised), None)
        self._write(
            "end",
            exit_code=ending.code,
            error=study.stop_reason if study.status == "failed" else None,
            status=study.status,
            stop_reason=study.stop_reason,
            findings=str(ending.findings),
            answer={
                "outcome": outcome.outcome, "statement": outcome.statement, "is_advice": outcome.is_advice,
                "candidate": outcome.candidate, "value": None if value is None else value.value, "unit": outcome.unit,
                "low": None if value is None else value.low, "high": None if value is None else value.high,
            },
            command=outcome.command,
            verdicts=[_verdict(verdict) for verdict in ending.verdicts],
            metrics=dict(_metric(line) for line in ending.metric_lines),
            runs=ending.runs,
            failed=ending.failed,
        )  # fmt: skip


def _axis(axis: AxisInfo) -> Any:
    return list(axis.values) if axis.values is not None else {"low": axis.low, "high": axis.high}


def _run(run: TrialSpec | StoredTrial) -> dict[str, Any]:
    return {
        "uid": run.uid, "role": str(run.role), "candidate": run.candidate, "repeat": run.repeat,
        "attempt": run.attempt, "speculative": run.speculative, "knobs": run.knobs,
    }  # fmt: skip


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "id": verdict.id, "subject": verdict.subject, "status": str(verdict.status), "statement": verdict.statement,
        "value": verdict.value, "unit": verdict.unit, "low": verdict.ci_low, "high": verdict.ci_high, "n": verdict.n,
    }  # fmt: skip


def _metric(line: str) -> tuple[str, float]:
    name, _, value = line.removeprefix("METRIC ").partition("=")
    return name, float(value)
