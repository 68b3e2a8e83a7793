"""Figure: which worker ran what, when. Imports matplotlib, `report` siblings."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from dflash_sweep.analysis.rows import is_plain, stopped_early
from dflash_sweep.report import style
from dflash_sweep.report.drift import elapsed_h
from dflash_sweep.report.material import Material
from dflash_sweep.report.objective_history import ROLE_MARKS
from dflash_sweep.report.texts import Texts

MAX_WORKERS = 24
FAILED, STOPPED = ("////", style.VERMILION), ("....", style.BLUE)
"""Hatch and edge of bars without a figure."""


def spans(material: Material) -> pd.DataFrame:
    """Rows with a start time and a duration: worker, role, failed, stopped (early, which is no failure), start_s and
    length_s (load time included). Plain decoding in the confirm blocks counts as baseline, the best so far again as
    search."""
    rows = material.trials
    rows = rows[rows["started_utc"].astype(bool) & rows["wall_s"].notna()]
    hours = elapsed_h(rows["started_utc"]) if len(rows) else None
    if hours is None:
        return pd.DataFrame(columns=["worker", "role", "failed", "stopped", "start_s", "length_s"])
    length = rows["wall_s"].astype(float) + rows["load_s"].astype(float).fillna(0.0)
    plain, stopped = is_plain(rows), stopped_early(rows)
    role = rows["role"].where(plain | (rows["role"] != "canary"), "search")
    role = role.where(~plain | (role != "confirm"), "baseline")
    return pd.DataFrame(
        {"worker": rows["worker"].replace("", "?"), "role": role, "failed": rows["failure_kind"].notna() & ~stopped,
         "stopped": stopped, "start_s": hours * 3600, "length_s": length}
    )  # fmt: skip


def draw(material: Material, texts: Texts, stamp: style.Stamp) -> Figure | None:
    """One row a worker, one bar a trial; None if no trial has a start time and a duration."""
    rows = spans(material)
    if rows.empty:
        return None
    names = material.worker_names(texts)
    workers = [worker for worker in (*names, "?") if worker in set(rows["worker"])][:MAX_WORKERS]
    colours = {role: colour for role, _, colour in ROLE_MARKS} | {"canary": "#9AA0A6", "control": "#BDC1C6"}
    roles = [role for role, _, _ in ROLE_MARKS if role in set(rows["role"])]
    legend: style.Legend = [(style.swatch(colours[role]), texts(f"role.{role}")) for role in roles]
    if rows["failed"].any():
        legend.append((style.swatch(style.PAPER, *FAILED), texts("legend.failed_run")))
    if rows["stopped"].any():
        legend.append((style.swatch(style.PAPER, *STOPPED), texts("legend.stopped", count=int(rows["stopped"].sum()))))
    body = 0.6 + 0.34 * len(workers)
    figure = style.sheet(stamp, texts("fig.timeline.title"), texts("fig.timeline.see"), body_in=body, legend=legend,
                         legend_columns=5)  # fmt: skip
    axes = figure.subplots()
    scale, unit = (60.0, "axis.minutes") if rows["start_s"].max() < 3 * 3600 else (3600.0, "axis.hours")
    for y, worker in enumerate(workers):
        for _, row in rows[rows["worker"] == worker].iterrows():
            colour, hatch, edge = colours[row["role"]], "", style.PAPER
            if row["failed"] or row["stopped"]:
                colour, (hatch, edge) = style.PAPER, FAILED if row["failed"] else STOPPED
            axes.barh(y, row["length_s"] / scale, left=row["start_s"] / scale, height=0.62, linewidth=0.5,
                      color=colour, hatch=hatch, edgecolor=edge)  # fmt: skip
    axes.set_yticks(range(len(workers)), [names.get(worker, worker) for worker in workers])
    axes.set_ylim(len(workers) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel(texts(unit))
    style.quiet_grid(axes, "x")
    return figure
