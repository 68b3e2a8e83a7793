"""docs/gallery.md: one of each figure with what to see in it, drawn from stored studies.

    python -m dflash_sweep.report.gallery --storage sqlite:///studies.db --docs docs STUDY [STUDY …]

Each figure comes from the first study that holds it, and says from which. Imports `store`, `importing`, `report`
siblings. A STUDY that is a path is read as a published log (see `dflash_sweep.importing`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dflash_sweep import importing
from dflash_sweep.errors import ConfigError
from dflash_sweep.report import style
from dflash_sweep.report.document import Block, Document, Heading, Inline, Paragraph, Picture, code
from dflash_sweep.report.figures import FIGURES, stamp_for
from dflash_sweep.report.markdown import Renderer
from dflash_sweep.report.material import Material, collect
from dflash_sweep.report.texts import texts_for
from dflash_sweep.report.writer import replace_file
from dflash_sweep.store import Store

LOOK_FOR: dict[str, str] = {
    "stage_breakdown": "One bar a setting, the fastest first. The diamond is the longest step with which "
    "the setting would still tie with plain decoding: all bars end right of their diamonds, so speculation "
    "loses here, and the longest part of the bar says which stage to change.",
    "tradeoff": "Every point lies on the curve of its step time. Moving right (more accepted tokens) helps "
    "only as far as the curves are steep; crossing curves upwards (a faster step) helps everywhere. The "
    "dashed line is plain decoding.",
    "objective_history": "Single runs in order. The orange line rises whenever a run is lucky; the confirm "
    "runs of the same settings at the end show how much of that was luck.",
    "axis_effects": "Each level against the level with most runs, all else equal. Axes whose intervals "
    "stay inside the grey band do nothing that two equal runs would not do too.",
    "axis_curves": "Speed above, acceptance length below. Where the lower curve rises and the upper does "
    "not, more accepted tokens are bought with a longer step. The shaded values cannot be told apart from "
    "the best.",
    "interactions": "The left matrix says for which pairs of axes the cells differ beyond the two main "
    "effects; the right table shows the strongest pair. With one candidate a cell (n=1) this is mostly noise.",
    "noise_strip": "Runs of one setting, as deviations from their mean. A claimed gain that is narrower "
    "than these bands needs more runs.",
    "drift": "Plain decoding, measured again and again. A flat line means that early and late trials may be compared.",
    "pareto": "What the speed costs in memory, energy or time to first token. Only settings on the line "
    "are worth choosing.",
    "acceptance": "How many tokens each verify step emitted. Steps left of the dashed line were slower "
    "than decoding the same tokens plainly: this is what a per-step switch could save.",
    "buckets": "The same settings by kind of turn. What wins on code may lose on tool calls.",
    "memory": "Memory along the tree budget, or, where nobody recorded memory, how many runs fitted and "
    "how many did not.",
    "timeline": "Which worker ran what, when: gaps are idle time, hatched bars failed.",
}
"""What a reader should see in the gallery's pictures."""


def chosen(materials: Sequence[Material]) -> dict[str, tuple[Material, bytes]]:
    """Figure name → the first study that holds it and its PNG."""
    texts = texts_for("en")
    found: dict[str, tuple[Material, bytes]] = {}
    with style.conventions():
        for name, (_, draw) in FIGURES.items():
            for material in materials:
                figure = draw(material, texts, stamp_for(material, texts))
                if figure is not None:
                    found[name] = (material, style.rendered(figure, "png"))
                    break
    return found


def page(found: dict[str, tuple[Material, bytes]]) -> Document:
    """The gallery as a document: title, what to see, where the numbers come from, picture."""
    texts = texts_for("en")
    blocks: list[Block] = [
        Paragraph(
            "One of each figure of a report. They are here to show how to read them, not what is fast: emulated "
            "numbers come from a cost model, imported ones from a published log; the line below each picture says "
            "which."
        ),
        Paragraph(("Made by ", code("python -m dflash_sweep.report.gallery"), " from stored studies.")),
    ]
    for name, (material, _) in found.items():
        title = texts(f"{FIGURES[name][0]}.title")
        word = texts(f"word.{material.study.measurement}")
        source: Inline = (f"{word}: study ", code(material.study.name), f", {len(material.trials)} trials.")
        blocks += [Heading(title), Paragraph(LOOK_FOR[name]), Picture(name, title, ""), Paragraph(source)]
    return Document("Gallery of figures", "", tuple(blocks))


def write(materials: Sequence[Material], docs: Path) -> Path:
    """Write gallery.md and img/gallery/*.png into the folder of documents; returns the page's path."""
    found = chosen(materials)
    files = {name: f"img/gallery/{name}.png" for name in found}
    for name, (_, png) in found.items():
        replace_file(docs / files[name], png)
    text = Renderer(files, "").render(page(found))
    replace_file(docs / "gallery.md", text.encode())
    return docs / "gallery.md"


def read(name: str, storage: str) -> Material:
    """A stored study, or a published log by its path. Raises ConfigError if there is none."""
    if Path(name).suffix in (".jsonl", ".csv", ".tsv"):
        log = importing.read(name)
        return collect(log.study, log.trials)
    with Store(storage) as store:
        info = store.study(name)
        if info is None:
            raise ConfigError(f"study {name!r} is not stored; there are: {', '.join(store.study_names())}")
        return collect(info, store.trials(name))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m dflash_sweep.report.gallery", description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="+", metavar="STUDY", help="stored study, or path of a published log")
    parser.add_argument("--storage", default="sqlite:///studies.db", help="SQLAlchemy URL")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of documents")
    chosen_ones = parser.parse_args(arguments)
    try:
        path = write([read(name, chosen_ones.storage) for name in chosen_ones.studies], chosen_ones.docs)
    except ConfigError as error:
        parser.exit(2, f"error: {error}\n")
    parser.exit(0, f"{path}\n")


if __name__ == "__main__":
    main()
