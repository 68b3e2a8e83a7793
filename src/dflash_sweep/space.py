"""The search space: axes written in Hydra's own sweep grammar, as pure data. Imports `records` and `errors`.

choice(16, 22, 32)              one of these values
range(1, 9) / range(1, 9, 2)    whole steps, upper end left out, as in Hydra
interval(0.1, 1.0)              any number between
tag(log, interval(1e-4, 1.0))   the same on a logarithmic scale

A YAML list is a choice too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from dflash_sweep.errors import ConfigError
from dflash_sweep.records import AxisInfo, Knobs, KnobValue

GRAMMAR = "choice(a, b, …), range(start, stop[, step]), interval(low, high) or tag(log, interval(low, high))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One knob to search. Either `values` (finite) or `low`/`high` (continuous; `log` = logarithmic scale)."""

    name: str
    values: tuple[KnobValue, ...] | None = None
    low: float | None = None
    high: float | None = None
    log: bool = False

    @property
    def ordered(self) -> bool:
        """True if the values are numbers, so that neighbours mean something."""
        return self.values is None or (len(self.values) > 1 and all(_is_number(value) for value in self.values))

    @property
    def allowed(self) -> str:
        """Its values in words."""
        if self.values is None:
            return f"{self.low:g} to {self.high:g}"
        return ", ".join(str(value) for value in self.values)

    def contains(self, value: KnobValue) -> bool:
        """True if a point may hold this value on this axis."""
        if self.values is not None:
            return any(value == allowed and type(value) is type(allowed) for allowed in self.values)
        return _is_number(value) and self.low <= value <= self.high  # type: ignore[operator]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """All axes, in the order of the configuration."""

    axes: tuple[Axis, ...]

    @property
    def size(self) -> int | None:
        """Number of points; None if an axis is continuous."""
        if any(axis.values is None for axis in self.axes):
            return None
        return math.prod(len(axis.values or ()) for axis in self.axes)

    def points(self) -> Iterator[Knobs]:
        """Every point of a finite space, last axis fastest. Raises ValueError for a continuous one."""
        if self.size is None:
            raise ValueError("a continuous space cannot be enumerated")
        for values in itertools.product(*(axis.values or () for axis in self.axes)):
            yield dict(zip((axis.name for axis in self.axes), values, strict=True))


def _is_number(value: KnobValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parse(name: str, text: str) -> Override:
    try:
        return OverridesParser.create().parse_override(f"{name}={text}")
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"space.{name}: cannot read {text!r} ({reason}); allowed: {GRAMMAR}") from error


def _plain(name: str, value: object) -> KnobValue:
    if value == "default":
        return None
    text = getattr(value, "text", None)  # Hydra's QuotedString
    if text is not None:
        value = text
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(f"space.{name}: {value!r} is not a single value; allowed: {GRAMMAR}")


def _range_values(name: str, sweep: RangeSweep) -> tuple[KnobValue, ...]:
    start, stop, step = sweep.start, sweep.stop, sweep.step
    if start is None or stop is None or step == 0:
        raise ConfigError(f"space.{name}: a range needs a start, a stop and a step that is not 0")
    values = tuple(sweep.range())
    if not values:
        raise ConfigError(f"space.{name}: range({start}, {stop}, {step}) is empty; the upper end is left out")
    return tuple(round(value, 12) if isinstance(value, float) else value for value in values)


def _interval(name: str, text: str, sweep: IntervalSweep) -> Axis:
    low, high, log = float(sweep.start or 0.0), float(sweep.end or 0.0), "log" in sweep.tags
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or (log and low <= 0):
        raise ConfigError(f"space.{name}: {text} needs low < high{' and low > 0 for a log scale' if log else ''}")
    return Axis(name=name, low=low, high=high, log=log)


def _check_tags(name: str, text: str, value: object) -> None:
    """A tag that would change nothing is an error: a log scale belongs to an interval of real numbers."""
    tags = set(getattr(value, "tags", None) or ())
    real = isinstance(value, IntervalSweep) and not (isinstance(value.start, int) and isinstance(value.end, int))
    if tags - ({"log"} if real else set()):
        raise ConfigError(f"space.{name}: {text} has a tag without effect; only tag(log, interval(low, high)) has one")


def parse_axis(name: str, text: object) -> Axis:
    """One line of the space section → an axis; a bare value is an axis of one value. Raises ConfigError."""
    values: tuple[KnobValue, ...]
    if isinstance(text, list | tuple):
        return _finite_axis(name, text, tuple(_plain(name, item) for item in text))
    if not isinstance(text, str):
        return _finite_axis(name, text, (_plain(name, text),))
    value = _parse(name, text).value()
    _check_tags(name, text, value)
    if isinstance(value, IntervalSweep):
        if not (isinstance(value.start, int) and isinstance(value.end, int)):
            return _interval(name, text, value)
        values = tuple(range(value.start, value.end + 1))
    elif isinstance(value, RangeSweep):
        values = _range_values(name, value)
    elif isinstance(value, ChoiceSweep):
        values = tuple(_plain(name, item) for item in value.list)
    else:
        values = (_plain(name, value),)
    return _finite_axis(name, text, values)


def _finite_axis(name: str, text: object, values: tuple[KnobValue, ...]) -> Axis:
    if not values:
        raise ConfigError(f"space.{name}: {text} has no value; allowed: {GRAMMAR}")
    if any(isinstance(item, float) and not math.isfinite(item) for item in values):
        raise ConfigError(f"space.{name}: {text} has a value that is not finite")
    if len({(type(item), item) for item in values}) < len(values):
        raise ConfigError(f"space.{name}: {text} names a value twice")
    return Axis(name=name, values=values)


def parse_space(section: Mapping[str, object]) -> SearchSpace:
    """The whole `space` section. Raises ConfigError naming the axis."""
    return SearchSpace(axes=tuple(parse_axis(name, text) for name, text in section.items()))


def axis_info(axis: Axis, kind: str, unit: str, doc: str, active_when: str | None = None) -> AxisInfo:
    """An axis as reports see it: values in order of size where they have one."""
    values = tuple(sorted(axis.values)) if axis.values is not None and axis.ordered else axis.values  # type: ignore[type-var]
    return AxisInfo(
        name=axis.name,
        kind=kind,
        values=values,
        low=axis.low,
        high=axis.high,
        ordered=axis.ordered,
        unit=unit,
        doc=doc,
        active_when=active_when,
    )
