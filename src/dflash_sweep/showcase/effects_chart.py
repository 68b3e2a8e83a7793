"""Plotly figure: what each axis does with all else equal, level by level. Imports plotly, `records`, `report`."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dflash_sweep.records import Verdict, VerdictStatus
from dflash_sweep.report.axis_effects import LevelEffect, panels
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts
from dflash_sweep.showcase.chart_look import BLUE, INK, MUTED, PAPER, VERMILION

MAX_ROWS = 22
_STATUS = (
    (VerdictStatus.DOES_NOT_HOLD, VERMILION), (VerdictStatus.HOLDS, MUTED), (VerdictStatus.NOT_ENOUGH_DATA, BLUE)
)  # fmt: skip
"""A dead axis is one whose conclusion holds."""


def _shown(material: Material) -> list[tuple[Verdict, list[LevelEffect]]]:
    """The axes with the largest changes first, as many as fit."""
    shown: list[tuple[Verdict, list[LevelEffect]]] = []
    rows = 0
    for verdict, levels in panels(material):
        known = [level for level in levels if level.change is not None or level.is_reference]
        if shown and rows + len(known) > MAX_ROWS:
            break
        shown.append((verdict, known[:MAX_ROWS]))
        rows += len(known)
    return shown


def _ends(levels: list[tuple[str, LevelEffect]]) -> dict[str, Any]:
    def reach(level: LevelEffect, end: float | None) -> float:
        return 0.0 if end is None or level.change is None else round(abs(end - level.change), 3)

    return {
        "type": "data", "symmetric": False, "thickness": 1.8, "width": 0,
        "array": [reach(level, level.high) for _, level in levels],
        "arrayminus": [reach(level, level.low) for _, level in levels],
    }  # fmt: skip


def _limits(levels: list[LevelEffect]) -> list[float]:
    """Room for every change; an interval more than twice as wide as all changes reaches out of the picture."""
    changes = [0.0, *(level.change for level in levels if level.change is not None)]
    ends = [end for level in levels for end in (level.low, level.high) if end is not None]
    reach = 2 * max(max(changes) - min(changes), 1.0)
    low = max(min(changes + ends), min(changes) - reach)
    high = min(max(changes + ends), max(changes) + reach)
    pad = 0.05 * (high - low)
    return [low - pad, high + pad]


def traces(material: Material, texts: Texts) -> list[Any] | None:
    """One row a level; None if no axis has two levels that were compared."""
    shown = _shown(material)
    if not shown:
        return None
    marks: list[Any] = []
    for status, colour in _STATUS:
        levels = [
            (verdict.subject, level)
            for verdict, found in shown
            if verdict.status is status
            for level in found
            if level.change is not None
        ]
        if levels:
            marks.append(
                go.Scatter(
                    x=[round(level.change or 0.0, 3) for _, level in levels],
                    y=[[axis for axis, _ in levels], [level.text for _, level in levels]],
                    mode="markers", name=texts(f"effect.{status}"), error_x=_ends(levels),
                    marker={"color": colour, "size": 9}, hovertext=[f"n = {level.runs}" for _, level in levels],
                    hovertemplate="%{y}: %{x:+.1f} %, %{hovertext}<extra></extra>",
                )
            )  # fmt: skip
    references = [(verdict.subject, level) for verdict, found in shown for level in found if level.is_reference]
    marks.append(
        go.Scatter(
            x=[0.0] * len(references), y=[[axis for axis, _ in references], [level.text for _, level in references]],
            mode="markers", name=texts("legend.reference"), hovertemplate="%{y}<extra></extra>",
            marker={"symbol": "diamond", "size": 9, "color": PAPER, "line": {"color": INK, "width": 1.5}},
        )
    )  # fmt: skip
    return marks


def arrange(figure: go.Figure, material: Material, texts: Texts) -> None:
    rows = [(verdict.subject, level.text) for verdict, levels in _shown(material) for level in levels]
    # the order of a two-level axis is that in which its categories first appear
    order = go.Scatter(
        x=[None] * len(rows), y=[[axis for axis, _ in rows], [text for _, text in rows]], showlegend=False,
        hoverinfo="skip",
    )  # fmt: skip
    figure.add_trace(order)
    figure.data = (figure.data[-1], *figure.data[:-1])
    figure.add_vline(x=0, line={"color": MUTED, "dash": "dot", "width": 1})
    figure.update_layout(margin={"l": 150})
    figure.update_xaxes(range=_limits([level for _, levels in _shown(material) for level in levels]))
    figure.update_xaxes(title={"text": texts("axis.change"), "font": {"size": 12}})
    figure.update_yaxes(
        autorange="reversed", tickmode="linear", dtick=1, tickfont={"size": 10}, dividercolor=MUTED, gridcolor=PAPER
    )
