"""Figure: the objective and the acceptance length along each ordered axis, with the sweet spot.

Imports matplotlib, `report` siblings. Means are over candidates with the other axes as they were sampled; what
holds when all else is equal is the business of `axis_effects`.
"""

from __future__ import annotations

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
_VALUE_LOOK, _AL_LOOK = (style.BLUE, "o"), (style.GREEN, "s")
"""Colour and shape of the means."""
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


def _interval_mark(axes: Axes, x: float, level: Level, colour: str, shape: str = "o") -> None:
    if level.low is not None and level.high is not None:
        axes.vlines(x, level.low, level.high, color=colour, linewidth=1.8, zorder=3)
    axes.plot([x], [level.mean], marker=shape, color=colour, markersize=6, zorder=4,
              markerfacecolor=colour if level.low is not None else style.PAPER)  # fmt: skip


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


def _curve(axes: Axes, entries: list[Level], measure_of: str, look: tuple[str, str], width_in: float,
           texts: Texts) -> None:  # fmt: skip
    colour, shape = look
    for x, level in enumerate(entries):
        values = [value for entry in level.candidates if (value := getattr(entry, measure_of)) is not None]
        offsets = (np.arange(len(values)) * _GOLDEN % 1 - 0.5) * 0.32  # spread out without an order of their own
        axes.plot(x + offsets, values, marker=".", color=style.FAINT, markeredgecolor=style.MUTED,
                  markeredgewidth=0.4, markersize=5, linestyle="", zorder=1)  # fmt: skip
        _interval_mark(axes, x, level, colour, shape)
    joined = [(x, level.mean) for x, level in enumerate(entries) if level.values != (None,)]  # unset has no place in it
    axes.plot(*zip(*joined, strict=True), color=colour, linewidth=1.2, zorder=2)
    ticks(axes, [shown_label(level.label, texts) for level in entries], width_in)
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
    figure = style.sheet(stamp, texts("fig.curves.title"), see, body_in=4.4, legend=legend)
    grid = figure.subplots(2, len(panels), sharey="row", squeeze=False)
    for column, (name, entries) in enumerate(panels):
        top, bottom = grid[0][column], grid[1][column]
        _curve(top, entries, "value", _VALUE_LOOK, 6.6 / len(panels), texts)
        lower = levels(material, name, _al)
        if lower:
            _curve(bottom, lower, "acceptance_length", _AL_LOOK, 6.6 / len(panels), texts)
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
    grid[0][0].set_ylim(*_limits(panels, "value"))
    if any(entry.acceptance_length is not None for entry in material.candidates):
        grid[1][0].set_ylim(*_limits(panels, "acceptance_length"))
    grid[0][0].set_ylabel(material.axis_label(texts))
    grid[1][0].set_ylabel(texts("axis.al_short"))
    return figure
