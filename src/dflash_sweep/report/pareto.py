"""Figure: what speed costs. Decode speed against memory, energy or time to first token, with the front that no other
candidate beats on both. Imports matplotlib, `report` siblings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dflash_sweep.report import style
from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.front import draw as front_figure
from dflash_sweep.report.material import Material, mean_of
from dflash_sweep.report.memory import memory_mib
from dflash_sweep.report.texts import Texts

COSTS: tuple[str, ...] = ("peak_memory_mib", "logged_memory_mib", "joules_per_token", "ttft_ms")
"""Costs in the order in which they are tried; smaller is better for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    candidate: Candidate
    cost: float
    tps: float


def _cost(material: Material, entry: Candidate, cost: str) -> float | None:
    if cost == "peak_memory_mib":
        return entry.peak_memory_mib
    if cost == "logged_memory_mib":
        found, source = memory_mib(material.runs(entry.uids))
        return mean_of(found) if source == cost else None
    if cost == "ttft_ms":
        if (material.ranked["clock"] == "virtual").any():
            return None  # the client's clock is real: it timed the emulator, not what is emulated
        return mean_of(time for uid in entry.uids for time in material.first_tokens_ms.get(uid, ()))
    rows = material.runs(entry.uids)
    both = rows[rows["energy_j"].notna() & rows["output_tokens"].notna()]
    return float(both["energy_j"].sum() / both["output_tokens"].sum()) if len(both) else None


def points(material: Material, cost: str) -> list[Point]:
    """Candidates and plain decoding with both figures known."""
    entries = [*material.candidates, *([material.baseline] if material.baseline is not None else [])]
    return [
        Point(candidate=entry, cost=value, tps=entry.tps)
        for entry in entries
        if entry.tps is not None and (value := _cost(material, entry, cost)) is not None
    ]


def front(found: Sequence[Point]) -> list[Point]:
    """Points that no other beats or equals on both figures, cheapest first."""
    best: list[Point] = []
    for point in sorted(found, key=lambda entry: (entry.cost, -entry.tps)):
        if not best or point.tps > best[-1].tps:
            best.append(point)
    return best


def chosen_cost(material: Material) -> str | None:
    """The first cost that differs between candidates; None if none is known or none differs."""
    return next((cost for cost in COSTS if _differs(material, cost)), None)


def _differs(material: Material, cost: str) -> bool:
    """Whether two entries have different figures; looks no further than the second."""
    known = (_cost(material, entry, cost) for entry in material.everyone if entry.tps is not None)
    found = (value for value in known if value is not None)
    first = next(found, None)
    return any(value != first for value in found)


def draw(material: Material, texts: Texts, stamp: style.Stamp) -> Figure | None:
    """The figure; None if no cost is known for two points. Of several objectives it shows the first two."""
    if len(material.study.objectives) > 1:
        return front_figure(material, texts, stamp)
    cost = chosen_cost(material)
    if cost is None:
        return None
    found = points(material, cost)
    best = front([point for point in found if point.candidate.speculative])
    legend: style.Legend = [
        (style.marker(style.SKY), texts("legend.candidate")),
        (style.marker(style.BLUE), texts("legend.front")),
    ]
    if any(not point.candidate.speculative for point in found):
        legend.append((style.marker(style.PLAIN, "D"), texts("plain")))
    figure = style.sheet(stamp, texts("fig.pareto.title"), texts("fig.pareto.see"), body_in=3.6, legend=legend)
    axes = figure.subplots()
    axes.plot([point.cost for point in best], [point.tps for point in best], color=style.BLUE, linewidth=1.2,
              drawstyle="steps-post", zorder=2)  # fmt: skip
    for point in found:
        on_front = point in best
        colour = style.BLUE if on_front else style.SKY
        axes.plot([point.cost], [point.tps], marker="o" if point.candidate.speculative else "D",
                  color=colour if point.candidate.speculative else style.PLAIN, markersize=7 if on_front else 5,
                  linestyle="", zorder=3 + on_front)  # fmt: skip
    axes.margins(x=0.06, y=0.10)
    _name_front(axes, best, material, texts)
    axes.set_xlabel(texts(f"axis.{cost}"))
    axes.set_ylabel(texts("axis.decode_tps"))
    style.quiet_grid(axes)
    return figure


def _name_front(axes: Axes, best: list[Point], material: Material, texts: Texts) -> None:
    """Names on the front, as far apart as they are wide."""
    low, high = axes.get_xlim()
    last = -math.inf
    for point in best:
        if point.cost - last > 0.07 * (high - low):
            last = point.cost
            name = style.printable(material.name(point.candidate, texts), 20)
            axes.annotate(name, (point.cost, point.tps), xytext=(-4, 5), textcoords="offset points", ha="right",
                          fontsize=8, color=style.BLUE)  # fmt: skip
