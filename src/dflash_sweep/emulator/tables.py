"""The comparison as tables: rich ones for the terminal, markdown ones for docs/emulator.md. Imports `check`, rich."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from dflash_sweep.emulator.check import Report, RowCheck

Cells = tuple[str, ...]

_GAP = 3
"""Signs between two columns."""
_TEXT_WIDTH = 20
"""Texts are not folded to less."""
_LONGEST_FIGURE = 16
"""A column with a longer cell holds texts."""
_FOLLOWERS = ("emulated", "error", "wanted")
"""Columns that say something of the one before."""

_FIGURE = re.compile(r"[-+–]?[\d.]*(?: %)?")


def number(value: float | None, digits: int = 2) -> str:
    """A figure with fixed digits; – where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def percent(value: float | None, signed: bool = True) -> str:
    """A share as percent; – where there is none."""
    if value is None:
        return "–"
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


ROW_COLUMNS = (
    "run", "setting", "TPS published", "emulated", "error", "AL published", "emulated", "step ms published", "emulated",
    "draft", "emulated", "topk", "emulated", "exact", "emulated",
)  # fmt: skip


def row_cells(check: RowCheck) -> Cells:
    """One line of the row table."""
    published, emulated = check.published, check.emulated
    outcome = check.description if check.kind == "measured" else f"{check.description} [{check.kind.replace('_', ' ')}]"
    cells = [str(check.run), outcome]
    if check.predicted != "ran" or check.expected != "ran":
        return (*cells, check.expected, check.predicted, *("–" for _ in ROW_COLUMNS[4:]))
    cells += [number(published["tps"]), number(emulated["tps"]), percent(check.tps_error)]
    cells += [number(published["al"], 3), number(emulated["al"], 3)]
    for name in ("step_ms", "draft_ms", "topk_ms", "exact_ms"):
        cells += [number(published[name], 1), number(emulated[name], 1)]
    return tuple(cells)


def total_lines(report: Report) -> list[Cells]:
    """(figure, value, wanted) of the totals."""
    totals = report.totals
    lines: list[Cells] = [
        ("measured rows", number(totals["rows"], 0), ""),
        ("TPS, median absolute error", percent(totals["tps_median_error"], signed=False), "≤ 3 %"),
        ("TPS, 90th percentile", percent(totals["tps_p90_error"], signed=False), "≤ 8 %"),
        ("TPS, largest", percent(totals["tps_max_error"], signed=False), ""),
        ("AL, median absolute error", number(totals["al_median_error"], 3), "≤ 0.12"),
        ("AL, largest", number(totals["al_max_error"], 3), ""),
    ]
    for name in ("step_ms", "pack_ms", "draft_ms", "topk_ms", "exact_ms"):
        lines.append((f"{name}, median error", percent(totals[f"{name}_median_error"], signed=False), ""))
    foreseen, crashes = totals["memory_crashes_foreseen"], totals["memory_crashes"]
    lines.append(("out-of-memory runs that run out of memory here", f"{foreseen} of {crashes}", "all"))
    lines.append(("runs that worked and work here too", f"{totals['ran_foreseen']} of {totals['ran']}", "all"))
    return lines


def order_lines(report: Report) -> list[Cells]:
    """(axis, values, pairs told apart, agreeing)."""
    return [
        (order.axis, str(len(order.values)), str(order.pairs), str(order.agree))
        for order in report.orders
        if len(order.values) > 1
    ]


def dispersion_lines(report: Report) -> list[Cells]:
    """(figure, published, emulated) of the repeated setting."""
    spread = report.dispersion
    if spread is None:
        return []
    return [
        (name, number(spread[f"published_{name}"], 0 if name == "n" else 2),
         number(spread[f"emulated_{name}"], 0 if name == "n" else 2))
        for name in ("n", "mean", "sd", "min", "max")
    ]  # fmt: skip


