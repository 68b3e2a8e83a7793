"""Which stored rows a run that takes a study up again cannot build on. Imports `frames`, `analysis`, `records`; pure.

Where driver, build, model files or devices have changed since, plain decoding and the default setting are measured
again, and so are confirm runs; candidates keep the values that led the search, and are judged by their confirm runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dflash_sweep.analysis import staleness
from dflash_sweep.frames import SHOWN_DIGITS, models_text, trial_frame
from dflash_sweep.records import Device, EngineBuild, ModelFile, StoredTrial


def ground(
    provenance: Mapping[str, Any], build: EngineBuild, models: Sequence[ModelFile], devices: Sequence[Device]
) -> dict[str, Any]:
    """What the coming rows will be measured on, in the columns that `staleness` reads. Cards with several drivers, and
    facts that are not known, count as unchanged."""
    drivers = {card.get("driver") for card in provenance.get("devices") or ()}
    return {
        "driver": drivers.pop() if len(drivers) == 1 else None,
        "build": build.version,
        "binary": build.binary_sha256[:SHOWN_DIGITS] if build.binary_sha256 else None,
        "models": models_text([asdict(model) for model in models]),
        "study_devices": tuple(device.uuid or device.name for device in devices),
    }


def stale(trials: Sequence[StoredTrial], now: Mapping[str, Any]) -> dict[str, str]:
    """Stored rows from before a change: uid → what has changed."""
    table = trial_frame(trials)
    marks = staleness.stale(table, now)
    return {uid: mark for uid, mark in zip(table["uid"], marks, strict=True) if mark is not None}


def note(changes: Mapping[str, str]) -> str | None:
    """One line for people; None if nothing has changed."""
    if not changes:
        return None
    words = "; ".join(staleness.words(changes.values()))
    return f"Changed since {len(changes)} stored run(s): {words}. They are stale: plain decoding is measured again."
