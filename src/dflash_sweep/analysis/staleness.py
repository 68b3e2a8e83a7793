"""On what ground each row was measured, and which are stale because it has changed since. Imports `sentences`.

Ground: GPU driver, build, model files and devices. A baseline counts for rows of its own ground only; rows from before
a change are stale: they stay in the tables, but what is concluded now rests on rows of the present ground as soon as
there are some. Two grounds at a time (hosts with different drivers in one cluster) make no row stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from dflash_sweep.analysis.sentences import Sentence, listed, say

FACTS = {
    "driver": "driver {old} → {new}",
    "build": "build {old} → {new}",
    "binary": "binary {old} → {new}",
    "models": "model files {old} → {new}",
}
"""Columns of the trial table that hold one fact of the ground each, with a change of it in words."""

DEVICES = "study_devices"
"""Column with names or ids of all devices of the run of the study that a row belongs to; None = not known."""


def grounds(trials: pd.DataFrame) -> pd.Series:
    """A text a row, equal where driver, models and devices are the same. What a row does not tell counts as unchanged.

    Build and binary are left out: wherever rows are told apart, build and comparability key are looked at as well.
    """
    ordered = _ordered(trials)
    driver, models = _filled(ordered, "driver"), _filled(ordered, "models")
    groups = _groups(ordered)
    devices = pd.Series(
        [groups.get(_own_device(row), "") for _, row in ordered.iterrows()], ordered.index, dtype=object
    )
    joined = driver + "|" + models + "|" + devices
    return joined.reindex(trials.index).astype(object)


def stale(trials: pd.DataFrame, now: Mapping[str, Any] | None = None) -> pd.Series:
    """What has changed since each row, in words ("driver 570.1 → 580.2"); None = nothing, the row is of the present.

    The present is the ground of the newest row that finished (reruns left out), or `now`: driver, build, models and
    study_devices of a run that is about to begin. Imported rows have no ground and are never stale.
    """
    ordered = _ordered(trials)
    rows = ordered if now is None else _followed(ordered, now)
    present = [place for place, leads in enumerate(_may_lead(rows)) if leads]
    if not present:
        return pd.Series([None] * len(trials), index=trials.index, dtype=object)
    changes: list[list[Sentence]] = [[] for _ in range(len(rows))]
    for column, template in FACTS.items():
        values = _filled(rows, column).tolist()
        for place, old, new in _superseded(values, present[-1], together=column in TOGETHER):
            changes[place].append(say(template, old=_short(old), new=_short(new)))
    for place, old, new in _gone_devices(rows, present[-1]):
        changes[place].append(say("device {old} → {new}", old=old, new=new))
    texts = [listed(found, "; ") if found else None for found in changes][: len(ordered)]
    imported = [str(kind) == "imported" for kind in ordered.get("measurement", [""] * len(ordered))]
    kept = [None if skip else text for text, skip in zip(texts, imported, strict=True)]
    return pd.Series(kept, index=ordered.index, dtype=object).reindex(trials.index)


TOGETHER = ("driver",)
"""Facts that may differ between the machines of one run; of all others a study has one at a time."""

_COLUMNS = (*FACTS, DEVICES, "device", "device_uuid", "role", "measurement", "failure_kind", "number")


def _followed(ordered: pd.DataFrame, now: Mapping[str, Any]) -> pd.DataFrame:
    """The rows, and one more for the run that is about to begin."""
    known = [name for name in _COLUMNS if name in ordered.columns]
    coming = {"role": "baseline", "measurement": "measured", **now}
    return pd.DataFrame([*ordered[known].to_dict("records"), coming], columns=list(dict.fromkeys([*known, *coming])))


def _ordered(trials: pd.DataFrame) -> pd.DataFrame:
    return trials.sort_values("number", kind="stable") if "number" in trials.columns else trials


def _may_lead(trials: pd.DataFrame) -> pd.Series:
    """Rows that show the present: measured here, finished well, and not a rerun of an old one."""
    chosen = pd.Series(True, index=trials.index)
    if "failure_kind" in trials.columns:
        chosen &= trials["failure_kind"].map(_unknown).astype(bool)
    if "role" in trials.columns:
        chosen &= trials["role"].map(str) != "rerun"
    if "measurement" in trials.columns:
        chosen &= trials["measurement"].map(str) != "imported"
    return chosen


def _unknown(value: Any) -> bool:
    return value is None or (isinstance(value, float) and pd.isna(value)) or value == ""


def _filled(ordered: pd.DataFrame, column: str) -> pd.Series:
    """A fact of each row; where it is not known, that of the row before, else of the row after; "" = never told."""
    if column not in ordered.columns:
        return pd.Series("", index=ordered.index, dtype=object)
    known = [None if _unknown(value) else str(value) for value in ordered[column]]
    last = next((value for value in known if value is not None), "")
    filled = []
    for value in known:
        last = last if value is None else value
        filled.append(last)
    return pd.Series(filled, index=ordered.index, dtype=object)


def _superseded(values: list[str], newest: int, *, together: bool) -> list[tuple[int, str, str]]:
    """Rows whose fact is not the newest one's any more: place, old, new.

    `together`: several values may be in use at a time; then only those that were last seen before the newest one was
    first seen.
    """
    new = values[newest]
    first = values.index(new) if together else len(values)
    last = {value: place for place, value in enumerate(values)}
    return [(place, value, new) for place, value in enumerate(values) if value and value != new and last[value] < first]


def _own_device(row: pd.Series) -> str:
    uuid, name = row.get("device_uuid"), row.get("device")
    known = name if _unknown(uuid) else uuid
    return "" if _unknown(known) else str(known)


def _ids(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, tuple | list) else ()


def _groups(ordered: pd.DataFrame) -> dict[str, str]:
    """Device → the first id of all that were ever used together with it."""
    groups: dict[str, set[str]] = {}
    for value in ordered[DEVICES] if DEVICES in ordered.columns else ():
        ids = _ids(value)
        joined = set(ids).union(*(groups.get(one, set()) for one in ids))
        groups.update(dict.fromkeys(joined, joined))
    return {device: min(group) for device, group in groups.items()}


def _gone_devices(rows: pd.DataFrame, newest: int) -> list[tuple[int, str, str]]:
    """Rows of a device that is not among those the study runs on now, nor was ever used together with them."""
    here = _ids(rows[DEVICES].iloc[newest]) if DEVICES in rows.columns else ()
    groups = _groups(rows)
    present = {groups[device] for device in here}
    own = [_own_device(row) for _, row in rows.iterrows()] if present else []
    return [
        (place, device, ", ".join(here))
        for place, device in enumerate(own[: newest + 1])
        if groups.get(device, device) not in present and not _unknown(device)
    ]


def _short(value: str) -> str:
    return value if len(value) <= 60 else value[:59] + "…"


def words(changes: Iterable[str | None]) -> tuple[str, ...]:
    """The distinct changes, in the order of first appearance."""
    return tuple(dict.fromkeys(change for change in changes if change is not None and not _unknown(change)))
