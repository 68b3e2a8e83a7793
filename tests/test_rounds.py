"""Deterministic scheduling: the same candidates in the same order, however the workers' runs end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep import outcomes
from dflash_sweep.constraints import Constraints
from dflash_sweep.jobs import ConfirmPhase, Job, ListPhase, Phase, SearchPhase
from dflash_sweep.records import Knobs, Role, StoredTrial
from dflash_sweep.rounds import Rounds
from dflash_sweep.samplers import SamplerChoice
from dflash_sweep.space import parse_space
from dflash_sweep.study import Study
from fakes.builders import make_result, make_stored, make_turn

SPACE = parse_space({"budget": "choice(8, 16, 22, 32, 40)", "top_k": "choice(1, 2, 4, 8)", "temp": "interval(0.3, 1)"})


def ran(job: Job, number: int) -> StoredTrial:
    """A finished run whose speed depends on its knobs, so that the sampler learns from each result."""
    temp, budget = job.knobs.get("temp"), job.knobs.get("budget")
    speed = 50.0 + 20.0 * float(temp or 0) - abs(float(budget or 0) - 22.0)
    uid = job.uid("s")
    turns = (make_turn(0, tokens=100, decode_ms=100_000.0 / speed),)
    return make_stored(
        number,
        role=job.role,
        uid=uid,
        candidate=job.candidate,
        knobs=job.knobs,
        speculative=job.speculative,
        result=make_result(uid, turns=turns),
    )


def play(phase: Phase, workers: int, rng: random.Random) -> list[Job]:
    """Keep `workers` busy as the runner does; which run ends next is drawn. Returns the jobs in the order of asking."""
    asked: list[Job] = []
    running: list[Job] = []
    while True:
        while len(running) < workers and (job := phase.next()) is not None:
            asked.append(job)
            running.append(job)
        if not running:
            return asked
        job = running.pop(rng.randrange(len(running)))
        phase.took(job, ran(job, len(asked)))


def search(folder: Path, n_trials: int = 12, stored: tuple[StoredTrial, ...] = (), owner: str = "me") -> SearchPhase:
    folder.mkdir(exist_ok=True)
    choice = SamplerChoice(name="tpe", n_startup_trials=3)
    study = Study(
        f"sqlite:///{folder / 's.db'}", "s", SPACE, directions=["maximize"], sampler=choice, seed=7, owner=owner
    )

    def same(point: Knobs) -> Knobs:
        return point

    return SearchPhase(
        study,
        study_name="s",
        outcome=lambda trial: outcomes.outcome(trial, list(stored), ("decode_tps",), Constraints(())),
        n_trials=n_trials,
        complete=same,
        plain_knobs={},
        canary_every=5,
        retries=2,
        stored=stored,
        is_gone=lambda name: name == "dead",
        expired=lambda: False,
    )


def sequence(jobs: list[Job]) -> list[tuple[Role, int | None, Knobs]]:
    return [(job.role, job.candidate, job.knobs) for job in jobs]


def test_several_workers_get_the_same_candidates_whichever_run_ends_first(tmp_path: Path) -> None:
    plays = [sequence(play(Rounds(search(tmp_path / str(seed)), 3), 3, random.Random(seed))) for seed in (1, 2, 3)]
    assert plays[0] == plays[1] == plays[2]
    assert [role for role, _, _ in plays[0]].count(Role.SEARCH) == 12


def test_without_rounds_the_candidates_hang_on_who_ends_first(tmp_path: Path) -> None:
    plays = [sequence(play(search(tmp_path / str(seed)), 3, random.Random(seed))) for seed in (1, 2, 3)]
    assert not plays[0] == plays[1] == plays[2]


def test_one_worker_gets_the_same_candidates_with_and_without_rounds(tmp_path: Path) -> None:
    one = sequence(play(Rounds(search(tmp_path / "a"), 1), 1, random.Random(1)))
    assert one == sequence(play(search(tmp_path / "b"), 1, random.Random(1)))


def test_results_are_told_in_the_order_of_asking_once_the_last_is_there() -> None:
    told: list[int | None] = []

    class Told(ListPhase):
        def took(self, job: Job, trial: StoredTrial) -> None:
            told.append(job.candidate)

    rounds = Rounds(Told("search", [Job(role=Role.SEARCH, candidate=n) for n in range(5)]), 3)
    first, second, third = rounds.next(), rounds.next(), rounds.next()
    assert first is not None
    assert second is not None
    assert third is not None
    assert rounds.next() is None  # the round is full
    rounds.took(third, ran(third, 0))
    rounds.took(first, ran(first, 1))
    assert (told, rounds.next()) == ([], None)
    again = second.again()  # its first attempt was lost: the retry is the same run
    rounds.took(again, ran(again, 2))
    assert told == [0, 1, 2]
    assert [job.candidate for job in play(rounds, 3, random.Random(0))] == [3, 4]
    assert told == [0, 1, 2, 3, 4]


def test_a_worker_that_comes_late_still_gets_a_job_of_the_open_round() -> None:
    rounds = Rounds(ListPhase("search", [Job(role=Role.SEARCH, candidate=n) for n in range(3)]), 2)
    first = rounds.next()
    assert first is not None
    rounds.took(first, ran(first, 0))
    second = rounds.next()
    assert second is not None
    assert second.candidate == 1
    assert rounds.next() is None
    rounds.took(second, ran(second, 1))
    third = rounds.next()
    assert third is not None
    assert third.candidate == 2


@given(jobs=st.integers(0, 12), width=st.integers(1, 5), workers=st.integers(1, 5), seed=st.integers(0, 99))
def test_nothing_is_lost_or_run_twice(jobs: int, width: int, workers: int, seed: int) -> None:
    blocks = [[Job(role=Role.CONFIRM, candidate=n, repeat=b) for n in range(2)] for b in range(jobs)]
    phase = Rounds(ConfirmPhase(blocks, lambda: False), width)
    played = play(phase, workers, random.Random(seed))
    assert [(job.repeat, job.candidate) for job in played] == [(b, n) for b in range(jobs) for n in range(2)]


def test_a_round_that_a_dead_driver_left_ends_before_the_next_begins(tmp_path: Path) -> None:
    """Interrupted after a whole round was asked and one of its runs was stored: the rest goes on as if never broken."""
    whole = sequence(play(Rounds(search(tmp_path / "whole"), 3), 3, random.Random(1)))
    broken = search(tmp_path / "broken", owner="dead")
    rounds = Rounds(broken, 3)
    asked = [job for _ in range(3) if (job := rounds.next()) is not None]
    stored = (ran(asked[1], 0),)  # stored, but told to nobody: its round was not over
    rest = search(tmp_path / "broken", stored=stored)
    assert rest.leftover == 2
    resumed = play(Rounds(rest, 3, first=rest.leftover), 3, random.Random(5))
    assert sequence(asked) == whole[:3]
    assert sequence(resumed[2:]) == whole[3:]


@pytest.mark.parametrize("width", [1, 4])
def test_the_phase_keeps_its_name_and_size(width: int) -> None:
    phase = ListPhase("search", [Job(role=Role.SEARCH, candidate=0)])
    assert (Rounds(phase, width).name, Rounds(phase, width).total) == ("search", 1)