def reference_lines(report: Report) -> list[Cells]:
    """(reference, published, emulated, error, wanted, note)."""
    return [
        (f"{entry.name} ({entry.unit})", number(entry.published), number(entry.emulated), percent(entry.error),
         "" if entry.limit is None else f"within {100 * entry.limit:.0f} %", entry.note)
        for entry in report.references
    ]  # fmt: skip


def _sections(report: Report) -> Iterator[tuple[str, Sequence[str], list[Cells]]]:
    yield "Rows", ROW_COLUMNS, [row_cells(check) for check in report.rows]
    yield (
        "Totals over measured rows (no crashes, code changes, traces)",
        ("figure", "value", "wanted"),
        total_lines(report),
    )
    columns = ("axis", "values", "pairs told apart by published noise", "same order here")
    yield "Order of settings", columns, order_lines(report)
    yield "Repeats of one setting, tok/s", ("figure", "published", "emulated"), dispersion_lines(report)
    wide = ("reference", "published", "emulated", "error", "wanted", "note")
    yield "Reference points", wide, reference_lines(report)


def all_tables(report: Report, width: int | None = None) -> list[Table]:
    """Every table, for a terminal of so many columns; None = as wide as it needs, nothing folded.

    A table that is too wide for the terminal comes in blocks that begin with its first column, since a number that is
    cut is no number; only texts are folded.
    """
    found = []
    for title, columns, lines in _sections(report):
        shapes = [_Shape.of(name, [line[place] for line in lines]) for place, name in enumerate(columns)]
        for block in _blocks(shapes, width):
            whole = width is None or _width([shapes[place].natural for place in block]) <= width
            table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
            for place in block:
                shape, left = shapes[place], place == 0 or (place == 1 and title == "Rows")
                fixed = None if whole or shape.is_text else shape.least
                table.add_column(
                    shape.name, justify="left" if left else "right", width=fixed, no_wrap=whole, overflow="fold"
                )
            for line in lines:
                table.add_row(*(line[place] for place in block))
            title = f"{title}, continued" if not title.endswith(", continued") else title
            found.append(table)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """How wide a column is as it stands, and at the least: headings and texts fold between words, figures never."""

    name: str
    natural: int
    least: int
    is_text: bool

    @classmethod
    def of(cls, name: str, cells: Sequence[str]) -> _Shape:
        natural = max(map(len, (name, *cells)))
        is_text = max(map(len, cells), default=0) > _LONGEST_FIGURE
        words = [word for text in (name, *cells) if not any(map(str.isdigit, text)) for word in text.split()]
        figures = [cell for cell in cells if any(map(str.isdigit, cell))]
        least = min(natural, _TEXT_WIDTH) if is_text else max(map(len, (*words, *figures)), default=1)
        return cls(name=name, natural=natural, least=least, is_text=is_text)


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _blocks(shapes: Sequence[_Shape], width: int | None) -> list[list[int]]:
    """Places of columns that stand beside each other; what belongs to a published figure stays with it."""
    groups: list[list[int]] = []
    for place, shape in enumerate(shapes[1:], 1):
        if groups and shape.name in _FOLLOWERS:
            groups[-1].append(place)
        else:
            groups.append([place])
    blocks: list[list[int]] = [[0]]
    for group in groups:
        together = [*blocks[-1], *group]
        if len(blocks[-1]) == 1 or width is None or _width([shapes[place].least for place in together]) <= width:
            blocks[-1] = together
        else:
            blocks.append([0, *group])
    return blocks


def markdown(columns: Sequence[str], lines: Sequence[Cells]) -> str:
    """A markdown table; columns of figures to the right."""
    figures = [all(_FIGURE.fullmatch(cells[place]) for cells in lines) for place in range(len(columns))]
    rule = ["---:" if numeric and place else "---" for place, numeric in enumerate(figures)]
    rows = ["| " + " | ".join(cells) + " |" for cells in (tuple(columns), tuple(rule), *lines)]
    return "\n".join(rows)
