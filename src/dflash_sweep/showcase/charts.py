"""The Plotly figures on a study's page, by the id under which the dashboard keeps them. The only home of plotly.

Each holds a bounded number of marks, however many trials there are: the page loads every figure whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go

from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts
from dflash_sweep.showcase import effects_chart, stages_chart, tradeoff_chart
from dflash_sweep.showcase.chart_look import sheet

Chart = Callable[[Material, Texts], list[Any] | None]

CHARTS: dict[str, tuple[str, Chart, Callable[[go.Figure, Material, Texts], None]]] = {
    "dflash-stages": ("fig.stages", stages_chart.traces, stages_chart.arrange),
    "dflash-tradeoff": ("fig.tradeoff", tradeoff_chart.traces, tradeoff_chart.arrange),
    "dflash-effects": ("fig.effects", effects_chart.traces, effects_chart.arrange),
}
"""Id → (key of its texts in the report, its marks: None where the rows do not hold it, its axes)."""


def charts(material: Material, texts: Texts) -> dict[str, go.Figure]:
    """Every figure that the rows hold."""
    found = {}
    for chart_id, (key, traces, arrange) in CHARTS.items():
        marks = traces(material, texts)
        if marks:
            figure = sheet(material, texts, key, marks)
            arrange(figure, material, texts)
            found[chart_id] = figure
    return found
