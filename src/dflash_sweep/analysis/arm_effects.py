"""What tools and grammar cost: the turns of two arms of the same runs, pair by pair. Imports `evidence`, `intervals`,
`rows`, `sentences`, `stages`, `arms`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from dflash_sweep.analysis.evidence import Evidence, runs_in_words
from dflash_sweep.analysis.intervals import Interval, paired_speedup
from dflash_sweep.analysis.rows import numbers, short_setting
from dflash_sweep.analysis.sentences import Sentence, say, together
from dflash_sweep.analysis.stages import focus
from dflash_sweep.arms import ARMS, NO_GRAMMAR, NO_TOOLS
from dflash_sweep.records import AS_RECORDED, OTHER_ARM

MIN_PAIRS = 2
"""Turns that a ratio needs before anything is said of it."""

_NAMES = {
    AS_RECORDED: say("as recorded"),
    NO_TOOLS: say("without the tool schemas"),
    NO_GRAMMAR: say("without a grammar"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmEffect:
    """Turns asked in the study's own arm (`own`) against the same turns in another (`other`), for one setting.

    `speed` and `length`: decode tok/s and acceptance length in the own arm over the other one, as the geometric mean of
    the ratios of `turns` turns with its t interval; each turn's ratio is the mean over the `runs` that played it in
    both arms. `length` None = no drafts, or not counted. `setting` None = plain decoding.
    """

    own: str
    other: str
    setting: str | None
    speed: Interval
    length: Interval | None
    turns: int
    runs: int

    def in_words(self) -> Sentence:
        """The finding as a sentence."""
        setting = say("Plain decoding") if self.setting is None else self.setting
        speed = say(
            "{setting}: {own} it decodes at {speed} times the speed it has {other} ({turns} turns in pairs, {runs}): "
            "{outcome}.",
            setting=setting,
            own=_NAMES[self.own],
            other=_NAMES[self.other],
            speed=_shown(self.speed),
            turns=self.turns,
            runs=runs_in_words(self.runs),
            outcome=_outcome(self.speed),
        )
        if self.length is None:
            return speed
        return together(speed, say("Tokens per step: {ratio} times as many.", ratio=_shown(self.length)))


def _outcome(ratio: Interval) -> Sentence:
    if not ratio.excludes(1.0):
        return say("no difference beyond that of the turns")
    return say("slower") if ratio.value < 1 else say("faster")


def _shown(ratio: Interval) -> str:
    ends = "" if ratio.low is None or ratio.high is None else f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    return f"{ratio.value:.3f}{ends}"


def arm_effects(evidence: Evidence) -> tuple[ArmEffect, ...]:
    """Plain decoding and the setting that sentences are about (see stages.focus), each other arm for itself."""
    turns = _pairable(evidence.turns)
    seen = set(turns.loc[turns["invalid_reason"].notna(), "arm"]) if len(turns) else set()
    others = [arm for arm in ARMS if arm in seen]
    chosen = focus(evidence)
    groups: list[tuple[str | None, pd.DataFrame]] = [(None, evidence.plain)]
    if len(chosen):
        groups.append((short_setting(chosen.iloc[0], evidence.ranked), chosen))
    found = []
    for other in others:
        for setting, rows in groups:
            effect = _effect(turns[turns["uid"].isin(rows["uid"])], other, setting)
            if effect is not None:
                found.append(effect)
    return tuple(found)


def _pairable(turns: pd.DataFrame) -> pd.DataFrame:
    """Turns that count, in the study's own arm, and those of other arms that would count there."""
    if turns.empty or "arm" not in turns.columns:
        return turns.iloc[:0]
    other = turns["invalid_reason"].map(lambda reason: isinstance(reason, str) and reason == OTHER_ARM).astype(bool)
    return turns[(turns["invalid_reason"].isna() | other) & ~turns["warmup"].astype(bool)]


def _effect(turns: pd.DataFrame, other: str, setting: str | None) -> ArmEffect | None:
    own = turns[turns["invalid_reason"].isna()]
    keys = ["uid", "conversation", "index"]
    pairs = own.merge(turns[turns["arm"] == other], on=keys, suffixes=("", "_other"))
    speed = _ratio(pairs, "decode_tps")
    if speed is None:
        return None
    interval, count = speed
    length = _ratio(pairs, "acceptance_length") if setting is not None else None
    return ArmEffect(
        own=str(pairs["arm"].iloc[0]),
        other=other,
        setting=setting,
        speed=interval,
        length=length[0] if length is not None else None,
        turns=count,
        runs=int(pairs["uid"].nunique()),
    )


def _ratio(pairs: pd.DataFrame, column: str) -> tuple[Interval, int] | None:
    """Own over other, each turn's figure being its mean over the runs; None below MIN_PAIRS turns."""
    table = pd.DataFrame(
        {
            "conversation": pairs["conversation"],
            "index": pairs["index"],
            "own": numbers(pairs, column),
            "other": numbers(pairs, f"{column}_other"),
        }
    ).dropna()
    table = table[(table["own"] > 0) & (table["other"] > 0)]
    means = table.groupby(["conversation", "index"])[["own", "other"]].mean()
    if len(means) < MIN_PAIRS:
        return None
    return paired_speedup(means["own"].tolist(), means["other"].tolist()), len(means)
