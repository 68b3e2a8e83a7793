"""How much a launch and a turn differ from the cost model: seeded, as measured on the published repeats.

Imports `devices` and numpy. The published repeats of one setting differ in the draft stage from launch to launch (with
a heavy tail towards fast launches) while acceptance does not move; inside a launch turns scatter little. A launch draws
one of the measured deviations and adds a little jitter (a smoothed bootstrap), so the tail is the measured one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dflash_sweep.emulator.devices import Card


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSetting:
    """`scale` 0 = none, 1 = as measured. `launch_seed` tells launches of one study apart; `drift_per_hour` is the
    slow-down per hour of (virtual) run time; `slowdown` the share by which everything takes longer from the start on;
    `throttle_after_s` the time after which the card runs at `throttle_factor` of its speed (None = never)."""

    scale: float = 1.0
    seed: int = 0
    launch_seed: int = 0
    drift_per_hour: float = 0.0
    slowdown: float = 0.0
    throttle_after_s: float | None = None
    throttle_factor: float = 0.8


@dataclass(frozen=True, slots=True)
class Factors:
    """Multipliers of one turn: of the draft stage, of target decodes and trees, of everything (drift, heat)."""

    draft: float = 1.0
    target: float = 1.0
    all: float = 1.0


class LaunchNoise:
    """Factors of one launch. `factors(turn, elapsed_s)` is a pure function of its arguments and the seeds."""

    def __init__(self, setting: NoiseSetting, card: Card) -> None:
        self._setting = setting
        self._noise = card.costs["noise"]
        generator = _generator(setting.seed, setting.launch_seed)
        measured = self._noise["draft_deviations"]
        jitter = self._noise["draft_jitter"] * float(generator.standard_normal())
        self._draft = math.exp(setting.scale * (measured[int(generator.integers(len(measured)))] + jitter))
        self._target = math.exp(setting.scale * self._noise["exact_sd"] * float(generator.standard_normal()))

    def factors(self, turn: int, elapsed_s: float = 0.0) -> Factors:
        """`turn` counts requests of the launch from 0; `elapsed_s` is run time so far, for drift and heat."""
        setting = self._setting
        draft, target = self._draft, self._target
        if setting.scale > 0:
            shocks = _generator(setting.seed, (setting.launch_seed << 20) + turn + 1).standard_normal(2)
            spread = setting.scale * self._noise["turn_sd"]
            draft *= math.exp(spread * float(shocks[0]))
            target *= math.exp(spread * float(shocks[1]))
        slower = (1.0 + setting.slowdown) * (1.0 + setting.drift_per_hour * elapsed_s / 3600)
        if setting.throttle_after_s is not None and elapsed_s >= setting.throttle_after_s:
            slower /= setting.throttle_factor
        return Factors(draft, target, slower)


def _generator(first: int, second: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[first % 2**64, second % 2**64]))
