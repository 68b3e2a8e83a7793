"""Phases plan from what is stored: nothing is lost, nothing runs twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dflash_sweep import outcomes
from dflash_sweep.constraints import Constraints
from dflash_sweep.errors import FailureKind
from dflash_sweep.jobs import ConfirmPhase, Job, SearchPhase, confirm_blocks, is_final, repeats, unfinished
from dflash_sweep.records import Failure, Knobs, Role, StoredTrial
from dflash_sweep.samplers import SamplerChoice
from dflash_sweep.space import parse_space
from dflash_sweep.study import Study
from fakes.builders import make_result, make_stored, make_turn

SPACE = parse_space({"budget": "choice(8, 16, 22, 32, 40)"})


def failed(number: int, kind: FailureKind, uid: str, attempt: int = 0) -> StoredTrial:
    result = make_result(uid, turns=(), failure=Failure(kind=kind, message="x"))
    return make_stored(number, uid=uid, attempt=attempt, result=result)


def test_uids_name_the_run() -> None:
    assert Job(role=Role.SEARCH, candidate=12, repeat=0).uid("s") == "s/search/12/0/0"
    assert Job(role=Role.BASELINE, candidate=None, speculative=False, repeat=2).uid("s") == "s/baseline/plain/2/0"
    assert Job(role=Role.CALIBRATE, candidate=None).uid("s") == "s/calibrate/default/0/0"


def test_finished_runs_are_not_due_again() -> None:
    jobs = repeats(Role.BASELINE, 3, speculative=False, knobs={})
    stored = [make_stored(0, role=Role.BASELINE, uid="s/baseline/plain/1/0")]
    assert [job.repeat for job in unfinished(jobs, "s", stored, retries=2)] == [0, 2]


def test_a_transient_failure_is_due_with_its_next_attempt() -> None:
    jobs = repeats(Role.BASELINE, 1, speculative=False, knobs={})
    lost = failed(0, FailureKind.WORKER_LOST, "s/baseline/plain/0/0")
    assert [job.attempt for job in unfinished(jobs, "s", [lost], retries=2)] == [1]
    assert not is_final(lost, retries=2)
    assert is_final(lost, retries=0)


def test_a_repeatable_failure_is_final() -> None:
    assert is_final(failed(0, FailureKind.OUT_OF_MEMORY, "s/search/0/0/0"), retries=2)


def test_confirm_blocks_hold_every_finalist_and_plain_decoding_once() -> None:
    plan = confirm_blocks({3: {"budget": 8}, 5: {"budget": 22}}, {}, blocks=6, seed=1)
    assert len(plan) == 6
    orders = set()
    for index, block in enumerate(plan):
        assert {job.candidate for job in block} == {3, 5, None}
        assert {job.repeat for job in block} == {index}
        orders.add(tuple(job.candidate for job in block))
    assert len(orders) > 1
    assert plan == confirm_blocks({3: {"budget": 8}, 5: {"budget": 22}}, {}, blocks=6, seed=1)


def test_a_confirm_block_ends_before_the_next_begins_and_an_early_decision_ends_all() -> None:
    looks: list[int] = []

    def decided() -> bool:
        looks.append(1)
        return len(looks) == 2

    plan = confirm_blocks({3: {}}, {}, blocks=4, seed=1)
    phase, ran = ConfirmPhase(plan, decided), []
    assert phase.total == 8
    first, second = phase.next(), phase.next()
    assert first is not None
    assert second is not None
    assert phase.next() is None  # the block is still running
    for job in (first, second):
        phase.took(job, make_stored(0))
        ran.append(job)
    while (later := phase.next()) is not None:
        ran.append(later)
        phase.took(later, make_stored(0))
    assert [job.repeat for job in ran] == [0, 0, 1, 1]  # decided after the second block


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return open_study(tmp_path)


def open_study(tmp_path: Path, owner: str = "me") -> Study:
    choice = SamplerChoice(name="random")
    url = f"sqlite:///{tmp_path / 's.db'}"
    return Study(url, "s", SPACE, directions=["maximize"], sampler=choice, seed=7, owner=owner)


def search(
    study: Study,
    stored: list[StoredTrial],
    *,
    n_trials: int = 4,
    canary_every: int = 2,
    problems: Callable[[Knobs], tuple[str, ...]] = lambda _knobs: (),
) -> SearchPhase:
    return SearchPhase(
        study,
        study_name="s",
        outcome=lambda trial: outcomes.outcome(trial, stored, ("decode_tps",), Constraints(())),
        n_trials=n_trials,
        complete=lambda point: {"verifier": "exact", **point},
        plain_knobs={},
        canary_every=canary_every,
        retries=2,
        stored=stored,
        is_gone=lambda owner: owner == "dead",
        expired=lambda: False,
        problems=problems,
        incumbent=first_searched,
    )


def first_searched(trials: Sequence[StoredTrial]) -> tuple[int, Knobs] | None:
    """An incumbent that is easy to foretell."""
    found = next((trial for trial in trials if trial.role is Role.SEARCH), None)
    return None if found is None or found.candidate is None else (found.candidate, found.knobs)


def play(phase: SearchPhase, limit: int = 100) -> list[StoredTrial]:
    done: list[StoredTrial] = []
    while len(done) < limit and (job := phase.next()) is not None:
        uid = job.uid("s")
        trial = make_stored(
            len(done), role=job.role, uid=uid, candidate=job.candidate, knobs=job.knobs, result=make_result(uid),
            repeat=job.repeat, attempt=job.attempt, speculative=job.speculative,
        )  # fmt: skip
        phase.took(job, trial)
        done.append(trial)
    return done


def test_search_runs_its_candidates_with_canaries_between(study: Study) -> None:
    phase = search(study, [])
    assert phase.total == 6
    done = play(phase)
    assert [trial.role for trial in done] == [*[Role.SEARCH] * 2, *[Role.CANARY] * 2, *[Role.SEARCH] * 2]
    plain, again = done[2:4]
    assert (plain.candidate, plain.speculative, plain.knobs) == (None, False, {})
    assert (again.candidate, again.speculative, again.knobs) == (done[0].candidate, True, done[0].knobs)
    assert all(trial.knobs["verifier"] == "exact" for trial in done if trial.role is Role.SEARCH)
    assert study.running() == ()


@pytest.mark.parametrize("stored", range(7))
def test_a_driver_that_dies_between_canaries_leaves_none_out_and_none_twice(tmp_path: Path, stored: int) -> None:
    (tmp_path / "whole").mkdir()
    whole = [trial.uid for trial in play(search(open_study(tmp_path / "whole"), []))]
    assert len(whole) == 6
    done = play(search(open_study(tmp_path), [], n_trials=4), limit=stored)
    again = search(open_study(tmp_path), done)
    assert again.total == 6 - len(done)
    assert [trial.uid for trial in [*done, *play(again)]] == whole


def test_a_canary_that_failed_for_a_passing_reason_is_tried_again_on_resume(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    done = play(search(study, []), limit=2)
    uid, lost = "s/canary/plain/0/0", Failure(kind=FailureKind.WORKER_LOST, message="gone")
    result = make_result(uid, turns=(), failure=lost)
    failed = make_stored(2, role=Role.CANARY, uid=uid, candidate=None, speculative=False, result=result)
    rest = play(search(study, [*done, failed]))
    assert [trial.uid for trial in rest][:2] == ["s/canary/plain/0/1", f"s/canary/{done[0].candidate}/0/0"]


def test_search_stops_when_the_space_is_exhausted(study: Study) -> None:
    phase = search(study, [], n_trials=50, canary_every=0)
    assert len(play(phase)) == 5
    assert phase.exhausted


def test_impossible_points_are_told_but_never_launched_or_counted(study: Study) -> None:
    phase = search(
        study, [], n_trials=50, canary_every=0, problems=lambda knobs: ("no",) if knobs["budget"] == 8 else ()
    )
    assert sorted(str(trial.knobs["budget"]) for trial in play(phase)) == ["16", "22", "32", "40"]
    assert study.running() == ()


def test_resume_counts_what_is_stored_and_keeps_the_numbers(tmp_path: Path) -> None:
    first = open_study(tmp_path, owner="dead")
    done = play(search(first, [], canary_every=0), limit=2)
    asked = first.ask({})  # the driver dies with this one running
    assert asked is not None
    phase = search(open_study(tmp_path), done, canary_every=0)
    rest = play(phase)
    assert rest[0].candidate == asked[0]
    assert len(done) + len(rest) == 4
    assert len({trial.uid for trial in [*done, *rest]}) == 4


def test_resume_tells_what_was_stored_but_not_told(tmp_path: Path) -> None:
    first = open_study(tmp_path, owner="dead")
    asked = first.ask({})
    assert asked is not None
    uid = f"s/search/{asked[0]}/0/0"
    stored = make_stored(0, uid=uid, candidate=asked[0], knobs=asked[1], result=make_result(uid))
    again = open_study(tmp_path)
    search(again, [stored], canary_every=0)
    assert again.running() == ()


def test_resume_settles_a_candidate_that_was_asked_and_needs_no_run(tmp_path: Path) -> None:
    """Its driver died before it was told as the same point again, or as impossible."""
    first = open_study(tmp_path, owner="dead")
    asked, again = first.ask({}), first.ask({})
    assert asked is not None
    assert again is not None
    uid = f"s/search/{asked[0]}/0/0"
    stored = make_stored(0, uid=uid, candidate=asked[0], knobs=again[1], result=make_result(uid))
    study = open_study(tmp_path)
    phase = search(study, [stored], n_trials=1, canary_every=0)
    assert (phase.next(), study.running()) == (None, ())
    third = first.ask({})
    assert third is not None
    phase = search(
        study, [], n_trials=1, canary_every=0, problems=lambda knobs: ("no",) * (knobs["budget"] == third[1]["budget"])
    )
    assert study.running() == ()
    assert phase.next() is not None  # an impossible one counts for nothing


def test_another_live_drivers_candidates_are_left_alone(tmp_path: Path) -> None:
    first = open_study(tmp_path, owner="alive")
    asked = first.ask({})
    assert asked is not None
    play(search(open_study(tmp_path), [], n_trials=2, canary_every=0))
    assert [number for number, _, _ in first.running()] == [asked[0]]


def test_a_trial_without_a_value_is_told_as_failed(study: Study) -> None:
    phase = search(study, [], n_trials=1, canary_every=0)
    job = phase.next()
    assert job is not None
    invalid = make_turn(0)
    from dataclasses import replace

    result = make_result(job.uid("s"), turns=(replace(invalid, invalid_reason="truncated"),))
    phase.took(job, make_stored(0, uid=job.uid("s"), candidate=job.candidate, knobs=job.knobs, result=result))
    assert study.running() == ()
