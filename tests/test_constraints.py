"""Limits: how they are written, who keeps them, and that what was not measured is not kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash_sweep.constraints import Constraints, Limit, parse
from dflash_sweep.errors import ConfigError, FailureKind
from dflash_sweep.outcomes import Outcome, outcome
from dflash_sweep.records import Failure, Role, StoredTrial, TelemetrySummary, TurnRecord
from fakes.builders import make_result, make_stored, make_turn


def wrote(index: int, text: str) -> TurnRecord:
    return replace(make_turn(index), text_sha256=text)


def run(
    number: int, *texts: str, role: Role = Role.SEARCH, candidate: int | None = None, **telemetry: float
) -> StoredTrial:
    """A finished run that wrote these texts, one a turn; `candidate` None = its number for a search run."""
    uid = f"s/{role}/{number}/0/0"
    turns = tuple(wrote(index, text) for index, text in enumerate(texts or ("same",)))
    result = replace(make_result(uid, turns=turns), telemetry=TelemetrySummary(**telemetry))  # type: ignore[arg-type]
    fields = {} if candidate is None else {"candidate": candidate}
    return make_stored(number, role=role, uid=uid, result=result, **fields)


def test_limits_are_written_as_bounds() -> None:
    limits = parse({"vram_mib": "<= 22000", "decode_tps": ">=2.5e1", "bit_equal": True, "ttft_ms": None})
    assert limits == (
        Limit(name="vram_mib", most=True, bound=22000.0),
        Limit(name="decode_tps", most=False, bound=25.0),
        Limit(name="bit_equal", most=True, bound=0.0),
    )
    assert parse({"bit_equal": False}) == ()
    assert [limit.words() for limit in limits[:2]] == ["<= 22000 MiB", ">= 25 tok/s"]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"vram": "<= 1"}, "constraints.vram: not known; allowed: decode_tps"),
        ({"vram_mib": 22000}, "constraints.vram_mib=22000: not a limit; write '<= number'"),
        ({"vram_mib": "< 22000"}, "constraints.vram_mib=< 22000: not a limit"),
        ({"vram_mib": "<= 22 GiB"}, "not a limit"),
        ({"vram_mib": "<= 1.2.3"}, "1.2.3 is no number"),
        ({"bit_equal": "<= 0"}, "constraints.bit_equal=<= 0: must be true or false"),
    ],
)
def test_what_is_no_limit_is_named(section: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(section)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "figure", "beyond"),
    [("<= 500", 600.0, 0.2), ("<= 500", 500.0, 0.0), (">= 20", 15.0, 0.25), (">= 20", 30.0, -0.5), ("<= 0", 3.0, 3.0)],
)
def test_a_violation_is_relative_to_the_bound(text: str, figure: float, beyond: float) -> None:
    (limit,) = parse({"ttft_ms": text})
    assert limit.violation(figure) == pytest.approx(beyond)


def test_a_candidate_keeps_a_limit_only_if_each_of_its_runs_does() -> None:
    rules = Constraints(parse({"max_temperature_c": "<= 83"}))
    trials = [
        run(0, max_temperature_c=80.0),
        run(1, max_temperature_c=85.0),
        run(2, role=Role.CONFIRM, candidate=0, max_temperature_c=84.0),
        run(3, max_temperature_c=83.0),
    ]
    assert rules.ineligible(trials) == {
        0: "constraints.max_temperature_c: 84 °C, must be <= 83 °C",
        1: "constraints.max_temperature_c: 85 °C, must be <= 83 °C",
    }


def test_a_figure_that_was_not_measured_is_not_kept_and_not_told() -> None:
    rules = Constraints(parse({"max_temperature_c": "<= 83"}))
    silent = run(0)
    reason = "constraints.max_temperature_c: not known (Test card does not tell its temperature)"
    assert rules.ineligible([silent]) == {0: reason}
    assert outcome(silent, [silent], ("decode_tps",), rules) == reason


def test_failed_runs_say_nothing_of_a_limit() -> None:
    rules = Constraints(parse({"max_temperature_c": "<= 83"}))
    result = make_result(turns=(), failure=Failure(kind=FailureKind.WORKER_LOST, message="gone"))
    assert rules.ineligible([make_stored(0, result=result)]) == {}


def test_bit_equal_compares_texts_with_plain_decoding_turn_by_turn() -> None:
    rules = Constraints(parse({"bit_equal": True}))
    plain = [run(0, "a", "b", "c", role=Role.BASELINE), run(1, "a", "b", "x", role=Role.BASELINE)]
    equal, other = run(2, "a", "b", "whatever"), run(3, "a", "B", "c")
    trials = [*plain, equal, other]
    assert rules.ineligible(trials) == {
        3: "constraints.bit_equal: not bit-equal to plain decoding on 1 of 2 turns"  # plain itself differs on the third
    }
    found = outcome(other, trials, ("decode_tps",), rules)
    assert isinstance(found, Outcome)
    assert found.violations == {"bit_equal": 0.5}
    assert not found.feasible


def test_turns_of_another_trace_are_other_turns() -> None:
    rules = Constraints(parse({"bit_equal": True}))
    plain = run(0, "a", role=Role.BASELINE)
    elsewhere = replace(run(1, "b"), trace_sha256="1" * 64)
    (reason,) = rules.ineligible([plain, elsewhere]).values()
    assert "not known" in reason


def test_plain_decoding_beside_a_finalist_is_no_reference() -> None:
    """A control run has the finalist's own cache types: its text is not what the baseline writes."""
    rules = Constraints(parse({"bit_equal": True}))
    control = replace(run(1, "other", role=Role.CONFIRM, candidate=5), speculative=False)
    assert rules.ineligible([run(0, "a", role=Role.BASELINE), control, run(2, "a")]) == {}


def test_limits_that_nothing_here_tells_are_known_after_plain_decoding() -> None:
    rules = Constraints(parse({"max_temperature_c": "<= 83", "vram_mib": "<= 1e6", "bit_equal": True}))
    plain = [run(0, "a", role=Role.BASELINE, peak_memory_mib=9.0), run(1, "b", role=Role.BASELINE, peak_memory_mib=9.0)]
    assert [reason.partition(":")[0] for reason in rules.unmeasurable(plain)] == [
        "constraints.max_temperature_c cannot be known here",
        "constraints.bit_equal cannot be known here",  # it never wrote the same twice
    ]
    assert rules.unmeasurable([run(0, "a", role=Role.BASELINE, peak_memory_mib=9.0, max_temperature_c=1.0)]) == ()


def test_an_outcome_holds_every_objective_and_every_limit() -> None:
    rules = Constraints(parse({"vram_mib": "<= 10"}))
    trial = run(0, peak_memory_mib=5.0)
    assert outcome(trial, [trial], ("decode_tps", "vram_mib"), rules) == Outcome(
        values=(100.0, 5.0), violations={"vram_mib": -0.5}, device="Test card"
    )
    assert outcome(trial, [trial], ("decode_tps", "joules_per_token"), rules) == (
        "joules_per_token is not known: Test card does not tell its power"
    )
