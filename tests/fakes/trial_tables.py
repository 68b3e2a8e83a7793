"""Trial tables with known truth, for the tests of `analysis/`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dflash_sweep.frames import KNOB_PREFIX, TRIAL_COLUMNS, TURN_COLUMNS
from dflash_sweep.records import AxisInfo, Measurement, StudyInfo


def trial(
    number: int = 0, *, tps: float | None = 100.0, knobs: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """One row: 1,000 tokens in 400 steps (2.5 tokens a step) unless told otherwise; `tps` None = no figure."""
    plain = fields.get("speculative") is False
    steps = None if plain else fields.pop("verify_steps", 400)
    decode_ms = None if tps is None else 1e6 / tps if tps else 0.0
    row: dict[str, Any] = dict.fromkeys(TRIAL_COLUMNS)
    row |= {
        "uid": f"s/{number}", "study": "s", "number": number, "role": "baseline" if plain else "search",
        "candidate": None if plain else number, "repeat": 0, "attempt": 0, "speculative": not plain, "engine": "e",
        "build": "1", "measurement": "measured", "clock": "real", "device": "card", "comparability_key": "k",
        "trace": "t", "output_tokens": 1000, "decode_tokens": 1000, "decode_ms": decode_ms, "verify_steps": steps,
        "decode_tps": tps, "acceptance_length": 1000 / steps if steps else None,
        "step_ms": decode_ms / steps if decode_ms and steps else None,
    }  # fmt: skip
    row |= fields
    return row | {KNOB_PREFIX + name: value for name, value in (knobs or {}).items()}


def table(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Rows as frames.trial_frame would give them: knob columns are objects, missing values None."""
    knobs = sorted({name for row in rows for name in row} - set(TRIAL_COLUMNS))
    frame = pd.DataFrame(list(rows), columns=[*TRIAL_COLUMNS, *knobs])
    for name in knobs:
        frame[name] = pd.Series([row.get(name) for row in rows], dtype=object, index=frame.index)
    return frame


def no_turns() -> pd.DataFrame:
    return pd.DataFrame(columns=list(TURN_COLUMNS))


def turn(uid: str, **fields: Any) -> dict[str, Any]:
    """One row of the turn table."""
    row: dict[str, Any] = dict.fromkeys(TURN_COLUMNS)
    row |= {
        "uid": uid, "number": 0, "role": "search", "candidate": 0, "speculative": True, "order": 0, "conversation": "c",
        "index": 0, "bucket": "code", "warmup": False, "prompt_sha256": "p", "text_sha256": "same",
    }  # fmt: skip
    return row | fields


def turns(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(TURN_COLUMNS))


def study(*axes: AxisInfo, **fields: Any) -> StudyInfo:
    return StudyInfo(**{"name": "s", "engine": "e", "measurement": Measurement.MEASURED, "axes": axes, **fields})


def noisy(rng: np.random.Generator, tps: float, sd: float) -> float:
    """A figure with log-normal noise."""
    return tps * float(np.exp(rng.normal(0, sd)))
