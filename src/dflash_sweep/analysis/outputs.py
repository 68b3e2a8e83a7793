"""What the servers wrote: equal to plain decoding or not, and whether it is text at all. Imports `evidence`, `rows`."""

from __future__ import annotations

import pandas as pd

from dflash_sweep.analysis.evidence import FAILS, HOLDS, Evidence, unknown
from dflash_sweep.analysis.rows import row_name
from dflash_sweep.records import Verdict

DEGENERATE_WORDS = ("degenerate", "repet", "distinct")


def correctness(evidence: Evidence) -> list[Verdict]:
    """Text of each turn with speculation against plain decoding's: holds = all equal, byte for byte (by hash)."""
    turns = _hashed(evidence.turns)
    if turns.empty:
        return [
            unknown("correctness", "greedy text", "These rows hold no text: equality with plain decoding is not known.")
        ]
    plain = turns[~turns["speculative"].astype(bool)]
    spec = turns[turns["speculative"].astype(bool)]
    stable = plain.groupby(["conversation", "index"])["text_sha256"].agg(["nunique", "first"])
    unstable = int((stable["nunique"] > 1).sum())
    reference = stable.loc[stable["nunique"] == 1, "first"]
    joined = spec.join(reference.rename("plain_sha256"), on=["conversation", "index"]).dropna(subset=["plain_sha256"])
    if joined.empty:
        why = "No turn has both a plain answer that repeats and a speculative one."
        return [unknown("correctness", "greedy text", why, len(spec))]
    equal = joined["text_sha256"] == joined["plain_sha256"]
    per_run = equal.groupby(joined["uid"]).mean()
    runs = len(per_run)
    differing = _differing(evidence, joined[~equal])
    share = float(equal.mean())
    noise = f" Plain decoding itself did not repeat on {unstable} turns, which are left out." if unstable else ""
    if bool(equal.all()):
        text = (
            f"All {len(joined)} answered turns of {runs} speculative runs equal plain decoding's, byte for byte.{noise}"
        )
    else:
        shown = ", ".join(differing[:5]) + (" …" if len(differing) > 5 else "")
        text = (
            f"{int((~equal).sum())} of {len(joined)} turns differ from plain decoding's text ({shown}): these settings "
            f"are not bit-equal and are ranked apart.{noise}"
        )
    status = HOLDS if bool(equal.all()) else FAILS
    if runs < 2:
        return [unknown("correctness", "greedy text", f"{text} One run shows too little.", runs)]
    return [
        Verdict(
            id="correctness",
            subject="greedy text",
            status=status,
            statement=text,
            value=share,
            unit="share of turns",
            n=runs,
            details={
                "differing": differing,
                "turns": len(joined),
                "plain_not_repeatable": unstable,
                "first_divergence": _first(joined[~equal]),
            },
            how_to_check="text_sha256 of the turn table, same conversation and index, speculative against plain",
        )
    ]


def _hashed(turns: pd.DataFrame) -> pd.DataFrame:
    """Counted turns with a text hash."""
    if turns.empty:
        return turns
    known = turns["text_sha256"].map(lambda value: isinstance(value, str) and value != "")
    return turns[known & turns["invalid_reason"].isna() & ~turns["warmup"].astype(bool) & turns["speculative"].notna()]


def _differing(evidence: Evidence, turns: pd.DataFrame) -> list[str]:
    rows = evidence.trials[evidence.trials["uid"].isin(turns["uid"])]
    return [row_name(row) for _, row in rows.iterrows()]


def _first(turns: pd.DataFrame) -> list[str]:
    """The first differing turn of each run: "uid: conversation/index"."""
    if turns.empty:
        return []
    first = turns.sort_values("order").drop_duplicates("uid")
    return [
        f"{row.uid}: {row.conversation}/{row.index_}" for row in first.rename(columns={"index": "index_"}).itertuples()
    ]


def degenerate_output(evidence: Evidence) -> list[Verdict]:
    """Runs whose text repeats itself: holds = there are some; they cannot win."""
    trials, turns = evidence.trials, evidence.turns
    failed = trials[trials["failure_kind"].map(str) == "degenerate_output"] if len(trials) else trials
    reasons = turns["invalid_reason"].map(lambda value: value if isinstance(value, str) else "") if len(turns) else None
    marked = turns[reasons.map(_is_degenerate)] if reasons is not None else turns
    names = [row_name(row) for _, row in failed.iterrows()]
    touched = int(marked["uid"].nunique()) if len(marked) else 0
    judged = int((turns["text_sha256"].map(lambda v: isinstance(v, str) and v != "")).sum()) if len(turns) else 0
    if not names and not touched and not judged:
        return [unknown("degenerate_output", "text", "These rows hold no text: repetition cannot be judged.")]
    if names or touched:
        text = (
            f"{len(names)} runs were thrown out and {len(marked)} turns of {touched} runs left out because their text "
            f"repeats itself: fast for that reason, they cannot win ({', '.join(names[:5]) or 'no whole run'})."
        )
        return [
            Verdict(
                id="degenerate_output",
                subject="text",
                status=HOLDS,
                statement=text,
                value=float(len(names)),
                unit="runs",
                n=max(touched, len(names)),
                details={"rows": names, "turns": len(marked)},
                how_to_check="failure_kind degenerate_output, or invalid_reason of the turn table",
            )
        ]
    text = f"No answer repeats itself: {judged} turns were judged."
    return [
        Verdict(
            id="degenerate_output",
            subject="text",
            status=FAILS,
            statement=text,
            value=0.0,
            unit="runs",
            n=int(turns["uid"].nunique()),
        )
    ]


def _is_degenerate(reason: str) -> bool:
    return any(word in reason.lower() for word in DEGENERATE_WORDS)
