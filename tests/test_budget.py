"""What a study may cost, over all of its runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash_sweep.budget import Budget, stored_hours
from dflash_sweep.records import StoredTrial
from fakes.builders import make_result, make_stored


def ran(number: int, start: str, wall_s: float | None) -> StoredTrial:
    result = replace(make_result(), started_utc=f"2026-01-01T{start}+00:00" if start else "", wall_s=wall_s)
    return make_stored(number, result=result)


def test_hours_are_those_in_which_anything_ran() -> None:
    # 10:00–10:30 and 10:15–10:45 at once, 12:00–12:15 later: 45 + 15 minutes
    trials = [ran(2, "12:00:00", 900), ran(0, "10:00:00", 1800), ran(1, "10:15:00", 1800)]
    assert stored_hours(trials) == pytest.approx(1.0)
    assert stored_hours([ran(0, "", 900), ran(1, "10:00:00", None)]) == 0.0
    assert stored_hours([]) == 0.0


def budget(now_s: float = 0.0, **limits: float | None) -> Budget:
    defaults: dict[str, float | None] = {"hours": None, "money": None, "price_per_hour": None}
    return Budget(**{**defaults, "devices": 2, "spent_hours": 1.0, **limits}, clock=lambda: now_s)  # type: ignore[arg-type]


def test_earlier_hours_count() -> None:
    assert budget(3600 * 0.9, hours=2.0).spent() is None
    assert budget(3600 * 1.0, hours=2.0).spent() == "the budget of 2 h is spent"


def test_money_is_hours_times_devices_times_price() -> None:
    # 2 devices at 1.50 an hour: 9 in money last 3 h, of which 1 is spent
    rented = {"money": 9.0, "price_per_hour": 1.5}
    assert budget(3600 * 1.9, **rented).spent() is None
    assert budget(3600 * 1.9, **rented).used_money() == pytest.approx(8.7)
    assert budget(3600 * 2.0, **rented).spent() == (
        "the budget of 9 in money is spent (2 device(s) at 1.5 an hour for 3 h)"
    )


def test_the_limit_that_comes_first_is_named() -> None:
    both = {"money": 9.0, "price_per_hour": 1.5, "hours": 2.0}
    assert budget(3600 * 1.0, **both).spent() == "the budget of 2 h is spent"


def test_no_limit_is_never_spent() -> None:
    assert budget(1e12, price_per_hour=3.0).spent(1e9) is None


def test_a_reserve_is_kept_back_but_never_more_than_half() -> None:
    # of 3 h 1 is spent: half an hour of reserve ends the search after 1.5 h more; a reserve of 9 h is cut to 1.5 h
    said = "the budget of 3 h is spent but for what the confirm phase needs"
    assert budget(3600 * 1.4, hours=3.0).spent(0.5) is None
    assert budget(3600 * 1.5, hours=3.0).spent(0.5) == said
    assert budget(3600 * 0.4, hours=3.0).spent(9.0) is None
    assert budget(3600 * 0.5, hours=3.0).spent(9.0) == said
