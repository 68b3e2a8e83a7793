"""Figure: memory against the tree budget, and what did not fit. Imports matplotlib, `report` siblings.

Memory is the device's peak where it was read, else the sum of what the server's log names (model, KV, compute …). Where
neither is known but runs ran out of memory, the figure counts the runs that fit and those that did not.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dflash_sweep.analysis.rows import is_plain, numbers
from dflash_sweep.errors import FailureKind
from dflash_sweep.frames import KNOB_PREFIX, MEMORY_PREFIX
from dflash_sweep.report import style
from dflash_sweep.report.axis_levels import is_ordered
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.wording import knob_value

AXIS = "budget"
MIN_EXPLAINED = 0.9
"""Share of the variance along the axis that a line must explain before its slope is written down."""


def memory_mib(rows: pd.DataFrame) -> tuple[pd.Series, str]:
    """MiB of each row (NaN = not known) and where they come from: peak_memory_mib or logged_memory_mib."""
    peak = numbers(rows, "peak_memory_mib")
    if peak.notna().any():
        return peak, "peak_memory_mib"
    named = [name for name in rows.columns if str(name).startswith(MEMORY_PREFIX)]
    logged = pd.DataFrame({name: numbers(rows, str(name)) for name in named}, index=rows.index)
    total: pd.Series = logged.sum(axis=1, min_count=1) if named else pd.Series(np.nan, index=rows.index)
    return total, "logged_memory_mib"


def axis_of(material: Material) -> str | None:
    """The tree budget where rows have one, else the first ordered axis that varies; None without one."""
    if KNOB_PREFIX + AXIS in material.own.columns:
        return AXIS
    return next((name for name in material.varied if is_ordered(material, name)), None)


def _located(material: Material, axis: str) -> pd.DataFrame:
    """Speculative rows with a number on the axis, in column `at`, and their memory, in column `mib`."""
    rows = material.own[~is_plain(material.own)]
    flags = rows[KNOB_PREFIX + axis].map(lambda value: isinstance(value, bool))
    at = numbers(rows, KNOB_PREFIX + axis).where(~flags)
    placed = rows.assign(at=at, mib=memory_mib(rows)[0])
    return placed[placed["at"].notna()]


def device_mib(material: Material) -> int | None:
    """The device's memory where all devices of the study agree on it; None otherwise."""
    sizes = {trial.result.device.memory_mib for trial in material.stored}
    return sizes.pop() if len(sizes) == 1 else None


def draw(material: Material, texts: Texts, stamp: style.Stamp) -> Figure | None:
    """The figure; None if neither memory nor an out-of-memory failure is known along the axis."""
    axis = axis_of(material)
    if axis is None:
        return None
    rows = _located(material, axis)
    oom = rows[rows["failure_kind"] == str(FailureKind.OUT_OF_MEMORY)]
    good = rows[rows["mib"].notna() & rows["failure_kind"].isna()]
    if good.empty:
        return None if oom.empty else _counts(rows, oom, axis, material, texts, stamp)
    return _scatter(good, oom, axis, material, texts, stamp)


def straight_line(x: pd.Series, y: pd.Series) -> tuple[float, float] | None:
    """Slope and start of the line through the points; None unless it explains nearly all of them.

    Where other settings move the memory too, a slope along this axis alone would be a number that nobody measured.
    """
    if x.nunique() < 3 or float(np.ptp(y)) == 0:
        return None
    slope, start = np.polyfit(x, y, 1)
    left = float(((y - start - slope * x) ** 2).sum())
    explained = 1 - left / float(((y - y.mean()) ** 2).sum())
    return (float(slope), float(start)) if explained >= MIN_EXPLAINED else None


