"""Figure: speed by kind of turn (code, tool call, thinking …). Imports matplotlib, `metrics`, `report` siblings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dflash_sweep import metrics
from dflash_sweep.analysis.intervals import Spread, log_mean_interval
from dflash_sweep.report import style
from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.material import Material, known
from dflash_sweep.report.texts import Texts

MAX_CANDIDATES = 3


def bucket_rates(
    turns: pd.DataFrame, uids: tuple[str, ...], spreads: Mapping[str, Spread] | None = None
) -> dict[str, tuple[float, float | None, float | None, int]]:
    """Bucket → (pooled tok/s, interval or None, runs). Turns are pooled within a run; runs give the interval.

    `spreads`: bucket → noise of one run where several settings tell it; two runs alone know it too badly.
    """
    found = {}
    for bucket, group in _counted(turns, uids).groupby("bucket", sort=True):
        pooled = metrics.ratio(known(group["decode_tokens"].sum()), known(group["decode_ms"].sum()), 1000.0)
        if pooled is None:
            continue
        runs = _run_rates(group)
        low = high = None
        if len(runs) > 1:
            ends = log_mean_interval(runs, (spreads or {}).get(str(bucket)))
            low, high = ends.low, ends.high
        found[str(bucket)] = (pooled, low, high, len(runs))
    return found


def bucket_spreads(turns: pd.DataFrame, settings: Iterable[tuple[str, ...]]) -> dict[str, Spread]:
    """Bucket → noise of one run on the log scale, pooled over the settings (each given by its runs) with repeats."""
    squares: dict[str, list[tuple[float, int]]] = {}
    for uids in settings:
        for bucket, group in _counted(turns, uids).groupby("bucket"):
            logs = np.log(_run_rates(group))
            squares.setdefault(str(bucket), []).append((float(((logs - logs.mean()) ** 2).sum()), len(logs) - 1))
    pooled = {bucket: (sum(own for own, _ in found), sum(df for _, df in found)) for bucket, found in squares.items()}
    return {bucket: Spread(sd=math.sqrt(total / df), df=df) for bucket, (total, df) in pooled.items() if df > 0}


def _counted(turns: pd.DataFrame, uids: tuple[str, ...]) -> pd.DataFrame:
    chosen = turns["uid"].isin(uids) & turns["invalid_reason"].isna() & ~turns["warmup"].astype(bool)
    return turns[chosen & (turns["decode_tokens"] > 0) & (turns["decode_ms"] > 0)]


def _run_rates(rows: pd.DataFrame) -> list[float]:
    sums = rows.groupby("uid")[["decode_tokens", "decode_ms"]].sum()
    return list(1000.0 * sums["decode_tokens"].astype(float) / sums["decode_ms"].astype(float))


def _series(material: Material) -> list[Candidate]:
    """Plain decoding, then the confirmed setting, the other finalists, and the best of the rest."""
    order = sorted(material.candidates, key=lambda entry: (not entry.confirmed, entry not in material.finalists))
    entries = order[:MAX_CANDIDATES]
    return [*([material.baseline] if material.baseline is not None else []), *entries]


def _bars(axes: Axes, rates: dict[str, tuple[float, float | None, float | None, int]], order: list[str], shift: float,
          width: float, colour: str) -> None:  # fmt: skip
    for x, bucket in enumerate(order):
        if bucket not in rates:
            continue
        pooled, low, high, _ = rates[bucket]
        axes.bar(x + shift, pooled, width=0.92 * width, color=colour, zorder=2)
        if low is not None and high is not None:
            axes.vlines(x + shift, low, high, color=style.INK, linewidth=1.1, zorder=3)


def draw(material: Material, texts: Texts, stamp: style.Stamp) -> Figure | None:
    """Plain decoding and the best candidates, bucket by bucket; None if fewer than two buckets have a rate."""
    spreads = bucket_spreads(material.turns, [entry.uids for entry in material.candidates if entry.n > 1])
    series = [
        (entry, bucket_rates(material.turns, entry.uids, spreads if entry.speculative else None))
        for entry in _series(material)
    ]
    series = [(entry, rates) for entry, rates in series if rates]
    order = sorted({bucket for _, rates in series for bucket in rates})
    if len(order) < 2:
        return None
    colours = iter(style.SERIES)
    painted = [(entry, rates, next(colours) if entry.speculative else "#8A8D91") for entry, rates in series]
    legend: style.Legend = []
    for entry, _, colour in painted:
        legend.append((style.swatch(colour), f"{material.name(entry, texts)} · n={entry.n}"))
    figure = style.sheet(stamp, texts("fig.buckets.title"), texts("fig.buckets.see"), body_in=3.2, legend=legend)
    axes = figure.subplots()
    width = 0.8 / len(painted)
    for index, (_, rates, colour) in enumerate(painted):
        _bars(axes, rates, order, (index - (len(painted) - 1) / 2) * width, width, colour)
    turns = material.turns
    counted = turns[turns["invalid_reason"].isna() & ~turns["warmup"].astype(bool)]
    kinds = counted.drop_duplicates(["conversation", "index"])["bucket"].value_counts()
    axes.set_xticks(
        np.arange(len(order)),
        [
            f"{style.printable(bucket, within_in=6.6 / len(order))}\n{texts('turns', count=int(kinds.get(bucket, 0)))}"
            for bucket in order
        ],
    )
    axes.set_ylabel(texts("axis.decode_tps"))
    style.quiet_grid(axes)
    return figure
