"""Every figure of a report by name, in the order in which pages show them. Imports the figure modules.

The only list of figures: a page, the gallery and the tests go through it.
"""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from dflash_sweep.report import (
    acceptance,
    axis_curves,
    axis_effects,
    buckets,
    drift,
    interactions,
    memory,
    noise_strip,
    objective_history,
    pareto,
    stage_breakdown,
    style,
    timeline,
    tradeoff,
)
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts

FIGURES: dict[str, tuple[str, Callable[[Material, Texts, style.Stamp], Figure | None]]] = {
    "stage_breakdown": ("fig.stages", stage_breakdown.draw),
    "tradeoff": ("fig.tradeoff", tradeoff.draw),
    "objective_history": ("fig.history", objective_history.draw),
    "axis_effects": ("fig.effects", axis_effects.draw),
    "axis_curves": ("fig.curves", axis_curves.draw),
    "interactions": ("fig.interactions", interactions.draw),
    "noise_strip": ("fig.noise", noise_strip.draw),
    "drift": ("fig.drift", drift.draw),
    "pareto": ("fig.pareto", pareto.draw),
    "acceptance": ("fig.acceptance", acceptance.draw),
    "buckets": ("fig.buckets", buckets.draw),
    "memory": ("fig.memory", memory.draw),
    "timeline": ("fig.timeline", timeline.draw),
}
"""File name → (key of its texts: `<key>.title`, `<key>.see`; how it is drawn: None where the rows do not hold it)."""


def stamp_for(material: Material, texts: Texts) -> style.Stamp:
    """What is written on every figure of a study."""
    study = material.study
    builds = [style.printable(build, 28) for build in sorted(set(material.trials["build"].map(str)))[:2]]
    source = texts(
        "stamp",
        study=study.name,
        engine=" ".join([study.engine, ", ".join(builds)]).strip(),
        count=len(material.trials),
    )
    return style.Stamp(measurement=study.measurement, word=texts(f"word.{study.measurement}"), source=source)


def draw_all(material: Material, texts: Texts, formats: tuple[str, ...]) -> dict[str, dict[str, bytes]]:
    """Every figure that the rows hold: name → format → bytes of the file."""
    stamp = stamp_for(material, texts)
    found: dict[str, dict[str, bytes]] = {}
    with style.conventions():
        for name, (_, draw) in FIGURES.items():
            figure = draw(material, texts, stamp)
            if figure is not None:
                found[name] = {suffix: style.rendered(figure, suffix) for suffix in formats}
    return found
