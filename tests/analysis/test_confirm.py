"""The confirm decision: a winner only where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dflash_sweep.analysis.confirm import decide, look_alpha
from dflash_sweep.analysis.evidence import gather
from dflash_sweep.analysis.ledger import keep_discard
from dflash_sweep.records import VerdictStatus
from fakes.trial_tables import no_turns, noisy, study, table, trial


def blocks(
    rng: np.random.Generator, speeds: list[float], plain: float | None, count: int, sd: float = 0.03, **fields: Any
) -> pd.DataFrame:
    """`count` interleaved blocks; each has its own level (drift), which the pairing must take out."""
    rows: list[dict[str, Any]] = []
    for block in range(count):
        level = float(rng.uniform(0.7, 1.3))
        for number, speed in enumerate(speeds):
            tps = noisy(rng, level * speed, sd)
            rows.append(
                trial(
                    len(rows),
                    tps=tps,
                    knobs={"budget": number},
                    candidate=number,
                    role="confirm",
                    repeat=block,
                    **fields,
                )
            )
        if plain is not None:
            rows.append(
                trial(len(rows), tps=noisy(rng, level * plain, sd), speculative=False, role="confirm", repeat=block)
            )
    return table(rows)


def test_a_clear_winner_is_named_with_its_speedup() -> None:
    found = decide(blocks(np.random.default_rng(0), [100, 80, 82], 50, 5))
    assert found.outcome == "winner"
    assert found.winner == 0
    assert found.contenders == (0,)
    assert found.beats_plain is True
    assert found.speedup is not None
    assert found.speedup.low is not None
    assert found.speedup.high is not None
    assert found.speedup.low < 2.0 < found.speedup.high
    assert found.finished
    assert "Winner: candidate 0 (budget=0)" in found.statement


def test_equal_settings_are_not_told_apart_and_the_cheapest_is_named() -> None:
    frame = blocks(np.random.default_rng(1), [100, 100, 60], 50, 5)
    frame["peak_memory_mib"] = frame["candidate"].map({0: 9000.0, 1: 8000.0, 2: 7000.0})
    found = decide(frame)
    assert found.outcome == "not_distinguishable"
    assert set(found.contenders) == {0, 1}
    assert found.cheapest == 1
    assert found.cheapest_by == "peak memory"
    assert found.winner is None
    assert "these 2 settings" in found.statement


def test_plain_decoding_can_win() -> None:
    found = decide(blocks(np.random.default_rng(2), [30, 25], 50, 6))
    assert found.beats_plain is False
    assert "slower than plain decoding" in found.statement


def test_one_finalist_wins_only_against_plain_decoding() -> None:
    found = decide(blocks(np.random.default_rng(10), [100], 100, 4))
    assert found.finalists == 1
    assert found.beats_plain is None
    verdict = next(
        v
        for v in keep_discard(gather(blocks(np.random.default_rng(10), [100], 100, 4), no_turns(), study()))
        if v.subject == "winner"
    )
    assert verdict.status is VerdictStatus.NOT_ENOUGH_DATA


def test_a_faster_card_makes_no_winner() -> None:
    rng = np.random.default_rng(9)
    rows: list[dict[str, Any]] = []
    for block in range(6):
        for number, speed in ((0, 100.0), (1, 100.0)):
            card = "slow" if number == 0 and block < 4 else "fast"  # setting 0 ran on the slow card more often
            tps = noisy(rng, speed * (1.2 if card == "fast" else 1.0), 0.01)
            fields: dict[str, Any] = {"role": "confirm", "candidate": number, "repeat": block, "device_uuid": card}
            rows.append(trial(len(rows), tps=tps, knobs={"budget": number}, **fields))
    assert decide(table(rows)).outcome == "not_distinguishable"


def test_smaller_can_be_better() -> None:
    found = decide(blocks(np.random.default_rng(3), [100, 60], 80, 6), direction="minimize")
    assert found.winner == 1
    assert found.beats_plain is True


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_blocks_decide_nothing(count: int) -> None:
    found = decide(blocks(np.random.default_rng(4), [100, 50], 50, count))
    assert found.outcome == "not_enough_data"
    assert not found.finished


def test_failed_runs_leave_their_block_out() -> None:
    frame = blocks(np.random.default_rng(5), [100, 50], 40, 4)
    frame.loc[frame["repeat"] == 3, "failure_kind"] = "crashed"
    found = decide(frame)
    assert found.blocks == 3
    assert found.winner == 0


def test_all_looks_together_spend_the_level_once() -> None:
    for planned in (3, 4, 8, 20):
        shares = [look_alpha(look, planned) for look in range(2, planned + 1)]
        assert sum(shares) == pytest.approx(0.05)
        assert shares == sorted(shares)  # early looks need stronger evidence
    assert look_alpha(5, None) == 0.05


def test_a_study_that_could_go_on_says_so() -> None:
    rng = np.random.default_rng(6)
    assert not decide(blocks(rng, [100, 100], 100, 3), planned_blocks=8).finished
    assert decide(blocks(rng, [100, 100], 100, 8), planned_blocks=8).finished
    assert decide(blocks(rng, [200, 100], 50, 5, sd=0.005), planned_blocks=8).finished


@pytest.mark.slow
def test_equal_finalists_seldom_give_a_winner_though_looked_at_after_each_block() -> None:
    rng = np.random.default_rng(7)
    false = 0
    for _ in range(40):
        frame = blocks(rng, [100, 100], 100, 4)
        false += any(
            decide(frame[frame["repeat"] < count], planned_blocks=4).outcome == "winner" for count in (2, 3, 4)
        )
    assert false <= 6  # 5 % of 40 is 2; P(X > 6) is 0.3 %


def controlled(speed: float, control: float, plain: float) -> pd.DataFrame:
    """Six blocks of one finalist with two threads, plain decoding with one and with two."""
    rng, rows = np.random.default_rng(5), list[dict[str, Any]]()
    for block in range(6):
        for role, tps, knobs in (
            ("confirm", speed, {"threads": 2, "draft_max": 4}),
            ("confirm", plain, {"threads": 1}),
            ("control", control, {"threads": 2}),
        ):
            speculative = "draft_max" in knobs
            rows.append(
                trial(
                    len(rows),
                    tps=noisy(rng, tps, 0.01),
                    knobs=knobs,
                    speculative=speculative,
                    role=role,
                    candidate=0 if speculative or role == "control" else None,
                    repeat=block,
                )
            )
    return table(rows)


def test_a_gain_of_more_threads_is_no_gain_of_speculation() -> None:
    # 100 against 50 with one thread, but plain decoding with the same two threads makes 110
    found = decide(controlled(100, 110, 50))
    assert found.control == {"threads": 2}
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(100 / 110, rel=0.02)
    assert found.beats_plain is False
    assert "times plain decoding with threads=2" in found.statement


def test_the_faster_way_of_plain_decoding_is_the_one_to_beat() -> None:
    # a second thread slows plain decoding down: the finalist must beat it as it is best
    found = decide(controlled(100, 30, 80))
    assert found.control is None
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(100 / 80, rel=0.02)
    assert found.beats_plain is True


def test_controls_are_pooled_neither_with_the_baseline_nor_with_their_finalist() -> None:
    known = gather(controlled(100, 110, 50), no_turns(), study())
    assert (len(known.plain), len(known.ranked)) == (6, 6)


# ---------------------------------------------------------------- devices


def on_devices(
    rng: np.random.Generator, speeds: dict[tuple[str, str], list[float]], count: int, sd: float = 0.02
) -> pd.DataFrame:
    """`count` blocks on each device (name, id) → speeds of its candidates; plain decoding runs at half the first one's.

    `repeat` numbers block and device together, as the confirm phase does.
    """
    rows: list[dict[str, Any]] = []
    for block in range(count):
        for place, ((name, uuid), own) in enumerate(speeds.items()):
            fields: dict[str, Any] = {
                "role": "confirm", "repeat": block * len(speeds) + place, "device": name, "device_uuid": uuid,
                "comparability_key": f"k {name}",
            }  # fmt: skip
            for number, speed in enumerate(own):
                knobs = {"budget": number}
                rows.append(trial(len(rows), tps=noisy(rng, speed, sd), knobs=knobs, candidate=number, **fields))
            rows.append(trial(len(rows), tps=noisy(rng, own[0] / 2, sd), speculative=False, **fields))
    return table(rows)


def test_devices_of_different_names_are_judged_each_by_itself() -> None:
    """One card likes candidate 0, the other candidate 1: pooled, neither would win, and no figure would be true."""
    frame = on_devices(np.random.default_rng(1), {("Small", "GPU-a"): [50, 40], ("Big", "GPU-b"): [100, 140]}, count=4)
    found = decide(frame, planned_blocks=4)
    assert found.winner is None
    assert found.value is None
    assert {name: own.winner for name, own in found.devices} == {"Small": 0, "Big": 1}
    assert "On Small: Winner: candidate 0" in found.statement
    assert "On Big: Winner: candidate 1" in found.statement
    assert all(own.blocks == 4 for _, own in found.devices)
    gains = {name: own.speedup.value for name, own in found.devices if own.speedup is not None}
    assert gains == {"Small": pytest.approx(2.0, rel=0.1), "Big": pytest.approx(2.8, rel=0.1)}


def test_the_same_winner_on_all_devices_is_the_winner() -> None:
    frame = on_devices(np.random.default_rng(1), {("Small", "GPU-a"): [50, 40], ("Big", "GPU-b"): [140, 100]}, count=4)
    found = decide(frame, planned_blocks=4)
    assert (found.outcome, found.winner, found.beats_plain, found.finished) == ("winner", 0, True, True)


def test_two_cards_of_one_name_are_blocks_of_their_own() -> None:
    """One card is 20 % slower: that is no difference between settings, whatever the order of the runs."""
    cards = {("Card", "GPU-a"): [100.0, 96.0], ("Card", "GPU-b"): [80.0, 76.8]}
    found = decide(on_devices(np.random.default_rng(2), cards, count=6, sd=0.01), planned_blocks=6)
    assert found.devices == ()
    assert found.blocks == 12  # six planned ones on each of two cards
    assert found.winner == 0
    assert found.alpha == pytest.approx(look_alpha(12, 12, 0.05, step=2))


def test_looks_after_several_cards_spend_alpha_once() -> None:
    assert sum(look_alpha(look, 8, 0.05, step=2) for look in (2, 4, 6, 8)) == pytest.approx(0.05)
