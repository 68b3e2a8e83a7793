"""The noise verdict: how far repeats of identical settings scatter, and what that allows to show.

Imports `noise`, `evidence` and `rows` only.
"""

from __future__ import annotations

import math

from dflash_sweep.analysis.evidence import HOLDS, Evidence, unknown
from dflash_sweep.analysis.noise import MIN_DF, powers, repeats_for, smallest_difference
from dflash_sweep.analysis.rows import numbers
from dflash_sweep.records import Verdict

CLAIM = 0.02
"""The gain that people most often claim from one run."""


def noise(evidence: Evidence) -> list[Verdict]:
    """One verdict: dispersion with its interval, the smallest difference n repeats show, the repeats 2 % needs."""
    found = evidence.noise
    if found is None:
        why = f"Too few repeats of identical settings (fewer than {MIN_DF} degrees of freedom): repeat one three times."
        return [unknown("noise", "repeats", why)]
    needed = repeats_for(CLAIM, found.sd)
    range_text = f"{repeats_for(CLAIM, found.low)} to {repeats_for(CLAIM, found.high)}"
    smallest = {n: smallest_difference(n, found.sd) for n in (2, 3, 5, 10)}
    three = smallest[3]
    text = (
        f"Runs of one setting scatter by {100 * found.sd:.1f} % [{100 * found.low:.1f}, {100 * found.high:.1f}] "
        f"({found.n} runs of {found.groups} settings){_largest(evidence)}. To show a difference of 2 % each setting "
        f"needs {needed} runs [{range_text}]; three runs each show {100 * (three or 0):.0f} % and more (power 80 %, "
        "level 5 %)."
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
            how_to_check="group the rows by setting and device; pooled standard deviation of log figures within groups",
        )
    ]


def _largest(evidence: Evidence) -> str:
    """The setting with the most runs, as an example."""
    rows = evidence.ranked
    if rows.empty:
        return ""
    counts = rows["cell"].value_counts()
    if counts.max() < 3:
        return ""
    values = numbers(rows[rows["cell"] == counts.idxmax()], evidence.column)
    return f"; one setting run {len(values)} times gave {values.min():.2f} to {values.max():.2f}"
