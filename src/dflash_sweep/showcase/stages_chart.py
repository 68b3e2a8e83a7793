"""Plotly figure: where a verify step's milliseconds go, the fastest settings first, plain decoding's line across.

Imports plotly and `report` siblings.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.material import Material
from dflash_sweep.report.stage_breakdown import split_ms
from dflash_sweep.report.texts import Texts
from dflash_sweep.showcase.chart_look import BLUE, FAINT, GREEN, INK, ORANGE, PAPER, PLAIN, VERMILION, hover, name

MAX_BARS = 10
_COLOURS = {"draft": BLUE, "topk": ORANGE, "verify": GREEN, "other": FAINT, "unknown": "#B0B6BC"}


def _bars(material: Material) -> list[tuple[Candidate, dict[str, float]]]:
    """The settings shown, the winner and the fastest first."""
    entries = sorted(material.candidates, key=lambda entry: not entry.confirmed)
    return [(entry, parts) for entry in entries if (parts := split_ms(entry))][:MAX_BARS]


def traces(material: Material, texts: Texts) -> list[Any] | None:
    """Stacked bars, break-even marks, plain decoding's bar; None if no candidate has a step time."""
    bars = _bars(material)
    if not bars:
        return None
    names = [name(entry, material, texts) for entry, _ in bars]
    texts_shown = [hover(entry, material, texts) for entry, _ in bars]
    marks: list[Any] = [
        go.Bar(
            y=names, x=[parts.get(group) for _, parts in bars], name=texts(f"stage.{group}"), orientation="h",
            marker={"color": colour, "line": {"color": PAPER, "width": 0.5}}, hovertext=texts_shown,
            hovertemplate="%{hovertext}<br>%{x:.2f} ms<extra>" + texts(f"stage.{group}") + "</extra>",
        )
        for group, colour in _COLOURS.items()
        if any(group in parts for _, parts in bars)
    ]  # fmt: skip
    plain_ms = material.plain_ms
    if plain_ms is None:
        return marks
    plain = texts("plain")
    marks.append(
        go.Bar(y=[plain], x=[plain_ms], name=plain, orientation="h", marker={"color": PLAIN}, showlegend=False,
               hovertemplate="%{x:.2f} ms<extra></extra>")
    )  # fmt: skip
    ties = [
        entry.plain_ms * entry.acceptance_length if entry.plain_ms and entry.acceptance_length else None
        for entry, _ in bars
    ]
    marks.append(
        go.Scatter(
            y=names, x=ties, mode="markers", name=texts("stage.tie"), hovertemplate="%{x:.2f} ms<extra></extra>",
            marker={"symbol": "diamond", "size": 10, "color": VERMILION, "line": {"color": PAPER, "width": 1}},
        )
    )  # fmt: skip
    marks.append(
        go.Scatter(x=[None], y=[None], mode="lines", name=texts("stage.plain_line"),
                   line={"color": PLAIN, "dash": "dash"})
    )  # fmt: skip
    return marks


def arrange(figure: go.Figure, material: Material, texts: Texts) -> None:
    bars = _bars(material)
    names = [name(entry, material, texts) for entry, _ in bars]
    if material.plain_ms is not None:
        names.append(texts("plain"))
        figure.add_vline(x=material.plain_ms, line={"color": PLAIN, "dash": "dash", "width": 1.5})
    figure.update_layout(barmode="stack", bargap=0.35, margin={"l": 110})
    figure.update_xaxes(title={"text": texts("axis.step_ms"), "font": {"size": 12}}, rangemode="tozero")
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=names[::-1], gridcolor=PAPER, tickfont={"color": INK}
    )
