"""Which rows of a trial table may be compared, and by which figure. Imports `sentences`, `records` and `frames`.

Everything in `analysis/` selects its rows here: failed, invalid and incomparable rows are left out by name, never by
accident, and settings are told apart by the same key everywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dflash_sweep.analysis import staleness
from dflash_sweep.analysis.sentences import Sentence, say
from dflash_sweep.errors import FailureKind
from dflash_sweep.frames import CLAIMED_PREFIX, KNOB_PREFIX

BESIDE_THE_STUDY = ("control", "rerun")
"""Roles whose rows stand beside a study's settings and its baseline, and are pooled with neither."""


def numbers(trials: pd.DataFrame, column: str) -> pd.Series:
    """A column as floats; NaN where it is missing, no number, or not finite. An absent column is all NaN."""
    if column not in trials.columns:
        return pd.Series(np.nan, index=trials.index, dtype=float)
    values = pd.to_numeric(trials[column], errors="coerce").astype(float)
    return values.where(np.isfinite(values))


def knob_columns(trials: pd.DataFrame) -> tuple[str, ...]:
    return tuple(str(column) for column in trials.columns if str(column).startswith(KNOB_PREFIX))


def is_missing(value: Any) -> bool:
    """None or NaN: the knob was left to the engine."""
    return value is None or (isinstance(value, float) and np.isnan(value))


def knobs_of(row: pd.Series) -> dict[str, Any]:
    """The knobs that a row sets, by canonical name."""
    return {
        str(column)[len(KNOB_PREFIX) :]: value
        for column, value in row.items()
        if str(column).startswith(KNOB_PREFIX) and not is_missing(value)
    }


def value_text(value: Any) -> str:
    """One spelling a value: 8 and 8.0 are the same level, True and 1 are not."""
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if isinstance(value, (int, float, np.integer, np.floating)):
        return f"{float(value):.10g}"
    return str(value)


def setting_text(knobs: dict[str, Any]) -> str:
    """A setting in words, e.g. "budget=32 top_k=8"; "engine defaults" if no knob is set."""
    return " ".join(f"{name}={value_text(value)}" for name, value in sorted(knobs.items())) or "engine defaults"


def objective_column(trials: pd.DataFrame, objective: str) -> str:
    """The column that holds the objective: its own, or the claimed figure of imported rows.

    Its own, too, where no row has either: nothing is judged by another figure than the one asked for.
    """
    for column in (objective, CLAIMED_PREFIX + objective):
        if column in trials.columns and numbers(trials, column).notna().any():
            return column
    return objective


def usable(trials: pd.DataFrame, column: str) -> pd.DataFrame:
    """Rows that finished with a positive figure in `column` (a rate or a time of 0 is no measurement)."""
    if trials.empty:
        return trials
    failed = trials["failure_kind"].notna() if "failure_kind" in trials.columns else False
    return trials[(numbers(trials, column) > 0) & ~failed]


def stopped_early(trials: pd.DataFrame) -> pd.Series:
    """True for rows that were ended early because they were surely worse than the best: finished, but no figure."""
    return _kinds(trials) == str(FailureKind.PRUNED)


def failed(trials: pd.DataFrame) -> pd.Series:
    """True for rows that failed; one that was ended early did not."""
    return _kinds(trials).notna() & ~stopped_early(trials)


def why_no_figure(runs: pd.DataFrame) -> str:
    """Of runs without a figure: crash, stopped (all that did not finish were ended early) or invalid."""
    return "crash" if failed(runs).any() else "stopped" if stopped_early(runs).any() else "invalid"


def _kinds(trials: pd.DataFrame) -> pd.Series:
    if "failure_kind" in trials.columns:
        return trials["failure_kind"]
    return pd.Series(None, index=trials.index, dtype=object)


def with_keys(trials: pd.DataFrame) -> pd.DataFrame:
    """The same rows with `knob_key` (the setting), `stratum` (what may be compared at all) and `setting` (both).

    `stratum` holds measurement, comparability key, build and ground; `cell` adds the device: repeats are counted within
    it. `stale`: what has changed since the row was measured (see `staleness`); None = nothing.
    """
    if "knob_key" in trials.columns:
        return trials
    keyed = trials.copy()
    columns = knob_columns(trials)
    texts = [
        ("plain" if _is_plain(row) else "spec")
        + "|"
        + setting_text({c[len(KNOB_PREFIX) :]: row[c] for c in columns if not is_missing(row[c])})
        for _, row in trials.iterrows()
    ]
    keyed["knob_key"] = pd.Series(texts, index=trials.index, dtype=object)
    if "setting_note" in trials.columns:
        noted = trials["setting_note"].map(lambda note: "" if is_missing(note) else f" ({note})").astype(object)
        keyed["knob_key"] = keyed["knob_key"] + noted
    keyed["stale"] = staleness.stale(trials)
    keyed["stratum"] = _joined(trials, ("measurement", "comparability_key", "build")) + "/" + staleness.grounds(trials)
    keyed["setting"] = keyed["stratum"] + "¦" + keyed["knob_key"]
    keyed["cell"] = keyed["setting"] + "¦" + _joined(trials, ("device", "device_uuid"))
    return keyed


