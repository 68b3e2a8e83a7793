"""What a sampler is shown of unlike cards: one scale, the knobs held equal; the tables keep what was measured."""

from __future__ import annotations

import math
import random
from pathlib import Path

import optuna
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from dflash_sweep.analysis.smoothing import group_levels
from dflash_sweep.levelling import DEVICE, levelled
from dflash_sweep.outcomes import Outcome
from dflash_sweep.records import Knobs
from dflash_sweep.samplers import SamplerChoice
from dflash_sweep.space import parse_space
from dflash_sweep.study import Known, Study

SPACE = parse_space({"budget": "choice(8, 16, 22, 32, 40)", "top_k": "choice(1, 2, 4)", "chain": "choice(true, false)"})
FACTOR = {8: 1.0, 16: 1.1, 22: 1.3, 32: 1.2, 40: 0.9}


def speed(point: Knobs) -> float:
    return 20.0 * FACTOR[int(str(point["budget"]))] * {1: 1.0, 2: 1.05, 4: 1.2}[int(str(point["top_k"]))]


def finished(number: int, value: float, device: str, budget: int = 8) -> FrozenTrial:
    trial = create_trial(
        values=[value],
        params={"budget": budget},
        distributions={"budget": CategoricalDistribution(list(FACTOR))},
        user_attrs={DEVICE: device} if device else {},
    )
    trial.number = number
    return trial


@given(ratio=st.floats(0.3, 3.0), seed=st.integers(0, 1000))
def test_how_fast_each_card_is_does_not_depend_on_which_settings_it_ran(ratio: float, seed: int) -> None:
    points, draws = list(SPACE.points()), random.Random(seed)
    slow = [point["budget"] in (8, 40) for point in points]
    cards = ["second" if draws.random() < (0.75 if is_slow else 0.25) else "first" for is_slow in slow]
    exceptions = [is_slow for is_slow, card in zip(slow, cards, strict=True) if is_slow == (card == "first")]
    assume(sum(exceptions) > 2)  # else nobody can know whether it is the card or the setting
    assume(len(exceptions) - sum(exceptions) > 2)
    values = [speed(point) * (ratio if card == "second" else 1.0) for point, card in zip(points, cards, strict=True)]
    levels = group_levels(points, values, cards)
    # the plain means would be 11 % off
    assert math.exp(levels["second"] - levels["first"]) == pytest.approx(ratio, rel=0.03)


def test_of_few_settings_the_means_decide() -> None:
    levels = group_levels([{"budget": 8}] * 3, [10.0, 10.0, 5.0], ["a", "a", "b"])
    assert math.exp(levels["b"] - levels["a"]) == pytest.approx(0.5)


def test_values_of_unlike_cards_are_brought_to_the_first_ones_scale() -> None:
    trials = [
        finished(0, 20.0, "fast"),
        finished(1, 10.0, "slow"),
        finished(2, 20.0, "fast"),
        finished(3, 10.0, "slow"),
    ]
    assert [trial.value for trial in levelled(trials)] == pytest.approx([20.0, 20.0, 20.0, 20.0])
    assert [trial.value for trial in trials] == [20.0, 10.0, 20.0, 10.0]


def test_a_trial_that_does_not_tell_its_card_stays_as_it_is_and_is_no_card_of_its_own() -> None:
    trials = [finished(0, 30.0, ""), finished(1, 20.0, "fast"), finished(2, 22.0, "fast")]
    assert levelled(trials) == trials
    shown = levelled([*trials, finished(3, 10.5, "slow")])
    assert [trial.value for trial in shown[:3]] == pytest.approx([30.0, 20.0, 22.0])
    assert shown[3].value == pytest.approx(20.976, rel=1e-3)  # the fast card's middle, sqrt(20 * 22)


@pytest.mark.parametrize("values", [(20.0, 10.0), (0.0, 10.0)])
def test_one_card_and_figures_without_ratios_stay_as_they_are(values: tuple[float, float]) -> None:
    cards = ("fast", "fast") if values[0] else ("fast", "slow")
    trials = [finished(number, values[number], cards[number]) for number in range(2)]
    running = FrozenTrial(
        number=2, state=TrialState.RUNNING, value=None, datetime_start=None, datetime_complete=None, params={},
        distributions={}, user_attrs={}, system_attrs={}, intermediate_values={}, trial_id=2,
    )  # fmt: skip
    assert levelled([*trials, running]) == [*trials, running]


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "nsga2", "hillclimb"])
def test_a_study_on_two_cards_is_searched_like_one_on_one(tmp_path: Path, sampler: str) -> None:
    """Equal draws and equal answers up to the cards' ratio: the same candidates; the tables keep what was measured."""

    def searched(name: str, ratio: float) -> list[Knobs]:
        study = Study(
            f"sqlite:///{tmp_path}/{name}.db", "s", SPACE, directions=["maximize"], seed=3,
            sampler=SamplerChoice(name=sampler, n_startup_trials=4, forecast_every=3),
        )  # fmt: skip
        known: Known = {}
        asked = []
        for _ in range(16):
            found = study.ask(known)
            assert found is not None
            number, point = found
            card = "slow" if number % 2 else "fast"
            outcome = Outcome(values=(speed(point) * (ratio if card == "slow" else 1.0),), device=card)
            known = {**known, study.key(point): outcome}
            study.tell(number, outcome, {})
            asked.append(point)
        stored = optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path}/{name}.db").trials
        assert [trial.user_attrs[DEVICE] for trial in stored if "duplicate" not in trial.user_attrs] == [
            "slow" if trial.number % 2 else "fast" for trial in stored if "duplicate" not in trial.user_attrs
        ]
        told = [trial.value for trial in stored if "duplicate" not in trial.user_attrs]
        assert told == [outcome.values[0] for outcome in known.values() if outcome is not None]
        return asked

    assert searched("equal", 1.0) == searched("unlike", 0.5)


def test_an_axis_matters_as_much_as_it_does_whatever_the_cards(tmp_path: Path) -> None:
    def shares(name: str, ratio: float, *, told: bool = True) -> dict[str, float]:
        study = Study(
            f"sqlite:///{tmp_path}/{name}.db", "s", SPACE, directions=["maximize"], seed=3,
            sampler=SamplerChoice(name="random"),
        )  # fmt: skip
        known: Known = {}
        draws = random.Random(1)
        while (found := study.ask(known)) is not None:
            card = "slow" if draws.random() < (0.8 if found[1]["top_k"] == 4 else 0.3) else "fast"
            value = speed(found[1]) * (ratio if card == "slow" else 1.0)
            outcome = Outcome(values=(value,), device=card if told else "")
            known = {**known, study.key(found[1]): outcome}
            study.tell(found[0], outcome, {})
        return study.importance()

    alone = shares("alone", 1.0)
    assert shares("unlike", 0.4) == pytest.approx(alone, abs=0.02)
    assert shares("unlevelled", 0.4, told=False) != pytest.approx(alone, abs=0.2)
