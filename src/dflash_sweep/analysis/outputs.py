"""What the servers wrote: equal to plain decoding or not, and whether it is text at all. Imports `divergence`,
`evidence`, `rows`."""

from __future__ import annotations

from typing import Any

import pandas as pd

from dflash_sweep.analysis.divergence import Divergence, first_divergence, in_words, read_answer
from dflash_sweep.analysis.evidence import FAILS, HOLDS, Evidence, unknown
from dflash_sweep.analysis.rows import is_missing, row_name
from dflash_sweep.analysis.sentences import Sentence, listed, say, together
from dflash_sweep.records import Verdict

DEGENERATE_WORDS = ("degenerate", "repet", "distinct")

_TEXT_COLUMNS = ("text", "token_ids", "output_tokens")


def correctness(evidence: Evidence) -> list[Verdict]:
    """Text of each turn with speculation against plain decoding's: holds = all equal, byte for byte (by hash).

    Where not, the first differing turn of each run is looked at again for its first divergent token.
    """
    turns = hashed(evidence.turns)
    if turns.empty:
        why = say("These rows hold no text: equality with plain decoding is not known.")
        return [unknown("correctness", "greedy text", why)]
    plain = turns[~turns["speculative"].astype(bool)]
    spec = turns[turns["speculative"].astype(bool)]
    unique = plain.groupby(["conversation", "index"])["text_sha256"].transform("nunique") == 1
    unstable = len(plain[~unique].drop_duplicates(["conversation", "index"]))
    reference = plain[unique].drop_duplicates(["conversation", "index"]).set_index(["conversation", "index"])
    own = reference[["text_sha256", *_TEXT_COLUMNS]].add_prefix("plain_")
    joined = spec.join(own, on=["conversation", "index"]).dropna(subset=["plain_text_sha256"])
    if joined.empty:
        why = say("No turn has both a plain answer that repeats and a speculative one.")
        return [unknown("correctness", "greedy text", why, len(spec))]
    equal = joined["text_sha256"] == joined["plain_text_sha256"]
    runs = joined["uid"].nunique()
    differing = joined[~equal]
    first = _first(evidence, differing)
    text = _equality_in_words(evidence, joined, differing, first)
    if unstable:
        words = "Plain decoding itself did not repeat on {count} turns, which are left out."
        text = together(text, say(words, count=unstable))
    if runs < 2:
        return [unknown("correctness", "greedy text", together(text, say("One run shows too little.")), runs)]
    return [
        Verdict(
            id="correctness",
            subject="greedy text",
            status=HOLDS if differing.empty else FAILS,
            statement=text,
            value=float(equal.mean()),
            unit="share of turns",
            n=runs,
            details={
                "differing": list(_names(evidence, differing["uid"]).values()),
                "turns": len(joined),
                "plain_not_repeatable": unstable,
                "first_divergence": first,
            },
            how_to_check=say("text_sha256 and text of the turn table, same turn, speculative against plain"),
        )
    ]


def _equality_in_words(
    evidence: Evidence, joined: pd.DataFrame, differing: pd.DataFrame, first: list[dict[str, Any]]
) -> Sentence:
    runs = joined["uid"].nunique()
    if differing.empty:
        words = "All {turns} answered turns of {runs} speculative runs equal plain decoding's, byte for byte."
        return say(words, turns=len(joined), runs=runs)
    names = list(_names(evidence, differing["uid"]).values())
    known = [entry for entry in first if entry["unit"] is not None]
    text = say(
        "{count} of {turns} turns differ from plain decoding's text ({runs}{more}): these settings are not bit-equal "
        "and are ranked apart.",
        count=len(differing),
        turns=len(joined),
        runs=listed(names[:5]),
        more=" …" if len(names) > 5 else "",
    )
    if not known:
        return text
    words = "First in {run}, turn {turn}, {place}."
    return together(text, say(words, run=known[0]["run"], turn=known[0]["turn"], place=known[0]["in_words"]))


def hashed(turns: pd.DataFrame) -> pd.DataFrame:
    """Counted turns with a text hash."""
    if turns.empty:
        return turns
    known = turns["text_sha256"].map(lambda value: isinstance(value, str) and value != "")
    return turns[known & turns["invalid_reason"].isna() & ~turns["warmup"].astype(bool) & turns["speculative"].notna()]


def _names(evidence: Evidence, uids: pd.Series) -> dict[str, str]:
    """uid → name of the runs, in the order of the trial table."""
    rows = evidence.trials[evidence.trials["uid"].isin(uids)]
    return {str(row["uid"]): row_name(row) for _, row in rows.iterrows()}


def _first(evidence: Evidence, turns: pd.DataFrame) -> list[dict[str, Any]]:
    """The first differing turn of each run and in it the first divergent token (see divergence.Divergence, whose
    `expected` is plain decoding's text); `unit` None = the rows hold hashes, but no text."""
    found: list[dict[str, Any]] = []
    names = _names(evidence, turns["uid"])
    for _, row in turns.sort_values("order").drop_duplicates("uid").sort_values("number").iterrows():
        place = _divergence(row)
        found.append({
            "uid": row["uid"],
            "run": names[row["uid"]],
            "turn": f"{row['conversation']}/{row['index']}",
            **(place.as_dict() if place is not None else {"unit": None}),
            "in_words": in_words(place, say("plain"), say("this run")) if place is not None else say("text not stored"),
        })  # fmt: skip
    return found


def _divergence(row: pd.Series) -> Divergence | None:
    if not isinstance(row["text"], str) or not isinstance(row["plain_text"], str):
        return None
    plain, own = (read_answer(*(_known(row[prefix + name]) for name in _TEXT_COLUMNS)) for prefix in ("plain_", ""))
    return first_divergence(plain, own)


def _known(value: Any) -> Any:
    """A cell's value; None for an empty one, whatever pandas made of it."""
    if isinstance(value, str | tuple | list):
        return value
    return None if is_missing(value) else int(value)


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
        why = say("These rows hold no text: repetition cannot be judged.")
        return [unknown("degenerate_output", "text", why)]
    if names or touched:
        text = say(
            "{runs} runs were thrown out and {turns} turns of {touched} runs left out because their text repeats "
            "itself: fast for that reason, they cannot win ({names}).",
            runs=len(names),
            turns=len(marked),
            touched=touched,
            names=listed(names[:5]) or say("no whole run"),
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
                how_to_check=say("failure_kind degenerate_output, or invalid_reason of the turn table"),
            )
        ]
    text = say("No answer repeats itself: {turns} turns were judged.", turns=judged)
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
