"""Several engines on one trace, side by side: one row an engine, skipped ones with the reason. Pure but for `write`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dflash_sweep import metrics
from dflash_sweep.analysis.summary import candidate_table
from dflash_sweep.frames import trial_frame
from dflash_sweep.records import StoredTrial, StudyInfo
from dflash_sweep.report.writer import replace_file

_STAGES = ("draft_ms", "topk_ms", "verify_ms", "exact_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLine:
    """One engine's figures. Speeds in tok/s with 95 % intervals over runs; None = not measured or not printed.

    `unlike`: it is better than plain decoding, which ran with other threads, caches or the like only.
    """

    engine: str
    study: str
    measurement: str
    build: str
    plain: tuple[float, float | None, float | None] | None
    speculative: tuple[float, float | None, float | None] | None
    speedup: tuple[float, float | None, float | None] | None
    unlike: bool
    acceptance_length: float | None
    step_ms: float | None
    stages: dict[str, float | None]
    runs: int
    failures: dict[str, int]


def _triple(row: Mapping[str, Any], name: str) -> tuple[float, float | None, float | None] | None:
    values = [row.get(key) for key in (name, f"{name}_low", f"{name}_high")]
    known = [None if value is None or value != value else float(value) for value in values]
    return None if known[0] is None else (known[0], known[1], known[2])


def _number(value: Any) -> float | None:
    return None if value is None or value != value else float(value)


def line(study: StudyInfo, trials: Sequence[StoredTrial]) -> EngineLine:
    """The row of one engine's study: its plain decoding and its fastest speculative setting."""
    table = candidate_table(trial_frame(trials))
    rows: list[dict[str, Any]] = [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]
    plain = next((row for row in rows if not row["speculative"] and _number(row["decode_tps"]) is not None), {})
    best = next((row for row in rows if row["speculative"] and _number(row["decode_tps"]) is not None), {})
    failures: dict[str, int] = {}
    for row in rows:
        for kind, count in (row["failures"] or {}).items():
            failures[str(kind)] = failures.get(str(kind), 0) + int(count)
    return EngineLine(
        engine=study.engine,
        study=study.name,
        measurement=str(study.measurement),
        build=trials[0].build if trials else "unknown",
        plain=_triple(plain, "decode_tps"),
        speculative=_triple(best, "decode_tps"),
        speedup=_triple(best, "speedup"),
        unlike=best.get("alike") is not None and not best["alike"] and (_number(best["speedup"]) or 0.0) > 1,
        acceptance_length=_number(best.get("acceptance_length")),
        step_ms=_number(best.get("step_ms")),
        stages={stage: _number(best.get(stage)) for stage in _STAGES},
        runs=len(trials),
        failures=failures,
    )


def _shown(figure: tuple[float, float | None, float | None] | None, sign: str = "") -> str:
    if figure is None:
        return "—"
    value, low, high = figure
    spread = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    return f"{value:.2f}{sign}{spread}"


def _mark(entry: EngineLine) -> str:
    return " †" if entry.unlike else ""


def _plain_number(value: float | None) -> str:
    return "—" if value is None else f"{value:.2f}"


def page(name: str, trace: str, lines: Sequence[EngineLine], skipped: Mapping[str, str]) -> str:
    """The page as markdown; measured engines first, then emulated ones, never in one ranking."""
    stage_names = " | ".join(_STAGES)
    text = [
        f"# Engines side by side: {name}",
        "",
        f"Trace: {trace}. Each engine is compared with its own plain decoding; rows of different engines, models or "
        "devices are not a ranking. — = the engine does not print it.",
        "",
        f"| engine | numbers | build | plain tok/s | speculative tok/s | × plain | AL | step_ms | {stage_names} "
        "| runs | failed |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |" + " ---: |" * len(_STAGES) + " ---: | --- |",
    ]
    for entry in sorted(lines, key=lambda entry: (entry.measurement != "measured", entry.engine)):
        stages = " | ".join(_plain_number(entry.stages[stage]) for stage in _STAGES)
        failed = ", ".join(f"{kind} {count}" for kind, count in entry.failures.items()) or "—"
        text.append(
            f"| [{entry.engine}](../{entry.study}/findings.md) | {entry.measurement} | {entry.build} "
            f"| {_shown(entry.plain)} | {_shown(entry.speculative)} | {_shown(entry.speedup, '×')}{_mark(entry)} "
            f"| {_plain_number(entry.acceptance_length)} | {_plain_number(entry.step_ms)} | {stages} "
            f"| {entry.runs} | {failed} |"
        )
    if any(entry.unlike for entry in lines):
        text += [
            "",
            "† Plain decoding ran with other threads, caches or the like: the gain is not speculation's alone.",
        ]
    if skipped:
        text += ["", "## Skipped", "", "| engine | why |", "| --- | --- |"]
        text += [f"| {engine} | {reason} |" for engine, reason in skipped.items()]
    units = ", ".join(f"{name}: {metrics.METRIC[name].formula}" for name in ("decode_tps", "acceptance_length"))
    text += ["", f"Intervals are 95 % over runs. {units}."]
    return "\n".join(text) + "\n"


def write(folder: Path, name: str, trace: str, lines: Sequence[EngineLine], skipped: Mapping[str, str]) -> Path:
    """Write findings.md and findings.json; returns the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "findings.md", page(name, trace, lines, skipped).encode())
    data = {"name": name, "trace": trace, "engines": lines, "skipped": skipped}
    replace_file(folder / "findings.json", msgspec.json.format(msgspec.json.encode(data)) + b"\n")
    return folder / "findings.md"
