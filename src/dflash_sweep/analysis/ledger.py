"""Keep, discard, undecided: every step of a search judged by interval; imported claims and source changes graded again.

Imports `evidence`, `intervals`, `confirm`, `rows`, `noise` only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pandas as pd

from dflash_sweep.analysis import eligibility
from dflash_sweep.analysis.evidence import (
    FAILS,
    HOLDS,
    UNKNOWN,
    Evidence,
    from_interval,
    percent,
    settings_in_words,
    unknown,
)
from dflash_sweep.analysis.intervals import Interval, Spread, pooled_speedup, speedup
from dflash_sweep.analysis.rows import is_plain, knobs_of, numbers, row_name, setting_text, usable, why_no_figure
from dflash_sweep.analysis.sentences import Sentence, listed, say, together
from dflash_sweep.frames import KNOB_PREFIX
from dflash_sweep.records import Verdict

LEDGER_WORDS = ("first", "keep", "discard", "stopped", "undecided", "crash", "invalid", "apart")
"""Every decision about a setting: the counts of all of them sum up to the settings."""

LEDGER_ALPHA = 0.01
"""Level of all steps of the ledger together (Bonferroni)."""

CLAIM_ALPHA = 0.05
"""Level of all graded claims together, and of all source changes together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One setting against the incumbent at its time. `decision`: first, keep, discard, undecided,
    stopped (ended early: surely worse than the best then), crash, invalid (finished without a figure) or apart (another
    build or other terms: not compared)."""

    name: str
    setting: str
    decision: str
    ratio: Interval | None
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A decision "keep" of an imported log, graded again over all rows.

    `ratio`: its setting against the one kept before; None if they are the same setting or nothing was kept before.
    `replicated`: its setting was run at least twice. `survives`: the interval (adjusted for the number of claims)
    lies on the better side of no change.
    """

    name: str
    against: str | None
    ratio: Interval | None
    replicated: bool
    survives: bool
    why: str


def _compare(candidate: pd.Series, reference: pd.Series, spread: Spread | None, alpha: float) -> Interval | None:
    """candidate / reference with dispersion pooled over the study's repeats: also single runs can be compared with it,
    though nothing is kept on one; None without repeats anywhere."""
    if spread is None:
        if len(candidate) < 2 or len(reference) < 2:
            return None
        return speedup(candidate.tolist(), reference.tolist(), level=1 - alpha)
    return pooled_speedup(candidate.tolist(), reference.tolist(), spread, 1 - alpha)


def steps(evidence: Evidence) -> tuple[Step, ...]:
    """The study replayed: settings in the order of their first run, each against the incumbent of the moment."""
    spread = evidence.noise.spread if evidence.noise else None
    rows = evidence.trials[~is_plain(evidence.trials)] if len(evidence.trials) else evidence.trials
    groups = [group for _, group in rows.groupby("setting", sort=False)] if len(rows) else []
    ranked = set(evidence.ranked["setting"]) if len(evidence.ranked) else set()
    alpha = LEDGER_ALPHA / max(1, len(ranked) - 1)
    incumbent: pd.Series | None = None
    found = []
    for group in groups:
        values = numbers(usable(group, evidence.column), evidence.column)
        decision, ratio = why_no_figure(group), None
        if len(values) and group["setting"].iloc[0] not in ranked:
            decision = "apart"
        elif len(values):
            if incumbent is None:
                decision, incumbent = "first", values
            else:
                ratio = _compare(values, incumbent, spread, alpha)
                decision = _decision(ratio, len(values), evidence.sign)
                incumbent = values if decision == "keep" else incumbent
        first = group.iloc[0]
        found.append(
            Step(
                name=row_name(first),
                setting=setting_text(knobs_of(first)),
                decision=decision,
                ratio=ratio,
                runs=len(group),
            )
        )
    return tuple(found)