def _is_plain(row: pd.Series) -> bool:
    speculative = row.get("speculative")
    return speculative is not None and not is_missing(speculative) and not bool(speculative)


def _joined(trials: pd.DataFrame, names: tuple[str, ...]) -> pd.Series:
    parts = [trials[name].map(str) if name in trials.columns else pd.Series("", index=trials.index) for name in names]
    joined = parts[0].astype(object)
    for part in parts[1:]:
        joined = joined + "/" + part
    return joined


def is_plain(trials: pd.DataFrame) -> pd.Series:
    """True for rows without speculation: the baseline of the study, whatever their role."""
    if "speculative" not in trials.columns:
        return pd.Series(False, index=trials.index)
    return trials["speculative"].map(lambda value: not is_missing(value) and not bool(value)).astype(bool)


def fair_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Runs that say how fast a setting is without flattery: of confirmed settings their confirm runs only, of those
    measured again during the search their canaries only, where there are two or more.

    The search run that brought a setting there was chosen for looking good: its mean is too high.
    """
    if rows.empty:
        return rows
    keyed = with_keys(rows)
    again = keyed["role"].map(str).where(~is_plain(keyed))
    kept = pd.Series(True, index=keyed.index)
    for role in ("canary", "confirm"):  # the later phase has the last word
        runs = again == role
        twice = runs & (runs.groupby(keyed["setting"]).transform("sum") > 1)
        kept = kept.where(~keyed["setting"].isin(keyed.loc[twice, "setting"]), runs)
    return keyed[kept]


def whole_settings(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose settings are wholly known: imported rows known by their description alone are left out."""
    return rows[rows["setting_note"].map(is_missing).astype(bool)] if "setting_note" in rows.columns else rows


def own_measurement(trials: pd.DataFrame, measurement: str) -> pd.DataFrame:
    """The study's rows of its own kind of measurement: imported rows are never pooled with measured ones."""
    own = within_study(trials)
    if "measurement" not in own.columns:
        return own
    return own[own["measurement"].map(str) == measurement]


def within_study(trials: pd.DataFrame) -> pd.DataFrame:
    """Rows of settings and baseline, without those beside the study. The reruns of a trial are a study of their own."""
    if "role" not in trials.columns:
        return trials
    roles = trials["role"].map(str)
    return trials if (roles == "rerun").all() else trials[~roles.isin(BESIDE_THE_STUDY)]


def beside(trials: pd.DataFrame) -> pd.DataFrame:
    """Rows of plain decoding with finalists' own settings (role control), with keys."""
    keyed = with_keys(trials)
    return keyed[keyed["role"].map(str) == "control"] if "role" in keyed.columns else keyed.iloc[:0]


def main_stratum(trials: pd.DataFrame, column: str) -> pd.DataFrame:
    """Usable rows of the stratum with the most usable rows (ties: the first seen), with keys.

    Stale rows are passed over as soon as the present ground has both plain and speculative rows.
    """
    keyed = with_keys(trials)
    keyed = usable(keyed, column)
    if keyed.empty:
        return keyed
    present = keyed[keyed["stale"].map(is_missing).astype(bool)]
    if is_plain(present).any() and not is_plain(present).all():
        keyed = present
    return keyed[keyed["stratum"] == keyed["stratum"].value_counts(sort=False).idxmax()]


def short_setting(row: pd.Series, rows: pd.DataFrame) -> str:
    """A setting by the knobs that were really varied: those of which no value is in 90 % of `rows`.

    The whole setting if nothing was varied that much.
    """
    varied = {
        name: value
        for name, value in knobs_of(row).items()
        if rows[KNOB_PREFIX + name].map(lambda v: "∅" if is_missing(v) else value_text(v)).value_counts().iloc[0]
        < 0.9 * len(rows)
    }
    return setting_text(varied or knobs_of(row))


def row_name(row: pd.Series) -> str | Sentence:
    """How sentences name a row: its label, or its number in the study."""
    label = row.get("label")
    return str(label) if isinstance(label, str) and label else say("trial {number}", number=row.get("number"))
