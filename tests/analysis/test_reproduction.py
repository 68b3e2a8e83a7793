"""Reruns judged: proven equal, moved with the machine, moved alone, or not known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep.analysis.change import change_words, percent
from dflash_sweep.analysis.intervals import Spread
from dflash_sweep.analysis.reproduction import (
    LEAST_MARGIN,
    MOST_MARGIN,
    Outcome,
    Reproduction,
    compare,
    judge,
    judge_failure,
    margin_from_noise,
)

QUIET = Spread(sd=0.01, df=20)
PLAIN = Spread(sd=0.005, df=20)


def test_one_original_run_has_the_studys_noise() -> None:
    """sd² = (20·0.01² + 0)/22 = 9.0909e-5, sd = 0.0095346; error = sd·√(1/1 + 1/3) = 0.011010;
    t(22, 97.5 %) = 2.0739 → half width 0.022833 on the log scale."""
    change = compare([100.0], [102.0, 102.0, 102.0], QUIET)
    assert change.sd == pytest.approx(0.0095346, rel=1e-4)
    assert change.df == 22
    assert change.error == pytest.approx(0.011010, rel=1e-3)
    assert change.interval.low == pytest.approx(1.02 * math.exp(-0.022833), rel=1e-4)
    assert change.interval.high == pytest.approx(1.02 * math.exp(0.022833), rel=1e-4)


def test_without_known_noise_the_repeats_of_both_sides_give_it() -> None:
    """logs of then ±0.01 (Σ² = 0.0002, 1 df), of now 0, ±0.02 (Σ² = 0.0008, 2 df): sd² = 0.001/3."""
    then = [100 * math.exp(0.01), 100 * math.exp(-0.01)]
    change = compare(then, [100.0, 100 * math.exp(0.02), 100 * math.exp(-0.02)])
    assert change.sd == pytest.approx(math.sqrt(0.001 / 3))
    assert change.df == 3


def test_nothing_tells_the_scatter_of_two_single_runs() -> None:
    change = compare([100.0], [90.0])
    assert (change.interval.low, change.equal.high, change.shown) == (None, None, False)
    assert change_words(change.interval) == "-10.0 % (no interval)"


def test_new_runs_that_scatter_far_more_are_judged_by_their_own_scatter() -> None:
    calm = compare([100.0], [99.0, 100.0, 101.0], QUIET)
    wild = compare([100.0], [85.0, 100.0, 118.0], QUIET)
    assert not calm.noisier
    assert wild.noisier
    assert wild.sd == pytest.approx(np.std(np.log([85.0, 100.0, 118.0]), ddof=1))
    assert wild.df is not None
    assert 2.0 <= wild.df < 3.0


def test_an_unchanged_setting_is_reproduced_within_a_margin_that_is_named() -> None:
    found = judge(
        [100.0], [99.0, 100.5, 101.0], plain_then=[40.0, 40.1, 39.9], plain_now=[40.1, 40.0, 39.9],
        spread=QUIET, plain_spread=PLAIN, unit="tok/s",
    )  # fmt: skip
    assert found.outcome is Outcome.REPRODUCED
    assert found.margin == pytest.approx(math.expm1(6 * (found.change.sd if found.change and found.change.sd else 0)))
    assert found.statement.startswith("Reproduced: 100.00 tok/s then, 100.16 tok/s now: +0.2 % [")
    assert "times the 1.0 % by which one run scatters" in found.statement
    assert "Plain decoding did not move" in found.statement


def test_a_machine_that_became_slower_is_a_drift_of_setting_and_baseline() -> None:
    slower = 1 / 1.05
    found = judge(
        [100.0], [100.0 * slower, 99.5 * slower, 100.5 * slower],
        plain_then=[40.0, 40.1, 39.9, 40.0], plain_now=[40.1 * slower, 40.0 * slower, 39.9 * slower],
        spread=QUIET, plain_spread=PLAIN,
    )  # fmt: skip
    assert found.outcome is Outcome.DRIFTED
    assert found.plain_moved is True
    assert found.change is not None
    assert found.change.interval.low is not None
    assert found.change.interval.high is not None
    assert found.change.interval.low < slower < found.change.interval.high
    assert found.statement.startswith("Drifted with the machine: ")
    assert "Plain decoding moved by -4.8 %" in found.statement
    assert "the setting's change fits that" in found.statement


def test_setting_and_baseline_together_show_what_the_baseline_alone_leaves_open() -> None:
    """Three runs of plain decoding on each side, 2 df known: p = 0.01 alone is not 0.3 %; with the setting's change of
    4.5 errors in the same direction it is, and with one in the other direction it is not."""
    slower, known = 1 / 1.05, Spread(sd=0.011, df=2)
    then, now = [39.6, 40.0, 40.4], [37.6, 38.0, 38.6]
    alone = compare(then, now, known)
    assert alone.p is not None
    assert 0.003 < alone.p < 0.05

    def beside(values: list[float]) -> Reproduction:
        return judge([100.0], values, plain_then=then, plain_now=now, spread=QUIET, plain_spread=known)

    along, against = beside([100 * slower, 99.9 * slower, 100.1 * slower]), beside([105.0, 104.9, 105.1])
    steady = beside([100.0, 99.9, 100.1])
    assert (along.outcome, along.plain_moved) == (Outcome.DRIFTED, True)
    assert (against.plain_moved, steady.plain_moved) == (False, False)
    assert "Plain decoding may have moved, not surely" in steady.statement


def test_a_setting_that_lost_its_gain_beside_a_steady_baseline_is_not_reproduced() -> None:
    found = judge(
        [100.0], [80.0, 80.5, 79.5], plain_then=[40.0, 40.1, 39.9], plain_now=[40.0, 40.1, 39.9],
        spread=QUIET, plain_spread=PLAIN,
    )  # fmt: skip
    assert found.outcome is Outcome.NOT_REPRODUCED
    assert "wholly beyond" in found.statement


def test_a_change_that_is_shown_but_not_surely_beyond_the_margin_is_a_drift_of_the_setting() -> None:
    found = judge(
        [100.0], [95.0, 95.2, 94.8], plain_then=[40.0, 40.1, 39.9], plain_now=[40.0, 40.1, 39.9],
        spread=QUIET, plain_spread=PLAIN,
    )  # fmt: skip
    assert found.outcome is Outcome.DRIFTED
    assert found.plain_moved is False


def test_a_narrow_margin_leaves_it_open_and_says_how_many_repeats_would_decide() -> None:
    """Fifty runs then, 0.2 % apart. 1.67 errors of 0.0099·√(1/50 + 1/n) < log 1.01 − 0.002 = 0.00795 needs
    1/n < 0.21, so five runs: three more than two."""
    then = [100.0] * 50
    found = judge(then, [99.8, 99.8], spread=Spread(sd=0.01, df=60), margin=0.01)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.more_repeats == 3
    assert f"About {found.more_repeats} more repeat(s) would decide it" in found.statement
    more = judge(then, [99.8] * (2 + found.more_repeats), spread=Spread(sd=0.01, df=60), margin=0.01)
    assert more.outcome is Outcome.REPRODUCED
    fewer = judge(then, [99.8] * (1 + found.more_repeats), spread=Spread(sd=0.01, df=60), margin=0.01)
    assert fewer.outcome is Outcome.INCONCLUSIVE


def test_one_noisy_original_run_cannot_be_settled_by_repeats() -> None:
    found = judge([100.0], [100.0, 101.0, 99.0], spread=QUIET, margin=0.01)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.more_repeats is None
    assert "No number of repeats would decide it, because the stored figure rests on one run" in found.statement


@pytest.mark.parametrize(("then", "now"), [([], [1.0, 2.0]), ([1.0], [1.0]), ([1.0], [])])
def test_too_few_figures_are_inconclusive(then: list[float], now: list[float]) -> None:
    assert judge(then, now).outcome is Outcome.INCONCLUSIVE


def test_a_baseline_that_moved_by_less_than_matters_did_not_move() -> None:
    found = judge(
        [100.0], [100.0, 100.0, 100.0], plain_then=[40.0] * 5, plain_now=[40.04] * 5,
        spread=QUIET, plain_spread=Spread(sd=0.0001, df=20),
    )  # fmt: skip
    assert found.plain is not None
    assert found.plain.shown
    assert found.plain_moved is False
    assert found.outcome is Outcome.REPRODUCED


def test_without_any_noise_equal_is_equal_and_different_is_different() -> None:
    still = Spread(sd=0.0, df=5)
    assert judge([100.0], [100.0, 100.0], spread=still).outcome is Outcome.REPRODUCED
    assert judge([100.0], [90.0, 90.0], spread=still).outcome is Outcome.NOT_REPRODUCED


def test_margins_from_noise_have_ends() -> None:
    assert margin_from_noise(None) is None
    assert margin_from_noise(0.0001) == LEAST_MARGIN
    assert margin_from_noise(0.2) == MOST_MARGIN
    assert margin_from_noise(0.01) == pytest.approx(0.0618, abs=1e-4)


def test_changes_in_words() -> None:
    assert percent(1.0000001) == "+0.0 %"
    assert percent(0.99999) == "+0.0 %"
    assert percent(0.952) == "-4.8 %"


# ---------------------------------------------------------------- how often it is wrong


def _outcomes(
    shift: float, plain_shift: float, runs: int, sd: float = 0.02, margin: float | None = None
) -> list[Outcome]:
    """Reruns of one original run with 12 df of known noise, 8 plain runs then, 3 of each now."""
    rng = np.random.default_rng(5)
    found = []
    for _ in range(runs):
        known = Spread(sd=sd * math.sqrt(rng.chisquare(12) / 12), df=12)
        plain_known = Spread(sd=0.006 * math.sqrt(rng.chisquare(7) / 7), df=7)
        draw = [list(np.exp(rng.normal(mean, width, size))) for mean, width, size in
                ((0, sd, 1), (shift, sd, 3), (0, 0.006, 8), (plain_shift, 0.006, 3))]  # fmt: skip
        judged = judge(
            draw[0],
            draw[1],
            plain_then=draw[2],
            plain_now=draw[3],
            spread=known,
            plain_spread=plain_known,
            margin=margin,
        )
        found.append(judged.outcome)
    return found


def test_nothing_changed_is_reproduced_and_never_called_not_reproduced() -> None:
    found = _outcomes(0.0, 0.0, 400)
    assert found.count(Outcome.REPRODUCED) >= 0.98 * 400
    assert found.count(Outcome.NOT_REPRODUCED) == 0


def test_a_slower_machine_is_called_a_drift() -> None:
    found = _outcomes(-0.05, -0.05, 300)
    assert found.count(Outcome.DRIFTED) >= 0.97 * 300


def test_a_difference_of_the_margin_passes_for_equal_in_at_most_5_percent() -> None:
    found = _outcomes(math.log1p(0.08), 0.0, 400, margin=0.08)
    assert found.count(Outcome.REPRODUCED) <= 0.05 * 400 + 3 * math.sqrt(0.05 * 0.95 * 400)


def test_a_setting_that_lost_a_third_is_not_reproduced() -> None:
    found = _outcomes(math.log(2 / 3), 0.0, 200)
    assert found.count(Outcome.NOT_REPRODUCED) >= 0.95 * 200


@given(
    then=st.lists(st.floats(1, 1000), min_size=1, max_size=4),
    now=st.lists(st.floats(1, 1000), min_size=2, max_size=4),
    sd=st.floats(0.0001, 0.3),
)
def test_the_judgement_hangs_on_ratios_alone(then: list[float], now: list[float], sd: float) -> None:
    spread = Spread(sd=sd, df=8)
    one = judge(then, now, spread=spread)
    other = judge([3 * value for value in then], [3 * value for value in now], spread=spread)
    assert one.outcome is other.outcome
    assert one.change is not None
    assert other.change is not None
    assert one.change.interval.value == pytest.approx(other.change.interval.value)
    if one.outcome is Outcome.REPRODUCED:
        assert one.margin is not None
        assert one.change.is_within(one.margin)


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("then", "now", "outcome"),
    [
        ("out_of_memory", ["out_of_memory"] * 3, Outcome.REPRODUCED),
        ("out_of_memory", [None, None, None], Outcome.NOT_REPRODUCED),
        ("out_of_memory", ["out_of_memory", None, None], Outcome.INCONCLUSIVE),
        ("out_of_memory", ["crashed", "crashed"], Outcome.INCONCLUSIVE),
        (None, ["crashed", "crashed"], Outcome.NOT_REPRODUCED),
        (None, ["crashed", "crashed", None], Outcome.INCONCLUSIVE),
    ],
)
def test_failures_are_reproduced_or_not(then: str | None, now: list[str | None], outcome: Outcome) -> None:
    found = judge_failure(then, now)
    assert found is not None
    assert found.outcome is outcome


def test_two_figures_are_enough_to_judge_by() -> None:
    assert judge_failure(None, ["crashed", None, None]) is None
