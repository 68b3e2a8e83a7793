"""The comparison as tables: rich ones for the terminal, markdown ones for docs/emulator.md. Imports `check`, rich."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.table import Table

from dflash_sweep.emulator.check import Report, RowCheck

Cells = tuple[str, ...]

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


def all_tables(report: Report) -> list[Table]:
    """Every table, for the terminal."""
    found = []
    for title, columns, lines in _sections(report):
        table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
        for index, column in enumerate(columns):
            table.add_column(column, justify="left" if (index < 2 and title == "Rows") or index == 0 else "right")
        for line in lines:
            table.add_row(*line)
        found.append(table)
    return found


def markdown(columns: Sequence[str], lines: Sequence[Cells]) -> str:
    """A markdown table; columns of figures to the right."""
    figures = [all(_FIGURE.fullmatch(cells[place]) for cells in lines) for place in range(len(columns))]
    rule = ["---:" if numeric and place else "---" for place, numeric in enumerate(figures)]
    rows = ["| " + " | ".join(cells) + " |" for cells in (tuple(columns), tuple(rule), *lines)]
    return "\n".join(rows)
