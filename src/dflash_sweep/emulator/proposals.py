"""Seeded proposals and targets: what the draft offers at each depth, and which of it the target takes.

Imports numpy and `dflash_sweep.emulator.dials` only. Nothing here is a formula for acceptance: a step gets the draft's
log-probabilities and the rank of the target's own token at every depth; the tree and the walk decide what is accepted.

The draft's distribution over ranks at one depth is a power law p_k ∝ (k + 1)^−s over the vocabulary. Its steepness s
varies with the position (some tokens are easy), falls with the depth, and depends on the feature window; it is never
below that of plain word frequencies. At a share of the positions the first two candidates are near ties: mass moves
from the first to the second. A tie is a choice between two, so ties are as frequent as the mass that the two hold:
where the draft is unsure of everything, or far ahead, no sibling is nearly as good. The target's token falls on a rank
by the true distribution; what the draft states differs from it by `Dials.calibration` (over- or under-confident). All
draws come from the position and the depth, never from the step, so every setting meets the same text with the same
difficulty.

The rows of one draft are marginal: those below a place where the target leaves the first choices were made for another
path, and miss more often (`Dials.branch_loss`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash_sweep.emulator.dials import Dials

MAX_DEPTHS = 31
"""Depths that can be drawn: enough for the experiments with longer blocks."""

_USUAL_DEPTHS = 15
"""Depths of every build's block of 16; more are drawn apart, so that these do not change."""

VOCABULARY = 248_320
_STEP = 0.02
_STEEPEST = 12.0
_FLATTEST = 1.0
"""Zipf's exponent of word frequencies: a draft that knows nothing of a place still proposes the frequent tokens."""

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
    """Draws of one turn, [position, depth]: stated steepness, its ln Z, log-probabilities of the first two candidates,
    and the rank of the target's own token (−1: none of the first 64)."""

    steepness: NDArray[np.float64]
    log_z: NDArray[np.float64]
    first_two: NDArray[np.float64]
    ranks: NDArray[np.int64]

    def log_probs(self, top_k: int) -> NDArray[np.float64]:
        """Natural log-probabilities over the full vocabulary, [position, depth, candidate], descending."""
        values: NDArray[np.float64] = -self.steepness[..., None] * _LOG_RANK[:top_k] - self.log_z[..., None]
        values[..., :2] = self.first_two[..., : min(top_k, 2)]
        return values


def draw(
    dials: Dials, seed: int, positions: int, window: int, depths: int = 15, variant: int = 0, loss: float = 0.0
) -> Proposals:
    """Draws for a text of `positions` tokens, up to `depths` (at most MAX_DEPTHS) ahead of each.

    `seed` belongs to the prompt; `window` is the number of feature positions that the draft sees. `variant` re-draws
    the small part that depends on numerics (window, batch size, cache type), nothing else. `loss` is taken off the
    steepness.
    """
    shocks = _generator(seed, 0xD5).standard_normal((4, positions + MAX_DEPTHS + 1))
    noise = _per_depth(seed, 0x1000 + variant, positions, depths)
    depth = np.arange(depths)
    target = np.arange(positions)[:, None] + 1 + depth[None, :]  # text position that depth d + 1 of a step proposes for
    level = dials.steepness + dials.window_effect(window) - loss - dials.decay * depth**dials.decay_power
    difficulty = _correlated(shocks[0], dials.correlation)[target]
    true = np.clip(level[None, :] + dials.spread * difficulty, _FLATTEST, _STEEPEST)
    true_z = log_z(true)
    stated = np.clip(true / dials.calibration, _FLATTEST, _STEEPEST)
    tie = np.zeros_like(true)
    if dials.ties > 0:
        tied = dials.ties * sum(_first_two(true, true_z, tie))
        tie = 1 - np.minimum(_normal_cdf(shocks[2])[target] / tied, 1.0) ** dials.tie_power
    share = dials.numeric_share
    uniform = _normal_cdf(math.sqrt(1 - share) * shocks[1][target] + math.sqrt(share) * noise)
    cells = np.minimum((uniform * _CELLS).astype(np.int64), _CELLS - 1)
    ranks = _RANK_OF[np.rint(true / _STEP).astype(np.int64), cells].astype(np.int64)
    first, second = _first_two(true, true_z, tie)
    ranks = np.where(
        uniform < first, 0, np.where(uniform < first + second, 1, np.where((ranks == 0) | (ranks == 1), 2, ranks))
    )
    if dials.branch_loss > 0:
        departed = np.zeros(ranks.shape, dtype=bool)
        departed[:, 1:] = np.logical_or.accumulate(ranks[:, :-1] != 0, axis=1)
        ranks[departed & (_normal_cdf(shocks[3])[target] < dials.branch_loss)] = -1
    stated_z = log_z(stated)
    return Proposals(stated, stated_z, np.log(np.stack(_first_two(stated, stated_z, tie), axis=-1)), ranks)


def _first_two(
    steepness: NDArray[np.float64], own_log_z: NDArray[np.float64], tie: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Probabilities of the first two candidates. `tie` 0 = as the power law has them, 1 = equal."""
    first = np.exp(-own_log_z)
    second = first * np.exp(-steepness * math.log(2))
    moved = tie * (first - second) / 2
    return first - moved, second + moved


def _generator(first: int, second: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[first % 2**64, second % 2**64]))


def _per_depth(seed: int, stream: int, positions: int, depths: int) -> NDArray[np.float64]:
    """A normal draw for each position and depth."""
    usual = _generator(seed, stream).standard_normal((positions, _USUAL_DEPTHS))
    if depths <= _USUAL_DEPTHS:
        return usual[:, :depths]
    more = _generator(seed, stream + (1 << 40)).standard_normal((positions, MAX_DEPTHS - _USUAL_DEPTHS))
    return np.concatenate([usual, more], axis=1)[:, :depths]


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
