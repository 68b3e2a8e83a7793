"""Figure: the objective trial after trial, with the best so far, plain decoding, and the failures in their place.

Imports matplotlib, `report` siblings.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dflash_sweep.analysis.rows import failed as failed_rows
from dflash_sweep.analysis.rows import is_plain, stopped_early
from dflash_sweep.report import style
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts

ROLE_MARKS: tuple[tuple[str, str, str], ...] = (
    ("search", "o", style.BLUE),
    ("confirm", "^", style.GREEN),
    ("rerun", "v", style.PURPLE),
    ("calibrate", "P", style.SKY),
    ("canary", "s", style.PLAIN),
    ("control", "X", style.PLAIN),
    ("baseline", "D", style.PLAIN),
)
"""Role, marker, colour: the same in every figure that tells roles apart."""


def role_group(rows: pd.DataFrame, role: str) -> pd.DataFrame:
    """Good runs of one role; plain-decoding runs count as baseline whatever phase they ran in, canaries apart. A best
    candidate that was measured again during the search counts as search."""
    good = rows[rows["value"].notna()]
    plain, canary = is_plain(good), good["role"] == "canary"
    if role == "baseline":
        return good[plain & ~canary]
    if role == "canary":
        return good[plain & canary]
    return good[~plain & ((good["role"] == role) | (canary if role == "search" else False))]


def _best_so_far(axes: Axes, rows: pd.DataFrame, larger_is_better: bool) -> None:
    good = rows[rows["value"].notna() & ~is_plain(rows)]
    if len(good) > 1:
        sign = 1.0 if larger_is_better else -1.0
        best = sign * np.maximum.accumulate(sign * good["value"].astype(float))
        axes.step(good["number"], best, where="post", color=style.ORANGE, linewidth=1.8, zorder=2)


def _at_the_foot(axes: Axes, rows: pd.DataFrame, shape: str, colour: str) -> None:
    """Runs without a figure, in their place along the axis."""
    axes.plot(rows["number"], [0.03] * len(rows), marker=shape, color=colour, linestyle="", markersize=6,
              markeredgewidth=1.5, zorder=5, transform=axes.get_xaxis_transform())  # fmt: skip


def draw(material: Material, texts: Texts, stamp: style.Stamp) -> Figure | None:
    """The figure; None if no trial has a rate."""
    rows = material.own
    failed = material.trials[failed_rows(material.trials)]
    stopped = material.trials[stopped_early(material.trials)]
    groups = [(role, shape, colour, role_group(rows, role)) for role, shape, colour in ROLE_MARKS]
    groups = [group for group in groups if not group[3].empty]
    if not groups:
        return None
    legend: style.Legend = [(style.marker(colour, shape), texts(f"role.{role}")) for role, shape, colour, _ in groups]
    legend.append((style.line(style.ORANGE), texts("legend.best_so_far")))
    if not failed.empty:
        legend.append((style.marker(style.VERMILION, "x"), texts("legend.failed", count=len(failed))))
    if not stopped.empty:
        legend.append((style.marker(style.BLUE, "_"), texts("legend.stopped", count=len(stopped))))
    baseline = material.baseline
    if baseline is not None:
        legend.append((style.line(style.PLAIN, "--"), texts("legend.plain_mean")))
    figure = style.sheet(stamp, texts("fig.history.title"), texts("fig.history.see"), body_in=3.4, legend=legend)
    axes = figure.subplots()
    for _, shape, colour, group in groups:
        axes.plot(group["number"], group["value"].astype(float), marker=shape, color=colour, linestyle="",
                  markersize=5, markeredgecolor=style.PAPER, markeredgewidth=0.5, zorder=3)  # fmt: skip
    _best_so_far(axes, rows, material.larger_is_better)
    if baseline is not None and baseline.value is not None:
        axes.axhline(baseline.value, color=style.PLAIN, linestyle="--", linewidth=1.3, zorder=1)
    axes.margins(y=0.10)
    _at_the_foot(axes, failed, "x", style.VERMILION)
    _at_the_foot(axes, stopped, "_", style.BLUE)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(texts("axis.trial"))
    axes.set_ylabel(material.axis_label(texts))
    style.quiet_grid(axes)
    return figure
