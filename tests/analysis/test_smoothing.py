"""Single runs are pulled towards what the other settings foretell, the more the noisier runs are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dflash_sweep.analysis.smoothing import forecast, smoothed
from dflash_sweep.records import Knobs

SETTINGS: dict[int, Knobs] = {
    index: {"budget": budget, "top_k": top_k, "temperature": temperature}
    for index, (budget, top_k, temperature) in enumerate(
        (budget, top_k, temperature) for budget in (8, 16, 22) for top_k in (1, 4) for temperature in (0.5, 0.7, 1.0)
    )
}


def truth(knobs: Knobs) -> float:
    # additive in the logarithm: factors of 1, 1.1, 1.2 · 1, 1.05 · 1, 1.02, 0.9
    budget = {8: 1.0, 16: 1.1, 22: 1.2}[int(str(knobs["budget"]))]
    return (
        10
        * budget
        * {1: 1.0, 4: 1.05}[int(str(knobs["top_k"]))]
        * {"0.5": 1.0, "0.7": 1.02, "1.0": 0.9}[str(knobs["temperature"])]
    )


def test_noise_is_taken_out_where_axes_add_up() -> None:
    rng = np.random.default_rng(1)
    raw_error, smooth_error = [], []
    for _ in range(20):
        values = {n: truth(knobs) * math.exp(0.06 * rng.standard_normal()) for n, knobs in SETTINGS.items()}
        found = smoothed(SETTINGS, values, 0.06)
        raw_error.append(np.mean([math.log(values[n] / truth(SETTINGS[n])) ** 2 for n in SETTINGS]))
        smooth_error.append(np.mean([math.log(found[n] / truth(SETTINGS[n])) ** 2 for n in SETTINGS]))
    assert np.mean(smooth_error) < 0.6 * np.mean(raw_error)


def test_without_noise_nothing_is_pulled() -> None:
    values = {n: truth(knobs) * (1.5 if n == 4 else 1.0) for n, knobs in SETTINGS.items()}
    assert smoothed(SETTINGS, values, 0.0) == pytest.approx(values)


@pytest.mark.parametrize("known", [{0: 10.0, 1: 12.0}, {}])
def test_too_few_settings_stay_as_they_are(known: dict[int, float]) -> None:
    assert smoothed(SETTINGS, known, 0.05) == known


def test_unknown_noise_leaves_the_figures_alone() -> None:
    values = {n: truth(knobs) for n, knobs in SETTINGS.items()}
    assert smoothed(SETTINGS, values, None) == values


def test_one_setting_without_axes_that_vary() -> None:
    same: dict[int, Knobs] = {n: {"budget": 8} for n in range(10)}
    found = smoothed(same, {n: 10.0 + n for n in same}, 0.05)
    assert all(10 < value < 20 for value in found.values())


def test_an_unmeasured_setting_is_foretold_from_its_values() -> None:
    left_out = 7
    known = [n for n in SETTINGS if n != left_out]
    found = forecast([SETTINGS[n] for n in known], [truth(SETTINGS[n]) for n in known], list(SETTINGS.values()))
    assert found[left_out] == pytest.approx(truth(SETTINGS[left_out]), rel=0.02)
    assert max(range(len(found)), key=found.__getitem__) == max(SETTINGS, key=lambda n: truth(SETTINGS[n]))


def test_a_value_that_was_never_measured_is_foretold_as_an_average_one() -> None:
    found = forecast([{"budget": 8}, {"budget": 16}], [10.0, 10.0], [{"budget": 99}])
    assert found == pytest.approx([10.0])
