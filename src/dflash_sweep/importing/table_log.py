"""Reader of tables: autoresearch TSVs, published CSVs of runs, Optuna's and llama-bench's CSVs.

Imports `rawlog` and `vocabulary` only. Columns are told by name; what no rule knows is counted, never guessed.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from datetime import datetime

from dflash_sweep.importing.rawlog import RawLog, RawRow
from dflash_sweep.importing.vocabulary import canonical, is_figure

_RUN = ("run", "iteration", "number", "trial", "trial_number")
_STATUS = ("status", "state")
_DESCRIPTION = ("description", "notes", "comment", "hypothesis")
_TIME = ("timestamp", "datetime_start", "time", "date")
_RATES = (
    "decode_tps", "tps", "tok_s", "tok/s", "tokens_per_sec", "tokens_per_second", "tg_tps", "gen_tps", "throughput",
    "avg_ts", "metric", "value", "score",
)  # fmt: skip
_NO_RUN = ("refine", "pivot", "stuck", "no-op", "no_op", "hook-blocked")
_STATES = {"complete": "measured", "fail": "crash", "pruned": "crash", "running": "unfinished", "waiting": "unfinished"}
_IGNORED = ("commit", "delta", "guard", "datetime_complete", "duration", "confidence", "segment")


def looks_like(text: str) -> bool:
    """True if the first line that is no comment has at least two separated column names, one of them a metric."""
    header, _ = _header(text)
    return len(header) >= 2 and _metric_column(header) is not None


def read(text: str) -> RawLog:
    """Read a table's text; looks_like(text) holds."""
    header, body = _header(text)
    columns = [name.strip() for name in header]
    keys = [name.lower() for name in columns]
    metric = _metric_column(header) or ""
    table = _Table(columns=columns, keys=keys, metric=metric)
    rows = csv.reader(body, delimiter=_separator(text))
    for offset, cells in enumerate(rows):
        table.take(_header_line(text) + 1 + offset, cells)
    return RawLog(
        format=f"table ({'TSV' if _separator(text) == chr(9) else 'CSV'})",
        rows=tuple(table.rows),
        segments=(metric,),
        direction=_direction(text),
        skipped=table.skipped,
        torn=tuple(table.torn),
        unused=table.unused,
    )


class _Table:
    def __init__(self, *, columns: list[str], keys: list[str], metric: str) -> None:
        self.columns, self.keys, self.metric = columns, keys, metric
        self.rows: list[RawRow] = []
        self.skipped: Counter[str] = Counter()
        self.torn: list[str] = []
        self.unused: Counter[str] = Counter()

    def take(self, line: int, cells: list[str]) -> None:
        if not any(cell.strip() for cell in cells) or cells[0].lstrip().startswith("#"):
            return
        if len(cells) != len(self.columns):
            self.torn.append(f"line {line}: {len(cells)} cells where the header has {len(self.columns)}")
            return
        row = dict(zip(self.keys, (cell.strip() for cell in cells), strict=True))
        status = self._status(row)
        if status in (*_NO_RUN, "unfinished"):
            self.skipped[f"no run of its own ({status})"] += 1
            return
        self.rows.append(self._row(line, row, status))

    def _status(self, row: dict[str, str]) -> str:
        found = [row[name].lower().split(".")[-1] for name in _STATUS if row.get(name)]
        return _STATES.get(found[0], found[0]) if found else "measured"

    def _row(self, line: int, row: dict[str, str], status: str) -> RawRow:
        metric = _float(row.get(self.metric.lower()))
        run = next((value for name in _RUN if (value := _float(row.get(name))) is not None), None)
        return RawRow(
            line=line,
            run=len(self.rows) + 1 if run is None else int(run),
            segment=0,
            status=status,
            metric=None if status == "crash" and not metric else metric,
            metrics=self._figures(row),
            description=next((row[name] for name in _DESCRIPTION if row.get(name)), ""),
            structured=self._parameters(row),
            structured_source="column",
            timestamp_ms=next((value for name in _TIME if (value := _time(row.get(name))) is not None), None),
            commit=row.get("commit", ""),
        )

    def _figures(self, row: dict[str, str]) -> dict[str, float]:
        return {
            name: value
            for name, text in row.items()
            if (is_figure(name) or name == self.metric.lower()) and (value := _float(text)) is not None
        }

    def _parameters(self, row: dict[str, str]) -> dict[str, str]:
        parameters = {}
        reserved = (*_RUN, *_STATUS, *_DESCRIPTION, *_TIME, *_IGNORED, self.metric.lower())
        for column, key in zip(self.columns, self.keys, strict=True):
            if key in reserved or is_figure(key) or not row[key]:
                continue
            if key.startswith("params_") or canonical(key) is not None:
                parameters[key.removeprefix("params_")] = row[key]
            else:
                self.unused[column] += 1
        return parameters


def _header(text: str) -> tuple[list[str], list[str]]:
    lines = text.splitlines()
    start = _header_line(text) - 1
    if start >= len(lines):
        return [], []
    return next(csv.reader([lines[start]], delimiter=_separator(text))), lines[start + 1 :]


def _header_line(text: str) -> int:
    """Number of the first line that is neither blank nor a comment, from 1."""
    lines = text.splitlines()
    return next(
        (i for i, line in enumerate(lines, start=1) if line.strip() and not line.startswith("#")), len(lines) + 1
    )


def _separator(text: str) -> str:
    lines = text.splitlines()
    start = _header_line(text) - 1
    return "\t" if start < len(lines) and "\t" in lines[start] else ","


def _metric_column(header: list[str]) -> str | None:
    """The column of the metric: a known rate, else (a Karpathy table) the one after `commit`."""
    keys = [name.strip().lower() for name in header]
    for name in _RATES:
        if name in keys:
            return header[keys.index(name)].strip()
    if "commit" in keys and "status" in keys and keys.index("commit") + 1 < keys.index("status"):
        return header[keys.index("commit") + 1].strip()
    return None


def _direction(text: str) -> str | None:
    """What a comment line such as "# metric_direction: lower" says."""
    found = re.search(r"^#.*direction\W+(higher|lower|max|min)", text, re.MULTILINE | re.IGNORECASE)
    if found is None:
        return None
    return "maximize" if found.group(1).lower() in ("higher", "max") else "minimize"


def _float(text: str | None) -> float | None:
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _time(text: str | None) -> float | None:
    """Milliseconds since 1970 of an epoch figure (s or ms) or an ISO date."""
    value = _float(text)
    if value is not None:
        return value if value > 1e11 else value * 1000 if value > 1e8 else None
    try:
        return datetime.fromisoformat(text).timestamp() * 1000 if text else None
    except ValueError:
        return None
