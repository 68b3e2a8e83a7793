"""Figure: peak memory against the tree budget, and what did not fit. Imports matplotlib, `report` siblings."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dflash_sweep.analysis.rows import is_plain
from dflash_sweep.errors import FailureKind
from dflash_sweep.frames import KNOB_PREFIX
from dflash_sweep.report import style
from dflash_sweep.report.material import Material, known
from dflash_sweep.report.texts import Texts

AXIS = "budget"


def _located(rows: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Rows with a number on the axis, that number in column `at`."""
    column = KNOB_PREFIX + axis
    if column not in rows.columns:
        return rows.iloc[0:0].assign(at=[])
    at = [known(value) if not isinstance(value, bool) else None for value in rows[column]]
    placed = rows.assign(at=pd.Series(at, index=rows.index, dtype=float))
    return placed[placed["at"].notna()]


def device_mib(material: Material) -> int | None:
    """The device's memory where all devices of the study agree on it; None otherwise."""
    sizes = {trial.result.device.memory_mib for trial in material.stored}
    return sizes.pop() if len(sizes) == 1 else None


def _fit(axes: Axes, x: pd.Series, y: pd.Series, texts: Texts) -> None:
    slope, start = np.polyfit(x, y, 1)
    ends = np.asarray([x.min(), x.max()])
    axes.plot(ends, start + slope * ends, color=style.ORANGE, linewidth=1.4, zorder=2)
    axes.annotate(texts("fig.memory.slope", slope=f"{slope:.1f}"), (ends[1], start + slope * ends[1]), xytext=(-4, 7),
                  textcoords="offset points", ha="right", fontsize=8)  # fmt: skip


def draw(material: Material, texts: Texts, stamp: style.Stamp) -> Figure | None:
    """The figure; None if neither peak memory nor an out-of-memory failure is known along the budget axis."""
    rows = _located(material.own[~is_plain(material.own)], AXIS)
    good = rows[rows["peak_memory_mib"].notna() & rows["failure_kind"].isna()]
    oom = rows[rows["failure_kind"] == str(FailureKind.OUT_OF_MEMORY)]
    if good.empty:
        return None
    limit = device_mib(material)
    trend = good["at"].nunique() > 2
    legend: style.Legend = [(style.marker(style.BLUE), texts("legend.run"))]
    if trend:
        legend.append((style.line(style.ORANGE), texts("legend.trend")))
    if not oom.empty:
        legend.append((style.marker(style.VERMILION, "x"), texts("legend.oom", count=len(oom))))
    if limit is not None:
        legend.append((style.line(style.PLAIN, "--"), texts("legend.device_memory")))
    figure = style.sheet(stamp, texts("fig.memory.title"), texts("fig.memory.see"), body_in=3.0, legend=legend)
    axes = figure.subplots()
    x, y = good["at"].astype(float), good["peak_memory_mib"].astype(float)
    axes.plot(x, y, marker="o", color=style.BLUE, markersize=5, linestyle="", zorder=3)
    if trend:
        _fit(axes, x, y, texts)
    top = max(float(y.max()), float(limit or 0))
    if limit is not None:
        axes.axhline(limit, color=style.PLAIN, linestyle="--", linewidth=1.3)
    if not oom.empty:
        axes.plot(oom["at"], [top] * len(oom), marker="x", color=style.VERMILION, markersize=8, markeredgewidth=1.8,
                  linestyle="", zorder=4)  # fmt: skip
        for at, count in oom["at"].value_counts(sort=False).items():
            axes.annotate(f"×{count}", (float(str(at)), top), xytext=(7, 3), textcoords="offset points", fontsize=8,
                          color=style.VERMILION)  # fmt: skip
    spread = top - float(y.min())
    axes.set_ylim(float(y.min()) - 0.12 * spread - 1, top + 0.12 * spread + 1)
    axes.set_xlabel(texts("axis.budget"))
    axes.set_ylabel(texts("axis.peak_memory_mib"))
    style.quiet_grid(axes)
    return figure
