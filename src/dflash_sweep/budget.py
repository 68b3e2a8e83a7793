"""What a study may cost in hours and money, counted over all of its runs. Imports `records` only.

Hours are those in which a driver worked on the study: the earlier ones' by their stored trials (from the first start to
the last end of trials that overlap), this one's by its clock. Money is hours × devices × price.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from dflash_sweep.records import StoredTrial

RESERVE = 1 / 2
"""Most of a budget that the search leaves to the confirm phase: without it no winner could be named."""


def stored_hours(trials: Iterable[StoredTrial]) -> float:
    """Hours in which at least one of these trials ran; trials at the same time count once."""
    spans = sorted(span for trial in trials if (span := _span_s(trial)) is not None)
    total = end = 0.0
    for begin, until in spans:
        total += max(0.0, until - max(begin, end))
        end = max(end, until)
    return total / 3600


def _span_s(trial: StoredTrial) -> tuple[float, float] | None:
    """When a trial ran, in seconds since 1970; None where it does not say."""
    result = trial.result
    if result.wall_s is None or not result.started_utc:
        return None
    begin = datetime.fromisoformat(result.started_utc)
    begin = begin if begin.tzinfo else begin.replace(tzinfo=UTC)
    return begin.timestamp(), begin.timestamp() + result.wall_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """`hours` and `money` None = no limit. `spent_hours`: those of earlier drivers; `began`: `clock` at the start."""

    hours: float | None
    money: float | None
    price_per_hour: float | None
    devices: int
    spent_hours: float = 0.0
    began: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def used_hours(self) -> float:
        """Hours so far, earlier drivers' included."""
        return self.spent_hours + (self.clock() - self.began) / 3600

    def used_money(self) -> float | None:
        """Money so far; None without a price."""
        return None if self.price_per_hour is None else self.used_hours() * self.devices * self.price_per_hour

    def _limit_hours(self) -> tuple[float, str] | None:
        """The limit that is reached first, in hours, and its name; None = no limit."""
        limits = []
        if self.hours is not None:
            limits.append((self.hours, f"the budget of {self.hours:g} h is spent"))
        if self.money is not None and self.price_per_hour:
            hours = self.money / (self.price_per_hour * self.devices)
            words = (
                f"the budget of {self.money:g} in money is spent ({self.devices} device(s) at {self.price_per_hour:g} "
                f"an hour for {hours:.3g} h)"
            )
            limits.append((hours, words))
        return min(limits, default=None)

    def spent(self, reserve_hours: float = 0.0) -> str | None:
        """Which budget is spent, in words; None = none is. `reserve_hours` are kept back, RESERVE of it at most."""
        limit = self._limit_hours()
        if limit is None:
            return None
        hours, words = limit
        used = self.used_hours()
        if used >= hours:
            return words
        kept = min(reserve_hours, RESERVE * hours)
        return f"{words} but for what the confirm phase needs" if used + kept >= hours else None
