"""The stored studies as a table for people, or as tab-separated lines for programs. Pure; imports `records`, rich."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich import box
from rich.markup import escape
from rich.table import Table

from dflash_sweep.records import Measurement, StudyInfo

COLUMNS = ("study", "status", "engine", "numbers", "runs", "failed", "begun (UTC)", "objective")
_ALL_COLUMNS_FROM = 100
"""Terminals narrower than this are not shown the last column."""
_STATUS_STYLES = {"finished": "green", "running": "cyan", "interrupted": "yellow", "failed": "red"}


def lines(studies: Iterable[StudyInfo], counts: Mapping[str, tuple[int, int]]) -> list[str]:
    """One line a study: name, status, engine, kind of numbers, begun, runs, failed runs, objective; tabs between."""
    found = []
    for info in studies:
        runs, failed = counts.get(info.name, (0, 0))
        cells = (info.name, info.status, info.engine, info.measurement, info.created_utc, runs, failed, info.objective)
        found.append("\t".join(map(str, cells)))
    return found


def _cells(info: StudyInfo, counts: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
    runs, failed = counts.get(info.name, (0, 0))
    measured = info.measurement is Measurement.MEASURED
    style = _STATUS_STYLES.get(info.status, "default")
    return (
        f"[bold]{escape(info.name)}[/]",
        f"[{style}]{escape(info.status)}[/]",
        escape(info.engine),
        "measured" if measured else f"[yellow]{str(info.measurement).upper()}[/]",
        str(runs),
        str(failed) if failed else "",
        escape(info.created_utc.replace("T", " ")[:16]),
        escape(info.objective),
    )


def table(studies: Iterable[StudyInfo], counts: Mapping[str, tuple[int, int]], width: int) -> Table:
    """One row a study; numbers that are not measured are marked, and only the name may take a second line."""
    shown = len(COLUMNS) if width >= _ALL_COLUMNS_FROM else len(COLUMNS) - 1
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for place, name in enumerate(COLUMNS[:shown]):
        found.add_column(name, justify="right" if name in ("runs", "failed") else "left", no_wrap=bool(place),
                         overflow="fold")  # fmt: skip
    for info in studies:
        found.add_row(*_cells(info, counts)[:shown])
    return found
