"""The noise verdict: how far repeats of identical settings scatter, and what that allows to show.

Imports `noise`, `evidence` and `rows` only.
"""

from __future__ import annotations

import math

from dflash_sweep.analysis.evidence import HOLDS, Evidence, unknown
from dflash_sweep.analysis.noise import MIN_DF, powers, repeats_for, smallest_difference
from dflash_sweep.analysis.rows import numbers
from dflash_sweep.analysis.sentences import Sentence, say
from dflash_sweep.records import Verdict

CLAIM = 0.02
"""The gain that people most often claim from one run."""


def noise(evidence: Evidence) -> list[Verdict]:
    """One verdict: dispersion with its interval, the smallest difference n repeats show, the repeats 2 % needs."""
    found = evidence.noise
    if found is None:
        words = "Too few repeats of identical settings (fewer than {df} degrees of freedom): repeat one three times."
        return [unknown("noise", "repeats", say(words, df=MIN_DF))]
    needed = repeats_for(CLAIM, found.sd)
    smallest = {n: smallest_difference(n, found.sd) for n in (2, 3, 5, 10)}
    three = smallest[3]
    text = say(
        "Runs of one setting scatter by {sd:.1f} % [{low:.1f}, {high:.1f}] ({runs} runs of {settings} "
        "settings){example}. To show a difference of 2 % each setting needs {needed} runs [{fewest} to {most}]; three "
        "runs each show {three:.0f} % and more (power 80 %, level 5 %).",
        sd=100 * found.sd,
        low=100 * found.low,
        high=100 * found.high,
        runs=found.n,
        settings=found.groups,
        example=_largest(evidence),
        needed=needed,
        fewest=repeats_for(CLAIM, found.low),
        most=repeats_for(CLAIM, found.high),
        three=100 * (three or 0),
    )
    return [
        Verdict(
            id="noise",
            subject="repeats",
            status=HOLDS,
            statement=text,
            value=found.sd,
            unit="relative standard deviation",
            ci_low=found.low,
            ci_high=found.high,
            n=found.n,
            details={
                "df": found.df,
                "repeatability_limit": math.expm1(1.96 * math.sqrt(2) * found.sd),
                "runs_needed": powers((0.01, 0.02, 0.05, 0.10), found.sd),
                "smallest_difference": {str(n): value for n, value in smallest.items()},
                "rows": list(found.rows),
            },
            how_to_check=say(
                "group the rows by setting and device; pooled standard deviation of log figures within groups"
            ),
        )
    ]


def _largest(evidence: Evidence) -> str | Sentence:
    """The setting with the most runs, as an example."""
    rows = evidence.ranked
    if rows.empty:
        return ""
    counts = rows["cell"].value_counts()
    if counts.max() < 3:
        return ""
    values = numbers(rows[rows["cell"] == counts.idxmax()], evidence.column)
    words = "; one setting run {count} times gave {low:.2f} to {high:.2f}"
    return say(words, count=len(values), low=float(values.min()), high=float(values.max()))
