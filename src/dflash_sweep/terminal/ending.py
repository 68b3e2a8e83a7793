"""How a run of a study ended, as views tell it. Imports `records` and `report.outcome`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_sweep.records import StudyInfo, Verdict
from dflash_sweep.report.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """`code`: the exit code. `runs` and `failed` count the stored trials. `metric_lines`: empty unless asked for."""

    study: StudyInfo
    code: int
    outcome: Outcome
    verdicts: tuple[Verdict, ...]
    findings: Path
    runs: int
    failed: int
    metric_lines: tuple[str, ...] = ()
