"""Which worker runs which trial, as views ask for it; and what the best candidate is worth against plain decoding."""

from __future__ import annotations

import pytest

from dflash_sweep import pool, standing
from dflash_sweep.records import Device, Role, StoredTrial, TrialResult, TrialSpec
from fakes.builders import DEVICE, make_result, make_spec, make_stored, make_turn


def test_the_only_worker_runs_the_trial_that_is_waited_for() -> None:
    seen: list[dict[str, int]] = []

    def run(spec: TrialSpec, _device: Device) -> TrialResult:
        seen.append(crew.seats())
        return make_result(spec.uid)

    crew = pool.InlinePool(DEVICE, run)
    assert crew.seats() == {}
    crew.submit(make_spec("s/search/1/0/0"))
    assert len(crew.wait()) == 1
    assert seen == [{"s/search/1/0/0": 0}]
    assert crew.seats() == {}
    assert crew.idle() == 1


def test_a_trial_that_raises_leaves_its_seat() -> None:
    def run(_spec: TrialSpec, _device: Device) -> TrialResult:
        raise KeyboardInterrupt

    crew = pool.InlinePool(DEVICE, run)
    crew.submit(make_spec())
    with pytest.raises(KeyboardInterrupt):
        crew.wait()
    assert crew.seats() == {}


def test_recorded_workers_take_the_first_trials() -> None:
    devices = tuple(Device(kind="cpu", index=index, name="cpu") for index in range(2))
    crew = pool.RecordedPool([], devices)
    for candidate in range(3):
        crew.submit(make_spec(f"s/search/{candidate}/0/0"))
    assert crew.seats() == {"s/search/0/0/0": 0, "s/search/1/0/0": 1}


def test_the_best_is_compared_with_plain_decoding() -> None:
    """Plain: 100 tok/s twice. Candidate 1: 200 tok/s once, then 250: geometric mean 223.6, so 2.24 times plain."""

    def run(number: int, role: Role, candidate: int | None, tps: float) -> StoredTrial:
        turn = make_turn(tokens=100, decode_ms=1e5 / tps)
        uid = f"s/{role}/{number}/0/0"
        return make_stored(number, role=role, uid=uid, candidate=candidate, speculative=candidate is not None,
                           result=make_result(uid, turns=(turn,)))  # fmt: skip

    plain = [run(number, Role.BASELINE, None, 100.0) for number in range(2)]
    once = standing.best([*plain, run(2, Role.SEARCH, 1, 200.0)], "decode_tps")
    assert once is not None
    assert once.gain == pytest.approx(2.0)
    assert once.gain_low is None, "one run has no interval"
    assert once.gain_high is None
    twice = standing.best([*plain, run(2, Role.SEARCH, 1, 200.0), run(3, Role.CONFIRM, 1, 250.0)], "decode_tps")
    assert twice is not None
    assert twice.gain == pytest.approx(2.236, abs=0.001)
    assert twice.gain_low is not None
    assert twice.gain_high is not None
    assert twice.gain_low < 2.236 < twice.gain_high
