"""Figure: how many tokens a verify step emits, as a histogram. Imports matplotlib, `report` siblings.

Drawn only from histograms the engine printed; a mean is never spread into one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dflash_sweep.report import style
from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts

MAX_SERIES = 3


def pooled_histogram(turns: pd.DataFrame, uids: tuple[str, ...]) -> dict[int, int] | None:
    """Steps by tokens emitted (1 + accepted drafts), pooled over the runs' counted turns; None if none prints it."""
    chosen = turns["uid"].isin(uids) & turns["invalid_reason"].isna() & ~turns["warmup"].astype(bool)
    total: Counter[int] = Counter()
    for histogram in turns.loc[chosen, "acceptance_histogram"]:
        if isinstance(histogram, Mapping):
            total.update({int(accepted) + 1: int(steps) for accepted, steps in histogram.items()})
    return dict(sorted(total.items())) if sum(total.values()) else None


def _series(material: Material) -> list[tuple[Candidate, dict[int, int]]]:
    entries = sorted(material.candidates, key=lambda entry: not entry.confirmed)
    found = [(entry, histogram) for entry in entries if (histogram := pooled_histogram(material.turns, entry.uids))]
    if len(found) <= MAX_SERIES:
        return found
    return [*found[: MAX_SERIES - 1], found[-1]]


def draw(material: Material, texts: Texts, stamp: style.Stamp) -> Figure | None:
    """The best two and the slowest candidate, with the tokens a step must emit to tie; None if nothing is printed."""
    found = _series(material)
    if not found:
        return None
    legend: style.Legend = []
    ties = []
    for (entry, histogram), colour in zip(found, style.SERIES, strict=False):
        mean = sum(tokens * steps for tokens, steps in histogram.items()) / sum(histogram.values())
        words = texts(
            "legend.histogram", name=material.name(entry, texts), mean=f"{mean:.2f}", steps=sum(histogram.values())
        )
        legend.append((style.swatch(colour), style.printable(words, within_in=3.4, points=8.5)))
        tie = entry.step_ms / entry.plain_ms if entry.step_ms is not None and entry.plain_ms else None
        ties.append((tie, colour))
    if any(tie is not None for tie, _ in ties):
        legend.append((style.line(style.MUTED, "--"), texts("legend.tie_tokens")))
    figure = style.sheet(stamp, texts("fig.acceptance.title"), texts("fig.acceptance.see"), body_in=3.2, legend=legend,
                         legend_columns=2)  # fmt: skip
    axes = figure.subplots()
    width = 0.8 / len(found)
    for index, ((_, histogram), (tie, colour)) in enumerate(zip(found, ties, strict=True)):
        total = sum(histogram.values())
        places = [tokens + (index - (len(found) - 1) / 2) * width for tokens in histogram]
        axes.bar(places, [100 * steps / total for steps in histogram.values()], width=0.92 * width, color=colour)
        if tie is not None:
            axes.axvline(tie, color=style.PAPER, linewidth=3.2, zorder=3)
            axes.axvline(tie, color=colour, linestyle="--", linewidth=1.4, zorder=4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(texts("axis.tokens_per_step"))
    axes.set_ylabel(texts("axis.share_of_steps"))
    style.quiet_grid(axes)
    return figure
