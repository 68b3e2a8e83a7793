"""The noise verdict: how far repeats of identical settings scatter, and what that allows to show.

Imports `noise`, `evidence` and `rows` only.
"""

from __future__ import annotations

import math

from dflash_sweep.analysis.evidence import HOLDS, Evidence, settings_in_words, unknown
from dflash_sweep.analysis.noise import MIN_DF, powers, repeat_noise, repeats_for, smallest_difference
from dflash_sweep.analysis.rows import is_plain, numbers
from dflash_sweep.analysis.sentences import Sentence, listed, say, together
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
    devices = _by_device(evidence)
    text: Sentence = say(
        "Runs of one setting scatter by {sd:.1f} % [{low:.1f}, {high:.1f}] ({runs} runs of {settings})"
        "{example}. To show a difference of 2 % each setting needs {needed} runs [{fewest} to {most}]; three "
        "runs each show {three:.0f} % and more (power 80 %, level 5 %).",
        sd=100 * found.sd,
        low=100 * found.low,
        high=100 * found.high,
        runs=found.n,
        settings=settings_in_words(found.groups),
        example=_largest(evidence),
        needed=needed,
        fewest=repeats_for(CLAIM, found.low),
        most=repeats_for(CLAIM, found.high),
        three=100 * (three or 0),
    )
    if len(devices) > 1:
        each = [say("{device} {sd:.1f} %", device=name, sd=100 * own["sd"]) for name, own in devices.items()]
        text = together(text, say("By device: {devices}.", devices=listed(each)))
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
                "engine": evidence.study.engine,
                "devices": devices,
                "rows": list(found.rows),
            },
            how_to_check=say(
                "group the rows by setting and device; pooled standard deviation of log figures within groups"
            ),
        )
    ]


def _by_device(evidence: Evidence) -> dict[str, dict[str, float]]:
    """Device → the dispersion between runs of one setting on it, where its own repeats say enough."""
    rows = evidence.trials[~is_plain(evidence.trials)]
    found = {}
    for name, own in rows.groupby(rows["device"].map(str)):
        noise_here = repeat_noise(own, evidence.column)
        if noise_here is not None:
            found[str(name)] = {
                "sd": noise_here.sd, "low": noise_here.low, "high": noise_here.high, "df": float(noise_here.df),
            }  # fmt: skip
    return found


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