def _decision(ratio: Interval | None, runs: int, sign: float) -> str:
    """Nothing is kept on a single run; a discard may be clear enough by the noise of the whole study."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return "undecided"
    better = ratio.low > 1 if sign > 0 else ratio.high < 1
    worse = ratio.high < 1 if sign > 0 else ratio.low > 1
    if worse:
        return "discard"
    return "keep" if better and runs > 1 else "undecided"


def claims(evidence: Evidence) -> tuple[Claim, ...]:
    """Every "keep" of an imported log, against what its author kept before it, over all runs of both settings."""
    rows = evidence.ranked
    if rows.empty or "status_claimed" not in rows.columns:
        return ()
    kept = rows[rows["status_claimed"].map(str).isin(("keep", "baseline"))]
    spread = evidence.noise.spread if evidence.noise else None
    alpha = CLAIM_ALPHA / max(1, len(kept) - 1)
    found: list[Claim] = []
    before: pd.Series | None = None
    for _, row in kept.iterrows():
        found.append(_graded(row, before, rows, evidence, spread, alpha))
        before = row
    return tuple(found)


def _graded(
    row: pd.Series,
    before: pd.Series | None,
    rows: pd.DataFrame,
    evidence: Evidence,
    spread: Spread | None,
    alpha: float,
) -> Claim:
    own = numbers(rows[rows["setting"] == row["setting"]], evidence.column)

    def claim(ratio: Interval | None, survives: bool, why: str) -> Claim:
        return Claim(
            name=row_name(row),
            against=None if before is None else row_name(before),
            ratio=ratio,
            replicated=len(own) > 1,
            survives=survives,
            why=why,
        )

    if before is None:
        return claim(None, True, say("the first kept run: nothing to beat"))
    if before["setting"] == row["setting"]:
        return claim(None, False, say("the very setting of {run}: a repeat is no improvement", run=row_name(before)))
    other = numbers(rows[rows["setting"] == before["setting"]], evidence.column)
    ratio = _compare(own, other, spread, alpha)
    if ratio is None or ratio.low is None or ratio.high is None:
        return claim(ratio, False, say("no repeats: no noise to compare with"))
    survives = ratio.low > 1 if evidence.sign > 0 else ratio.high < 1
    return claim(ratio, survives, say("beyond the noise") if survives else say("inside the noise"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceChange:
    """A run of a changed build against unchanged runs of the same setting."""

    name: str
    build: str
    ratio: Interval | None
    told_apart: bool


def source_changes(evidence: Evidence) -> tuple[SourceChange, ...]:
    """Runs of other builds under the same comparability key, each against unchanged runs of its setting.

    Knobs that no unchanged run sets belong to the change and are left out when the setting is looked for.
    """
    main = evidence.ranked
    if main.empty:
        return ()
    key, build = main["comparability_key"].iloc[0], main["build"].iloc[0]
    rows = usable(evidence.trials, evidence.column)
    changed = rows[(rows["comparability_key"] == key) & (rows["build"] != build) & ~is_plain(rows)]
    if changed.empty or evidence.noise is None:
        return ()
    known = {
        str(c)[len(KNOB_PREFIX) :] for c in main.columns if str(c).startswith(KNOB_PREFIX) and main[c].notna().any()
    }
    settings = main.apply(lambda row: setting_text(knobs_of(row)), axis=1)
    alpha = CLAIM_ALPHA / len(changed)
    found = []
    for _, row in changed.iterrows():
        text = setting_text({name: value for name, value in knobs_of(row).items() if name in known})
        same = numbers(main[settings == text], evidence.column)
        ratio = None
        if len(same):
            ratio = pooled_speedup([float(row[evidence.column])], same.tolist(), evidence.noise.spread, 1 - alpha)
        found.append(
            SourceChange(
                name=row_name(row),
                build=str(row["build"]),
                ratio=ratio,
                told_apart=ratio is not None and ratio.excludes(1.0),
            )
        )
    return tuple(found)


def keep_discard(evidence: Evidence) -> list[Verdict]:
    """The confirm decision, the ledger, graded claims (imported rows) and source changes."""
    return [*_confirmed(evidence), _counts(evidence), *_claims(evidence), *_changes(evidence)]


def _confirmed(evidence: Evidence) -> list[Verdict]:
    trials = evidence.trials
    if trials.empty or not (trials["role"].map(str) == "confirm").any():
        return []
    decision = eligibility.decision(trials, evidence.turns, evidence.study)
    status = {"winner": HOLDS, "not_distinguishable": FAILS}.get(decision.outcome, UNKNOWN)
    if decision.winner is not None and decision.finalists == 1:  # the only one: better than plain decoding, or nothing
        status = {True: HOLDS, False: FAILS, None: UNKNOWN}[decision.beats_plain]
    details: dict[str, object] = {
        "outcome": decision.outcome,
        "winner": decision.winner,
        "contenders": list(decision.contenders),
        "cheapest": decision.cheapest,
        "beats_plain": decision.beats_plain,
        "alpha": decision.alpha,
    }
    if decision.value is None:
        return [
            Verdict(
                id="keep_discard",
                subject="winner",
                status=status,
                statement=decision.statement,
                n=decision.blocks,
                details=details,
            )
        ]
    figure = decision.speedup or decision.value
    unit = "ratio" if decision.speedup else "tok/s"
    return [
        from_interval(
            "keep_discard",
            "winner",
            status,
            decision.statement,
            figure,
            unit,
            details=details,
            how_to_check=say("rows of role confirm, block by block (repeat)"),
        )
    ]


def _counts(evidence: Evidence) -> Verdict:
    found = steps(evidence)
    counts = Counter(step.decision for step in found)
    runs = len(evidence.trials)
    valid = len(usable(evidence.trials, evidence.column))
    better = counts["keep"]
    text = say(
        "Of {runs} runs, {valid} valid; of {settings} {better} surely beat their incumbent: {first} first incumbent, "
        "{keep} keep, {discard} discard, {stopped} stopped early, {undecided} undecided, {crash} crash, "
        "{invalid} invalid, {apart} apart.",
        runs=runs,
        valid=valid,
        settings=settings_in_words(len(found)),
        better=better,
        **{word: counts[word] for word in LEDGER_WORDS},
    )
    if evidence.noise is None:
        why = together(text, say("No setting was repeated often enough to know the noise."))
        return unknown("keep_discard", "ledger", why, valid)
    return Verdict(
        id="keep_discard",
        subject="ledger",
        status=HOLDS if better else FAILS,
        statement=text,
        value=float(better),
        unit="settings",
        n=valid,
        details={"steps": [_step_details(step) for step in found], "counts": dict(counts)},
        how_to_check=say("details.steps: each setting against the incumbent of the moment, adjusted"),
    )


def _step_details(step: Step) -> dict[str, object]:
    return {
        "row": step.name,
        "setting": step.setting,
        "decision": step.decision,
        "runs": step.runs,
        "ratio": _numbers(step.ratio),
    }


def _numbers(ratio: Interval | None) -> list[float | None] | None:
    return [ratio.value, ratio.low, ratio.high] if ratio else None


def _claims(evidence: Evidence) -> list[Verdict]:
    graded = [claim for claim in claims(evidence) if claim.against is not None]
    if not graded:
        return []
    alive = [claim for claim in graded if claim.survives]
    dead = [claim for claim in graded if not claim.survives]
    text = say(
        "Of {claims} claimed improvements (keep) {survive} survive the noise. Survive: {kept}. Do not survive: {lost}.",
        claims=len(graded),
        survive=len(alive),
        kept=listed(map(_claim_words, alive), "; ") or say("none"),
        lost=listed(map(_claim_words, dead), "; ") or say("none"),
    )
    if evidence.noise is None:
        why = together(text, say("No repeats: the noise is not known."))
        return [unknown("keep_discard", "claims", why, len(graded))]
    return [
        Verdict(
            id="keep_discard",
            subject="claims",
            status=HOLDS if len(alive) == len(graded) else FAILS,
            statement=text,
            value=float(len(alive)),
            unit="claims",
            n=len(evidence.ranked),
            details={"claims": [_claim_details(claim) for claim in graded]},
            how_to_check=say("all runs of the claimed setting against all runs of the one kept before, adjusted"),
        )
    ]


def _claim_words(claim: Claim) -> Sentence:
    shown = percent(claim.ratio) if claim.ratio else say("({why})", why=claim.why)
    words = "{run} {shown}" if claim.replicated else "{run} {shown}, not replicated"
    return say(words, run=claim.name, shown=shown)


def _claim_details(claim: Claim) -> dict[str, object]:
    return {
        "row": claim.name,
        "against": claim.against,
        "replicated": claim.replicated,
        "survives": claim.survives,
        "why": claim.why,
        "ratio": _numbers(claim.ratio),
    }


def _changes(evidence: Evidence) -> list[Verdict]:
    found = source_changes(evidence)
    judged = [change for change in found if change.ratio is not None]
    if not judged:
        return []
    apart = [change for change in judged if change.told_apart]
    named = [say("{build}: {change}", build=c.build, change=percent(c.ratio)) for c in apart if c.ratio]
    widest = max(judged, key=lambda change: abs((change.ratio.value if change.ratio else 1.0) - 1))
    text = say(
        "Of {runs} runs with changed source {same} cannot be told apart from no change; {apart} can: {named}.",
        runs=len(judged),
        same=len(judged) - len(apart),
        apart=len(apart),
        named=listed(named, "; ") or say("none"),
    )
    if len(found) > len(judged):
        more = say("{count} more have no unchanged run of the same setting.", count=len(found) - len(judged))
        text = together(text, more)
    ratio = widest.ratio
    return [
        Verdict(
            id="keep_discard",
            subject="source changes",
            status=HOLDS if apart else FAILS,
            statement=text,
            value=ratio.value if ratio else None,
            unit="ratio",
            ci_low=ratio.low if ratio else None,
            ci_high=ratio.high if ratio else None,
            n=len(judged) + len(evidence.ranked),
            details={
                "largest": widest.name,
                "changes": [
                    {"row": c.name, "build": c.build, "ratio": _numbers(c.ratio), "told_apart": c.told_apart}
                    for c in found
                ],
            },
            how_to_check=say("each changed run against the unchanged runs of its setting, adjusted for their number"),
        )
    ]