def _line(axes: Axes, x: pd.Series, line: tuple[float, float], axis: str, texts: Texts) -> None:
    slope, start = line
    ends = np.asarray([x.min(), x.max()])
    axes.plot(ends, start + slope * ends, color=style.ORANGE, linewidth=1.4, zorder=2)
    key = "fig.memory.slope" if axis == AXIS else "fig.memory.slope_other"
    axes.annotate(texts(key, slope=f"{slope:.1f}", axis=axis), (ends[1], start + slope * ends[1]), xytext=(-4, 7),
                  textcoords="offset points", ha="right", fontsize=8)  # fmt: skip


def _scatter(
    good: pd.DataFrame, oom: pd.DataFrame, axis: str, material: Material, texts: Texts, stamp: style.Stamp
) -> Figure:
    limit = device_mib(material)
    x, y = good["at"].astype(float), good["mib"].astype(float)
    line = straight_line(x, y)
    legend: style.Legend = [(style.marker(style.BLUE), texts("legend.run"))]
    if line is not None:
        legend.append((style.line(style.ORANGE), texts("legend.trend")))
    if not oom.empty:
        legend.append((style.marker(style.VERMILION, "x"), texts("legend.oom", count=len(oom))))
    if limit is not None:
        legend.append((style.line(style.PLAIN, "--"), texts("legend.device_memory")))
    figure = style.sheet(stamp, texts("fig.memory.title"), texts("fig.memory.see"), body_in=3.0, legend=legend)
    axes = figure.subplots()
    axes.plot(x, y, marker="o", color=style.BLUE, markersize=5, linestyle="", zorder=3)
    if line is not None:
        _line(axes, x, line, axis, texts)
    top = max(float(y.max()), float(limit or 0))
    if limit is not None:
        axes.axhline(limit, color=style.PLAIN, linestyle="--", linewidth=1.3)
    for at, count in oom["at"].value_counts(sort=False).items():
        place = float(str(at))
        axes.plot([place], [top], marker="x", color=style.VERMILION, markersize=8, markeredgewidth=1.8, zorder=4)
        axes.annotate(f"×{count}", (place, top), xytext=(7, 3), textcoords="offset points", fontsize=8,
                      color=style.VERMILION)  # fmt: skip
    reach = top - float(y.min())
    axes.set_ylim(float(y.min()) - 0.12 * reach - 1, top + 0.12 * reach + 1)
    axes.set_xlabel(_axis_label(axis, material, texts))
    axes.set_ylabel(texts(f"axis.{memory_mib(good)[1]}"))
    style.quiet_grid(axes)
    return figure


def _counts(
    rows: pd.DataFrame, oom: pd.DataFrame, axis: str, material: Material, texts: Texts, stamp: style.Stamp
) -> Figure:
    """How many runs fit and how many did not, by value of the axis."""
    legend: style.Legend = [
        (style.swatch(style.SKY), texts("legend.fits")),
        (style.swatch(style.PAPER, "////", style.VERMILION), texts("legend.oom", count=len(oom))),
    ]
    figure = style.sheet(stamp, texts("fig.memory.title"), texts("fig.memory.see_counts"), body_in=2.8, legend=legend)
    axes = figure.subplots()
    values = sorted(set(rows["at"]))
    for x, value in enumerate(values):
        here = rows[rows["at"] == value]
        fits, out = int(here["failure_kind"].isna().sum()), int((oom["at"] == value).sum())
        axes.bar(x, fits, width=0.7, color=style.SKY)
        axes.bar(x, out, bottom=fits, width=0.7, color=style.PAPER, hatch="////", edgecolor=style.VERMILION)
    axes.set_xticks(range(len(values)), [knob_value(float(value)) for value in values])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(_axis_label(axis, material, texts))
    axes.set_ylabel(texts("column.runs"))
    style.quiet_grid(axes)
    return figure


def _axis_label(axis: str, material: Material, texts: Texts) -> str:
    known = material.axis(axis)
    if axis == AXIS:
        return texts("axis.budget")
    return axis if known is None or not known.unit else f"{axis} ({known.unit})"
