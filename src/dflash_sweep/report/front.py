"""Of several objectives: the settings that no other one beats in everything, as a table, as data and as a figure.

Imports matplotlib, `objective`, `analysis`, `report` siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dflash_sweep import metrics, objective
from dflash_sweep.analysis.rows import numbers
from dflash_sweep.report import style
from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.document import Block, Heading, Paragraph, Picture, Table, code
from dflash_sweep.report.material import Material, known
from dflash_sweep.report.settings_table import row_link
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.wording import DASH, knob_text, rate

MAX_ROWS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A setting with the mean of each objective over its runs. `on_front`: nothing eligible beats it."""

    candidate: Candidate
    values: tuple[float, ...]
    on_front: bool = False
    barred: bool = False


def placed(material: Material) -> tuple[Placed, ...]:
    """Every speculative setting of which all objectives are known; none where the study has one objective."""
    names = material.study.objectives
    if len(names) < 2:
        return ()
    columns = {name: numbers(material.ranked, name) for name in names}
    found = []
    for entry in material.candidates:
        mine = material.ranked["uid"].isin(entry.uids)
        values = [known(columns[name][mine].mean()) for name in names]
        if all(value is not None for value in values):
            barred = entry.number in material.barred
            found.append(Placed(candidate=entry, values=tuple(value or 0.0 for value in values), barred=barred))
    eligible = {place: entry.values for place, entry in enumerate(found) if not entry.barred}
    best = set(objective.front(eligible, names))
    return tuple(
        Placed(candidate=entry.candidate, values=entry.values, on_front=place in best, barred=entry.barred)
        for place, entry in enumerate(found)
    )


def members(material: Material) -> tuple[Placed, ...]:
    """The front, the best of the first objective first."""
    sign = objective.sign(material.study.objective)
    return tuple(sorted((e for e in placed(material) if e.on_front), key=lambda entry: -sign * entry.values[0]))


def front_json(material: Material) -> dict[str, Any] | None:
    """The front as findings.json has it; None where the study has one objective."""
    names = material.study.objectives
    if len(names) < 2:
        return None
    return {
        "objectives": [
            {"name": name, "unit": metrics.METRIC[name].unit, "direction": metrics.METRIC[name].direction}
            for name in names
        ],
        "settings": [
            {
                "candidate": entry.candidate.number, "knobs": entry.candidate.knobs,
                "values": dict(zip(names, entry.values, strict=True)), "n": entry.candidate.n,
                "trials": list(entry.candidate.numbers),
            }
            for entry in members(material)
        ],
    }  # fmt: skip


def front_blocks(material: Material, texts: Texts, picture: Picture | None) -> list[Block]:
    """Heading, one sentence, the table of the front, its picture; nothing where the study has one objective."""
    found = members(material)
    if not found:
        return []
    names = material.study.objectives
    shown = found[:MAX_ROWS]
    axes = material.differing([entry.candidate for entry in shown])
    header = (texts("column.setting"), "n", *(f"{name} {metrics.METRIC[name].unit}" for name in names),
              texts("column.trials"))  # fmt: skip
    table = Table(
        header, tuple(_cells(entry, material, axes, texts) for entry in shown), "lr" + "r" * len(names) + "l",
        texts("front.caption", word=texts(f"word.{material.study.measurement}")),
    )  # fmt: skip
    words = texts("front.text", count=len(found), names=texts("joiner").join(names), first=names[0])
    return [Heading(texts("head.front")), Paragraph(words), table, *([picture] if picture is not None else [])]


def _cells(entry: Placed, material: Material, axes: Sequence[str], texts: Texts) -> tuple[Any, ...]:
    candidate = entry.candidate
    knobs = knob_text(candidate.knobs, tuple(axes), joiner=" ")
    name = material.name(candidate, texts)
    return (
        (name, " ", code(knobs)) if knobs else name,
        str(candidate.n),
        *(rate(value) or DASH for value in entry.values),
        row_link(material, candidate.numbers),
    )


def draw(material: Material, texts: Texts, stamp: style.Stamp) -> Figure | None:
    """The first objective against the second; None with fewer than two settings that have both."""
    found = placed(material)
    if len(found) < 2:
        return None
    names = material.study.objectives
    legend: style.Legend = [
        (style.marker(style.SKY), texts("legend.candidate")),
        (style.marker(style.BLUE), texts("legend.front")),
    ]
    if any(entry.barred for entry in found):
        legend.append((style.marker(style.MUTED, hollow=True), texts("legend.barred")))
    plain = _plain(material, names[1], names[0])
    if plain is not None:
        legend.append((style.marker(style.PLAIN, "D"), texts("plain")))
    figure = style.sheet(stamp, texts("fig.front.title"), texts("fig.front.see"), body_in=3.6, legend=legend)
    axes = figure.subplots()
    _points(axes, found, material, texts)
    if plain is not None:
        axes.plot(plain[:1], plain[1:], marker="D", color=style.PLAIN, linestyle="", markersize=6, zorder=4)
    axes.margins(x=0.10, y=0.12)
    axes.set_xlabel(texts(f"axis.{names[1]}"))
    axes.set_ylabel(texts(f"axis.{names[0]}"))
    style.quiet_grid(axes)
    return figure


def _points(axes: Axes, found: Sequence[Placed], material: Material, texts: Texts) -> None:
    line = sorted((entry for entry in found if entry.on_front), key=lambda entry: entry.values[1])
    axes.plot([entry.values[1] for entry in line], [entry.values[0] for entry in line], color=style.BLUE,
              linewidth=1.0, linestyle=":", zorder=2)  # fmt: skip
    for entry in found:
        colour = style.MUTED if entry.barred else style.BLUE if entry.on_front else style.SKY
        axes.plot([entry.values[1]], [entry.values[0]], marker="o", color=colour, linestyle="",
                  markersize=7 if entry.on_front else 5, markerfacecolor=style.PAPER if entry.barred else colour,
                  zorder=3 + entry.on_front)  # fmt: skip
    for entry in line:
        name = style.printable(material.name(entry.candidate, texts), 20)
        axes.annotate(name, (entry.values[1], entry.values[0]), xytext=(5, 5), textcoords="offset points",
                      fontsize=8, color=style.BLUE)  # fmt: skip


def _plain(material: Material, x: str, y: str) -> list[float] | None:
    """Plain decoding's two figures; None where one is not known."""
    if material.baseline is None:
        return None
    mine = material.ranked["uid"].isin(material.baseline.uids)
    at = [known(numbers(material.ranked, name)[mine].mean()) for name in (x, y)]
    return None if None in at else [value or 0.0 for value in at]
