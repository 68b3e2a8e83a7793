"""Objectives: what each is made of, when it is not known, and what stands on the front."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep import metrics, objective
from dflash_sweep.errors import ConfigError
from dflash_sweep.frames import TRIAL_COLUMNS, trial_frame
from dflash_sweep.records import TelemetrySummary, TrialResult, TurnRecord
from fakes.builders import make_result, make_stored, make_turn


def timed(index: int, *, first_ms: int, end_ms: int, **counters: object) -> TurnRecord:
    turn = make_turn(index, **counters)  # type: ignore[arg-type]
    start = 1_000_000_000 * index
    exchange = replace(
        turn.exchange, send_ns=start, first_token_ns=start + first_ms * 10**6, last_token_ns=start + end_ms * 10**6,
        end_ns=start + end_ms * 10**6,
    )  # fmt: skip
    return replace(turn, exchange=exchange)


def real(*turns: TurnRecord, **telemetry: float) -> TrialResult:
    return replace(make_result(turns=turns), clock="real", telemetry=TelemetrySummary(**telemetry))  # type: ignore[arg-type]


TWO = (timed(0, first_ms=100, end_ms=500), timed(1, first_ms=200, end_ms=900))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("decode_tps", 100.0),  # 200 tokens in 2000 ms of decoding
        ("api_tps", 200 / 1.4),  # 0.5 s and 0.9 s of requests
        ("wall_tps", 200 / 1.9),  # the second ends 1.9 s after the first was sent
        ("ttft_ms", 150.0),
        ("tpot_ms", (400 / 99 + 700 / 99) / 2),
        ("joules_per_token", 0.25),  # 50 J for 200 tokens
        ("vram_mib", 20000.0),
        ("max_temperature_c", 71.0),
    ],
)
def test_every_figure_is_made_of_its_own_counts(name: str, value: float) -> None:
    result = real(*TWO, energy_j=50.0, peak_memory_mib=20000.0, max_temperature_c=71.0)
    assert objective.figure(result, name) == pytest.approx(value)
    row = trial_frame([make_stored(0, result=result)]).iloc[0]
    assert row[name] == pytest.approx(value)
    assert name in TRIAL_COLUMNS


def test_energy_counts_the_tokens_of_turns_that_count_nowhere_else() -> None:
    invalid = replace(timed(2, first_ms=1, end_ms=2), invalid_reason="truncated")
    warm_up = replace(timed(3, first_ms=1, end_ms=2), warmup=True)
    result = real(*TWO, invalid, warm_up, energy_j=60.0)
    assert objective.figure(result, "joules_per_token") == pytest.approx(0.2)  # 60 J, 300 tokens


@pytest.mark.parametrize("name", objective.BY_CLIENT)
def test_the_clients_clock_says_nothing_of_emulated_time(name: str) -> None:
    virtual = replace(real(*TWO), clock="virtual")
    assert objective.figure(virtual, name) is None
    assert "engine.options.clock=real" in objective.why_missing(virtual, name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("joules_per_token", "Test card does not tell its power"),
        ("max_temperature_c", "Test card does not tell its temperature"),
        ("vram_mib", "neither Test card nor the server's log tells the memory in use"),
    ],
)
def test_what_a_device_does_not_tell_is_unknown_with_the_reason(name: str, reason: str) -> None:
    assert objective.figure(real(*TWO), name) is None
    assert objective.why_missing(real(*TWO), name) == reason


def test_memory_comes_from_the_log_where_the_device_tells_none() -> None:
    result = replace(real(*TWO), memory_mib={"model": 900.0, "kv": 100.0})
    assert objective.figure(result, "vram_mib") == 1000.0


def test_no_counted_turn_no_figure() -> None:
    assert objective.figure(real(), "decode_tps") is None
    assert objective.why_missing(real(), "decode_tps") == "no turn counts"


def test_names_are_one_or_several() -> None:
    assert objective.names("ttft_ms") == ("ttft_ms",)
    assert objective.names(["decode_tps", "joules_per_token"]) == ("decode_tps", "joules_per_token")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("speed", "objective=speed: not known; allowed: one or several of decode_tps, api_tps"),
        (["decode_tps", "nope"], "objective=nope"),
        ([], "name one or several different ones"),
        (["decode_tps", "decode_tps"], "name one or several different ones"),
        ("max_temperature_c", "objective=max_temperature_c: not known"),
    ],
)
def test_other_names_are_refused(value: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        objective.names(value)
    assert said in str(caught.value)


def test_every_objective_has_a_direction() -> None:
    assert {objective.direction(name) for name in objective.OBJECTIVES} == {"maximize", "minimize"}
    assert set(objective.OBJECTIVES) <= set(metrics.METRIC)


def test_the_front_holds_what_nothing_beats() -> None:
    # faster is better, fewer joules too: 2 is slower than 1 and hungrier; 4 equals 1
    points = {1: (100.0, 1.0), 2: (90.0, 1.5), 3: (80.0, 0.5), 4: (100.0, 1.0)}
    assert objective.front(points, ("decode_tps", "joules_per_token")) == (1, 4, 3)
    assert objective.front({}, ("decode_tps", "ttft_ms")) == ()


@given(st.dictionaries(st.integers(), st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=20))
def test_every_point_is_on_the_front_or_beaten_by_one_that_is(points: dict[int, tuple[float, float]]) -> None:
    best = objective.front(points, ("decode_tps", "ttft_ms"))
    for key, (tps, ms) in points.items():
        beaten = any(points[b][0] >= tps and points[b][1] <= ms and points[b] != (tps, ms) for b in best)
        assert beaten != (key in best)
