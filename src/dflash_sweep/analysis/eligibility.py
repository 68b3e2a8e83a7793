"""Who may win at all, and what must be said beside a winner: kept constraints, text equal to plain decoding's.

Imports `sentences`, `outputs`, `equality`. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import pandas as pd

from dflash_sweep import equality
from dflash_sweep.analysis.outputs import hashed
from dflash_sweep.analysis.rows import is_plain
from dflash_sweep.analysis.sentences import Sentence, say
from dflash_sweep.equality import Equality, TurnKey

MOST_NAMED = 3
"""Candidates that are named one by one; of more only the number is given."""


def without(trials: pd.DataFrame, ineligible: Collection[int]) -> pd.DataFrame:
    """A trial table without the runs of candidates that cannot win; plain decoding beside them stays."""
    if trials.empty or not ineligible:
        return trials
    return trials[is_plain(trials) | ~trials["candidate"].isin(list(ineligible))]


def unequal_texts(turns: pd.DataFrame, candidates: Iterable[int]) -> dict[int, Equality]:
    """The candidates whose text is not plain decoding's, of a turn table; who has no comparable turn is not among them.

    Turns are the same where prompt, conversation and index are; plain decoding is the baseline's, not a finalist's own.
    """
    table = hashed(turns)
    if table.empty:
        return {}
    speculative = table["speculative"].astype(bool)
    plain = table[~speculative & table["candidate"].isna()]
    expected = equality.reference(_texts(run) for _, run in plain.groupby("uid"))
    found = {}
    for number in candidates:
        runs = table[speculative & (table["candidate"] == number)].groupby("uid")
        equal = equality.together(equality.compare(_texts(run), expected) for _, run in runs)
        if equal.differing:
            found[number] = equal
    return found


def _texts(run: pd.DataFrame) -> dict[TurnKey, str]:
    keys = zip(run["prompt_sha256"].map(str), run["conversation"].map(str), run["index"].map(int), strict=True)
    return dict(zip(keys, run["text_sha256"], strict=True))


def remarks(turns: pd.DataFrame, candidates: Iterable[int], ineligible: Mapping[int, str]) -> tuple[Sentence, ...]:
    """One sentence for each of these candidates that writes another text than plain decoding, and for those that were
    measured again but cannot win (number → why)."""
    found = [
        say(
            "Candidate {number} is not bit-equal to plain decoding: {differing} of {compared} turns have another text.",
            number=number,
            differing=equal.differing,
            compared=equal.compared,
        )
        for number, equal in unequal_texts(turns, candidates).items()
    ]
    found += [
        say("Candidate {number} cannot win ({why}).", number=number, why=why)
        for number, why in list(ineligible.items())[:MOST_NAMED]
    ]
    if len(ineligible) > MOST_NAMED:
        found.append(say("{count} further candidates cannot win either.", count=len(ineligible) - MOST_NAMED))
    return tuple(found)
