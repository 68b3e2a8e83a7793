"""The words of the records: knob values, where a number comes from, why a trial ran. Imports nothing of ours."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

KnobValue: TypeAlias = bool | int | float | str | None
"""A value of a knob. None = leave the knob to the engine's default (no flag is passed)."""

UNSET = "unset"
"""How a knob without a value is called everywhere: not given, because it has no effect in that setting or is left to
the engine."""

Knobs: TypeAlias = dict[str, KnobValue]
"""Canonical knob name → value, e.g. {"budget": 22, "chain_seed": True}."""


class Measurement(StrEnum):
    """Where a number comes from. Rows of different kinds are never pooled."""

    MEASURED = "measured"
    EMULATED = "emulated"
    IMPORTED = "imported"


class Role(StrEnum):
    """Why a trial was run."""

    BASELINE = "baseline"
    CALIBRATE = "calibrate"
    SEARCH = "search"
    CANARY = "canary"
    CONFIRM = "confirm"
    CONTROL = "control"
    """Plain decoding with what it shares with one finalist (`candidate`), where that differs from the baseline's."""
    RERUN = "rerun"


class VerdictStatus(StrEnum):
    HOLDS = "holds"
    DOES_NOT_HOLD = "does_not_hold"
    NOT_ENOUGH_DATA = "not_enough_data"
