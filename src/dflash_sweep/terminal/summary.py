"""The end of a run in at most 20 lines: the answer, the best settings, the command to use, where the findings are.

Pure; imports `terminal` siblings and `report`. The command comes first when there is little room, then the table.
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from dflash_sweep.records import Measurement, VerdictStatus
from dflash_sweep.report.outcome import Setting
from dflash_sweep.report.wording import DASH, factor, interval, plural, rate
from dflash_sweep.terminal.command_text import wrapped
from dflash_sweep.terminal.ending import Ending
from dflash_sweep.terminal.words import STATUS_MARKS, cut, first_sentence, fit

MOST_LINES = 20
COMMAND_WIDTH = 80
_STATEMENT_LINES = 4
_SETTINGS = 4
_VERDICTS = 3
_LEAST_VERDICTS = 1
"""Conclusions that a third setting makes room for."""
_REASON_LINES = 3
_LEAST_TABLE = 3
"""Lines of the smallest table: header, advised setting, plain decoding."""
_LEAST_KNOBS = 20
"""A column of knobs narrower than this says nothing."""
_RESUME = "everything measured so far is kept; the same command with resume=true goes on"


def _lines(text: str, width: int, most: int, style: str = "") -> list[Text]:
    """A text wrapped between words, the last of `most` lines closed by "…" if there is more."""
    wrapped_text = list(Text(text, style=style).wrap(Console(width=width), width))
    if len(wrapped_text) <= most:
        return wrapped_text
    rest = " ".join(line.plain.strip() for line in wrapped_text[most - 1 :])
    return [*wrapped_text[: most - 1], Text(cut(rest, width), style=style)]


def _heading(ending: Ending, width: int) -> list[Text]:
    study, status = ending.study, ending.study.status
    if status == "failed":
        return _lines(f"error: {study.stop_reason or 'the study failed'}", width, _REASON_LINES, "bold red")
    counts = plural(ending.runs, "run") + (f", {ending.failed} failed" if ending.failed else "")
    kind = "" if study.measurement is Measurement.MEASURED else f", {str(study.measurement).upper()} numbers"
    lines = [Text(f"{study.name} {status}: {counts}{kind}", style="bold cyan")]
    if status == "interrupted":
        lines += _lines(_RESUME, width, 2)
    elif study.stop_reason:
        lines += _lines(f"stopped: {first_sentence(study.stop_reason)}", width, 2)
    return lines


_HEADER = ("", "", "95 %", "× plain", "95 %", "runs", "AL", "step ms")
_LEFT = (0, 2, 4)
"""Columns that are flush left: the name and the intervals."""


def _ends(low: float | None, high: float | None, form: str) -> str:
    return "" if low is None or high is None else f"[{low:{form}}, {high:{form}}]"


def _cells(entry: Setting) -> tuple[str, ...]:
    value, gain = entry.value, entry.gain
    return (
        entry.name,
        DASH if value is None else rate(value.value),
        "" if value is None or value.low is None else interval(value.low, value.high),
        "" if gain is None else factor(gain.value),
        "" if gain is None else _ends(gain.low, gain.high, ".2f"),
        str(entry.n),
        rate(entry.acceptance_length),
        rate(entry.step_ms),
    )


def table(ending: Ending, width: int, most: int) -> list[Text]:
    """The best settings and plain decoding: as many columns as fit, the knobs last where there is room for them."""
    entries = _chosen(ending.outcome.settings, most)
    if not entries:
        return []
    rows = [(_HEADER[0], ending.outcome.unit, *_HEADER[2:]), *map(_cells, entries)]
    while len(rows[0]) > 2 and _total(rows) > width:
        rows = [row[:-1] for row in rows]
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row, entry in zip(rows, (None, *entries), strict=True):
        text = "  ".join(
            _padded(cell, wide, column in _LEFT) for column, (cell, wide) in enumerate(zip(row, widths, strict=True))
        )
        room = width - cell_len(text) - 2
        if entry is not None and entry.knobs and room > _LEAST_KNOBS:
            text += "  " + fit(entry.knobs, room, gap=" ")
        style = "bold" if entry is None else "green" if entry.advised else ""
        lines.append(Text(text.rstrip(), style=style))
    return lines


def _padded(cell: str, width: int, left: bool) -> str:
    space = " " * (width - cell_len(cell))
    return cell + space if left else space + cell


def _total(rows: list[tuple[str, ...]]) -> int:
    return sum(max(cell_len(row[column]) for row in rows) + 2 for column in range(len(rows[0]))) - 2


def _chosen(settings: tuple[Setting, ...], most: int) -> list[Setting]:
    """The best, with the advised one and plain decoding among them wherever they stand; finalists before lucky runs."""
    must = [entry for entry in settings if entry.advised or not entry.speculative]
    others = sorted((entry for entry in settings if entry not in must), key=lambda entry: not entry.finalist)
    free = others[: max(0, most - len(must))]
    return [entry for entry in settings if entry in must or entry in free][: max(most, len(must))]


def _command(ending: Ending, width: int, room: int) -> list[Text]:
    command = ending.outcome.command
    if command is None:
        return []
    head = Text("run it with:", style="bold")
    for columns in (COMMAND_WIDTH, max(width, COMMAND_WIDTH)):
        lines = wrapped(command, columns)
        if len(lines) <= room:
            return [head, *map(Text, lines)]
    return [Text("the command line is long: it stands under “What to run now” in the findings", style="bold")]


def _verdicts(ending: Ending, width: int, most: int) -> list[Text]:
    told = [verdict for verdict in ending.verdicts if verdict.status is not VerdictStatus.NOT_ENOUGH_DATA]
    return [
        Text(cut(f"{STATUS_MARKS[verdict.status]} {first_sentence(verdict.statement)}", width))
        for verdict in told[: max(0, min(most, _VERDICTS))]
        if verdict.subject != "winner"
    ]


def summary(ending: Ending, width: int, *, say_where: bool) -> list[Text]:
    """At most MOST_LINES lines of at most `width` cells; only a command may be wider (80, or one long word).

    `say_where` False: the path of the findings stands on the next line anyway, so one line less is used.
    """
    bottom = [Text(f"findings: {ending.findings}")] if say_where else []
    room = MOST_LINES - 1
    top = [*_heading(ending, width), *_lines(ending.outcome.statement, width, _STATEMENT_LINES, "bold")]
    command = _command(ending, width, room - len(top) - 1)
    room -= len(top) + len(command)
    told = len(_verdicts(ending, width, _LEAST_VERDICTS)) if room > _LEAST_TABLE else 0
    rows = table(ending, width, min(_SETTINGS, room - 1 - told)) if room > _LEAST_TABLE - 1 else []
    verdicts = _verdicts(ending, width, room - len(rows))
    return [*top, *verdicts, *rows, *command, *bottom]
