"""Where the time of a step goes, and what a faster stage would give.

Imports `evidence`, `intervals`, `levels`, `rows` and `metrics` only.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from dflash_sweep import metrics
from dflash_sweep.analysis import levels as lv
from dflash_sweep.analysis.evidence import HOLDS, Evidence, between, committed_per_step, from_interval, unknown
from dflash_sweep.analysis.intervals import Interval, ratio_interval
from dflash_sweep.analysis.rows import numbers, short_setting
from dflash_sweep.analysis.sentences import Sentence, say, together
from dflash_sweep.records import Verdict

MIN_SHARE = 0.01
"""Stages below one percent of the step are left out of the sentences."""

STAGE_ALPHA = 0.01


_WHOLE_STEP = 0.05
"""A stage that leaves less of the step than this is the whole step: a rate without it would mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage of one setting.

    `share` of step_ms over runs; `halved_tps`/`removed_tps`: decode rate without half or all of it (Amdahl), at the
    same acceptance length.
    """

    name: str
    ms: float
    share: Interval
    halved_tps: float
    removed_tps: float | None


def focus(evidence: Evidence) -> pd.DataFrame:
    """Rows of the setting that sentences are about: the confirmed one, else the best of those measured again in confirm
    blocks, else that with the most runs (best on ties)."""
    rows = evidence.known
    confirmed = evidence.study.confirmed_candidate
    if confirmed is not None and (rows["candidate"] == confirmed).any():
        return rows[rows["candidate"] == confirmed]
    if rows.empty:
        return evidence.ranked  # settings known in part only: all runs together

    def weight(rows: pd.DataFrame) -> tuple[int, int, float]:
        again = rows[rows["role"].map(str) == "confirm"]
        judged = again if len(again) > 1 else rows
        mean = evidence.sign * float(numbers(judged, evidence.column).mean())
        return (1, 0, mean) if len(again) > 1 else (0, len(rows), mean)

    return max((group for _, group in rows.groupby("knob_key", sort=False)), key=weight)


def named(rows: pd.DataFrame) -> Sentence:
    """The setting of these rows in a few words."""
    if rows["knob_key"].nunique() != 1:
        return say("all runs together")
    if len(numbered := rows["candidate"].dropna()):
        return say("candidate {number}", number=int(numbered.iloc[0]))
    if (rows["role"].map(str) == "calibrate").all():
        return say("the default setting")
    return say("trial {number}", number=int(rows["number"].iloc[0]))


def stage_costs(rows: pd.DataFrame) -> tuple[StageCost, ...]:
    """Stages of one setting, most expensive first; () without step and stage times. Pooled over steps."""
    step, steps = numbers(rows, "step_ms"), numbers(rows, "verify_steps")
    length = committed_per_step(rows)
    good = rows[(step > 0) & (steps > 0) & length.notna()]
    if good.empty:
        return ()
    weight = numbers(good, "verify_steps")
    total = numbers(good, "step_ms") * weight
    tokens = numbers(good, "decode_tokens").where(lambda v: v > 0, committed_per_step(good) * weight)
    costs = []
    for name in metrics.SUMMED_STAGES:
        time = numbers(good, name) * weight
        if time.isna().any() or time.sum() <= 0:
            continue
        share = ratio_interval(time.tolist(), total.tolist()).within(0.0, 1.0)
        rest = float(total.sum() - time.sum())
        costs.append(
            StageCost(
                name=name,
                ms=float(time.sum() / weight.sum()),
                share=share,
                halved_tps=1000 * float(tokens.sum()) / float(total.sum() - time.sum() / 2),
                removed_tps=1000 * float(tokens.sum()) / rest if rest > _WHOLE_STEP * float(total.sum()) else None,
            )
        )
    return tuple(sorted(costs, key=lambda cost: -cost.ms))


def movers(evidence: Evidence) -> dict[str, tuple[str, ...]]:
    """Stage → axes that move it (F test of the axis's levels, all stages and axes adjusted together by Bonferroni)."""
    rows = evidence.known
    stages = [name for name in metrics.SUMMED_STAGES if (numbers(rows, name) > 0).sum() >= 4]
    table = lv.axis_table(rows) if stages else None
    if table is None:
        return {}
    found: dict[str, list[str]] = {name: [] for name in stages}
    tests = max(1, len(stages) * len(table.names))
    for stage in stages:
        figures = numbers(rows, stage)
        for axis in table.names:
            prepared = lv.prepare(table, axis, figures, matched=False)
            fitted = lv.fit(prepared) if prepared is not None else None
            if fitted is not None and fitted.f_p * tests < STAGE_ALPHA:
                found[stage].append(axis)
    return {stage: tuple(names) for stage, names in found.items()}


def stage_attribution(evidence: Evidence) -> list[Verdict]:
    """One verdict per stage above MIN_SHARE, the most expensive first."""
    rows = focus(evidence)
    costs = stage_costs(rows)
    if not costs:
        why = say("The engine prints no stage times, or no run has them.")
        return [unknown("stage_attribution", "step", why, len(rows))]
    moved = movers(evidence)
    one_setting = rows["knob_key"].nunique() == 1
    setting = short_setting(rows.iloc[0], evidence.ranked) if one_setting else say("all runs together")
    return [
        _attributed(cost, moved.get(cost.name, ()), setting, named(rows))
        for cost in costs
        if cost.share.value >= MIN_SHARE
    ]


def _attributed(cost: StageCost, axes: tuple[str, ...], setting: str, name: Sentence) -> Verdict:
    single = cost.share.n < 2
    gone = "" if cost.removed_tps is None else say(", without it {rate:.1f} tok/s", rate=cost.removed_tps)
    cost_words = say(
        "{stage}: {ms:.1f} ms a step of {setting}, {share} of it; at half its time {halved:.1f} tok/s{gone}.",
        stage=cost.name,
        setting=name,
        ms=cost.ms,
        share=between(cost.share.scaled(100), 1, "%"),
        halved=cost.halved_tps,
        gone=gone,
    )
    statement = together(cost_words, say("Moved by {axes}.", axes=", ".join(axes)) if axes else "")
    if single:
        return Verdict(
            id="stage_attribution",
            subject=cost.name,
            status=unknown("", "", "").status,
            statement=statement,
            value=cost.share.value,
            unit="share of step",
            n=cost.share.n,
        )
    return from_interval(
        "stage_attribution",
        cost.name,
        HOLDS,
        statement,
        cost.share,
        "share of step",
        details={
            "ms_per_step": cost.ms,
            "halved_tps": cost.halved_tps,
            "removed_tps": cost.removed_tps,
            "moved_by": list(axes),
            "setting": setting,
        },
        how_to_check=say("rows of the setting in details: stage column / step_ms, weighted by verify_steps"),
    )
