"""Who may win: constraints over the tables, texts that differ, held-out turns, and what the gate may judge."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from dflash_sweep.analysis import gate
from dflash_sweep.analysis.comparability import comparability
from dflash_sweep.analysis.eligibility import decision, ineligible, unequal_texts
from dflash_sweep.analysis.evidence import gather
from dflash_sweep.analysis.repeats import noise
from dflash_sweep.constraints import parse
from dflash_sweep.equality import Equality
from dflash_sweep.records import VerdictStatus
from fakes.trial_tables import no_turns, study, table, trial, turn, turns

SPEEDS = {0: 100.0, 1: 90.0, 2: 80.0}
"""Candidate → tok/s, exactly the same in every block."""


def blocks(count: int = 4, **by_candidate: Any) -> pd.DataFrame:
    """Interleaved blocks of three candidates and plain decoding at 50 tok/s; `by_candidate`: column → values."""
    rows: list[dict[str, Any]] = []
    for block in range(count):
        for number, tps in SPEEDS.items():
            own = {name: values[number] for name, values in by_candidate.items()}
            fields: dict[str, Any] = {"candidate": number, "role": "confirm", "repeat": block, **own}
            rows.append(trial(len(rows), tps=tps * (1 + block / 100), knobs={"budget": number}, **fields))
        fields = {"speculative": False, "role": "confirm", "repeat": block}
        rows.append(trial(len(rows), tps=50.0 * (1 + block / 100), **fields))
    return table(rows)


def texts(trials: pd.DataFrame, different: dict[int, int]) -> pd.DataFrame:
    """Two turns a run; candidate → how many of them have another text than plain decoding's."""
    rows = []
    for _, row in trials.iterrows():
        changed = 0 if pd.isna(row["candidate"]) else different.get(int(row["candidate"]), 0)
        for index in range(2):
            candidate = None if pd.isna(row["candidate"]) else int(row["candidate"])
            text = "other" if index < changed else "same"
            rows.append(
                turn(row["uid"], index=index, candidate=candidate, speculative=row["speculative"], text_sha256=text)
            )
    return turns(rows)


def constrained(**limits: Any) -> Any:
    return study(config={"constraints": limits, "protocol": {"confirm_blocks": 4}})


def test_without_limits_the_fastest_wins() -> None:
    reached = decision(blocks(), no_turns(), constrained())
    assert reached.winner == 0
    assert "cannot win" not in reached.statement


def test_who_breaks_a_limit_is_out_and_named_with_its_figure() -> None:
    trials = blocks(vram_mib={0: 23000.0, 1: 21000.0, 2: 20000.0})
    reached = decision(trials, no_turns(), constrained(vram_mib="<= 22000"))
    assert reached.winner == 1
    assert reached.finalists == 2
    assert "Candidate 0 cannot win (constraints.vram_mib: 23000 MiB, must be <= 22000 MiB)." in reached.statement


def test_one_run_beyond_a_limit_is_enough_and_an_unknown_figure_too() -> None:
    trials = blocks(max_temperature_c={0: 80.0, 1: 80.0, 2: None})
    first = trials.index[trials["candidate"] == 0][2]
    trials.loc[first, "max_temperature_c"] = 84.0
    found = ineligible(trials, no_turns(), parse({"max_temperature_c": "<= 83"}))
    assert found == {
        0: "constraints.max_temperature_c: 84 °C, must be <= 83 °C",
        2: "constraints.max_temperature_c: not known",
    }


def test_failed_runs_and_plain_decoding_break_no_limit() -> None:
    rows = [
        trial(0, tps=None, failure_kind="crashed", ttft_ms=900.0),
        trial(1, speculative=False, ttft_ms=900.0),
        trial(2, ttft_ms=100.0),
    ]
    assert ineligible(table(rows), no_turns(), parse({"ttft_ms": "<= 500"})) == {}


