"""Requested settings against what the servers showed. Imports `evidence`, `rows`, `frames`."""

from __future__ import annotations

import pandas as pd

from dflash_sweep.analysis.evidence import FAILS, HOLDS, Evidence, settings_in_words, unknown
from dflash_sweep.analysis.rows import is_missing, row_name, value_text
from dflash_sweep.analysis.sentences import Sentence, listed, say, together
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
    unseen = say("Not shown by any server: {names}.", names=listed(silent)) if silent else ""
    if not checked and not names:
        why = say("No server showed its settings: whether they were in force is not known.")
        return [unknown("setting_not_applied", "settings", why, len(trials))]
    if names or wrong:
        shown_wrong = listed([*wrong[:5], *_messages(failed)[:5]], "; ")
        text = say(
            "Asked for but not in force: {settings} ({which}).",
            settings=settings_in_words(len(names) + len(wrong)),
            which=shown_wrong,
        )
        status = HOLDS
    else:
        text = say("Every setting that a server shows was in force ({count} values compared).", count=checked)
        status = FAILS
    return [
        Verdict(
            id="setting_not_applied",
            subject="settings",
            status=status,
            statement=together(text, unseen),
            value=float(len(names) + len(wrong)),
            unit="settings",
            n=checked + len(names),
            details={"wrong": wrong, "failed_rows": names, "never_shown": silent},
            how_to_check=say("knob.<name> against effective.<name> in the trial table"),
        )
    ]


def _messages(failed: pd.DataFrame) -> list[Sentence]:
    return [
        say("{run}: {message}", run=row_name(row), message=str(row["failure_message"])) for _, row in failed.iterrows()
    ]


def _compare(trials: pd.DataFrame, asked: str, shown: str) -> tuple[int, list[Sentence]]:
    """How many values could be compared, and which differ, in words."""
    if shown not in trials.columns:
        return 0, []
    count, wrong = 0, list[Sentence]()
    for _, row in trials.iterrows():
        if is_missing(row[asked]) or is_missing(row[shown]) or not is_missing(row["failure_kind"]):
            continue
        count += 1
        if value_text(row[asked]) != value_text(row[shown]):
            wrong.append(
                say(
                    "{run} asked for {setting}, the server shows {shown}",
                    run=row_name(row),
                    setting=f"{asked[len(KNOB_PREFIX) :]}={value_text(row[asked])}",
                    shown=value_text(row[shown]),
                )
            )
    return count, wrong
