"""How a study stands: the best so far, and who is measured again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dflash_sweep import standing
from dflash_sweep.records import Knobs, Role, StoredTrial, TelemetrySummary
from fakes.builders import make_result, make_stored, make_turn


def run(number: int, tps: float, joules: float = 1.0, *, knobs: Knobs | None = None, **fields: object) -> StoredTrial:
    """100 tokens at `tps`, with `joules` for each of them."""
    role = fields.pop("role", Role.SEARCH)
    assert isinstance(role, Role)
    uid = f"s/{role}/{number}/0/0"
    turns = (make_turn(0, decode_ms=100 * 1000 / tps),)
    result = replace(make_result(uid, turns=turns), telemetry=TelemetrySummary(energy_j=100 * joules))
    return make_stored(number, role=role, uid=uid, result=result, knobs=knobs or {"budget": number}, **fields)


def finalists(
    trials: Sequence[StoredTrial], *objectives: str, count: int = 2, ineligible: Sequence[int] = ()
) -> list[int]:
    named = objectives or ("decode_tps",)
    return list(standing.finalists(trials, named, count=count, effective=dict, ineligible=ineligible))


def test_the_best_come_first_and_hopeless_ones_never() -> None:
    # 74 is more than a quarter behind 100
    assert finalists([run(0, 90), run(1, 100), run(2, 95), run(3, 74)], count=4) == [1, 2, 0]


def test_equal_servers_are_one_finalist() -> None:
    same: Knobs = {"budget": 8}
    assert finalists([run(0, 100, knobs=same), run(1, 99, knobs=same), run(2, 98)]) == [0, 2]


def test_who_breaks_a_limit_is_neither_best_nor_finalist() -> None:
    trials = [run(0, 100), run(1, 90), run(2, 80)]
    assert finalists(trials, ineligible=[0]) == [1, 2]
    best = standing.best(trials, "decode_tps", ineligible={0: "why"})
    assert best is not None
    assert best.candidate == 1
    assert best.value == pytest.approx(90.0)
    assert standing.best(trials, "decode_tps", ineligible=[0, 1, 2]) is None


def test_of_several_objectives_the_first_decides_and_the_front_is_measured_as_well() -> None:
    # front of tok/s and J: 0 (100, 3.0), 1 (90, 2.0), 2 (60, 1.0), 3 (40, 0.5); 4 is beaten by 1 and 5 by 2
    trials = [run(0, 100, 3.0), run(1, 90, 2.0), run(2, 60, 1.0), run(3, 40, 0.5), run(4, 89, 2.5), run(5, 59, 1.1)]
    assert finalists(trials, "decode_tps", "joules_per_token") == [0, 1, 3]  # the front's two ends; one is in already
    assert finalists(trials, "joules_per_token", "decode_tps", count=3) == [3, 1, 0]
    assert finalists(trials, "decode_tps", count=3) == [0, 1, 4]


def test_a_candidate_without_one_of_the_objectives_is_no_finalist() -> None:
    unknown = replace(run(0, 100), result=replace(run(0, 100).result, telemetry=TelemetrySummary()))
    assert finalists([unknown, run(1, 90)], "decode_tps", "joules_per_token") == [1]
    assert finalists([unknown, run(1, 90)], "decode_tps") == [0, 1]


def on_card(trial: StoredTrial, name: str) -> StoredTrial:
    return replace(trial, result=replace(trial.result, device=replace(trial.result.device, name=name)))


def test_candidates_of_unlike_cards_are_compared_on_one_scale() -> None:
    # over their card's middle (94.9 and 49.0): 1.05, 0.95, 1.02 and 0.98
    trials = [
        on_card(run(0, 100), "big"), on_card(run(1, 90), "big"), on_card(run(2, 50), "small"),
        on_card(run(3, 48), "small"),
    ]  # fmt: skip
    assert finalists(trials, count=3) == [0, 2, 3]
    assert finalists([run(0, 100), run(1, 90), run(2, 50)], count=3) == [0, 1]  # one kind of card: 50 is hopeless


def test_runs_on_held_out_turns_are_not_pooled_with_those_of_the_search() -> None:
    """Candidate 1 is the best of the search, candidate 0 on the turns that confirm."""
    unseen: dict[str, Any] = {"role": Role.CONFIRM, "trace_sha256": "1" * 64}
    trials = [run(0, 90), run(1, 100), run(2, 70, candidate=0, **unseen), run(3, 60, candidate=1, **unseen)]
    best = standing.best(trials, "decode_tps")
    assert best is not None
    assert best.candidate == 0
    assert best.value == pytest.approx(70.0)


def test_the_gain_is_over_plain_decoding_that_is_like_the_best() -> None:
    def like(trial: StoredTrial, settings: str) -> StoredTrial:
        return replace(trial, result=replace(trial.result, environment={"plain_settings": settings}))

    baseline = [like(run(n, 50.0, role=Role.BASELINE, candidate=None, speculative=False), "threads=1") for n in (0, 1)]
    fast = like(run(2, 100.0, candidate=7), "threads=2")
    alone = standing.best([*baseline, fast], "decode_tps")
    assert alone is not None
    assert alone.gain is None
    assert alone.plain == pytest.approx(50.0)
    control = like(run(3, 80.0, role=Role.CONTROL, candidate=7, speculative=False), "threads=2")
    beside = standing.best([*baseline, fast, control], "decode_tps")
    assert beside is not None
    assert beside.gain == pytest.approx(1.25)
    assert beside.plain == pytest.approx(80.0)
    slow = like(run(4, 40.0, candidate=8), "threads=2")
    loses = standing.best([*baseline, slow], "decode_tps")
    assert loses is not None
    assert loses.gain == pytest.approx(0.8)  # nobody has to look further
    assert loses.plain == pytest.approx(50.0)


def test_a_candidate_far_behind_plain_decoding_is_not_held_against_more_of_it() -> None:
    baseline = [run(n, 100.0, role=Role.BASELINE, candidate=None, speculative=False) for n in (0, 1)]
    trials = [*baseline, run(2, 74.0, candidate=7), run(3, 76.0, candidate=8)]
    assert [standing.may_beat_plain(trials, number, "decode_tps") for number in (7, 8)] == [False, True]
    confirm = run(4, 200.0, candidate=7, role=Role.CONFIRM)
    assert not standing.may_beat_plain([*trials, confirm], 7, "decode_tps")  # the answer stays what it was
    assert standing.may_beat_plain(trials[2:], 7, "decode_tps")


def test_of_unlike_cards_the_best_is_the_one_furthest_above_its_own_plain_decoding() -> None:
    """Fast card: plain 100, candidate 1: 120. Slow card: plain 50, candidate 2: 70 (1.4 times plain)."""
    plain: dict[str, Any] = {"role": Role.BASELINE, "candidate": None, "speculative": False}
    trials = [
        on_card(run(10, 100, **plain), "fast"), on_card(run(11, 50, **plain), "slow"),
        on_card(run(1, 120), "fast"), on_card(run(2, 70), "slow"),
    ]  # fmt: skip
    best = standing.best(trials, "decode_tps")
    assert best is not None
    assert (best.candidate, best.device) == (2, "slow")
    assert [best.value, best.plain, best.gain] == pytest.approx([70.0, 50.0, 1.4])
    without = standing.best([trials[0], *trials[2:]], "decode_tps")  # the slow card's plain decoding is not known
    assert without is not None
    assert (without.candidate, without.device) == (1, "fast")
    alone = standing.best([trials[0], trials[2]], "decode_tps")
    assert alone is not None
    assert alone.device is None
