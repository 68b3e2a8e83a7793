"""A study as it is stored, its axes, and what is concluded from it. Imports `records.words` only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from dflash_sweep.records.words import KnobValue, Measurement, VerdictStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisInfo:
    """One axis of a search space as reports see it. `values` in order of size where the axis is ordered.

    `values` None = a continuous range from `low` to `high`. `active_when` is in words; None = always active.
    """

    name: str
    kind: str  # int | float | bool | choice
    values: tuple[KnobValue, ...] | None = None
    low: float | None = None
    high: float | None = None
    ordered: bool = False
    unit: str = ""
    doc: str = ""
    active_when: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyInfo:
    """A study as it is stored, without its trials. `config` is the whole resolved configuration.

    `status`: running, finished, interrupted or failed; `stop_reason` says in words why a study ended before its budget.
    `confirmed_candidate` None = no winner was named. `importance`: axis → share of the difference between the best
    candidates and the rest (PED-ANOVA over the search, no noise taken off); empty = too few candidates. `objective` is
    the one that decides; `objectives` all of them where there are several, that one first; empty = only the one.
    """

    name: str
    engine: str
    measurement: Measurement
    objective: str = "decode_tps"
    objectives: tuple[str, ...] = ()
    direction: str = "maximize"
    axes: tuple[AxisInfo, ...] = ()
    seed: int = 0
    n_trials: int = 0
    status: str = "running"
    stop_reason: str | None = None
    confirmed_candidate: int | None = None
    importance: dict[str, float] = field(default_factory=dict)
    created_utc: str = ""
    finished_utc: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One conclusion: a sentence and what it rests on. The ids are those of docs/verdicts.md.

    `value`, `ci_low` and `ci_high` share `unit`; None where a verdict has no single figure. `n` counts the
    independent observations behind the interval (never turns of one run counted as runs).
    """

    id: str
    subject: str
    status: VerdictStatus
    statement: str
    value: float | None = None
    unit: str | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int = 0
    details: dict[str, Any] = field(default_factory=dict)
    how_to_check: str | None = None

    def __post_init__(self) -> None:
        for name in ("value", "ci_low", "ci_high"):
            number = getattr(self, name)
            if number is not None and not math.isfinite(number):
                raise ValueError(f"verdict {self.id}: {name} must be finite or None, got {number}")
