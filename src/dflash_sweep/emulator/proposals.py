"""Seeded proposals and targets: what the draft offers at each depth, and which of it the target takes.

Imports numpy and `dflash_sweep.emulator.dials` only. Nothing here is a formula for acceptance: a step gets the draft's
log-probabilities and the rank of the target's own token at every depth; the tree and the walk decide what is accepted.

The draft's distribution over ranks at one depth is a power law p_k ∝ (k + 1)^−s over the vocabulary. Its steepness s
varies with the position (some tokens are easy), falls with the depth, and depends on the feature window. The target's
token has the rank that a calibrated (or over-confident, see `Dials.calibration`) draft would give it. All draws come
from the position and the depth, never from the step, so every setting meets the same text with the same difficulty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash_sweep.emulator.dials import Dials

MAX_DEPTHS = 31
"""Depths for which draws are made: enough for the experiments with longer blocks."""

VOCABULARY = 248_320
_STEP = 0.02
_STEEPNESS = np.arange(0, 601) * _STEP
_CELLS = 4096
_RANKS = 64
"""Ranks that are told apart when the target's token is placed; beyond them it is a miss for any top_k in use."""


def _tables() -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """ln Z(s) for each steepness of the grid, and the rank that a uniform draw (in cells) falls on; −1 beyond all."""
    head = np.log(np.arange(1, 1025, dtype=np.float64))
    first, last = 1024.5, VOCABULARY + 0.5  # exact sum for the first 1,024 ranks, an integral for the rest
    log_z = np.empty_like(_STEEPNESS)
    ranks = np.empty((len(_STEEPNESS), _CELLS), dtype=np.int8)
    middles = (np.arange(_CELLS) + 0.5) / _CELLS
    for index, s in enumerate(_STEEPNESS):
        weights = np.exp(-s * head)
        tail = math.log(last / first) if abs(s - 1) < 1e-9 else (last ** (1 - s) - first ** (1 - s)) / (1 - s)
        total = float(weights.sum()) + tail
        log_z[index] = math.log(total)
        ranks[index] = np.searchsorted(np.cumsum(weights[:_RANKS]) / total, middles)
    ranks[ranks >= _RANKS] = -1
    return log_z, ranks


_LOG_Z, _RANK_OF = _tables()
_LOG_RANK = np.log(np.arange(1, _RANKS + 1, dtype=np.float64))


def log_z(steepness: NDArray[np.float64]) -> NDArray[np.float64]:
    """ln Σ (k + 1)^−s over the vocabulary, interpolated."""
    return np.interp(steepness, _STEEPNESS, _LOG_Z)


@dataclass(frozen=True, slots=True)
class Proposals:
    """Draws of one turn: positions × depths. `log_probs(position, top_k)` gives what the draft offers there."""

    steepness: NDArray[np.float64]
    log_z: NDArray[np.float64]
    ranks: NDArray[np.int64]

    def log_probs(self, top_k: int, depths: int) -> NDArray[np.float64]:
        """Natural log-probabilities over the full vocabulary, [position, depth, candidate], descending."""
        steep = self.steepness[:, :depths, None]
        values: NDArray[np.float64] = -steep * _LOG_RANK[None, None, :top_k] - self.log_z[:, :depths, None]
        return values

    def target_ranks(self, position: int, depths: int) -> list[int]:
        """Rank of the target's own token at each depth; −1 where it is none of the first 64."""
        found: list[int] = self.ranks[position, :depths].tolist()
        return found


def draw(dials: Dials, seed: int, positions: int, window: int, context: int, variant: int = 0) -> Proposals:
    """Draws for a text of `positions` tokens.

    `seed` belongs to the prompt; `window` is the number of feature positions the draft sees, `context` the tokens
    before the answer. `variant` re-draws the small part that depends on numerics (window, batch size), nothing else.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), 0xD5]))
    length = positions + MAX_DEPTHS + 1
    shocks = generator.standard_normal((3, length))
    noise = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), 0x1000 + variant]))
    own = noise.standard_normal((positions, MAX_DEPTHS))
    difficulty = _correlated(shocks[0], dials.correlation)
    depth = np.arange(MAX_DEPTHS)
    target = np.arange(positions)[:, None] + 1 + depth[None, :]  # text position that depth d + 1 of a step proposes for
    level = dials.steepness + dials.window_effect(min(window, context)) - dials.decay * depth**dials.decay_power
    steep = np.clip(level[None, :] + dials.spread * difficulty[target], 0.05, 12.0)
    share = dials.numeric_share
    luck = math.sqrt(1 - share) * shocks[1][target] + math.sqrt(share) * own
    uniform = _normal_cdf(luck)
    true = np.clip(steep * dials.calibration, 0.05, 12.0)
    cells = np.minimum((uniform * _CELLS).astype(np.int64), _CELLS - 1)
    ranks = _RANK_OF[np.rint(true / _STEP).astype(np.int64), cells].astype(np.int64)
    return Proposals(steep, log_z(steep), ranks)


def _correlated(shocks: NDArray[np.float64], correlation: float) -> NDArray[np.float64]:
    """A stationary first-order process of unit variance: easy and hard stretches of text."""
    values = np.empty_like(shocks)
    values[0] = shocks[0]
    scale = math.sqrt(1 - correlation**2)
    for index in range(1, len(shocks)):
        values[index] = correlation * values[index - 1] + scale * shocks[index]
    return values


def _normal_cdf(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Φ by its logistic approximation (error below 2e-4), which needs no special functions at serving time."""
    return 1.0 / (1.0 + np.exp(-values * (1.5976 + 0.070566 * values**2)))
