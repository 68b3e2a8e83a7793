"""Figure: speed against acceptance length, with curves of equal step time and plain decoding's line.

Imports matplotlib, `report` siblings. On a curve every point has the same step time: TPS = 1000 · AL / step_ms. A
candidate moves right by accepting more and up by stepping faster; above the plain line speculation pays.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dflash_sweep.report import style
from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts

MAX_CURVES = 5
_LABEL_GAP = 0.042
"""Share of the axes' height that a curve's label takes."""


def step_levels(steps_ms: list[float]) -> list[float]:
    """At most MAX_CURVES round step times (ms) that span the given ones."""
    low, high = min(steps_ms), max(steps_ms)
    if high - low < 0.15 * high:
        low, high = 0.7 * low, 1.3 * high
    levels = MaxNLocator(nbins=MAX_CURVES, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(level) for level in levels if level > 0][: MAX_CURVES + 1]


def _limits(points: list[Candidate], plain_tps: float | None) -> tuple[float, float, float, float]:
    x = [entry.acceptance_length or 0.0 for entry in points]
    y = [value for entry in points for value in (entry.tps, entry.tps_low, entry.tps_high) if value is not None]
    y += [] if plain_tps is None else [plain_tps]
    x_pad, y_pad = max(0.12 * (max(x) - min(x)), 0.15), max(0.10 * (max(y) - min(y)), 0.04 * max(y))
    return min(x) - x_pad, max(x) + x_pad, max(0.0, min(y) - y_pad), max(y) + y_pad


def spread_out(heights: list[float], gap: float, low: float, high: float) -> list[float]:
    """Heights in falling order, moved as little as keeps neighbours `gap` apart and, where there is room, all of them
    between `low` and `high`."""
    placed: list[float] = []
    for height in heights:
        placed.append(min(height, placed[-1] - gap if placed else high))
    for place in reversed(range(len(placed))):
        least = low if place == len(placed) - 1 else placed[place + 1] + gap
        placed[place] = max(placed[place], least)
    return placed


def _curves(axes: Axes, points: list[Candidate], limits: tuple[float, float, float, float]) -> None:
    left, right, bottom, top = limits
    steps = [1000 * (entry.acceptance_length or 0) / entry.tps for entry in points if entry.tps]
    grid = np.linspace(left, right, 100)
    at_right: list[tuple[float, str]] = []
    for step_ms in step_levels(steps):
        curve = 1000.0 * grid / step_ms
        inside = (curve >= bottom) & (curve <= top)
        if not inside.any():
            continue
        axes.plot(grid[inside], curve[inside], color=style.MUTED, linewidth=0.8, linestyle=":", zorder=1)
        end = int(np.flatnonzero(inside)[-1])
        if curve[end] <= bottom + 0.97 * (top - bottom):
            at_right.append((float(curve[end]), f"{step_ms:g} ms"))
            continue
        axes.annotate(f"{step_ms:g} ms", (grid[end], curve[end]), xytext=(0, 3), textcoords="offset points",
                      fontsize=8, color=style.MUTED, annotation_clip=False, ha="center", va="bottom")  # fmt: skip
    at_right.sort(reverse=True)
    heights = spread_out([height for height, _ in at_right], _LABEL_GAP * (top - bottom), bottom, top)
    for (height, text), place in zip(at_right, heights, strict=True):
        axes.annotate("", (right, height), xytext=(1.013, place), textcoords=("axes fraction", "data"),
                      annotation_clip=False, arrowprops={"arrowstyle": "-", "color": style.MUTED, "linewidth": 0.6,
                      "shrinkA": 0, "shrinkB": 0})  # fmt: skip
        axes.annotate(text, (1.013, place), xycoords=("axes fraction", "data"), xytext=(2, 0),
                      textcoords="offset points", fontsize=8, color=style.MUTED, annotation_clip=False,
                      va="center")  # fmt: skip


def _points(axes: Axes, points: list[Candidate]) -> None:
    for entry in points:
        if entry.tps is None or entry.acceptance_length is None:
            continue
        colour = style.VERMILION if entry.confirmed else style.BLUE
        if entry.tps_low is not None and entry.tps_high is not None:
            axes.vlines(entry.acceptance_length, entry.tps_low, entry.tps_high, color=colour, linewidth=1.2, zorder=2)
        axes.plot(
            [entry.acceptance_length], [entry.tps], marker="*" if entry.confirmed else "o", color=colour,
            markersize=13 if entry.confirmed else 6, markerfacecolor=colour if entry.n > 1 else style.PAPER,
            markeredgecolor=style.PAPER if entry.confirmed else colour, linestyle="", zorder=3 + entry.confirmed,
        )  # fmt: skip
        if entry.unlike:
            axes.annotate("†", (entry.acceptance_length, entry.tps), xytext=(6, 3), textcoords="offset points",
                          fontsize=9, color=colour)  # fmt: skip


def draw(material: Material, texts: Texts, stamp: style.Stamp) -> Figure | None:
    """The figure; None if no candidate has both a rate and an acceptance length."""
    points = [entry for entry in material.candidates if entry.acceptance_length is not None and entry.tps]
    if not points:
        return None
    baseline = material.baseline
    legend: style.Legend = []
    if any(entry.n > 1 for entry in points):
        legend.append((style.marker(style.BLUE), texts("legend.repeated")))
    if any(entry.n == 1 for entry in points):
        legend.append((style.marker(style.BLUE, hollow=True), texts("legend.single")))
    if any(entry.confirmed for entry in points):
        legend.append((style.marker(style.VERMILION, "*", size=11), texts("legend.winner")))
    if baseline is not None:
        legend.append((style.line(style.PLAIN, "--"), texts("plain")))
    legend.append((style.line(style.MUTED, ":", 1.0), texts("legend.iso_step")))
    see = texts("fig.tradeoff.see")
    if any(entry.unlike for entry in points):
        see = texts("space").join([see, texts("table.settings.unlike", settings=material.plain_settings)])
    figure = style.sheet(stamp, texts("fig.tradeoff.title"), see, body_in=4.1, legend=legend,
                         legend_columns=3)  # fmt: skip
    axes = figure.subplots()
    limits = _limits(points, None if baseline is None else baseline.tps)
    _curves(axes, points, limits)
    _points(axes, points)
    if baseline is not None and baseline.tps is not None:
        axes.axhline(baseline.tps, color=style.PLAIN, linestyle="--", linewidth=1.4, zorder=2)
        if baseline.tps_low is not None and baseline.tps_high is not None:
            axes.axhspan(baseline.tps_low, baseline.tps_high, color=style.PLAIN, alpha=0.12, linewidth=0)
    axes.set_xlim(limits[0], limits[1])
    axes.set_ylim(limits[2], limits[3])
    axes.set_xlabel(texts("axis.al"))
    axes.set_ylabel(texts("axis.decode_tps"))
    style.quiet_grid(axes)
    return figure
