"""Figure: what each axis does to the objective with all else equal. Imports matplotlib, `records`, `report` siblings.

Drawn from the conclusions about axes (id dead_axis): every level's ratio to the reference level with its interval, all
axes on one scale, so that dead axes look dead; the band is what two runs of one setting differ by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dflash_sweep.records import Verdict, VerdictStatus
from dflash_sweep.report import style
from dflash_sweep.report.axis_levels import shown_label, unset_note
from dflash_sweep.report.material import Material, known
from dflash_sweep.report.texts import Texts

MAX_AXES = 12
_BAND = "#ECEFF1"
_COLOURS = {
    VerdictStatus.DOES_NOT_HOLD: style.VERMILION,
    VerdictStatus.HOLDS: style.MUTED,
    VerdictStatus.NOT_ENOUGH_DATA: style.BLUE,
}
"""A dead axis is one whose conclusion holds; one that moves the objective is one whose conclusion does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelEffect:
    """One level: change against the reference in per cent with its interval; None = never compared with it."""

    text: str
    runs: int
    change: float | None
    low: float | None
    high: float | None
    is_reference: bool


def _percent(ratio: Any) -> float | None:
    number = known(ratio)
    return None if number is None else 100.0 * (number - 1.0)


def level_effects(verdict: Verdict) -> list[LevelEffect]:
    """The levels that a conclusion about an axis compared, in its order; empty if it says nothing of levels."""
    levels = verdict.details.get("levels")
    reference = str(verdict.details.get("reference"))
    if not isinstance(levels, list | tuple):
        return []
    found = []
    for level in levels:
        if isinstance(level, Mapping):
            text = str(level.get("value"))
            found.append(
                LevelEffect(
                    text=text, runs=int(level.get("runs") or 0), change=_percent(level.get("ratio")),
                    low=_percent(level.get("ci_low")), high=_percent(level.get("ci_high")),
                    is_reference=text == reference,
                )
            )  # fmt: skip
    return found


def panels(material: Material) -> list[tuple[Verdict, list[LevelEffect]]]:
    """Every axis with a compared level, the largest change first."""
    found = []
    for verdict in material.verdicts:
        levels = level_effects(verdict) if verdict.id == "dead_axis" else []
        if any(level.change is not None for level in levels):
            found.append((verdict, levels))
    return sorted(found, key=lambda item: -max(abs(level.change or 0.0) for level in item[1]))[:MAX_AXES]


def _limits(found: list[tuple[Verdict, list[LevelEffect]]]) -> tuple[float, float]:
    """Room for every change; intervals may reach out of it where they are more than twice as wide as all changes."""
    changes = [level.change for _, levels in found for level in levels if level.change is not None]
    ends = [end for _, levels in found for level in levels for end in (level.low, level.high) if end is not None]
    margins = [100 * (known(verdict.details.get("margin")) or 1.0) - 100 for verdict, _ in found]
    low, high = min(0.0, *changes), max(0.0, *changes)
    reach = 2 * max(high - low, 1.0) + max(margins)
    low, high = max(min(low, *ends, -max(margins)), low - reach), min(max(high, *ends, *margins), high + reach)
    pad = 0.08 * (high - low)
    return low - pad, high + pad


def _panel(axes: Axes, verdict: Verdict, levels: list[LevelEffect], limits: tuple[float, float],
           width_in: float, texts: Texts) -> None:  # fmt: skip
    colour = _COLOURS[verdict.status]
    margin = known(verdict.details.get("margin"))
    if margin is not None:
        axes.axhspan(100 / margin - 100, 100 * margin - 100, color=_BAND, linewidth=0, zorder=0)
    axes.axhline(0, color=style.MUTED, linestyle=":", linewidth=1.0, zorder=1)
    for x, level in enumerate(levels):
        if level.change is None:
            shape, y = ("D", 0.0) if level.is_reference else ("", 0.0)
            axes.plot([x], [y], marker=shape, color=style.INK, markerfacecolor=style.PAPER, markersize=6, zorder=4)
            if not level.is_reference:
                axes.annotate("?", (x, 0.0), ha="center", va="center", fontsize=9, color=style.MUTED)
            continue
        if level.low is not None and level.high is not None:
            style.interval(axes, x, level.low, level.high, limits, colour)
        axes.plot([x], [level.change], marker="o", color=colour, markersize=6, zorder=4,
                  markerfacecolor=style.PAPER if level.runs == 1 else colour)  # fmt: skip
    ticks(axes, [shown_label(level.text, texts) for level in levels], width_in)
    axes.set_title(style.printable(verdict.subject, within_in=2.1, points=9.5, bold=True), pad=15)
    axes.annotate(texts(f"effect.{verdict.status}"), (0, 1), xycoords="axes fraction", xytext=(0, 3),
                  textcoords="offset points", fontsize=8.5, color=colour, fontweight="bold")  # fmt: skip
    style.quiet_grid(axes)


def ticks(axes: Axes, labels: list[str], width_in: float) -> None:
    """Level names under a panel of that width: turned where they would touch, thinned out where they are many."""
    names = [style.printable(label, 14, within_in=0.9, points=8.5) for label in labels]
    step = -(-len(names) // max(2, int(width_in / 0.2)))
    shown = names[::step]
    crowded = sum(style.advance_in(name, 8.5, False) + 0.12 for name in shown) > width_in
    axes.set_xticks(range(0, len(names), step), shown, rotation=35 if crowded else 0,
                    ha="right" if crowded else "center")  # fmt: skip
    axes.set_xlim(-0.5, len(names) - 0.5)


def draw(material: Material, texts: Texts, stamp: style.Stamp) -> Figure | None:
    """The figure; None if no axis has two levels that were compared."""
    found = panels(material)
    if not found:
        return None
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    levels = [level for _, entries in found for level in entries if level.change is not None]
    legend: style.Legend = [(style.marker(style.INK, "D", hollow=True), texts("legend.reference"))]
    if any(level.runs > 1 for level in levels):
        legend.append((style.marker(style.INK), texts("legend.level_change")))
    if any(level.runs == 1 for level in levels):
        legend.append((style.marker(style.INK, hollow=True), texts("legend.one_run")))
    if any(known(verdict.details.get("margin")) is not None for verdict, _ in found):
        legend.append((style.swatch(_BAND, edge=style.FAINT), texts("legend.repeat_band")))
    limits = _limits(found)
    if any(style.beyond(level.low, level.high, limits) for level in levels):
        legend.append((style.marker(style.MUTED, "^"), texts("legend.beyond")))
    see = texts("fig.effects.see", metric=material.axis_label(texts))
    if any(level.change is None and not level.is_reference for _, entries in found for level in entries):
        see += texts("space") + texts("fig.effects.not_compared")
    see += unset_note([level.text for _, entries in found for level in entries], texts)
    figure = style.sheet(stamp, texts("fig.effects.title"), see, body_in=0.3 + 2.0 * rows, legend=legend)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for index, (verdict, entries) in enumerate(found):
        axes = grid[index // columns][index % columns]
        _panel(axes, verdict, entries, limits, 6.9 / columns, texts)
        axes.set_ylim(*limits)
        if index % columns == 0:
            axes.set_ylabel(texts("axis.change"))
    for spare in range(len(found), rows * columns):
        grid[spare // columns][spare % columns].set_axis_off()
    return figure
