"""The block that is redrawn while a study runs, as lines of so many cells. Pure; imports `terminal` siblings."""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text

from dflash_sweep.records import Device, TrialSpec
from dflash_sweep.report.wording import plural
from dflash_sweep.terminal import stage_bar
from dflash_sweep.terminal.board import Board, Step
from dflash_sweep.terminal.words import about, best_pieces, clock, fit, spec_pieces

_LEAST_BAR = 8
_STAMPS = {"measured": "black on green", "emulated": "black on yellow", "imported": "black on cyan"}


def _left(board: Board) -> str:
    phase, study = board.phase_left_s(), board.study_left_s()
    if phase is None and study is None:
        return ""
    if phase is None or study is None or study - phase < 1:
        return f"about {about(study or phase or 0.0)} left"
    return f"{about(phase)} left, about {about(study)} in all"


def head(board: Board, width: int) -> Text:
    """Study, kind of numbers, phase, progress, time left."""
    stamp = f" {str(board.scene.measurement).upper()} "
    count = f"{board.phase_name} {board.done}/{board.total}" if board.total else board.phase_name
    left = _left(board)
    fixed = cell_len(board.scene.study) + len(stamp) + cell_len(count) + 4
    room = width - fixed - 2 - len(left)
    if left and room < _LEAST_BAR:
        left, room = "", width - fixed
    line = Text(no_wrap=True)
    line.append(board.scene.study, style="bold")
    line.append(" ")
    line.append(stamp, style=_STAMPS[board.scene.measurement])
    line.append(f"  {count} ", style="bold cyan")
    if board.total and room >= _LEAST_BAR:
        filled = min(room, int(room * board.done / board.total))
        line.append("━" * filled, style="cyan")
        line.append("─" * (room - filled), style="bright_black")
    if left:
        line.append(f"  {left}")
    return line


def _seats(board: Board) -> tuple[list[tuple[Device, TrialSpec | None]], int]:
    """Each worker's device with what runs on it, and how many trials wait for a worker."""
    running = {uid: spec for uid, (spec, _) in list(board.running.items())}
    devices, where = board.scene.devices, board.scene.where
    if where is None or len(devices) == 1:
        placed = dict(enumerate(running.values()))
    else:
        placed = {place: running[uid] for uid, place in where().items() if uid in running}
    return [(device, placed.get(place)) for place, device in enumerate(devices)], max(0, len(running) - len(devices))


def workers(board: Board, width: int, most: int) -> list[Text]:
    """One line a worker: its device, how long its trial has been running, which one it is."""
    seats, waiting = _seats(board)
    several = len(seats) > 1
    names = [f"{device.name} #{device.index}" if width >= 120 and several else "" for device, _ in seats]
    wide = max(map(cell_len, names), default=0)
    lines = []
    for number, ((_, spec), name) in enumerate(zip(seats, names, strict=True), 1):
        label = f"worker {number}" if several else "worker"
        where = f"{name}{' ' * (wide - cell_len(name))}  " if wide else ""
        lead = f"{label:<10}{where}"
        time_s = clock(board.elapsed(spec.uid)) if spec is not None and spec.uid in board.running else ""
        pieces = spec_pieces(spec, board.scene) if spec is not None else ["idle"]
        rest = fit(pieces, width - cell_len(lead) - 9)
        lines.append(Text(f"{lead}{time_s:>7}  {rest}", style="" if spec else "bright_black", no_wrap=True))
    if waiting:
        lines.append(Text(f"{'waiting':<10}{plural(waiting, 'run')}", style="bright_black", no_wrap=True))
    if len(lines) > most:
        hidden = len(lines) - most + 1
        lines = [*lines[: most - 1], Text(f"{'':<10}and {hidden} more", style="bright_black", no_wrap=True)]
    return lines


def _bars(board: Board, width: int) -> list[Text]:
    named: list[tuple[str, Step]] = []
    if (best := board.best_step) is not None:
        named.append(("  best", best))
    if (last := board.last_step) is not None and last is not best:
        named.append(("  last", last))
    return stage_bar.bars(named, board.plain_ms, width) if named else []


def frame(board: Board, width: int, height: int) -> list[Text]:
    """The whole block: at most `height` lines of at most `width` cells. What matters least goes first."""
    top = [head(board, width)]
    best = [Text(f"{'best':<10}{fit(best_pieces(board.best), width - 10)}", style="green", no_wrap=True)]
    bars = _bars(board, width)
    if len(top) + len(best) + len(bars) + 1 > height:
        bars = []
    room = max(1, height - len(top) - len(best) - len(bars))
    crew = workers(board, width, room)
    lines = [*top, *crew, *bars, *best][:height]
    if len(lines) < height:
        lines.insert(0, Text("─" * width, style="bright_black", no_wrap=True))
    for line in lines:
        line.truncate(width)  # only terminals narrower than any of our lines is made for
    return lines
