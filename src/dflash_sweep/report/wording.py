"""Numbers and settings as people read them. Imports `records` only; None is always a dash, never 0 or nan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from dflash_sweep.records import UNSET, KnobValue

DASH = "—"


def number(value: float | None, digits: int = 4) -> str:
    """A figure with `digits` significant digits and at most three decimals; None or not finite → a dash."""
    if value is None or not math.isfinite(value):
        return DASH
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{value:.0f}"
    if value == 0 or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.0f}"
    if abs(value) < 0.0005:
        return "0.000"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(decimals, 3)}f}"


def rate(value: float | None) -> str:
    """A rate in tok/s or a time in ms: two decimals below 100, one above."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"


def interval(low: float | None, high: float | None, unit: str = "") -> str:
    """ "9.94 to 11.9 tok/s"; a dash where either end is unknown."""
    if low is None or high is None:
        return DASH
    text = f"[{rate(low)}, {rate(high)}]"
    return f"{text} {unit}".rstrip()


def factor(value: float | None) -> str:
    """A speed-up: "1.23×"."""
    return DASH if value is None or not math.isfinite(value) else f"{value:.2f}×"


def knob_value(value: KnobValue) -> str:
    """One setting's value as people write it; None = not given, see records.UNSET."""
    if value is None:
        return UNSET
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def knob_text(knobs: Mapping[str, KnobValue], names: Iterable[str] | None = None, joiner: str = "  ") -> str:
    """Settings on one line: "budget=22  chain_seed=true". `names` picks and orders them.

    Knobs without a value (dead in this setting, or the engine's own) are left out, unless there is nothing else to say.
    """
    chosen = list(knobs) if names is None else list(names)
    given = [name for name in chosen if knobs.get(name) is not None]
    return joiner.join(f"{name}={knob_value(knobs.get(name))}" for name in given or chosen)


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """ "1 run", "3 runs"."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"
