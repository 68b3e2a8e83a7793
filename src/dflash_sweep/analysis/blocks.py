"""Confirm blocks as a table, cards held equal. Pure; imports `rows`, `rivals`, `staleness`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dflash_sweep.analysis import staleness
from dflash_sweep.analysis.rivals import PLAIN
from dflash_sweep.analysis.rows import numbers, with_keys


def present(trials: pd.DataFrame) -> pd.DataFrame:
    """Without rows from before a change of the ground, as soon as there are confirm rows from after it."""
    if trials.empty:
        return trials
    marks = trials["stale"] if "stale" in trials.columns else staleness.stale(trials)
    fresh = trials[marks.isna()]
    return fresh if (fresh["role"].map(str) == "confirm").any() else trials


def block_table(rows: pd.DataFrame, column: str, sign: float) -> pd.DataFrame:
    """Blocks × settings of signed log figures (larger = better); columns as `_column_name` has them."""
    names = [_column_name(row) for _, row in rows.iterrows()]
    frame = pd.DataFrame(
        {
            "block": rows["repeat"].map(str) + "/" + with_keys(rows)["stratum"],
            "name": pd.Series(names, index=rows.index, dtype=object),
            "log": sign * np.log(numbers(rows, column)),
        }
    )
    if not _nested(rows):
        frame["log"] -= _device_effect(frame, rows["device_uuid"].map(str))
    return frame.pivot_table(index="block", columns="name", values="log", aggfunc="mean", sort=False)


def cards_per_block(rows: pd.DataFrame) -> int:
    """How many devices each planned block was run on."""
    return max(1, rows["device_uuid"].nunique()) if _nested(rows) else 1


def _nested(rows: pd.DataFrame) -> bool:
    """Whether each block ran on one device, so that comparing within blocks compares within devices."""
    return bool((rows.groupby("repeat")["device_uuid"].nunique(dropna=False) <= 1).all())


def _column_name(row: pd.Series) -> Any:
    """A finalist's number; PLAIN; a control's own name."""
    if bool(row["speculative"]):
        return int(row["candidate"])
    return PLAIN if str(row["role"]) == "confirm" else f"control {int(row['candidate'])}"


def _device_effect(frame: pd.DataFrame, device: pd.Series) -> pd.Series:
    """How much faster each run's device is than the average one, settings and blocks held equal; 0 for one device.

    The blocks of several workers spread over several cards, which are never equal.
    """
    if device.nunique() < 2:
        return pd.Series(0.0, index=frame.index)
    devices = pd.get_dummies(device, dtype=float)
    held = pd.get_dummies(frame[["name", "block"]].astype(str), dtype=float)
    design = np.hstack([devices.to_numpy(), held.to_numpy()])
    effects = (np.linalg.pinv(design) @ frame["log"].to_numpy())[: devices.shape[1]]
    return pd.Series(devices.to_numpy() @ (effects - effects.mean()), index=frame.index)
