"""Workload dials: what distinguishes code from prose from agent traffic, read from `workloads.toml`.

Imports `errors` only. Where a dial's value comes from is in the file, beside the value.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

from dflash_sweep.errors import ConfigError

BUCKETS: dict[str, str] = {
    "code": "code",
    "tool_call": "tool_call",
    "thinking": "thinking",
    "prose": "prose",
    "long_context": "long_context",
    "other": "agent",
}
"""Bucket of a turn → workload whose dials it gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dials:
    """How well the draft knows the target's next tokens in one kind of text.

    `steepness`: mean true exponent of the power law over ranks at depth 1 (higher = surer); `spread`: its standard
    deviation over positions; `correlation`: of neighbouring positions; `decay`, `decay_power`: loss at depth d is
    decay · (d − 1)^power; `calibration`: true exponent over the stated one (1 = honest, below 1 = over-confident);
    `ties`: share of positions where the first two candidates are near ties, to a degree between 0 and 1, were all the
    probability theirs (it is as much lower as they hold less); `tie_power`: 1 = all degrees equally often, higher =
    more of them nearly equal;
    `branch_loss`: chance that a depth below the target's first departure from the draft's first choices is a miss;
    `block_loss`: taken off the steepness for blocks of another length than the draft was trained on; `batched_loss`:
    taken off it behind a batched verify, whose rolled-back state is only approximately right;
    `window_loss`, `window_scale`: loss window_loss · exp(−w / window_scale) with w feature positions;
    `numeric_share`: share of the luck that changes with numerics (window, batch size, cache type); `mean_tokens`:
    natural length of an answer. `source` says where the values come from.
    """

    name: str
    steepness: float
    spread: float
    decay: float
    decay_power: float = 1.0
    correlation: float = 0.5
    calibration: float = 1.0
    ties: float = 0.0
    tie_power: float = 1.0
    branch_loss: float = 0.0
    block_loss: float = 0.0
    batched_loss: float = 0.0
    window_loss: float = 0.0
    window_scale: float = 64.0
    numeric_share: float = 0.1
    mean_tokens: float = 200.0
    source: str = ""

    def window_effect(self, window: int) -> float:
        """What a feature window of `window` positions takes off the steepness (≤ 0)."""
        return -self.window_loss * math.exp(-window / self.window_scale)


@cache
def _all() -> dict[str, Dials]:
    raw = tomllib.loads(resources.files("dflash_sweep.emulator").joinpath("workloads.toml").read_text("utf-8"))
    known = {entry.name for entry in fields(Dials)}
    found: dict[str, Dials] = {}
    for name, table in raw.items():
        base: dict[str, Any] = {}
        if "like" in table:
            parent = found[table["like"]]
            base = {entry: getattr(parent, entry) for entry in known}
        values = {**base, **{key: value for key, value in table.items() if key in known}}
        found[name] = Dials(**{**values, "name": name})
    return found


def names() -> tuple[str, ...]:
    """The workloads there are."""
    return tuple(_all())


def load(name: str) -> Dials:
    """Dials of one workload. Raises ConfigError, listing the workloads."""
    if name not in _all():
        raise ConfigError(f"emulator workload {name!r} is unknown; allowed: {', '.join(names())}")
    return _all()[name]


def for_bucket(bucket: str) -> Dials:
    """Dials of a turn's bucket; an unknown bucket counts as `other`, which is agent traffic."""
    return load(BUCKETS.get(bucket, "agent"))
