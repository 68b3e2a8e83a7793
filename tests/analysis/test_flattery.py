"""The best of equal settings is claimed no faster than they are."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from dflash_sweep.analysis.flattery import flattery, lowered
from dflash_sweep.analysis.intervals import Interval


def blocks(rng: np.random.Generator, truths: list[float], count: int = 4, sd: float = 0.05) -> pd.DataFrame:
    """Log figures; each block has a level of its own."""
    level = rng.normal(0, 0.2, (count, 1))
    return pd.DataFrame(np.array(truths) + level + rng.normal(0, sd, (count, len(truths))))


@pytest.mark.parametrize(("truths", "tolerance"), [([0.0, 0.0, 0.0], 0.006), ([0.0, 0.5, 0.0], 0.006)])
def test_what_is_left_is_the_truth_on_average(truths: list[float], tolerance: float) -> None:
    # picked raw, the best of three equal settings lies 0.846 · 0.05 / √4 = 0.021 too high
    rng, raw, claimed = np.random.default_rng(3), [], []
    for _ in range(400):
        level = blocks(rng, truths)
        figures = level.to_numpy()
        own = (figures - figures.mean(axis=1, keepdims=True)).mean(axis=0) + float(np.mean(truths))  # levels taken out
        best = int(np.argmax(own))
        raw.append(float(own[best]) - truths[best])
        claimed.append(float(own[best]) - flattery(level, best) - truths[best])
    assert abs(np.mean(claimed)) < tolerance + 0.004
    assert abs(np.mean(claimed)) < abs(np.mean(raw)) + 0.002


def test_one_setting_or_one_block_is_not_flattered_by_choice() -> None:
    rng = np.random.default_rng(0)
    assert flattery(blocks(rng, [0.0]), 0) == 0.0
    assert flattery(blocks(rng, [0.0, 0.1], count=1), 1) == 0.0


def test_settings_without_noise_are_told_apart_as_they_are() -> None:
    assert flattery(pd.DataFrame([[0.0, 0.1]] * 3), 1) == pytest.approx(0.0, abs=1e-12)


def test_an_interval_is_lowered_as_a_whole() -> None:
    low = lowered(Interval(value=100.0, low=90.0, high=None, n=3, method="t"), math.log(1.25))
    assert low.value == pytest.approx(80.0)
    assert low.low == pytest.approx(72.0)
    assert low.high is None
