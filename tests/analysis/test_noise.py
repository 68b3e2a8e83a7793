"""Noise from repeats, power, and the verdict about them."""

from __future__ import annotations

import numpy as np
import pytest

from dflash_sweep.analysis.evidence import gather
from dflash_sweep.analysis.noise import repeat_noise, repeats_for, smallest_difference, spreads
from dflash_sweep.analysis.repeats import noise
from dflash_sweep.records import VerdictStatus
from fakes.trial_tables import no_turns, noisy, study, table, trial


def test_dispersion_is_pooled_within_settings() -> None:
    rows = [
        trial(i, tps=tps, knobs={"budget": b}) for i, (tps, b) in enumerate([(100, 8), (110, 8), (200, 16), (220, 16)])
    ]
    found = repeat_noise(table(rows))
    # each pair: log ratio 0.09531, variance 0.09531²/2; pooled over 2 df: sd = 0.09531/√2 = 0.06739
    assert found is not None
    assert found.sd == pytest.approx(0.06739, abs=1e-5)
    assert (found.df, found.groups, found.n) == (2, 2, 4)
    assert found.low < found.sd < found.high


def test_settings_on_other_devices_are_no_repeats() -> None:
    rows = [trial(i, tps=100 + i, knobs={"budget": 8}, device_uuid=str(i)) for i in range(6)]
    assert repeat_noise(table(rows)) is None


def test_plain_rows_have_their_own_dispersion() -> None:
    rng = np.random.default_rng(0)
    rows = [trial(i, tps=noisy(rng, 100, 0.05), knobs={"budget": 8}) for i in range(30)]
    rows += [trial(30 + i, tps=noisy(rng, 40, 0.005), speculative=False) for i in range(30)]
    speculative, plain = spreads(table(rows))
    assert speculative is not None
    assert plain is not None
    assert speculative.sd == pytest.approx(0.05, rel=0.4)
    assert plain.sd == pytest.approx(0.005, rel=0.4)


@pytest.mark.parametrize(("difference", "sd", "runs"), [(0.02, 0.0475, 92), (0.05, 0.03, 8), (0.02, 0.0, 2)])
def test_the_runs_a_difference_needs(difference: float, sd: float, runs: int) -> None:
    # 2 · (1.96 + 0.84)² · (0.0475 / ln 1.02)² = 90.3 by the normal approximation; the t test asks for a little more
    assert repeats_for(difference, sd) == runs


def test_the_smallest_difference_is_the_inverse() -> None:
    for runs in (2, 3, 10, 92):
        found = smallest_difference(runs, 0.0475)
        assert found is not None
        assert repeats_for(found * 1.0001, 0.0475) <= runs
    assert smallest_difference(1, 0.05) is None


def test_the_verdict_says_how_many_runs_two_percent_needs() -> None:
    rng = np.random.default_rng(1)
    rows = [trial(i, tps=noisy(rng, 100, 0.03), knobs={"budget": 8}) for i in range(12)]
    (verdict,) = noise(gather(table(rows), no_turns(), study()))
    assert verdict.status is VerdictStatus.HOLDS
    assert verdict.n == 12
    assert "2 % each setting needs" in verdict.statement
    assert verdict.value is not None
    assert verdict.details["runs_needed"]["2 %"] == repeats_for(0.02, verdict.value)


def test_no_repeats_no_noise() -> None:
    rows = [trial(i, knobs={"budget": i}) for i in range(5)]
    (verdict,) = noise(gather(table(rows), no_turns(), study()))
    assert verdict.status is VerdictStatus.NOT_ENOUGH_DATA