def test_texts_are_compared_turn_by_turn() -> None:
    trials = blocks()
    assert unequal_texts(texts(trials, {0: 1}), SPEEDS) == {0: Equality(differing=4, compared=8)}  # 4 runs of 2 turns
    assert unequal_texts(no_turns(), SPEEDS) == {}


def test_a_winner_with_other_text_is_never_named_silently() -> None:
    trials = blocks()
    reached = decision(trials, texts(trials, {0: 2, 2: 1}), constrained())
    assert reached.winner == 0
    assert "Candidate 0 is not bit-equal to plain decoding: 8 of 8 turns have another text." in reached.statement
    assert "Candidate 2" not in reached.statement  # it is no contender


def test_under_the_limit_it_does_not_win_at_all() -> None:
    trials = blocks()
    reached = decision(trials, texts(trials, {0: 1}), constrained(bit_equal=True))
    assert reached.winner == 1
    said = "Candidate 0 cannot win (constraints.bit_equal: 1 of 2 turns have another text than plain decoding)."
    assert said in reached.statement


def test_plain_decoding_with_a_finalists_own_settings_is_no_reference() -> None:
    trials = blocks()
    table_of_turns = texts(trials, {})
    control = turn("control", index=0, candidate=0, speculative=False, text_sha256="another cache type")
    assert unequal_texts(pd.concat([table_of_turns, turns([control])]), SPEEDS) == {}


@pytest.mark.parametrize("held_out", [0.3, None])
def test_held_out_rows_are_apart_on_purpose_or_not(held_out: float | None) -> None:
    rows = [trial(i, knobs={"budget": i}, trace_sha256="search") for i in range(4)]
    rows += [
        trial(4 + i, candidate=i, role="confirm", repeat=i, trace_sha256="check", comparability_key="other")
        for i in range(2)
    ]
    asked = study(config={"protocol": {"held_out": held_out}})
    (verdict,) = comparability(gather(table(rows), no_turns(), asked))
    assert (verdict.status is VerdictStatus.HOLDS) == (held_out is not None)
    assert ("The 2 confirm runs replayed held-out turns" in verdict.statement) == (held_out is not None)


@pytest.mark.parametrize(
    ("objective", "stops"), [("decode_tps", True), ("vram_mib", False), ("joules_per_token", False)]
)
def test_a_bound_on_speed_ends_only_searches_for_speed(objective: str, stops: bool) -> None:
    """A verifier that costs 25 ms a kept token, as plain decoding does: no setting can be faster."""
    rows = [
        trial(i, tps=1000 / 45, knobs={"budget": 8 + i}, exact_ms=25.0 * 2.5, draft_ms=50.0, step_ms=112.5,
              vram_mib=1000.0 + i, joules_per_token=2.0, **{"role": "calibrate" if i < 4 else "search"})
        for i in range(8)
    ]  # fmt: skip
    rows += [trial(10 + i, tps=40.0, speculative=False, vram_mib=900.0, joules_per_token=1.0) for i in range(3)]
    asked = study(objective=objective, direction="maximize" if objective == "decode_tps" else "minimize")
    verdict = gate.stop(table(rows), no_turns(), asked)
    assert (verdict is not None) == stops


def test_the_noise_of_each_device_is_told() -> None:
    rows = [trial(i, tps=100 + 2 * (i % 2), knobs={"budget": 8}, device="A") for i in range(6)]
    rows += [trial(6 + i, tps=100 + 10 * (i % 2), knobs={"budget": 8}, device="B") for i in range(6)]
    (verdict,) = noise(gather(table(rows), no_turns(), study()))
    # six runs in turn at x and x(1 + p): sd of the logs = ln(1 + p) · √(6/5) / 2: 1.085 % and 5.220 %
    assert verdict.details["devices"]["A"]["sd"] == pytest.approx(0.01085, rel=1e-3)
    assert verdict.details["devices"]["B"]["sd"] == pytest.approx(0.05220, rel=1e-3)
    assert "By device: A 1.1 %, B 5.2 %." in verdict.statement
    assert verdict.details["engine"] == "e"
