"""Whether a search is worth starting: the verdicts that end a study before it. Imports `verdicts` only. Pure."""

from __future__ import annotations

import pandas as pd

from dflash_sweep.analysis.verdicts import judge
from dflash_sweep.records import StudyInfo, Verdict, VerdictStatus

STOPPING = ("structural_bound",)
"""Ids whose `holds` means that no value of the axes can beat plain decoding."""

SPEEDS = ("decode_tps", "api_tps", "wall_tps", "tpot_ms")
"""Objectives that decoding faster improves: a bound on the speed says nothing of memory, energy or the first token."""


def stop(trials: pd.DataFrame, turns: pd.DataFrame, study: StudyInfo) -> Verdict | None:
    """The verdict that makes a search pointless, or None: search on. The study's first objective decides."""
    if study.objective not in SPEEDS:
        return None
    for verdict in judge(trials, turns, study):
        if verdict.id in STOPPING and verdict.status is VerdictStatus.HOLDS:
            return verdict
    return None
