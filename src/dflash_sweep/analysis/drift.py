"""Whether the machine changed during the study: repeats of identical settings along time.

Imports `evidence`, `intervals` and `rows` only.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.regression.linear_model import OLS

from dflash_sweep.analysis.evidence import FAILS, HOLDS, UNKNOWN, Evidence, from_interval, percent, unknown
from dflash_sweep.analysis.intervals import Interval
from dflash_sweep.analysis.rows import numbers, usable
from dflash_sweep.analysis.sentences import say
from dflash_sweep.records import Verdict

DRIFT_ALPHA = 0.003
"""A drift is reported only at this level: it is looked for in every study."""

MIN_DF = 4

MAX_HIDDEN = 1.05
"""An interval wider than this (or than what two runs of one setting differ by) could hide a drift that matters."""


def drift(evidence: Evidence) -> list[Verdict]:
    """One verdict: holds = repeats of the same setting got faster or slower with time. Value: last against first."""
    table = _repeats(evidence)
    settings = table["cell"].nunique() if len(table) else 0
    df = len(table) - settings - 1
    if df < MIN_DF:
        why = say("Too few runs of one setting spread over time (plain decoding re-measured as a canary would do).")
        return [unknown("drift", "machine", why, len(table))]
    centred = table.groupby("cell")[["log", "time"]].transform(lambda column: column - column.mean())
    if float((centred["time"] ** 2).sum()) <= 0:
        why = say("All repeats were run at the same time: a drift could not show.")
        return [unknown("drift", "machine", why, len(table))]
    fitted = OLS(centred["log"].to_numpy(), centred["time"].to_numpy()).fit()
    slope, scale = float(fitted.params[0]), math.sqrt(len(table) - 1) / math.sqrt(df)
    error = float(fitted.bse[0]) * scale  # one mean a setting was taken out before the fit
    half = float(stats.t.ppf(0.975, df)) * error
    p = 1.0 if error == 0 else float(2 * stats.t.sf(abs(slope) / error, df))
    change = Interval(
        value=math.exp(slope),
        low=math.exp(slope - half),
        high=math.exp(slope + half),
        n=len(table),
        method=f"t, {df} df",
    )
    moved = p < DRIFT_ALPHA
    limit = math.exp(1.96 * math.sqrt(2) * evidence.noise.sd) if evidence.noise else MAX_HIDDEN
    if half > math.log(max(limit, MAX_HIDDEN)) and not moved:
        text = say(
            "Repeats of the same setting moved by {change} over the study: too few of them are spread over time to "
            "tell a drift from noise.",
            change=percent(change),
        )
        return [from_interval("drift", "machine", UNKNOWN, text, change, "ratio", details={"p": p})]
    template = (
        "The machine changed: repeats of the same setting moved by {change} from the first to the last run."
        if moved
        else "No drift: repeats of the same setting moved by {change} over the study, within their noise."
    )
    text = say(template, change=percent(change))
    return [
        from_interval(
            "drift",
            "machine",
            HOLDS if moved else FAILS,
            text,
            change,
            "ratio",
            details={"p": p, "settings": int(settings), "throttled_rows": _throttled(evidence)},
            how_to_check=say("log figure of repeated settings, minus their means, against the place in the study"),
        )
    ]


def _repeats(evidence: Evidence) -> pd.DataFrame:
    """Runs of settings that were run more than once: cell, log figure, place in the study from 0 to 1."""
    rows = usable(evidence.trials, evidence.column)
    if rows.empty:
        return pd.DataFrame(columns=["cell", "log", "time"])
    order = numbers(rows, "number")
    span = float(order.max() - order.min()) or 1.0
    # A setting was confirmed because its search run looked good: that run is no fair partner of the later ones.
    cells = rows["cell"] + rows["role"].map(lambda role: "¦search" if str(role) == "search" else "")
    table = pd.DataFrame(
        {"cell": cells, "log": np.log(numbers(rows, evidence.column)), "time": (order - order.min()) / span}
    ).dropna()
    return table[table.groupby("cell")["log"].transform("size") > 1]


def _throttled(evidence: Evidence) -> list[int]:
    rows = evidence.trials
    if rows.empty or "throttled" not in rows.columns:
        return []
    return [int(number) for number, flag in zip(rows["number"], rows["throttled"], strict=True) if flag is True]
