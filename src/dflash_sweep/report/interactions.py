"""Figure: how two axes act together. Imports matplotlib, `report` siblings.

Left: for every pair of axes the range of what its cells add beyond the two axes' own main effects. Right: the mean
rate in each cell of the pair with the largest such range. Cells without a candidate stay empty; counts are written in.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dflash_sweep.records import VerdictStatus
from dflash_sweep.report import style
from dflash_sweep.report.axis_curves import axis_means
from dflash_sweep.report.axis_levels import Level, shown_label, unset_note
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.verdict_lines import PAIR

MAX_AXES = 7
MIN_FILLED_CELLS = 4
_SCALE = LinearSegmentedColormap.from_list("paper_to_blue", ["#F4F8FB", "#9CC6E3", "#0072B2", "#00395C"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two axes: cell means (the objective, NaN = no candidate), counts, and the range of the cells' residuals."""

    rows: str
    columns: str
    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    means: np.ndarray
    counts: np.ndarray
    strength: float | None


def _cells(first: list[Level], second: list[Level]) -> tuple[np.ndarray, np.ndarray]:
    means, counts = np.full((len(first), len(second)), np.nan), np.zeros((len(first), len(second)), dtype=int)
    for i, upper in enumerate(first):
        members = {id(entry): entry for entry in upper.candidates}
        for j, lower in enumerate(second):
            rates = [entry.value for entry in lower.candidates if id(entry) in members and entry.value is not None]
            counts[i, j] = len(rates)
            if rates:
                means[i, j] = float(np.mean(rates))
    return means, counts


def residual_range(means: np.ndarray) -> float | None:
    """Range of cell means after the additive row and column effects (least squares over filled cells) are taken off.

    None where fewer than MIN_FILLED_CELLS cells are filled or nothing is left to judge once both effects are fitted.
    """
    filled = np.argwhere(~np.isnan(means))
    rows, columns = means.shape
    design = np.zeros((len(filled), rows + columns))
    for k, (i, j) in enumerate(filled):
        design[k, i] = design[k, rows + j] = 1.0
    if len(filled) < MIN_FILLED_CELLS or len(filled) <= np.linalg.matrix_rank(design):
        return None
    values = means[filled[:, 0], filled[:, 1]]
    fitted = design @ np.linalg.lstsq(design, values, rcond=None)[0]
    return float(np.ptp(values - fitted))


def pairs(material: Material) -> list[Pair]:
    """Every pair of axes with two levels or more, the strongest interaction first."""
    panels = axis_means(material)[:MAX_AXES]
    found = []
    for (name, first), (other, second) in combinations(panels, 2):
        means, counts = _cells(first, second)
        found.append(
            Pair(
                rows=name, columns=other, row_labels=tuple(level.label for level in first),
                column_labels=tuple(level.label for level in second), means=means, counts=counts,
                strength=residual_range(means),
            )
        )  # fmt: skip
    return sorted(found, key=lambda pair: -(pair.strength or 0.0))


def _heat(axes: Axes, values: np.ndarray, texts: list[list[str]], rows: list[str], columns: list[str]) -> None:
    known = values[~np.isnan(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    axes.imshow(
        np.ma.masked_invalid(values), cmap=_SCALE, vmin=low, vmax=high if high > low else low + 1, aspect="auto"
    )
    for i, line in enumerate(texts):
        for j, text in enumerate(line):
            value = values[i, j]
            dark = not np.isnan(value) and high > low and (value - low) / (high - low) > 0.55
            axes.text(j, i, text, ha="center", va="center", fontsize=8, color=style.PAPER if dark else style.INK)
    axes.set_xticks(
        range(len(columns)),
        [style.printable(name, within_in=1.3, points=8.5) for name in columns],
        rotation=35,
        ha="right",
    )
    axes.set_yticks(range(len(rows)), [style.printable(name, within_in=1.3, points=8.5) for name in rows])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def sure(material: Material) -> set[frozenset[str]]:
    """Pairs of axes that a conclusion shows not to add up."""
    return {
        frozenset(verdict.subject.split(PAIR))
        for verdict in material.verdicts
        if verdict.id == "sweet_spot" and PAIR in verdict.subject and verdict.status is VerdictStatus.HOLDS
    }


def _matrix(axes: Axes, found: list[Pair], names: list[str], title: str, shown: set[frozenset[str]]) -> None:
    position = {name: index for index, name in enumerate(names)}
    values = np.full((len(names), len(names)), np.nan)
    written = [["" for _ in names] for _ in names]
    for pair in found:
        low, high = sorted((position[pair.rows], position[pair.columns]))
        written[high][low] = "?" if pair.strength is None else f"{pair.strength:.2g}"
        values[high, low] = np.nan if pair.strength is None else pair.strength
        if frozenset((pair.rows, pair.columns)) in shown:
            frame = Rectangle(
                (low - 0.47, high - 1.47), 0.94, 0.94, fill=False, edgecolor=style.VERMILION, linewidth=2.2
            )
            axes.add_patch(frame)
    _heat(axes, values[1:, :-1], [line[:-1] for line in written[1:]], names[1:], names[:-1])
    axes.set_title(title)


def draw(material: Material, texts: Texts, stamp: style.Stamp) -> Figure | None:
    """The figure; None if no pair of axes has enough cells to say anything."""
    found = pairs(material)
    if not found or found[0].strength is None:
        return None
    names = [name for name, _ in axis_means(material)[:MAX_AXES]]
    top = found[0]
    shown = sure(material)
    see = texts("fig.interactions.see") + ("" if shown else f" {texts('fig.interactions.none')}")
    see += unset_note((*top.row_labels, *top.column_labels), texts)
    legend: style.Legend = []
    if shown and len(names) > 2:
        legend.append((style.swatch(style.PAPER, edge=style.VERMILION), texts("legend.interacts")))
    figure = style.sheet(stamp, texts("fig.interactions.title"), see, body_in=3.7, legend=legend)
    with_matrix = len(names) > 2
    if with_matrix:
        left, right = figure.subplots(1, 2, width_ratios=(len(names), max(3, len(top.column_labels))))
        _matrix(left, found, names, texts("fig.interactions.left", unit=material.axis_label(texts)), shown)
    else:
        right = figure.subplots()
    written = [
        [f"{mean:.1f}\nn={count}" if count else "" for mean, count in zip(means, counts, strict=True)]
        for means, counts in zip(top.means, top.counts, strict=True)
    ]
    named = [[shown_label(label, texts) for label in labels] for labels in (top.row_labels, top.column_labels)]
    _heat(right, top.means, written, *named)
    right.set_title(texts("fig.interactions.right", unit=material.axis_label(texts)))
    right.set_ylabel(style.printable(top.rows, within_in=2.6, points=9.0))
    right.set_xlabel(style.printable(top.columns, within_in=2.6, points=9.0))
    return figure
