"""Requested settings against what the servers showed. Imports `evidence`, `rows`, `frames`."""

from __future__ import annotations

import pandas as pd

from dflash_sweep.analysis.evidence import FAILS, HOLDS, Evidence, unknown
from dflash_sweep.analysis.rows import is_missing, row_name, value_text
from dflash_sweep.frames import EFFECTIVE_PREFIX, KNOB_PREFIX
from dflash_sweep.records import Verdict


def setting_not_applied(evidence: Evidence) -> list[Verdict]:
    """Holds = some run measured something else than it asked for. A knob that no server shows is named."""
    trials = evidence.trials
    failed = trials[trials["failure_kind"].map(str) == "setting_not_applied"] if len(trials) else trials
    checked, wrong, silent = 0, [], []
    for column in (str(name) for name in trials.columns if str(name).startswith(KNOB_PREFIX)):
        knob = column[len(KNOB_PREFIX) :]
        shown, bad = _compare(trials, column, EFFECTIVE_PREFIX + knob)
        checked += shown
        wrong += bad
        if not shown and trials[column].notna().any():
            silent.append(knob)
    names = [row_name(row) for _, row in failed.iterrows()]
    unseen = f" Not shown by any server: {', '.join(silent)}." if silent else ""
    if not checked and not names:
        why = "No server showed its settings: whether they were in force is not known."
        return [unknown("setting_not_applied", "settings", why, len(trials))]
    if names or wrong:
        listed = "; ".join([*wrong[:5], *(f"{name}: {message}" for name, message in _messages(failed)[:5])])
        text = f"{len(names) + len(wrong)} settings were asked for but not in force: {listed}.{unseen}"
        status = HOLDS
    else:
        text = f"Every setting that a server shows was in force ({checked} values compared).{unseen}"
        status = FAILS
    return [
        Verdict(
            id="setting_not_applied",
            subject="settings",
            status=status,
            statement=text,
            value=float(len(names) + len(wrong)),
            unit="settings",
            n=checked + len(names),
            details={"wrong": wrong, "failed_rows": names, "never_shown": silent},
            how_to_check="knob.<name> against effective.<name> in the trial table",
        )
    ]


def _messages(failed: pd.DataFrame) -> list[tuple[str, str]]:
    return [(row_name(row), str(row["failure_message"])) for _, row in failed.iterrows()]


def _compare(trials: pd.DataFrame, asked: str, shown: str) -> tuple[int, list[str]]:
    """How many values could be compared, and which differ, in words."""
    if shown not in trials.columns:
        return 0, []
    count, wrong = 0, []
    for _, row in trials.iterrows():
        if is_missing(row[asked]) or is_missing(row[shown]) or not is_missing(row["failure_kind"]):
            continue
        count += 1
        if value_text(row[asked]) != value_text(row[shown]):
            wrong.append(
                f"{row_name(row)} asked for {asked[len(KNOB_PREFIX) :]}={value_text(row[asked])}, "
                f"the server shows {value_text(row[shown])}"
            )
    return count, wrong
