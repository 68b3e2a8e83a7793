"""Plotly figure: speed against acceptance length with curves of equal step time. Imports plotly and `report`."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.tradeoff import step_levels
from dflash_sweep.showcase.chart_look import BLUE, MUTED, PAPER, PLAIN, VERMILION, hover

MAX_POINTS = 300
_ALWAYS = 120
"""The fastest so many are always shown; the rest is thinned out evenly."""


def points(material: Material) -> list[Candidate]:
    """The settings shown, the fastest first."""
    found = [entry for entry in material.candidates if entry.acceptance_length is not None and entry.tps]
    rest = found[_ALWAYS:]
    step = -(-len(rest) // (MAX_POINTS - _ALWAYS))
    return [*found[:_ALWAYS], *rest[:: max(step, 1)]]


def _ends(material: Material, entries: list[Candidate]) -> tuple[float, float, float, float]:
    """The part of the plane that is shown: least and most AL, least and most tok/s."""
    x = [entry.acceptance_length or 0.0 for entry in entries]
    y = [value for entry in entries for value in (entry.tps, entry.tps_low, entry.tps_high) if value is not None]
    if material.baseline is not None and material.baseline.tps is not None:
        y.append(material.baseline.tps)
    x_pad, y_pad = max(0.1 * (max(x) - min(x)), 0.15), max(0.1 * (max(y) - min(y)), 0.04 * max(y))
    return min(x) - x_pad, max(x) + x_pad, max(0.0, min(y) - y_pad), max(y) + y_pad


def _curves(material: Material, entries: list[Candidate]) -> list[tuple[str, tuple[float, float], tuple[float, float]]]:
    """Lines of equal step time: name, both ends (AL, tok/s)."""
    left, right, low, high = _ends(material, entries)
    steps = [1000 * (entry.acceptance_length or 0) / entry.tps for entry in entries if entry.tps]
    found = []
    for step_ms in step_levels(steps):
        first, last = max(left, low * step_ms / 1000), min(right, high * step_ms / 1000)
        if first < last:
            found.append((f"{step_ms:g} ms", (first, 1000 * first / step_ms), (last, 1000 * last / step_ms)))
    return found


def _cloud(entries: list[Candidate], material: Material, texts: Texts, key: str, marker: dict[str, Any]) -> Any:
    up = [0.0 if entry.tps_high is None else entry.tps_high - (entry.tps or 0.0) for entry in entries]
    down = [0.0 if entry.tps_low is None else (entry.tps or 0.0) - entry.tps_low for entry in entries]
    ends = {"type": "data", "symmetric": False, "thickness": 1.2, "width": 0, "array": up, "arrayminus": down}
    repeated = any(entry.tps_low is not None for entry in entries)
    return go.Scatter(
        x=[round(entry.acceptance_length or 0.0, 4) for entry in entries],
        y=[round(entry.tps or 0.0, 3) for entry in entries],
        mode="markers", name=texts(key), marker=marker, error_y=ends if repeated else None,
        hovertext=[f"{hover(entry, material, texts)}<br>n = {entry.n}" for entry in entries],
        hovertemplate="%{hovertext}<br>AL %{x:.2f}, %{y:.2f} tok/s<extra></extra>",
    )  # fmt: skip


def traces(material: Material, texts: Texts) -> list[Any] | None:
    """Curves, points with intervals, plain decoding's line; None if nothing has both a rate and an AL."""
    entries = points(material)
    if not entries:
        return None
    marks: list[Any] = [
        go.Scatter(x=[first[0], last[0]], y=[first[1], last[1]], mode="lines", hoverinfo="skip",
                   line={"color": MUTED, "width": 1, "dash": "dot"}, name=texts("legend.iso_step"), legendgroup="iso",
                   showlegend=not place)
        for place, (_, first, last) in enumerate(_curves(material, entries))
    ]  # fmt: skip
    ring = {"size": 7, "color": PAPER, "line": {"color": BLUE, "width": 1.5}}
    groups = (
        ("legend.single", [entry for entry in entries if entry.n == 1 and not entry.confirmed], ring),
        ("legend.repeated", [e for e in entries if e.n > 1 and not e.confirmed], {"size": 8, "color": BLUE}),
        ("legend.winner", [e for e in entries if e.confirmed], {"size": 15, "color": VERMILION, "symbol": "star"}),
    )
    marks += [_cloud(group, material, texts, key, marker) for key, group, marker in groups if group]
    baseline = material.baseline
    if baseline is not None and baseline.tps is not None:
        left, right, _, _ = _ends(material, entries)
        marks.append(
            go.Scatter(x=[left, right], y=[baseline.tps] * 2, mode="lines", name=texts("plain"),
                       line={"color": PLAIN, "dash": "dash", "width": 1.5},
                       hovertemplate=f"{texts('plain')}: %{{y:.2f}} tok/s<extra></extra>")
        )  # fmt: skip
    return marks


def arrange(figure: go.Figure, material: Material, texts: Texts) -> None:
    entries = points(material)
    left, right, low, high = _ends(material, entries)
    named: list[float] = []  # heights of labels at the right edge
    for label, _, (x, y) in _curves(material, entries):
        at_right = x >= right
        if at_right and any(abs(y - height) < 0.05 * (high - low) for height in named):
            continue  # two labels would lie on each other
        named += [y] if at_right else []
        figure.add_annotation(
            x=x, y=y, text=label, showarrow=False, font={"size": 10, "color": MUTED},
            xanchor="left" if at_right else "center", yanchor="middle" if at_right else "bottom",
        )  # fmt: skip
    figure.update_layout(margin={"r": 56})
    figure.update_xaxes(title={"text": texts("axis.al"), "font": {"size": 12}}, range=[left, right])
    figure.update_yaxes(title={"text": texts("axis.decode_tps"), "font": {"size": 12}}, range=[low, high])
