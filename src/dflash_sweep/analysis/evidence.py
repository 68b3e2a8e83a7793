"""What every verdict is judged from: the rows of a study, prepared once.

Imports `rows`, `noise`, `intervals`, `sentences` and `records` only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dflash_sweep.analysis.intervals import Interval, ratio_interval
from dflash_sweep.analysis.noise import Noise, repeat_noise
from dflash_sweep.analysis.rows import (
    beside,
    is_plain,
    main_stratum,
    numbers,
    objective_column,
    own_measurement,
    usable,
    whole_settings,
    with_keys,
)
from dflash_sweep.analysis.sentences import Sentence, say
from dflash_sweep.records import AxisInfo, StudyInfo, Verdict, VerdictStatus

HOLDS, FAILS, UNKNOWN = VerdictStatus.HOLDS, VerdictStatus.DOES_NOT_HOLD, VerdictStatus.NOT_ENOUGH_DATA


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The rows of one study.

    `trials`: all rows of the study's own kind of measurement, failed ones included, with keys (see rows.with_keys).
    `ranked`: usable speculative rows of the main stratum, the only ones that are compared with each other.
    `known`: those of `ranked` whose settings are wholly known: only they can tell axes apart.
    `plain`: usable rows without speculation of the same stratum; `controls`: those with finalists' own settings, which
    stand beside the study (see likeness). `turns`: turn rows of `trials`. `column`: where the
    objective is; `sign`: +1 if larger is better. `noise`: repeats of speculative settings, None = too few.
    """

    study: StudyInfo
    trials: pd.DataFrame
    turns: pd.DataFrame
    ranked: pd.DataFrame
    known: pd.DataFrame
    plain: pd.DataFrame
    controls: pd.DataFrame
    column: str
    sign: float
    noise: Noise | None

    @property
    def axes(self) -> dict[str, AxisInfo]:
        return {axis.name: axis for axis in self.study.axes}


def gather(trials: pd.DataFrame, turns: pd.DataFrame, study: StudyInfo) -> Evidence:
    """Prepare a study's tables for judging; both may be empty."""
    own = with_keys(own_measurement(trials, str(study.measurement)))
    column = objective_column(own, study.objective)
    main = main_stratum(own, column)
    plain = is_plain(main)
    controls = usable(beside(trials), column)
    return Evidence(
        study=study,
        trials=own,
        turns=turns[turns["uid"].isin(own["uid"])] if len(turns) else turns,
        ranked=main[~plain],
        known=whole_settings(main[~plain]),
        plain=main[plain],
        controls=controls[controls["stratum"].isin(main["stratum"])] if len(controls) else main.iloc[:0],
        column=column,
        sign=-1.0 if study.direction == "minimize" else 1.0,
        noise=repeat_noise(own[~is_plain(own)], column),
    )


def plain_ms_per_token(evidence: Evidence, level: float = 0.95) -> Interval | None:
    """Plain decoding's ms per token, pooled over its runs; None without a plain row."""
    return ms_per_token(evidence.plain, level)


def ms_per_token(rows: pd.DataFrame, level: float = 0.95) -> Interval | None:
    """Decode time per token over runs, ms; None without one."""
    both = pd.DataFrame({"ms": numbers(rows, "decode_ms"), "tokens": numbers(rows, "decode_tokens")}).dropna()
    both = both[both["tokens"] > 0]
    return ratio_interval(both["ms"].tolist(), both["tokens"].tolist(), level) if len(both) else None


def committed_per_step(rows: pd.DataFrame) -> pd.Series:
    """Tokens kept per verify step: 1 + accepted / steps where drafts are counted, else decode_tokens / steps.

    The two differ by the tokens that a step committed beyond a run's token limit.
    """
    steps = numbers(rows, "verify_steps")
    steps = steps.where(steps > 0)
    counted = 1 + numbers(rows, "accepted_draft_tokens") / steps
    return counted.where(counted.notna(), numbers(rows, "decode_tokens") / steps).astype(float)


def unknown(verdict_id: str, subject: str, why: str, n: int = 0) -> Verdict:
    """A verdict that the rows do not allow, saying what is missing."""
    return Verdict(id=verdict_id, subject=subject, status=UNKNOWN, statement=why, n=n)


def from_interval(
    verdict_id: str,
    subject: str,
    status: VerdictStatus,
    statement: str,
    interval: Interval,
    unit: str | None,
    *,
    details: dict[str, object] | None = None,
    how_to_check: str | None = None,
) -> Verdict:
    """A verdict whose figure is an interval."""
    return Verdict(
        id=verdict_id,
        subject=subject,
        status=status,
        statement=statement,
        value=_finite(interval.value),
        unit=unit,
        ci_low=_finite(interval.low),
        ci_high=_finite(interval.high),
        n=interval.n,
        details={"method": interval.method, **(details or {})},
        how_to_check=how_to_check,
    )


def _finite(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)


def between(interval: Interval, digits: int = 2, unit: str = "") -> str | Sentence:
    """An interval in words: "24.71 ms [24.69, 24.74]"."""
    tail = f" {unit}" if unit else ""
    if interval.low is None or interval.high is None:
        return say("{figure} (one run, no interval)", figure=f"{_rounded(interval.value, digits)}{tail}")
    ends = f"[{_rounded(interval.low, digits)}, {_rounded(interval.high, digits)}]"
    return f"{_rounded(interval.value, digits)}{tail} {ends}"


def runs_in_words(count: int) -> Sentence:
    return say("{count} runs", count=count) if count != 1 else say("1 run")


def settings_in_words(count: int) -> Sentence:
    return say("{count} settings", count=count) if count != 1 else say("1 setting")


def _rounded(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no "-0.00"


def percent(interval: Interval) -> str | Sentence:
    """A ratio in words as a change: "+3.1 % [−0.4, +6.7]"."""
    change = f"{100 * (interval.value - 1):+.1f} %"
    if interval.low is None or interval.high is None:
        return say("{figure} (one run, no interval)", figure=change)
    return f"{change} [{100 * (interval.low - 1):+.1f}, {100 * (interval.high - 1):+.1f}]"
