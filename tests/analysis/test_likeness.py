"""A gain over plain decoding that ran with other threads or caches is not speculation's."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_sweep.analysis.breakeven import break_even, oracle_gate
from dflash_sweep.analysis.confirm import decide
from dflash_sweep.analysis.evidence import gather
from dflash_sweep.analysis.likeness import alike, hardest, settings_of
from dflash_sweep.analysis.summary import candidate_table
from dflash_sweep.records import VerdictStatus
from fakes.trial_tables import no_turns, study, table, trial, turn, turns

ONE, TWO = "threads=1", "threads=2"


def rows(*, baseline: float = 50.0, control: float | None = None, own: str | None = TWO) -> list[dict[str, Any]]:
    """A setting of 100 tok/s beside plain decoding with one thread and, if it is given, with the setting's own two."""
    found = [
        trial(n, tps=baseline + n / 10, speculative=False, knobs={"threads": 1}, plain_settings=ONE) for n in range(3)
    ]
    found += [
        trial(3 + n, tps=100 + n / 10, candidate=7, knobs={"threads": 2, "draft_max": 4}, plain_settings=own)
        for n in range(3)
    ]
    if control is not None:
        found += [
            trial(
                6 + n, tps=control + n / 10, speculative=False, role="control", candidate=7, knobs={"threads": 2},
                plain_settings=TWO,
            )
            for n in range(3)
        ]  # fmt: skip
    return found


def test_rows_are_alike_by_what_plain_decoding_reads_of_them() -> None:
    frame = table(rows(control=80))
    plain = frame[~frame["speculative"].astype(bool)]
    assert settings_of(frame[frame["candidate"] == 7]) == TWO
    assert alike(plain, TWO).tolist() == [False] * 3 + [True] * 3
    assert alike(plain, None).all()  # nothing is known of the setting
    assert alike(plain.assign(plain_settings=None), TWO).all()  # nor of plain decoding: rows of an older version
    assert alike(plain.drop(columns="plain_settings"), TWO).all()


@pytest.mark.parametrize(("control", "expected"), [(None, (50.1, False)), (80.0, (80.1, True)), (40.0, (50.1, True))])
def test_the_better_of_baseline_and_own_control_is_to_be_beaten(
    control: float | None, expected: tuple[float, bool]
) -> None:
    frame = table(rows(control=control))
    plain = frame[~frame["speculative"].astype(bool)]
    found = hardest(plain, TWO, plain["decode_tps"].astype(float))
    assert found.rows["decode_tps"].astype(float).mean() == pytest.approx(expected[0])
    assert found.alike is expected[1]


def test_the_table_of_settings_is_over_the_same_reference_and_says_if_it_is_not_alike() -> None:
    alone, beside, unknown = (
        candidate_table(table(found)).set_index("candidate").loc[7]
        for found in (rows(), rows(control=80), rows(own=None))
    )
    assert (alone["speedup"], alone["alike"]) == (pytest.approx(2.0, rel=0.01), False)
    assert (beside["speedup"], beside["alike"]) == (pytest.approx(1.25, rel=0.01), True)
    assert (unknown["speedup"], unknown["alike"]) == (pytest.approx(2.0, rel=0.01), True)
    assert beside["reference"] == pytest.approx(80.1, rel=0.001)


def test_break_even_is_not_known_over_other_settings_and_known_over_the_same() -> None:
    (alone,) = break_even(gather(table(rows()), no_turns(), study()))
    assert alone.status is VerdictStatus.NOT_ENOUGH_DATA
    assert "that ran with threads=1" in alone.statement
    (beside,) = break_even(gather(table(rows(control=80)), no_turns(), study()))
    assert beside.status is VerdictStatus.HOLDS
    assert beside.value == pytest.approx(1.25, rel=0.01)
    # 2.5 tokens a step at 100 tok/s are 25 ms; over 12.5 ms a token of the control it needs 2 tokens, not 1.25
    assert beside.details["needed_length"] == pytest.approx(2.0, rel=0.01)
    (loses,) = break_even(gather(table(rows(control=120)), no_turns(), study()))
    assert loses.status is VerdictStatus.DOES_NOT_HOLD


@pytest.mark.parametrize(
    ("control", "status", "times_plain"),
    [
        (None, VerdictStatus.NOT_ENOUGH_DATA, None),
        (30.0, VerdictStatus.HOLDS, 2.22),
        (120.0, VerdictStatus.HOLDS, 1.25),
    ],
)
def test_what_a_gate_could_give_is_over_the_same_plain_decoding(
    control: float | None, status: VerdictStatus, times_plain: float | None
) -> None:
    # steps of 25 ms, half with 1 token and half with 4; at 50 tok/s (20 ms a token) the first half would take 20 ms:
    # 2.5 tokens in 22.5 ms, 2.22 times plain; at 120 tok/s 8.3 ms: 2.5 tokens in 16.7 ms, 1.25 times
    histogram = {0: 200, 3: 200}
    counted = turns([turn(f"s/{n}", acceptance_histogram=histogram) for n in range(3, 6)])
    (verdict,) = oracle_gate(gather(table(rows(control=control)), counted, study()))
    assert verdict.status is status
    if times_plain is None:
        assert "that ran with threads=1" in verdict.statement
    else:
        assert verdict.details["times_plain"] == pytest.approx(times_plain, rel=0.01)


def blocks(*, with_control: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for block in range(4):
        for role, tps, speculative, settings in (
            ("confirm", 100.0, True, TWO), ("confirm", 50.0, False, ONE), ("control", 99.0, False, TWO),
        ):  # fmt: skip
            if role == "control" and not with_control:
                continue
            knobs = {"threads": 2 if settings == TWO else 1, **({"draft_max": 4} if speculative else {})}
            found.append(
                trial(
                    len(found), tps=tps + block / 10, speculative=speculative, role=role, repeat=block, knobs=knobs,
                    candidate=0 if role == "control" or speculative else None, plain_settings=settings,
                )
            )  # fmt: skip
    return found


def test_a_winner_beats_plain_decoding_only_if_some_of_it_ran_like_the_winner() -> None:
    alone = decide(table(blocks(with_control=False)))
    assert (alone.winner, alone.beats_plain, alone.unlike) == (0, None, ONE)
    assert "2.0" in alone.statement
    assert "times plain decoding with threads=1" in alone.statement
    assert "how much of that is speculation's is not known" in alone.statement
    beside = decide(table(blocks(with_control=True)))
    assert (beside.beats_plain, beside.unlike, beside.apart) == (True, None, {"threads": 2})
    assert beside.speedup is not None
    assert beside.speedup.value == pytest.approx(100.15 / 99.15, rel=0.001)


def test_plain_decoding_that_is_faster_as_it_is_wins_without_an_equal() -> None:
    frame = table(blocks(with_control=False))
    frame.loc[frame["role"].eq("confirm") & ~frame["speculative"].astype(bool), "decode_tps"] = 120.0
    assert decide(frame).beats_plain is False  # plain decoding is faster as it is: nobody has to try it otherwise
