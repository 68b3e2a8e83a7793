"""Axes come out of Hydra's grammar as typed values; what is wrong is said in one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep.errors import ConfigError
from dflash_sweep.records import KnobValue
from dflash_sweep.space import Axis, SearchSpace, axis_info, parse_axis, parse_space


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("choice(16, 22, 32)", (16, 22, 32)),
        ("16,22", (16, 22)),
        ("choice(true, false)", (True, False)),
        ("choice(q8_0, f16)", ("q8_0", "f16")),
        ("choice('on', 'off')", ("on", "off")),
        ("choice(on, off)", ("on", "off")),  # Hydra's grammar, unlike YAML, keeps these words
        ("choice(default, 4)", (None, 4)),
        ("choice(0.5, 1)", (0.5, 1)),
        ("range(1, 9, 4)", (1, 5)),  # the upper end is left out
        ("range(0, 1, 0.3)", (0.0, 0.3, 0.6, 0.9)),
        ("int(interval(1, 4))", (1, 2, 3, 4)),
        (22, (22,)),
        ("f16", ("f16",)),
        ("'3:1'", ("3:1",)),
        ("choice('1,1', '3,1')", ("1,1", "3,1")),  # quoted, a comma is part of the value
        ([8, 16], (8, 16)),  # a YAML list
        ([0.5, "default"], (0.5, None)),
    ],
)
def test_finite_axes(text: object, values: tuple[KnobValue, ...]) -> None:
    axis = parse_axis("x", text)
    assert axis.values == values
    assert [type(value) for value in axis.values] == [type(value) for value in values]


def test_continuous_axes() -> None:
    assert parse_axis("t", "interval(0.1, 1)") == Axis(name="t", low=0.1, high=1.0)
    assert parse_axis("t", "tag(log, interval(1e-4, 1))") == Axis(name="t", low=1e-4, high=1.0, log=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("choice(1", "cannot read 'choice(1'"),
        ("choice(1, 1)", "names a value twice"),
        ("range(3, 3)", "is empty"),
        ("interval(1.0, 0.5)", "needs low < high"),
        ("tag(log, interval(0.0, 1.0))", "low > 0 for a log scale"),
        ("choice([1, 2], 3)", "is not a single value"),
        ([[1, 2], 3], "is not a single value"),
        ([], "has no value"),
        ([4, 4], "names a value twice"),
        ("choice(nan, 1)", "not finite"),
        (float("inf"), "not finite"),
        ("tag(log, int(interval(1, 64)))", "a tag without effect"),  # never a scale that is silently another
        ("tag(log, range(1, 64, 4))", "a tag without effect"),
        ("tag(log, choice(1, 2))", "a tag without effect"),
    ],
)
def test_wrong_axes_are_named(text: object, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_axis("budget", text)
    assert str(caught.value).startswith("space.budget: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_range_holds_only_values_that_can_be_reached() -> None:
    # 1, 5 … 29: the next step would be 33. Reports show this end, not the one that was written.
    info = axis_info(parse_axis("n", "range(1, 33, 4)"), "int", "tokens", "drafted at most")
    assert info.values == (1, 5, 9, 13, 17, 21, 25, 29)


def test_points_of_a_finite_space() -> None:
    space = parse_space({"a": "choice(1, 2)", "b": "choice(x, y, z)"})
    points = list(space.points())
    assert space.size == len(points) == 6
    assert points[0] == {"a": 1, "b": "x"}
    assert points[1] == {"a": 1, "b": "y"}


def test_a_continuous_space_has_no_points() -> None:
    space = parse_space({"a": "choice(1, 2)", "t": "interval(0.1, 1.0)"})
    assert space.size is None
    with pytest.raises(ValueError, match="cannot be enumerated"):
        next(space.points())


def test_a_number_is_not_a_truth_value() -> None:
    axis = parse_axis("chain_seed", "choice(true, false)")
    assert axis.contains(True)
    assert not axis.contains(1)
    assert not axis.ordered


def test_reports_see_numbers_in_order() -> None:
    info = axis_info(parse_axis("budget", "choice(40, 8, 22)"), "int", "nodes", "most nodes")
    assert info.values == (8, 22, 40)
    assert info.ordered


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=20, unique=True))
def test_any_integers_survive(values: list[int]) -> None:
    assert parse_axis("x", f"choice({', '.join(map(str, values))})").values == tuple(values)


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=4, unique=True), st.integers(1, 4))
def test_size_is_the_number_of_points(names: list[str], width: int) -> None:
    space = SearchSpace(axes=tuple(Axis(name=name, values=tuple(range(width))) for name in names))
    assert space.size == len(list(space.points())) == width ** len(names)
