"""The best guess: the unmeasured point with the best additive forecast."""

from __future__ import annotations

from pathlib import Path

from dflash_sweep.foretelling import best_unmeasured
from dflash_sweep.outcomes import Outcome
from dflash_sweep.records import Knobs
from dflash_sweep.samplers import SamplerChoice
from dflash_sweep.space import parse_space
from dflash_sweep.study import Study

SPACE = parse_space({"budget": "choice(8, 16, 22, 32)", "top_k": "choice(1, 4)", "chain_seed": "choice(true, false)"})


def speed(point: Knobs) -> float:
    # factors: budget 1, 1.1, 1.3, 1.2 · top_k 1, 1.1 · chain 1, 0.9: the best point is 22, 4, true
    return (
        {8: 1.0, 16: 1.1, 22: 1.3, 32: 1.2}[int(str(point["budget"]))]
        * {1: 1.0, 4: 1.1}[int(str(point["top_k"]))]
        * (1.0 if point["chain_seed"] else 0.9)
    )


BEST: Knobs = {"budget": 22, "top_k": 4, "chain_seed": True}


def measured(without: Knobs) -> list[tuple[Knobs, float | None]]:
    return [(point, speed(point)) for point in SPACE.points() if point != without]


def test_the_best_corner_is_foretold_unmeasured() -> None:
    rows = measured(BEST)
    known = [point for point, _ in rows]
    assert best_unmeasured(SPACE, rows, maximise=True, known=lambda point: point in known) == BEST


def test_where_less_is_better_the_least_is_foretold() -> None:
    slowest: Knobs = {"budget": 8, "top_k": 1, "chain_seed": False}
    rows = measured(slowest)
    known = [point for point, _ in rows]
    assert best_unmeasured(SPACE, rows, maximise=False, known=lambda point: point in known) == slowest


def test_points_that_fail_are_kept_away_from() -> None:
    rows = [(point, None if point["budget"] == 22 else value) for point, value in measured(BEST)]
    assert best_unmeasured(SPACE, rows, maximise=True, known=lambda point: False) == {**BEST, "budget": 32}


def test_too_few_runs_a_continuous_space_and_a_known_one_give_nothing() -> None:
    rows = measured(BEST)
    assert best_unmeasured(SPACE, rows[:5], maximise=True, known=lambda point: False) is None
    assert best_unmeasured(SPACE, rows, maximise=True, known=lambda point: True) is None
    continuous = parse_space({"budget": "interval(8.0, 22.0)"})
    assert best_unmeasured(continuous, rows, maximise=True, known=lambda point: False) is None


def test_every_third_candidate_of_a_study_is_the_foretold_one(tmp_path: Path) -> None:
    study = Study(
        f"sqlite:///{tmp_path / 's.db'}", "s", SPACE, directions=["maximize"], seed=3,
        sampler=SamplerChoice(name="random", forecast_every=3),
    )  # fmt: skip
    known: dict[tuple[tuple[str, str], ...], Outcome | None] = {}
    asked: list[Knobs] = []
    while BEST not in asked:
        answer = study.ask(known)
        assert answer is not None
        number, point = answer
        asked.append(point)
        known[study.key(point)] = Outcome(values=(speed(point),), violations={})
        study.tell(number, known[study.key(point)] or Outcome(values=(0.0,), violations={}), {})
    assert len(asked) <= 12  # of 16 points; at random the best one is the last as often as the first
