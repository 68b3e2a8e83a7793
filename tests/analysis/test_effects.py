"""Axis effects, dead axes, sweet spots and saturation on tables whose truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep.analysis import axis_verdicts
from dflash_sweep.analysis import levels as levels_room
from dflash_sweep.analysis.effects import AxisEffect, axis_effects
from dflash_sweep.analysis.evidence import Evidence, gather
from dflash_sweep.analysis.interactions import _identified, interaction_verdicts, interactions
from dflash_sweep.analysis.levels import axis_table, prepare
from dflash_sweep.analysis.rows import numbers, with_keys
from dflash_sweep.records import VerdictStatus
from fakes.trial_tables import no_turns, noisy, study, table, trial

VALUES: dict[str, tuple[Any, ...]] = {
    "budget": (8, 16, 24, 32, 40),
    "temp": (0.1, 0.5, 0.7, 0.9),
    "seed": (True, False),
    "kv": ("f16", "q8_0", "q4_0"),
}


def speed(knobs: dict[str, Any]) -> float:
    """Truth: budget below 24 costs 15 %, temp below 0.7 costs 10 %; seed and kv do nothing."""
    return 100 * (0.85 if knobs["budget"] < 24 else 1) * (0.9 if knobs["temp"] < 0.7 else 1)


def random_search(seed: int, count: int, sd: float = 0.02) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for _ in range(count):
        knobs = {name: values[int(rng.integers(len(values)))] for name, values in VALUES.items()}
        rows.append(trial(len(rows), tps=noisy(rng, speed(knobs), sd), knobs=knobs))
    first = {name: values[0] for name, values in VALUES.items()}
    rows += [trial(len(rows) + i, tps=noisy(rng, speed(first), sd), knobs=first) for i in range(5)]
    return table(rows)


def one_at_a_time(seed: int, sd: float = 0.02) -> pd.DataFrame:
    """A search that changes one knob from a base point, each value twice, the base eight times."""
    rng = np.random.default_rng(seed)
    base = {"budget": 32, "temp": 0.7, "seed": True, "kv": "f16"}
    points = [base] * 8 + [{**base, name: v} for name, vs in VALUES.items() for v in vs if v != base[name]] * 2
    return table([trial(i, tps=noisy(rng, speed(p), sd), knobs=p) for i, p in enumerate(points)])


def judged(frame: pd.DataFrame) -> tuple[dict[str, AxisEffect], Evidence]:
    evidence = gather(frame, no_turns(), study())
    return {effect.name: effect for effect in axis_effects(evidence)}, evidence


@pytest.mark.parametrize("frame", [random_search(0, 80), one_at_a_time(0)], ids=["random", "one at a time"])
def test_moving_and_dead_axes_are_told_apart(frame: pd.DataFrame) -> None:
    effects, _ = judged(frame)
    assert {name: effect.status for name, effect in effects.items()} == {
        "budget": "moves",
        "temp": "moves",
        "seed": "dead",
        "kv": "dead",
    }


def test_the_size_of_an_effect_is_found_with_its_interval() -> None:
    effects, _ = judged(random_search(1, 120))
    budget = effects["budget"]
    reference = budget.rows.levels[budget.reference].text
    small = next(code for code, level in enumerate(budget.rows.levels) if level.text == "8")
    assert reference in ("24", "32", "40", "16", "8")
    if reference in ("24", "32", "40"):
        ratio = budget.ratios[small]
        assert ratio.low is not None
        assert ratio.high is not None
        assert ratio.low < 0.85 < ratio.high


def test_a_sweet_spot_is_an_interval_of_values() -> None:
    effects, evidence = judged(random_search(2, 120))
    spots = {v.subject: v for v in axis_verdicts.sweet_spot(list(effects.values()), evidence)}
    assert spots["budget"].status is VerdictStatus.HOLDS
    assert (spots["budget"].ci_low, spots["budget"].ci_high) == (24, 40)
    assert (spots["temp"].ci_low, spots["temp"].ci_high) == (0.7, 0.9)
    assert set(spots) == {"budget", "temp"}  # flags and names have no order


def test_saturation_needs_an_acceptance_length_that_stops_rising() -> None:
    rng = np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    for budget in (8, 16, 24, 32, 40):
        length = min(budget, 24) / 8  # rises to 24, then flat
        for _ in range(4):
            tps = noisy(rng, 50 * length, 0.02)
            rows.append(
                trial(len(rows), tps=tps, knobs={"budget": budget, "kv": "f16"}, verify_steps=int(1000 / length))
            )
    rows += [trial(len(rows), tps=150, knobs={"budget": 24, "kv": "q8_0"}, verify_steps=333)]
    effects, evidence = judged(table(rows))
    (verdict,) = [v for v in axis_verdicts.saturation(list(effects.values()), evidence) if v.subject == "budget"]
    assert verdict.status is VerdictStatus.HOLDS
    assert verdict.details["knee"] == 24
    # said of the value that the objective was compared at, and no more of the acceptance length than was shown
    assert verdict.statement.startswith("budget: above 24 more brings nothing")
    assert "no further rise is sure" in verdict.statement


def test_an_axis_that_moves_the_acceptance_only_is_undecided_not_dead() -> None:
    rng = np.random.default_rng(4)
    rows = [
        trial(i, tps=noisy(rng, 100, 0.03), knobs={"n_ctx": ctx}, verify_steps=400 if ctx == 65536 else 420)
        for i, ctx in enumerate([65536] * 8 + [32768] * 4)
    ]
    effects, evidence = judged(table(rows))
    assert effects["n_ctx"].status == "undecided"
    (verdict,) = axis_verdicts.dead_axis(list(effects.values()), evidence)
    assert verdict.status is VerdictStatus.NOT_ENOUGH_DATA
    assert "acceptance length differs" in verdict.statement


def test_few_noisy_rows_are_undecided() -> None:
    rng = np.random.default_rng(5)
    rows = [trial(i, tps=noisy(rng, 100, 0.2), knobs={"budget": 8 * (1 + i % 2)}) for i in range(6)]
    effects, _ = judged(table(rows))
    assert effects["budget"].status in ("undecided", "dead")
    assert effects["budget"].status != "moves"


def test_axes_that_do_not_add_up_are_named() -> None:
    rng = np.random.default_rng(6)
    rows: list[dict[str, Any]] = []
    for _ in range(90):
        knobs = {
            "budget": int(rng.choice([8, 16, 32])),
            "temp": float(rng.choice([0.3, 0.7])),
            "kv": str(rng.choice(["a", "b"])),
        }
        truth = 100 * (1.3 if knobs["budget"] == 32 and knobs["temp"] == 0.7 else 1.0)  # only together
        rows.append(trial(len(rows), tps=noisy(rng, truth, 0.02), knobs=knobs))
    effects, evidence = judged(table(rows))
    first, *rest = interactions(list(effects.values()), evidence)
    assert set(first.axes) == {"budget", "temp"}
    assert first.ratio.low is not None
    assert first.ratio.high is not None
    assert first.ratio.low < 1.3 < first.ratio.high
    assert all(other.p_adjusted > 0.005 for other in rest)
    (verdict,) = interaction_verdicts(list(effects.values()), evidence)
    assert "Choose their values together" in verdict.statement


def test_knobs_that_change_together_are_one_axis() -> None:
    rows = [trial(i, knobs={"cache_type_k": kv, "cache_type_v": kv}) for i, kv in enumerate(["f16", "q8_0"] * 3)]
    assert axis_table(with_keys(table(rows))).names == ("cache_type_k + cache_type_v",)


def test_matched_rows_differ_in_nothing_else() -> None:
    rows = [
        trial(0, tps=100, knobs={"a": 1, "b": 1}),
        trial(1, tps=110, knobs={"a": 2, "b": 1}),
        trial(2, tps=999, knobs={"a": 3, "b": 2}),  # no partner: nothing can be said about a = 3
    ]
    frame = with_keys(table(rows))
    found = prepare(axis_table(frame), "a", numbers(frame, "decode_tps"), matched=True)
    assert found is not None
    assert [level.text for level in found.levels] == ["1", "2"]
    assert list(found.places) == [0, 1]


@given(st.integers(0, 10_000), st.integers(2, 40), st.lists(st.integers(1, 6), min_size=1, max_size=4), st.booleans())
def test_what_is_left_beside_indicator_columns_is_that_of_least_squares(
    seed: int, count: int, levels: list[int], trend: bool
) -> None:
    """Dummies of several factors are never independent: their ranks and residuals are those of a full decomposition."""
    rng = np.random.default_rng(seed)
    parts = [np.ones((count, 1)), *(np.eye(size)[rng.integers(size, size=count)] for size in levels)]
    if trend:
        x = np.linspace(-1, 1, count)
        parts.append(np.column_stack([x, x**2]))
    matrix, y = np.hstack(parts), rng.normal(size=count)
    found = levels_room._projection(matrix)
    expected = y - matrix @ np.linalg.lstsq(matrix, y, rcond=1e-9)[0]
    assert found.rank == np.linalg.matrix_rank(matrix, tol=1e-6)
    assert found.residual(y) == pytest.approx(expected, abs=1e-6)


def test_levels_that_cannot_be_compared_are_named_too() -> None:
    # 8 and 16 differ in nothing else; 32 and unset always come with another temp; kv z only with a temp of its own
    knobs: list[dict[str, Any]] = [{"budget": b, "temp": 0.5, "kv": kv} for b in (8, 16) for kv in "xy"] * 3
    knobs += [{"budget": 32, "temp": 0.7, "kv": "z"}, {"budget": None, "temp": 0.9, "kv": "z"}]
    rows = table([trial(i, tps=100.0 + i % 5, knobs=own) for i, own in enumerate(knobs)])
    evidence = gather(rows, no_turns(), study())
    found = {verdict.subject: verdict for verdict in axis_verdicts.dead_axis(axis_effects(evidence), evidence)}
    levels = {
        name: [(level["value"], level["runs"], level["ratio"] is None) for level in found[name].details["levels"]]
        for name in ("budget", "kv")
    }
    assert levels["budget"] == [("8", 6, True), ("16", 6, False), ("32", 1, True), ("unset", 1, True)]
    assert levels["kv"] == [("x", 6, True), ("y", 6, False), ("z", 2, True)]


def test_many_levels_that_cannot_be_compared_are_put_together() -> None:
    knobs: list[dict[str, Any]] = [{"budget": b, "temp": 0.5} for b in (50, 60)] * 4
    knobs += [{"budget": b, "temp": float(b)} for b in range(100, 130)] + [{"budget": 10, "temp": 10.0}]
    rows = with_keys(table([trial(i, tps=100.0 + i % 5, knobs=own) for i, own in enumerate(knobs)]))
    made, speeds = axis_table(rows), numbers(rows, "decode_tps")
    kept = prepare(made, "budget", speeds, matched=True)
    assert kept is not None
    assert [(level.text, n) for level, n in levels_room.left_out(made, kept, speeds)] == [("10", 1), ("100–129", 30)]


def test_an_interaction_that_another_axis_moved_along_with_is_not_told() -> None:
    a = np.array([0, 0, 1, 1, 0, 0, 1, 1], dtype=float)
    b = np.array([0, 1, 0, 1, 0, 1, 0, 1], dtype=float)
    columns = [np.ones(8), a, b, a * b]
    assert _identified(columns, (a * b).reshape(-1, 1)) is None  # the other axis is the pair's corner itself
    free = np.array([0, 0, 0, 0, 1, 1, 1, 1], dtype=float)
    design = _identified(columns, np.column_stack([free, 1 - free, a]))
    assert design is not None
    assert design.tolist() == np.column_stack([*columns, free]).tolist()  # the rest adds nothing
    assert _identified(columns, None) is not None
