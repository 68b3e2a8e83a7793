"""Intervals over runs: worked examples, single runs, and coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep.analysis.intervals import (
    Interval,
    Spread,
    bootstrap_ratio_interval,
    log_mean_interval,
    mean_interval,
    paired_speedup,
    pooled_speedup,
    ratio_interval,
    speedup,
)

POSITIVE = st.floats(0.1, 1e4)


def test_a_pooled_ratio_is_the_ratio_of_sums_with_the_classical_error() -> None:
    found = ratio_interval([10.0, 12.0, 11.0], [1.0, 1.1, 1.0])
    # R = 33 / 3.1 = 10.64516; residuals x − R·y: −0.64516, 0.29032, 0.35484; Σ² = 0.62643
    # s.e. = √(3/2 · 0.62643) / 3.1 = 0.31270; t(0.975, 2) = 4.30265; half width 1.34544
    assert found.value == pytest.approx(33 / 3.1)
    assert found.low == pytest.approx(10.64516 - 1.34544, abs=1e-4)
    assert found.high == pytest.approx(10.64516 + 1.34544, abs=1e-4)
    assert found.n == 3


@pytest.mark.parametrize(
    "one",
    [
        mean_interval([5.0]),
        ratio_interval([5.0], [2.0]),
        paired_speedup([5.0], [2.0]),
        log_mean_interval([5.0], Spread(sd=0.03, df=20)),
        speedup([5.0], [2.0, 2.1], Spread(sd=0.03, df=20), Spread(sd=0.03, df=20)),
    ],
)
def test_one_run_has_no_interval(one: Interval) -> None:
    assert (one.low, one.high, one.n) == (None, None, 1)
    assert not one.excludes(0.0)


def test_pairs_cancel_what_changes_both_sides() -> None:
    # Blocks differ by a factor of four, the ratio is always 1.5: no scatter is left
    found = paired_speedup([15.0, 30.0, 60.0], [10.0, 20.0, 40.0])
    assert found.value == pytest.approx(1.5)
    assert found.low == pytest.approx(1.5)
    assert found.high == pytest.approx(1.5)


def test_pooled_dispersion_gives_two_runs_a_useful_interval() -> None:
    alone = log_mean_interval([100.0, 101.0])
    pooled = log_mean_interval([100.0, 101.0], Spread(sd=0.02, df=20))
    # own: 1 df, t = 12.7; pooled: ±2.086 · 0.02 / √2 = ±2.95 %
    assert pooled.high is not None
    assert pooled.high / pooled.value == pytest.approx(math.exp(2.0860 * 0.02 / math.sqrt(2)), rel=1e-4)
    assert alone.method.endswith("1 df")


def test_a_single_run_can_be_compared_by_the_noise_of_others() -> None:
    found = pooled_speedup([5.0], [10.0, 10.0, 10.0, 10.0], Spread(sd=0.05, df=17))
    # half width: t(0.975, 17) = 2.1098 · 0.05 · √(1 + 1/4) = 0.11794
    assert found.value == pytest.approx(0.5)
    assert found.high == pytest.approx(0.5 * math.exp(0.11794), rel=1e-3)


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=2, max_size=12), st.floats(0.01, 100))
def test_a_ratio_scales_with_its_unit(pairs: list[tuple[float, float]], factor: float) -> None:
    x, y = [a for a, _ in pairs], [b for _, b in pairs]
    first, second = ratio_interval(x, y), ratio_interval([factor * a for a in x], y)
    assert second.value == pytest.approx(factor * first.value, rel=1e-9)
    assert first.low is not None
    assert second.low == pytest.approx(factor * first.low, rel=1e-6, abs=1e-9 * factor)


@given(st.lists(POSITIVE, min_size=2, max_size=8), st.lists(POSITIVE, min_size=2, max_size=8))
def test_turning_a_speedup_round_inverts_it(x: list[float], y: list[float]) -> None:
    there, back = speedup(x, y), speedup(y, x)
    assert there.value == pytest.approx(1 / back.value)
    assert there.low is not None
    assert back.high is not None
    if there.low > 0 and math.isfinite(back.high):
        assert there.low == pytest.approx(1 / back.high, rel=1e-6)


def test_ratio_intervals_cover_the_truth() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(400):
        y = rng.uniform(0.5, 2.0, 8)
        x = 30.0 * y * np.exp(rng.normal(0, 0.05, 8) - 0.05**2 / 2)
        found = ratio_interval(x.tolist(), y.tolist())
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 30.0 <= found.high
    assert 0.91 * 400 <= hits <= 0.985 * 400  # 95 % nominal; ±4 standard errors


def test_the_bootstrap_agrees_with_the_formula_on_many_runs() -> None:
    rng = np.random.default_rng(4)
    y = rng.uniform(0.5, 2.0, 40)
    x = 30.0 * y * np.exp(rng.normal(0, 0.05, 40))
    plain, boot = ratio_interval(x.tolist(), y.tolist()), bootstrap_ratio_interval(x.tolist(), y.tolist())
    assert "bootstrap" in boot.method
    assert boot.low == pytest.approx(plain.low, rel=0.01)
    assert boot.high == pytest.approx(plain.high, rel=0.01)
    assert "bootstrap" not in bootstrap_ratio_interval([1.0, 2.0], [1.0, 2.0]).method


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ([], [], "at least one run"),
        ([1.0], [0.0], "positive"),
        ([1.0, 2.0], [1.0], "1 denominators"),
        ([math.nan], [1.0], "finite"),
    ],
)
def test_impossible_input_is_refused_in_words(x: list[float], y: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ratio_interval(x, y)


def test_a_negative_factor_turns_the_ends_round() -> None:
    found = Interval(value=2.0, low=1.0, high=3.0, n=3, method="t").scaled(-1.0)
    assert (found.low, found.value, found.high) == (-3.0, -2.0, -1.0)
