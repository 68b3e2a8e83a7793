"""Who may win at all, and what must be said beside a winner: kept constraints, text equal to plain decoding's.

Imports `confirm`, `outputs`, `rows`, `sentences`, `constraints`, `equality`. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from dflash_sweep import equality, metrics
from dflash_sweep.analysis.confirm import decide
from dflash_sweep.analysis.decision import Decision
from dflash_sweep.analysis.outputs import hashed
from dflash_sweep.analysis.rows import is_plain, numbers
from dflash_sweep.analysis.sentences import Sentence, say, together
from dflash_sweep.constraints import BIT_EQUAL, Limit, parse
from dflash_sweep.equality import Equality, TurnKey
from dflash_sweep.records import StudyInfo

MOST_NAMED = 3
"""Candidates that are named one by one; of more only the number is given."""


def decision(trials: pd.DataFrame, turns: pd.DataFrame, study: StudyInfo) -> Decision:
    """What a study's confirm blocks allow to say of the candidates that keep its constraints, with what must not go
    unsaid. `trials`: the study's own rows and its control rows; `turns`: their turns."""
    protocol = study.config.get("protocol") if isinstance(study.config, dict) else None
    planned = protocol.get("confirm_blocks") if isinstance(protocol, dict) else None
    return decide_among(
        trials,
        turns,
        objective=study.objective,
        direction=study.direction,
        planned_blocks=planned if isinstance(planned, int) and planned > 0 else None,
        limits=limits_of(study),
    )


def decide_among(
    trials: pd.DataFrame,
    turns: pd.DataFrame,
    *,
    objective: str,
    direction: str,
    planned_blocks: int | None,
    limits: Sequence[Limit],
) -> Decision:
    """`confirm.decide` over the candidates that keep these limits, with remarks on who is barred and on other texts."""
    barred = ineligible(trials, turns, limits)
    reached = decide(_without(trials, barred), objective=objective, direction=direction, planned_blocks=planned_blocks)
    if trials.empty:
        return reached
    again = set(trials.loc[trials["role"].map(str) == "confirm", "candidate"].dropna().map(int))
    said = remarks(turns, reached.contenders, {number: why for number, why in barred.items() if number in again})
    return replace(reached, statement=together(reached.statement, *said)) if said else reached


def limits_of(study: StudyInfo) -> tuple[Limit, ...]:
    """The constraints of a stored study; none where it was imported."""
    section = study.config.get("constraints") if isinstance(study.config, dict) else None
    return parse(section) if isinstance(section, dict) else ()


def ineligible(trials: pd.DataFrame, turns: pd.DataFrame, limits: Sequence[Limit]) -> dict[int, str]:
    """Candidate → the first limit that one of its good runs does not keep, or is not known to keep, in words."""
    if not limits or trials.empty:
        return {}
    good = trials[~is_plain(trials) & trials["candidate"].notna() & trials["failure_kind"].isna()]
    shares = _shares(turns) if any(limit.name == BIT_EQUAL for limit in limits) else {}
    figures = {limit.name: numbers(good, limit.name).tolist() for limit in limits if limit.name != BIT_EQUAL}
    found: dict[int, str] = {}
    for place, (_, row) in enumerate(good.iterrows()):
        for limit in limits:
            equal = shares.get(str(row["uid"]))
            value = (equal.share if equal else None) if limit.name == BIT_EQUAL else figures[limit.name][place]
            why = _why(limit, None if value is None or pd.isna(value) else float(value), equal)
            if why:
                found.setdefault(int(row["candidate"]), why)
    return found


def _why(limit: Limit, value: float | None, equal: Equality | None) -> str:
    if value is None:
        return say("constraints.{name}: not known", name=limit.name)
    if limit.violation(value) <= 0:
        return ""
    if limit.name == BIT_EQUAL and equal is not None:
        words = "constraints.bit_equal: {differing} of {compared} turns have another text than plain decoding"
        return say(words, differing=equal.differing, compared=equal.compared)
    unit = metrics.METRIC[limit.name].unit
    return say(
        "constraints.{name}: {value:.6g} {unit}, must be {limit}",
        name=limit.name, value=value, unit=unit, limit=limit.words(),
    )  # fmt: skip


def _without(trials: pd.DataFrame, barred: Collection[int]) -> pd.DataFrame:
    """A trial table without the runs of candidates that cannot win; plain decoding beside them stays."""
    if trials.empty or not barred:
        return trials
    return trials[is_plain(trials) | ~trials["candidate"].isin(list(barred))]


def _shares(turns: pd.DataFrame) -> dict[str, Equality]:
    """Run (uid) → its texts against plain decoding's."""
    table = hashed(turns)
    if table.empty:
        return {}
    expected = _expected(table)
    speculative = table[table["speculative"].astype(bool)]
    return {str(uid): equality.compare(_texts(run), expected) for uid, run in speculative.groupby("uid")}


def _expected(table: pd.DataFrame) -> dict[TurnKey, str]:
    """Plain decoding's text as the baseline has it, not with a finalist's own settings."""
    plain = table[~table["speculative"].astype(bool) & table["candidate"].isna()]
    return equality.reference(_texts(run) for _, run in plain.groupby("uid"))


def unequal_texts(turns: pd.DataFrame, candidates: Iterable[int]) -> dict[int, Equality]:
    """The candidates whose text is not plain decoding's, of a turn table; who has no comparable turn is not among them.

    Turns are the same where prompt, conversation and index are; plain decoding is the baseline's, not a finalist's own.
    """
    table = hashed(turns)
    if table.empty:
        return {}
    expected, speculative = _expected(table), table["speculative"].astype(bool)
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
    found: list[Sentence] = [
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
