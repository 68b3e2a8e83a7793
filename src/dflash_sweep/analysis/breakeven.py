"""Break-even acceptance length against the measured one, and the best that switching per step could do.

Imports `evidence`, `intervals`, `stages`, `rows`, `likeness`, `noise` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from dflash_sweep.analysis.evidence import (
    FAILS,
    HOLDS,
    UNKNOWN,
    Evidence,
    between,
    committed_per_step,
    from_interval,
    ms_per_token,
    unknown,
)
from dflash_sweep.analysis.intervals import Interval, mean_interval, ratio_interval, speedup
from dflash_sweep.analysis.likeness import Reference, hardest, settings_of
from dflash_sweep.analysis.noise import spreads
from dflash_sweep.analysis.rows import fair_runs, numbers, short_setting
from dflash_sweep.analysis.sentences import say
from dflash_sweep.records import Verdict

BREAK_EVEN_ALPHA = 0.01
"""Level of the comparison with plain decoding, over all settings looked at together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """One setting. `needed` = step_ms / plain ms per token (AL*); `measured` = tokens per step; `gain` = their ratio,
    which is the speed-up over plain decoding, adjusted for the number of settings looked at. `others`: the
    settings of all plain decoding that was measured, where they are not this setting's own (see likeness); None = they
    are, or it is not known."""

    setting: str
    candidate: int | None
    needed: float
    measured: Interval
    gain: Interval
    others: str | None


def best_setting(evidence: Evidence) -> tuple[pd.DataFrame, int]:
    """Runs of the best setting with two runs or more (the confirmed one if any), and among how many it was best."""
    rows = fair_runs(evidence.known)
    confirmed = evidence.study.confirmed_candidate
    if confirmed is not None and (rows["candidate"] == confirmed).sum() > 1:
        return rows[rows["candidate"] == confirmed], 1
    groups = [group for _, group in rows.groupby("knob_key", sort=False) if len(group) > 1]
    if not groups:
        return rows.iloc[:0], 0
    return max(groups, key=lambda group: evidence.sign * float(numbers(group, evidence.column).mean())), len(groups)


def _rates(rows: pd.DataFrame) -> pd.Series:
    """Decode tok/s of each run."""
    return 1000 * numbers(rows, "decode_tokens") / numbers(rows, "decode_ms")


def _to_beat(rows: pd.DataFrame, evidence: Evidence) -> Reference:
    """Plain decoding that one setting has to beat: the baseline, or plain decoding with its own settings."""
    plain = pd.concat([evidence.plain, evidence.controls]) if len(evidence.controls) else evidence.plain
    return hardest(plain, settings_of(rows), _rates(plain))


def break_even_of(rows: pd.DataFrame, looked_at: int, evidence: Evidence) -> BreakEven | None:
    """Break-even of one setting's runs; None without plain rows, step times or acceptance."""
    against = _to_beat(rows, evidence)
    plain = ms_per_token(against.rows)
    table = pd.DataFrame(
        {
            "length": numbers(rows, "decode_tokens") / numbers(rows, "verify_steps").where(lambda v: v > 0),
            "step": numbers(rows, "step_ms"),
            "rate": numbers(rows, "decode_tps"),
        }
    ).dropna()
    reference = _rates(against.rows).dropna().tolist()
    if plain is None or len(table) < 2 or not reference:
        return None
    spec_spread, plain_spread = spreads(evidence.trials, "decode_tps")
    level = 1 - BREAK_EVEN_ALPHA / max(1, looked_at)
    named = rows["candidate"].dropna()
    return BreakEven(
        setting=short_setting(rows.iloc[0], evidence.ranked),
        candidate=int(named.iloc[0]) if len(named) else None,
        needed=float(table["step"].mean()) / plain.value,
        measured=mean_interval(table["length"].tolist()),
        gain=speedup(table["rate"].tolist(), reference, spec_spread, plain_spread, level),
        others=None if against.alike else settings_of(against.rows),
    )


def break_even(evidence: Evidence) -> list[Verdict]:
    """One verdict about the best setting: holds = speculation beats plain decoding."""
    if evidence.plain.empty:
        return [unknown("break_even", "best setting", say("No plain decoding was measured: nothing to compare with."))]
    rows, looked_at = best_setting(evidence)
    found = break_even_of(rows, looked_at, evidence) if len(rows) else None
    if found is None:
        why = say("No speculative setting has two runs with step times and acceptance counts.")
        return [unknown("break_even", "best setting", why, len(rows))]
    gain = found.gain
    shown = say(
        "{setting}: it wins if a step yields more than {needed:.2f} tokens (step time over plain ms per token); it "
        "yields {measured}",
        setting=found.setting,
        needed=found.needed,
        measured=between(found.measured, 2),
    )
    if gain.low is None or gain.high is None:
        why = say("{shown}; plain decoding was measured once, which gives no interval.", shown=shown)
        return [unknown("break_even", found.setting, why)]
    if gain.low > 1 and found.others:
        why = say(
            "{factor} times plain decoding, but that ran with {others}: how much of it is speculation's is not known. "
            "{shown}.",
            factor=between(gain, 3),
            others=found.others,
            shown=shown,
        )
        return [unknown("break_even", found.setting, why, gain.n)]
    status = HOLDS if gain.low > 1 else FAILS if gain.high < 1 else UNKNOWN
    template = {
        HOLDS: "Speculation beats plain decoding: {factor} times plain decoding. {shown}.",
        FAILS: "Speculation loses to plain decoding: {factor} times plain decoding at the best repeated setting. "
        "{shown}.",
        UNKNOWN: "Speculation against plain decoding is undecided: {factor} times plain decoding. {shown}.",
    }[status]
    words = say(template, factor=between(gain, 3), shown=shown)
    details: dict[str, object] = {
        "needed_length": found.needed,
        "measured_length": [found.measured.value, found.measured.low, found.measured.high],
        "candidate": found.candidate,
        "settings_looked_at": looked_at,
    }
    check = say("1000 · acceptance_length / step_ms of its rows against 1000 / ms per token of the plain rows")
    return [
        from_interval("break_even", found.setting, status, words, gain, "ratio", details=details, how_to_check=check)
    ]


