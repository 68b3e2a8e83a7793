"""A ratio told as a change in percent. Pure; imports `intervals` only."""

from __future__ import annotations

from dflash_sweep.analysis.intervals import Interval


def percent(ratio: float) -> str:
    """A ratio as a change: 1.031 → "+3.1 %"; no "-0.0"."""
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %"


def change_words(interval: Interval) -> str:
    """A change with its interval: "−4.8 % [-6.1, -3.5]"."""
    if interval.low is None or interval.high is None:
        return f"{percent(interval.value)} (no interval)"
    low, high = (round(100 * (end - 1), 1) + 0.0 for end in (interval.low, interval.high))
    return f"{percent(interval.value)} [{low:+.1f}, {high:+.1f}]"
