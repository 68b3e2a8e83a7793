"""The candidates grouped by one axis's values, for figures of axes. Imports `records`, `report` siblings.

A level's mean is over candidates (each once, however often it ran) with the other axes as they were sampled; its
interval is Student's t over those candidates. A continuous axis is cut into at most five groups of equal count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from dflash_sweep.records import UNSET, KnobValue
from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.material import Material, mean_of, spread
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.wording import knob_value

MAX_LEVELS = 8
_CONTINUOUS_GROUPS = 5
USUAL_SHARE = 0.6
MIN_FOR_INTERVAL = 3
"""Two candidates that differ in other axes too say nothing about a level's spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One value (or range) of an axis and what its candidates did. `low`, `high` None below three candidates."""

    label: str
    values: tuple[KnobValue, ...]
    candidates: tuple[Candidate, ...]
    mean: float
    low: float | None
    high: float | None


Measure = Callable[[Candidate], float | None]


def _level(label: str, values: tuple[KnobValue, ...], members: list[Candidate], figure: Measure) -> Level | None:
    numbers = [value for entry in members if (value := figure(entry)) is not None]
    mean = mean_of(numbers)
    if mean is None:
        return None
    low, high = spread(numbers) if len(numbers) >= MIN_FOR_INTERVAL else (None, None)
    return Level(label=label, values=values, candidates=tuple(members), mean=mean, low=low, high=high)


def _sort_key(value: KnobValue, order: tuple[KnobValue, ...]) -> tuple[int, float, str]:
    if value in order:
        return 0, float(order.index(value)), ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 1, float(value), ""
    return 2, 0.0, str(value)


def is_ordered(material: Material, name: str) -> bool:
    """Whether an axis's values have an order: declared so, or all of them numbers."""
    axis = material.axis(name)
    if axis is not None and (axis.ordered or axis.kind in ("int", "float")):
        return True
    values = {entry.knobs.get(name) for entry in material.candidates} - {None}
    return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def usual_candidates(material: Material) -> tuple[Candidate, ...]:
    """Candidates with the most common setting of the switches (flags and choices), if that is most of them; else all.

    A switch such as a rollback mode changes what the numeric axes do: means across it would show the switch instead.
    """
    switches = [name for name in material.varied if not is_ordered(material, name)]
    keys = [repr([entry.knobs.get(name) for name in switches]) for entry in material.candidates]
    if not keys:
        return ()
    usual, count = Counter(keys).most_common(1)[0]
    if count < USUAL_SHARE * len(keys):
        return material.candidates
    return tuple(entry for entry, key in zip(material.candidates, keys, strict=True) if key == usual)


def levels(material: Material, name: str, figure: Measure) -> list[Level]:
    """The levels of one axis in order of size (ordered axes) or as declared; levels without a figure are left out.

    Ordered axes are looked at among the usual candidates only.
    """
    axis = material.axis(name)
    order = axis.values if axis is not None and axis.values is not None else ()
    by_value: dict[tuple[type, KnobValue], list[Candidate]] = {}
    for entry in usual_candidates(material) if is_ordered(material, name) else material.candidates:
        value = entry.knobs.get(name)
        by_value.setdefault((bool if isinstance(value, bool) else object, value), []).append(entry)
    keys = sorted(by_value, key=lambda key: _sort_key(key[1], order))
    if len(keys) > MAX_LEVELS and is_ordered(material, name):
        return _binned(keys, by_value, figure)
    found = [_level(knob_value(key[1]), (key[1],), by_value[key], figure) for key in keys]
    return [level for level in found if level is not None]


def _binned(
    keys: list[tuple[type, KnobValue]], by_value: dict[tuple[type, KnobValue], list[Candidate]], figure: Measure
) -> list[Level]:
    numeric = [key for key in keys if key[1] is not None]
    found = []
    for part in np.array_split(np.arange(len(numeric)), _CONTINUOUS_GROUPS):
        chosen = [numeric[index] for index in part]
        if not chosen:
            continue
        values = tuple(value for _, value in chosen)
        label = f"{_short(values[0])}–{_short(values[-1])}" if len(values) > 1 else _short(values[0])
        found.append(_level(label, values, [entry for key in chosen for entry in by_value[key]], figure))
    found += [_level(knob_value(None), (None,), by_value[key], figure) for key in keys if key[1] is None]
    return [level for level in found if level is not None]


def shown_label(label: str, texts: Texts) -> str:
    """A level's name under a picture."""
    return texts("unset") if label == UNSET else label


def unset_note(labels: Iterable[str], texts: Texts) -> str:
    """What an unset level is, where one of these is; to be put after a picture's other words."""
    return texts("space") + texts("fig.unset") if UNSET in labels else ""


def _short(value: KnobValue) -> str:
    return f"{value:.3g}" if isinstance(value, float) else knob_value(value)