def oracle_gate(evidence: Evidence) -> list[Verdict]:
    """What switching speculation off for each step that will not pay could give at most (needs histograms)."""
    rows, _ = best_setting(evidence)
    rows = rows if len(rows) else evidence.ranked
    against = _to_beat(rows, evidence)
    plain = ms_per_token(against.rows)
    histograms = _by_run(evidence.turns, rows)
    if plain is not None and plain.low is None and len(histograms) > 1:
        why = say("Plain decoding was measured once, which gives no interval.")
        return [unknown("oracle_gate", "per-step gate", why)]
    if plain is None or len(histograms) < 2:
        few = say("Only one run has a histogram") if histograms else say("The engine prints no per-step histogram")
        reason = say("No plain decoding was measured") if plain is None else few
        why = say("{reason}: what a per-step switch could give is not known.", reason=reason)
        return [unknown("oracle_gate", "per-step gate", why)]
    steps = numbers(rows.set_index("uid"), "step_ms")
    shares, tokens, times = [], [], []
    for uid, histogram in histograms.items():
        step_ms = float(steps.loc[uid])
        if not step_ms > 0:
            continue
        total = sum(histogram.values())
        shares.append((sum(n for kept, n in histogram.items() if (kept + 1) * plain.value >= step_ms), total))
        tokens.append(sum((kept + 1) * n for kept, n in histogram.items()))
        times.append(sum(n * min(step_ms, (kept + 1) * plain.value) for kept, n in histogram.items()))
    if len(times) < 2:
        why = say("Fewer than two runs have both a histogram and step times.")
        return [unknown("oracle_gate", "per-step gate", why)]
    best = ratio_interval([1000.0 * token for token in tokens], times).within(0.0)
    share = ratio_interval([float(part) for part, _ in shares], [float(total) for _, total in shares]).within(0.0, 1.0)
    ratio = best.scaled(plain.value / 1000)
    status = HOLDS if ratio.low is not None and ratio.low > 1.005 else FAILS
    if status is HOLDS and not against.alike:
        why = say(
            "A switch that knew each step's outcome would reach {ratio:.3f} times plain decoding, but that ran with "
            "{others}: how much of it is speculation's is not known.",
            ratio=ratio.value,
            others=settings_of(against.rows),
        )
        return [unknown("oracle_gate", "per-step gate", why, best.n)]
    text = say(
        "{share} of the steps yield enough tokens to pay. A switch that knew each step's outcome would reach {best}, "
        "{ratio:.3f} times plain decoding: the most any per-step gate could do.",
        share=between(share.scaled(100), 1, "%"),
        best=between(best, 1, "tok/s"),
        ratio=ratio.value,
    )
    return [
        from_interval(
            "oracle_gate",
            short_setting(rows.iloc[0], evidence.ranked),
            status,
            text,
            best,
            "tok/s",
            details={"share_of_steps": share.value, "times_plain": ratio.value},
            how_to_check=say("acceptance_histogram of the turns: Σ tokens / Σ min(step_ms, tokens · plain ms)"),
        )
    ]


def _by_run(turns: pd.DataFrame, rows: pd.DataFrame) -> dict[str, dict[int, int]]:
    """Run → steps by accepted drafts, summed over its counted turns."""
    if turns.empty or "acceptance_histogram" not in turns.columns:
        return {}
    found: dict[str, dict[int, int]] = {}
    counted = turns[turns["uid"].isin(rows["uid"]) & turns["invalid_reason"].isna() & ~turns["warmup"].astype(bool)]
    for uid, histogram in zip(counted["uid"], counted["acceptance_histogram"], strict=True):
        if isinstance(histogram, Mapping) and histogram:
            run = found.setdefault(str(uid), {})
            for kept, steps in histogram.items():
                run[int(kept)] = run.get(int(kept), 0) + int(steps)
    return found


def measured_length(rows: pd.DataFrame) -> Interval | None:
    """Tokens committed per step over runs."""
    lengths = committed_per_step(rows).dropna()
    return mean_interval(lengths.tolist()) if len(lengths) else None
