"""How the Plotly figures look: the report's colours, the kind of figures in each title, light paper on any page.

Imports plotly, `records` and `report` siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.wording import knob_text

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
INK, MUTED, FAINT, PAPER, PLAIN = "#1A1A1A", "#5F6368", "#D5D8DC", "#FFFFFF", "#444444"
_LINE = 88
_GRID: dict[str, Any] = {"gridcolor": "#E8EAED", "zeroline": False, "linecolor": MUTED, "ticks": "outside"}


def sheet(material: Material, texts: Texts, key: str, marks: Sequence[Any]) -> go.Figure:
    """A figure with title, stamp and what to see in it. It brings its own paper: the page may be dark."""
    see = "<br>".join(wrap(texts(f"{key}.see", metric=material.axis_label(texts)), _LINE))
    stamp = texts(f"word.{material.study.measurement}")
    title = f"<b>{texts(f'{key}.title')}</b>  <span style='color:{VERMILION}'>{stamp}</span>"
    figure = go.Figure(data=list(marks))
    figure.update_layout(
        template="none",
        title={"text": f"{title}<br><span style='font-size:11px;color:{MUTED}'>{see}</span>", "x": 0.01, "y": 0.97,
               "font": {"size": 15, "color": INK}, "yanchor": "top"},
        paper_bgcolor=PAPER, plot_bgcolor=PAPER, font={"size": 12, "color": INK}, hovermode="closest",
        margin={"l": 60, "r": 20, "t": 84, "b": 92}, xaxis=_GRID, yaxis=_GRID,
        legend={"orientation": "h", "y": -0.2, "x": 0, "font": {"size": 11}, "traceorder": "normal"},
    )  # fmt: skip
    return figure


def name(entry: Candidate, material: Material, texts: Texts) -> str:
    """What a setting is called on an axis."""
    return f"{'★ ' if entry.confirmed else ''}{material.name(entry, texts)}"


def hover(entry: Candidate, material: Material, texts: Texts) -> str:
    """What is shown under the pointer: name and settings, one a line."""
    knobs = knob_text(entry.knobs, material.varied, joiner="<br>") if entry.speculative else ""
    unlike = texts("table.settings.unlike", settings=material.plain_settings) if entry.unlike else ""
    return "<br>".join(line for line in (f"<b>{name(entry, material, texts)}</b>", knobs, unlike) if line)
