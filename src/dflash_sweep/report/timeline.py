"""Figure: which worker ran what, when. Imports matplotlib, `report` siblings."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from dflash_sweep.analysis.rows import is_plain
from dflash_sweep.report import style
from dflash_sweep.report.drift import elapsed_h
from dflash_sweep.report.material import Material
from dflash_sweep.report.objective_history import ROLE_MARKS
from dflash_sweep.report.texts import Texts

MAX_WORKERS = 24


def spans(material: Material) -> pd.DataFrame:
    """Rows with a start time and a duration: worker, role, failed, start_s and length_s (load time included)."""
    rows = material.trials
    rows = rows[rows["started_utc"].astype(bool) & rows["wall_s"].notna()]
    hours = elapsed_h(rows["started_utc"]) if len(rows) else None
    if hours is None:
        return pd.DataFrame(columns=["worker", "role", "failed", "start_s", "length_s"])
    length = rows["wall_s"].astype(float) + rows["load_s"].astype(float).fillna(0.0)
    canary = (rows["role"] == "canary") & ~is_plain(rows)  # the best so far again: a run of the search
    role = rows["role"].where(~canary, "search")
    return pd.DataFrame(
        {"worker": rows["worker"].replace("", "?"), "role": role, "failed": rows["failure_kind"].notna(),
         "start_s": hours * 3600, "length_s": length}
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
        legend.append((style.swatch(style.PAPER, "////", style.VERMILION), texts("legend.failed_run")))
    body = 0.6 + 0.34 * len(workers)
    figure = style.sheet(stamp, texts("fig.timeline.title"), texts("fig.timeline.see"), body_in=body, legend=legend,
                         legend_columns=5)  # fmt: skip
    axes = figure.subplots()
    scale, unit = (60.0, "axis.minutes") if rows["start_s"].max() < 3 * 3600 else (3600.0, "axis.hours")
    for y, worker in enumerate(workers):
        for _, row in rows[rows["worker"] == worker].iterrows():
            failed = bool(row["failed"])
            axes.barh(y, row["length_s"] / scale, left=row["start_s"] / scale, height=0.62, linewidth=0.5,
                      color=style.PAPER if failed else colours[row["role"]], hatch="////" if failed else "",
                      edgecolor=style.VERMILION if failed else style.PAPER)  # fmt: skip
    axes.set_yticks(range(len(workers)), [names.get(worker, worker) for worker in workers])
    axes.set_ylim(len(workers) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel(texts(unit))
    style.quiet_grid(axes, "x")
    return figure
