"""Plain decoding in the confirm blocks: by how much the best finalist beats it, and whether the comparison is fair.

Imports `rows`, `intervals`, `flattery`, `likeness`. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dflash_sweep.analysis.flattery import lowered
from dflash_sweep.analysis.intervals import Interval, mean_interval
from dflash_sweep.analysis.likeness import alike, settings_of
from dflash_sweep.analysis.rows import is_plain, knobs_of, value_text
from dflash_sweep.records import Knobs

PLAIN = "plain"
"""The baseline's column in a table of blocks × settings; a control's column is `control <number>`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """What the best finalist has to beat.

    `gain`: its ratio to the better of the baseline and its own controls; None = neither ran beside it. `control`: knobs
    of that rival if it is a control. `unlike`: the settings that all plain decoding ran with where the finalist is
    better and none had its own; None = one had, or it is not known. `beats`: True if every rival is beaten and one of
    them was like the finalist, False if one beats it, None = undecided.
    """

    gain: Interval | None = None
    control: Knobs | None = None
    unlike: str | None = None
    beats: bool | None = None


def rivals(
    table: pd.DataFrame, best: Any, rows: pd.DataFrame, beside: pd.DataFrame, *, level: float, sign: float, luck: float
) -> Rivals:
    """`table`: blocks × settings of signed log figures (see confirm); `rows`: confirm rows; `beside`: control rows.

    Each gain is lowered by `luck`, what chance adds to the best of several on the log scale. The least of several gains
    needs no correction: it claims less than each of them.
    """
    mine = rows[rows["candidate"] == best]
    settings, own = settings_of(mine), knobs_of(mine.iloc[-1])
    plain = rows[is_plain(rows)]
    found: list[tuple[Interval, Knobs | None, bool]] = []
    if (gain := _gain(table, best, PLAIN, level, sign)) is not None:
        found.append((lowered(gain, luck), None, bool(alike(plain, settings).any())))
    for name, control in beside.groupby(beside["candidate"].map(lambda number: f"control {int(number)}"), sort=False):
        same = bool(alike(control, settings).any()) and _shares(knobs_of(control.iloc[-1]), own)
        if same and (gain := _gain(table, best, name, level, sign)) is not None:
            found.append((lowered(gain, luck), knobs_of(control.iloc[-1]), True))
    if not found:
        return Rivals()
    hardest = min(found, key=lambda entry: sign * entry[0].value)
    fair = any(like for _, _, like in found)
    ways = [_beats(gain, sign) for gain, _, _ in found]
    beats = False if False in ways else True if fair and all(ways) else None
    better = hardest[0].value > 1 if sign > 0 else hardest[0].value < 1
    unlike = settings_of(plain) if better and not fair else None
    return Rivals(gain=hardest[0], control=hardest[1], unlike=unlike, beats=beats)


def otherwise(control: Knobs, rows: pd.DataFrame) -> Knobs:
    """Those knobs of a control that the baseline among `rows` has otherwise."""
    plain = rows[is_plain(rows)]
    base = knobs_of(plain.iloc[-1]) if len(plain) else {}
    return {name: value for name, value in control.items() if value_text(base.get(name)) != value_text(value)}


def _shares(control: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether no knob has one value in the control and another in the finalist."""
    return all(own[knob] == value for knob, value in control.items() if own.get(knob) is not None)


def _gain(table: pd.DataFrame, best: Any, rival: Any, level: float, sign: float) -> Interval | None:
    """Ratio of the best to a rival over their common blocks."""
    if rival not in table.columns:
        return None
    pairs = (table[best] - table[rival]).dropna()
    if pairs.empty:
        return None
    logs = mean_interval((sign * pairs).tolist(), level)
    return Interval(
        value=math.exp(logs.value),
        low=None if logs.low is None else math.exp(logs.low),
        high=None if logs.high is None else math.exp(logs.high),
        n=logs.n,
        method=f"paired log ratio over blocks, t, {100 * level:.4g} %" if logs.n > 1 else logs.method,
    )


def _beats(gain: Interval, sign: float) -> bool | None:
    return (gain.value > 1) == (sign > 0) if gain.excludes(1.0) else None
