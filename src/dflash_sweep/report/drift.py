"""Figure: whether the machine changed while the study ran. Imports matplotlib, `report` siblings."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dflash_sweep.analysis.rows import is_plain
from dflash_sweep.report import style
from dflash_sweep.report.material import Material, spread
from dflash_sweep.report.texts import Texts


def elapsed_h(started_utc: pd.Series) -> pd.Series | None:
    """Hours since the first start; None unless every row has a readable time."""
    times = pd.to_datetime(started_utc, utc=True, errors="coerce", format="ISO8601")
    if times.isna().any() or times.empty:
        return None
    hours: pd.Series = (times - times.min()).dt.total_seconds() / 3600
    return hours


def time_unit(hours: pd.Series) -> tuple[pd.Series, str]:
    """The same times in minutes where the study took less than three hours, and the key of the axis's name."""
    return (hours * 60, "axis.minutes") if hours.max() < 3 else (hours, "axis.hours")


def draw(material: Material, texts: Texts, stamp: style.Stamp) -> Figure | None:
    """Plain-decoding runs over the study's time with their trend; None below two of them."""
    rows = material.ranked
    plain = rows[is_plain(rows)].sort_values("number")
    if len(plain) < 2:
        return None
    hours = elapsed_h(plain["started_utc"])
    timed = hours is not None and hours.max() > 0
    x, x_name = time_unit(hours) if hours is not None and timed else (plain["number"].astype(float), "axis.trial")
    y = plain["value"].astype(float)
    mean = float(y.mean())
    low, high = spread(list(y))
    legend: style.Legend = []
    canary = plain["role"] == "canary"
    marks = [(~canary, "D", "role.baseline"), (canary, "s", "role.canary")]
    legend += [(style.marker(style.PLAIN, shape), texts(key)) for chosen, shape, key in marks if chosen.any()]
    legend.append((style.swatch("#DCE9F5"), texts("legend.mean_interval")))
    trend = len(plain) > 2 and float(np.ptp(x)) > 0
    if trend:
        legend.append((style.line(style.VERMILION), texts("legend.trend")))
    figure = style.sheet(stamp, texts("fig.drift.title"), texts("fig.drift.see"), body_in=2.7, legend=legend)
    axes = figure.subplots()
    if low is not None and high is not None:
        axes.axhspan(low, high, color="#DCE9F5", linewidth=0, zorder=0)
    axes.axhline(mean, color=style.BLUE, linewidth=1.0, zorder=1)
    for chosen, shape, _ in marks:
        axes.plot(x[chosen], y[chosen], marker=shape, color=style.PLAIN, markersize=6, linestyle="", zorder=3)
    if trend:
        slope, start = np.polyfit(x, y, 1)
        ends = np.asarray([x.min(), x.max()])
        axes.plot(ends, start + slope * ends, color=style.VERMILION, linewidth=1.6, zorder=2)
    reach = max(float((y - mean).abs().max()) * 1.3, 0.03 * mean)
    axes.set_ylim(mean - reach, mean + reach)
    axes.set_xlabel(texts(x_name))
    axes.set_ylabel(material.axis_label(texts))
    style.quiet_grid(axes)
    return figure
