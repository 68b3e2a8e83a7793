"""All verdicts of a study in one call, most important first. Imports the other modules of `analysis/` and `records`.

Each judge is a function Evidence → verdicts; docs/verdicts.md says what each needs. Odd rows (none, all failed, no
baseline, no stages) give `not_enough_data` with words, never an exception.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from dflash_sweep.analysis import axis_verdicts, interactions
from dflash_sweep.analysis.accounting import accounting, host_cost, prefill_share
from dflash_sweep.analysis.applied import setting_not_applied
from dflash_sweep.analysis.bound import structural_bound
from dflash_sweep.analysis.breakeven import break_even, oracle_gate
from dflash_sweep.analysis.comparability import comparability
from dflash_sweep.analysis.drift import drift
from dflash_sweep.analysis.effects import axis_effects
from dflash_sweep.analysis.evidence import Evidence, gather, unknown
from dflash_sweep.analysis.ledger import keep_discard
from dflash_sweep.analysis.memory import memory
from dflash_sweep.analysis.outputs import correctness, degenerate_output
from dflash_sweep.analysis.repeats import noise
from dflash_sweep.analysis.sentences import say
from dflash_sweep.analysis.stages import stage_attribution
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

JUDGES: dict[str, Callable[[Evidence], list[Verdict]]] = {
    "structural_bound": structural_bound,
    "break_even": break_even,
    "keep_discard": keep_discard,
    "correctness": correctness,
    "degenerate_output": degenerate_output,
    "setting_not_applied": setting_not_applied,
    "comparability": comparability,
    "stage_attribution": stage_attribution,
    "memory": memory,
    "oracle_gate": oracle_gate,
    "noise": noise,
    "drift": drift,
    "accounting": accounting,
    "prefill_share": prefill_share,
    "host_cost": host_cost,
}


def judge(trials: pd.DataFrame, turns: pd.DataFrame, study: StudyInfo) -> tuple[Verdict, ...]:
    """Judge a study from its trial and turn tables (frames.trial_frame, frames.turn_frame).

    At least one verdict per id; sorted by VERDICT_IDS, within an id those that say something first.
    """
    evidence = gather(trials, turns, study)
    found = [verdict for name in JUDGES for verdict in JUDGES[name](evidence)]
    effects = axis_effects(evidence)
    for about_axes in (
        axis_verdicts.dead_axis,
        axis_verdicts.sweet_spot,
        axis_verdicts.saturation,
        interactions.interaction_verdicts,
    ):
        found += about_axes(effects, evidence)
    silent = set(VERDICT_IDS) - {verdict.id for verdict in found}
    found += [unknown(name, "study", say("The rows hold nothing to judge this by.")) for name in sorted(silent)]
    return tuple(sorted(found, key=_rank))


def _rank(verdict: Verdict) -> tuple[bool, int, int]:
    status = (VerdictStatus.HOLDS, VerdictStatus.DOES_NOT_HOLD, VerdictStatus.NOT_ENOUGH_DATA).index(verdict.status)
    return status == 2, VERDICT_IDS.index(verdict.id), status
