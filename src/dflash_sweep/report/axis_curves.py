"""Figure: the objective and the acceptance length along each ordered axis, with the sweet spot.

Imports matplotlib, `report` siblings. Means are over candidates with the other axes as they were sampled; what
holds when all else is equal is the business of `axis_effects`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dflash_sweep.records import KnobValue, VerdictStatus
from dflash_sweep.report import style
from dflash_sweep.report.axis_effects import ticks
from dflash_sweep.report.axis_levels import Level, is_ordered, levels, shown_label, unset_note, usual_candidates
from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts

MAX_AXES = 12
_GOLDEN = (5**0.5 - 1) / 2


def _value(entry: Candidate) -> float | None:
    return entry.value


def _al(entry: Candidate) -> float | None:
    return entry.acceptance_length


def _axis_names(material: Material) -> list[str]:
    named = [axis.name for axis in material.study.axes]
    return [*named, *(name for name in material.varied if name not in named)]


def axis_means(material: Material) -> list[tuple[str, list[Level]]]:
    """Every axis that took two values or more, the one with the widest range of level means first."""
    found = [(name, levels(material, name, _value)) for name in _axis_names(material)]
    found = [(name, entries) for name, entries in found if len(entries) > 1]
    return sorted(found, key=lambda item: -_span(item[1]))[:MAX_AXES]


def _span(entries: list[Level]) -> float:
    means = [level.mean for level in entries]
    return max(means) - min(means)


def _within(value: KnobValue, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _sweet(material: Material, name: str, entries: list[Level]) -> tuple[int, int] | None:
    """First and last position inside the sweet spot of a conclusion that holds; None if there is none."""
    verdict = material.verdict("sweet_spot", name)
    if (
        verdict is None
        or verdict.status is not VerdictStatus.HOLDS
        or verdict.ci_low is None
        or verdict.ci_high is None
    ):
        return None
    inside = [
        position for position, level in enumerate(entries)
        if 2 * sum(_within(value, verdict.ci_low, verdict.ci_high) for value in level.values) > len(level.values)
    ]  # fmt: skip
    return (inside[0], inside[-1]) if inside else None


def _limits(panels: list[tuple[str, list[Level]]], measure_of: str) -> tuple[float, float]:
    """Room for every candidate; an interval of few candidates may reach out of it."""
    values = [
        value for _, entries in panels for level in entries for entry in level.candidates
        if (value := getattr(entry, measure_of)) is not None
    ]  # fmt: skip
    pad = max(0.12 * (max(values) - min(values)), 0.02 * max(values))
    return min(values) - pad, max(values) + pad


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """What a row of panels shows: a candidate's attribute, its levels by panel, colour and shape, ends of the scale."""

    measure_of: str
    levels: list[list[Level]]
    look: tuple[str, str]
    limits: tuple[float, float]


def _rows(material: Material, panels: list[tuple[str, list[Level]]]) -> list[_Row]:
    """The objective, and the acceptance length where it is known."""
    found = [_Row(measure_of="value", levels=[entries for _, entries in panels], look=(style.BLUE, "o"),
                  limits=_limits(panels, "value"))]  # fmt: skip
    if any(entry.acceptance_length is not None for entry in material.candidates):
        lower = [levels(material, name, _al) for name, _ in panels]
        found.append(_Row(measure_of="acceptance_length", levels=lower, look=(style.GREEN, "s"),
                          limits=_limits(panels, "acceptance_length")))  # fmt: skip
    return found


def _mark(axes: Axes, x: float, level: Level, row: _Row) -> None:
    colour, shape = row.look
    if level.low is not None and level.high is not None:
        style.interval(axes, x, level.low, level.high, row.limits, colour)
    axes.plot([x], [level.mean], marker=shape, color=colour, markersize=6, zorder=4,
              markerfacecolor=colour if level.low is not None else style.PAPER)  # fmt: skip


def _curve(axes: Axes, entries: list[Level], row: _Row) -> None:
    for x, level in enumerate(entries):
        values = [value for entry in level.candidates if (value := getattr(entry, row.measure_of)) is not None]
        offsets = (np.arange(len(values)) * _GOLDEN % 1 - 0.5) * 0.32  # spread out without an order of their own
        axes.plot(x + offsets, values, marker=".", color=style.FAINT, markeredgecolor=style.MUTED,
                  markeredgewidth=0.4, markersize=5, linestyle="", zorder=1)  # fmt: skip
        _mark(axes, x, level, row)
    joined = [(x, level.mean) for x, level in enumerate(entries) if level.values != (None,)]  # unset has no place in it
    axes.plot(*zip(*joined, strict=True), color=row.look[0], linewidth=1.2, zorder=2)
    axes.set_ylim(*row.limits)
    style.quiet_grid(axes)


def draw(material: Material, texts: Texts, stamp: style.Stamp) -> Figure | None:
    """TPS above, AL below, along each ordered axis with at least three levels (the four widest). None without one."""
    panels = [
        (name, entries) for name, entries in axis_means(material) if len(entries) > 2 and is_ordered(material, name)
    ]
    panels = panels[:4]
    if not panels:
        return None
    sweet = {name: _sweet(material, name, entries) for name, entries in panels}
    legend: style.Legend = [
        (style.marker(style.BLUE), texts("legend.value_mean", unit=material.axis_label(texts))),
        (style.marker(style.GREEN, "s"), texts("legend.al_mean")),
        (style.marker(style.MUTED, "."), texts("legend.candidate")),
    ]
    if any(sweet.values()):
        legend.append((style.swatch("#FBE9C8"), texts("legend.sweet_spot")))
    see, usual = texts("fig.curves.see"), len(usual_candidates(material))
    if usual < len(material.candidates):
        see = f"{see} {texts('fig.usual', count=usual, total=len(material.candidates))}"
    see += unset_note([level.label for _, entries in panels for level in entries], texts)
    rows = _rows(material, panels)
    if any(style.beyond(level.low, level.high, row.limits) for row in rows for each in row.levels for level in each):
        legend.append((style.marker(style.MUTED, "^"), texts("legend.beyond")))
    figure = style.sheet(stamp, texts("fig.curves.title"), see, body_in=4.4, legend=legend)
    grid = figure.subplots(2, len(panels), sharey="row", squeeze=False)
    for column, (name, _) in enumerate(panels):
        top, bottom = grid[0][column], grid[1][column]
        for axes, row in zip((top, bottom), rows, strict=False):
            if entries := row.levels[column]:
                _curve(axes, entries, row)
                ticks(axes, [shown_label(level.label, texts) for level in entries], 6.6 / len(panels))
        if spot := sweet[name]:
            for axes in (top, bottom):
                axes.axvspan(spot[0] - 0.4, spot[1] + 0.4, color="#FBE9C8", zorder=0, linewidth=0)
        top.set_title(style.printable(name, within_in=6.4 / len(panels), points=9.5, bold=True))
        axis = material.axis(name)
        bottom.set_xlabel(
            style.printable(axis.unit, within_in=6.4 / len(panels), points=9.0)
            if axis is not None and axis.unit
            else ""
        )
    grid[0][0].set_ylabel(material.axis_label(texts))
    grid[1][0].set_ylabel(texts("axis.al_short"))
    return figure
