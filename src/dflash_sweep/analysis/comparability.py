"""Which rows may be ranked together. Imports `evidence`, `rows`, `staleness`."""

from __future__ import annotations

import pandas as pd

from dflash_sweep.analysis import staleness
from dflash_sweep.analysis.evidence import FAILS, HOLDS, Evidence, unknown
from dflash_sweep.analysis.rows import row_name, usable
from dflash_sweep.analysis.sentences import Sentence, listed, say, together
from dflash_sweep.records import Verdict


def comparability(evidence: Evidence) -> list[Verdict]:
    """Holds = all finished rows were measured under the same terms (key, build, device, prompts, cached tokens)."""
    rows = usable(evidence.trials, evidence.column)
    if rows.empty:
        return [unknown("comparability", "rows", say("No run finished: there is nothing to rank."))]
    if len(rows) < 2:
        why = say("Only one run finished: there is nothing to rank it with.")
        return [unknown("comparability", "rows", why, 1)]
    held_out = _held_out(rows, evidence)
    rows = rows[~held_out]
    apart = rows[~rows.index.isin(evidence.ranked.index) & ~rows.index.isin(evidence.plain.index)]
    reasons = [
        *_counted(rows, "comparability_key", "{count} comparability keys"),
        *_counted(rows, "build", "{count} builds"),
        *_counted(rows, "device", "{count} devices"),
        *_prompts(evidence.turns[evidence.turns["uid"].isin(rows["uid"])] if len(evidence.turns) else evidence.turns),
        *_stale(rows),
    ]
    names = [row_name(row) for _, row in apart.iterrows()]
    unseen = _held_out_words(int(held_out.sum()))
    if not names and not reasons:
        words = "All {count} finished runs were measured under the same terms and may be ranked together."
        text, status = together(say(words, count=len(rows)), unseen), HOLDS
    else:
        set_apart = say(
            "{count} runs are kept apart and never ranked with the others: {names}{more}.",
            count=len(names),
            names=listed(names[:8]),
            more=" …" if len(names) > 8 else "",
        )
        words = "Not all rows were measured under the same terms ({reasons})."
        text = together(say(words, reasons=listed(reasons, "; ")), set_apart if names else "", unseen)
        status = FAILS
    return [
        Verdict(
            id="comparability",
            subject="rows",
            status=status,
            statement=text,
            value=float(len(names)),
            unit="runs kept apart",
            n=len(rows),
            details={"reasons": reasons, "kept_apart": names},
            how_to_check=say("columns comparability_key, build and device of the trial table"),
        )
    ]


def _held_out(rows: pd.DataFrame, evidence: Evidence) -> pd.Series:
    """Confirm runs that replayed turns the search has not seen, as they were meant to: True for each."""
    protocol = evidence.study.config.get("protocol") if isinstance(evidence.study.config, dict) else None
    if not isinstance(protocol, dict) or not protocol.get("held_out"):
        return pd.Series(False, index=rows.index)
    roles = rows["role"].map(str)
    searched = set(rows.loc[roles == "search", "trace_sha256"].map(str))
    return (roles == "confirm") & ~rows["trace_sha256"].map(str).isin(searched)


def _held_out_words(count: int) -> str | Sentence:
    words = "The {count} confirm runs replayed held-out turns and are compared with each other alone."
    return say(words, count=count) if count else ""


def _counted(rows: pd.DataFrame, column: str, words: str) -> list[Sentence]:
    count = int(rows[column].map(str).nunique())
    return [say(words, count=count)] if count > 1 else []


def _stale(rows: pd.DataFrame) -> list[Sentence]:
    """Rows from before a change of driver, build, models or device."""
    changes = staleness.words(rows["stale"])
    if not changes:
        return []
    words = "{count} runs are from before a change ({changes}): they are stale and no baseline for what came after"
    return [say(words, count=int(rows["stale"].notna().sum()), changes=listed(changes, "; "))]


def _prompts(turns: pd.DataFrame) -> list[Sentence]:
    """Turns whose prompt, or whose cached part of it, was not the same in all runs."""
    if turns.empty:
        return []
    counted = turns[turns["invalid_reason"].isna() & ~turns["warmup"].astype(bool)]
    known = counted[counted["prompt_sha256"].map(lambda value: isinstance(value, str) and value != "")]
    groups = known.groupby(["conversation", "index"])
    found = []
    several = int((groups["prompt_sha256"].nunique() > 1).sum()) if len(known) else 0
    if several:
        found.append(say("{count} turns with more than one prompt text", count=several))
    cached = pd.to_numeric(known["cached_tokens"], errors="coerce").groupby([known["conversation"], known["index"]])
    if len(known):
        mixed = int(((cached.min() == 0) & (cached.max() > 0)).sum())
        if mixed:
            found.append(say("{count} turns whose prompt was cached in some runs and not in others", count=mixed))
    return found
