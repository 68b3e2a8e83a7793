"""All verdicts of a study in one call, most important first. Imports the other modules of `analysis/` and `records`.

Each judge is a function Evidence → verdicts; docs/verdicts.md says what each needs. Odd rows (none, all failed, no
baseline, no stages) give `not_enough_data` with words, never an exception.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from dflash_sweep.analysis.evidence import Evidence, gather, unknown
from dflash_sweep.records import StudyInfo, Verdict, VerdictStatus

VERDICT_IDS: tuple[str, ...] = (
    "structural_bound",
    "break_even",
    "keep_discard",
    "correctness",
    "degenerate_output",
    "setting_not_applied",
    "comparability",
    "sweet_spot",
    "saturation",
    "dead_axis",
    "stage_attribution",
    "memory",
    "oracle_gate",
    "noise",
    "drift",
    "accounting",
    "prefill_share",
    "host_cost",
)
"""Every id, in the order of importance in which verdicts are given."""

JUDGES: dict[str, Callable[[Evidence], list[Verdict]]] = {}


def judge(trials: pd.DataFrame, turns: pd.DataFrame, study: StudyInfo) -> tuple[Verdict, ...]:
    """Judge a study from its trial and turn tables (frames.trial_frame, frames.turn_frame).

    At least one verdict per id; sorted by VERDICT_IDS, within an id those that say something first.
    """
    evidence = gather(trials, turns, study)
    found: list[Verdict] = []
    for verdict_id in VERDICT_IDS:
        judged = JUDGES[verdict_id](evidence) if verdict_id in JUDGES else []
        found += judged or [unknown(verdict_id, "study", "The rows hold nothing to judge this by.")]
    return tuple(sorted(found, key=_rank))


def _rank(verdict: Verdict) -> tuple[bool, int, int]:
    status = (VerdictStatus.HOLDS, VerdictStatus.DOES_NOT_HOLD, VerdictStatus.NOT_ENOUGH_DATA).index(verdict.status)
    return status == 2, VERDICT_IDS.index(verdict.id), status
