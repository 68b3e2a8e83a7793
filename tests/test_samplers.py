"""Every sampler by name: what it can, what it cannot, and the two policies of our own step by step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dflash_sweep.errors import ConfigError
from dflash_sweep.help_page import config_dir
from dflash_sweep.outcomes import Outcome
from dflash_sweep.records import Knobs
from dflash_sweep.samplers import SamplerChoice, check_choice
from dflash_sweep.schema import CHOICES
from dflash_sweep.space import SearchSpace, parse_space
from dflash_sweep.study import Study

SPACE = parse_space({"budget": "choice(8, 16, 22, 32)", "top_k": "choice(1, 2, 4)", "cache": "choice(f16, q8_0)"})
WIDE = parse_space({"budget": "choice(8, 16, 24)", "temp": "interval(0.0, 1.0)"})


def course(
    sampler: str,
    value: Callable[[Knobs], float | None],
    *,
    space: SearchSpace = SPACE,
    count: int = 12,
    start: Knobs | None = None,
    seed: int = 7,
    options: dict[str, object] | None = None,
) -> list[Knobs]:
    """The points that a search asks for; `value` None = the limit is broken there."""
    choice = SamplerChoice(name=sampler, n_startup_trials=3, options=options)
    study = Study("sqlite:///:memory:", "s", space, directions=["maximize"], sampler=choice, seed=seed)
    if start is not None:
        study.enqueue(start)
    known: dict[tuple[tuple[str, str], ...], Outcome | None] = {}
    points: list[Knobs] = []
    while len(points) < count and (asked := study.ask(known)) is not None:
        number, point = asked
        reached = value(point)
        told = Outcome(values=(1e9 if reached is None else reached,), violations={"ttft_ms": float(reached is None)})
        known[study.key(point)] = told
        study.tell(number, told, {})
        points.append(point)
    return points


def number(point: Knobs, name: str) -> float:
    return float(str(point[name]))


@pytest.mark.parametrize("name", [name for name in CHOICES["sampler.name"] if name != "gp"])
def test_every_sampler_searches_and_repeats_itself_by_seed(name: str) -> None:
    options: dict[str, object] | None = {"population_size": 4} if name == "nsga2" else None
    space = parse_space({"budget": "range(8, 40, 8)", "top_k": "range(1, 9)"}) if name == "cmaes" else SPACE

    def best(point: Knobs) -> float:
        return number(point, "budget") + number(point, "top_k")

    if name == "cmaes":
        with pytest.raises(ConfigError, match="CMA-ES takes no constraints; choose tpe, nsga2 or gp"):
            check_choice(SamplerChoice(name=name), space, objectives=1, constrained=True)
        return
    one = course(name, best, space=space, options=options)
    two = course(name, best, space=space, options=options)
    assert one == two
    assert len({str(point) for point in one}) == len(one) == 12


@pytest.mark.parametrize("name", CHOICES["sampler.name"])
def test_every_sampler_has_its_configuration(name: str) -> None:
    assert f"name: {name}\n" in (config_dir() / "sampler" / f"{name}.yaml").read_text()


@pytest.mark.parametrize(("name", "package"), [("gp", "torch"), ("cmaes", "cmaes")])
def test_a_sampler_without_its_package_says_how_to_get_it(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    said = rf"sampler\.name={name} needs {package}, which is not installed: pip install 'dflash-sweep\[{name}\]'"
    with pytest.raises(ConfigError, match=said):
        check_choice(SamplerChoice(name=name), SPACE, objectives=1, constrained=False)


@pytest.mark.parametrize(
    ("choice", "space", "objectives", "said"),
    [
        (SamplerChoice(name="cmaes"), SPACE, 2, "CMA-ES takes no several objectives"),
        (SamplerChoice(name="grid"), WIDE, 1, "space.temp is continuous and cannot be enumerated"),
        (SamplerChoice(name="hillclimb", options={"x": 1}), SPACE, 1, "sampler hillclimb takes none, got x"),
        (SamplerChoice(name="nsga2", options={"population_size": 1}), SPACE, 1, "greater than or equal to 2"),
        (SamplerChoice(name="nope"), SPACE, 1, "sampler.name=nope: not known; allowed: tpe"),
    ],
)
def test_what_a_sampler_cannot_do_is_one_line(
    choice: SamplerChoice, space: SearchSpace, objectives: int, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_choice(choice, space, objectives=objectives, constrained=False)
    assert said in str(caught.value)


# ---------------------------------------------------------------- grid


def test_the_grid_goes_through_the_space_in_its_written_order() -> None:
    points = course("grid", lambda point: 1.0, count=99)
    assert points == list(SPACE.points())
    assert [tuple(point.values()) for point in points[:3]] == [(8, 1, "f16"), (8, 1, "q8_0"), (8, 2, "f16")]


def test_the_grid_passes_over_what_was_measured_first() -> None:
    start: Knobs = {"budget": 8, "top_k": 1, "cache": "q8_0"}
    points = course("grid", lambda point: 1.0, count=99, start=start)
    assert points == [start, *(point for point in SPACE.points() if point != start)]


# ---------------------------------------------------------------- hill climbing

START: Knobs = {"budget": 16, "top_k": 2, "cache": "f16"}


def steps_between(one: Knobs, other: Knobs) -> dict[str, int]:
    """Axes that differ, with the number of steps on their axis (1 for an axis without order)."""
    found = {}
    for axis in SPACE.axes:
        values = list(axis.values or ())
        if one[axis.name] != other[axis.name]:
            away = abs(values.index(one[axis.name]) - values.index(other[axis.name]))
            found[axis.name] = away if axis.ordered else 1
    return found


def test_it_changes_one_axis_by_one_step_and_keeps_what_is_better() -> None:
    def value(point: Knobs) -> float:
        return number(point, "budget") + 3 * number(point, "top_k") + (point["cache"] == "q8_0")

    points = course("hillclimb", value, count=9, start=START)
    kept = points[0]
    assert kept == START
    for point in points[1:]:
        assert list(steps_between(kept, point).values()) == [1]
        if value(point) > value(kept):
            kept = point
    # from anywhere the top is 2 + 1 + 1 steps away, and each axis can be tried wrongly at most once or twice before
    assert value(kept) > value(START)


def test_it_goes_on_the_way_that_paid() -> None:
    """After a step on the budget was kept, the next proposal is a further step the same way."""
    points = course("hillclimb", lambda point: number(point, "budget"), count=12, start=START)
    budgets = [number(point, "budget") for point in points]
    first = budgets.index(22)
    assert budgets[first + 1] == 32


def test_it_never_keeps_what_breaks_a_limit() -> None:
    points = course(
        "hillclimb", lambda point: None if point["cache"] == "q8_0" else number(point, "budget"),
        count=8, start=START,
    )  # fmt: skip
    kept = START
    for point in points[1:]:
        assert list(steps_between(kept, point).values()) == [1]
        if point["cache"] == "f16" and number(point, "budget") > number(kept, "budget"):
            kept = point


def test_it_starts_anew_where_every_neighbour_was_tried() -> None:
    flat = course("hillclimb", lambda point: float(point == START), count=24, start=START)
    # 16 has two neighbours, top_k 2 has two, the cache type one: 5 neighbours, all worse
    assert all(len(steps_between(START, point)) == 1 for point in flat[1:6])
    assert len({str(point) for point in flat}) == 24  # and then everywhere else


def test_it_begins_with_the_first_values_where_nobody_names_a_start() -> None:
    (first, *_) = course("hillclimb", lambda point: 1.0, count=2)
    assert first == {"budget": 8, "top_k": 1, "cache": "f16"}


def test_a_continuous_axis_is_walked_in_tenths() -> None:
    start: Knobs = {"budget": 16, "temp": 0.5}
    points = course("hillclimb", lambda point: number(point, "temp"), space=WIDE, count=12, start=start)
    temps = [number(point, "temp") for point in points]
    temps = temps[: temps.index(max(temps)) + 1]  # what follows is a fresh start anywhere
    assert max(temps) == pytest.approx(1.0)
    assert all(0.0 <= temp <= 1.0 for temp in temps)
    assert {round(10 * temp, 6) % 1 for temp in temps} == {0.0}
