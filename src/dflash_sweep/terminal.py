"""What a person sees in the terminal: preflight table, live view, plain lines, summary. The only rich import of a run.

`LiveView` redraws one block while a study runs in a terminal; `PlainLines` prints one line an event everywhere else;
`Quiet` prints notes only. All write to standard error; the last line of a run, the findings' path, goes to standard
output.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from types import TracebackType

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dflash_sweep.preflight import Preflight
from dflash_sweep.records import AxisInfo, Knobs, Measurement, Role, StoredTrial, TrialSpec, Verdict, VerdictStatus
from dflash_sweep.watcher import Best, Watcher

_EVENTS_SHOWN = 8
_SUMMARY_VERDICTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What lines say of a trial: its objective's unit and the knobs that are searched."""

    unit: str
    axes: frozenset[str]


_ROLE_WORDS = {
    Role.BASELINE: "plain decoding",
    Role.CALIBRATE: "default setting",
    Role.SEARCH: "candidate",
    Role.CANARY: "plain decoding (canary)",
    Role.CONFIRM: "confirm",
    Role.CONTROL: "plain decoding like candidate",
    Role.RERUN: "rerun",
}
_STATUS_MARKS = {
    VerdictStatus.HOLDS: "●",
    VerdictStatus.DOES_NOT_HOLD: "○",
    VerdictStatus.NOT_ENOUGH_DATA: "·",
}


def console(*, stderr: bool = True) -> Console:
    """A console that honours NO_COLOR and never wraps plain lines into each other."""
    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def _axis_values(axis: AxisInfo) -> str:
    if axis.values is None:
        return f"{axis.low:g} … {axis.high:g}"
    return ", ".join("default" if value is None else str(value) for value in axis.values)


def preflight_table(study: str, preflight: Preflight, measurement: Measurement, *, n_trials: int, budget: str) -> Table:
    """The table shown before anything starts."""
    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False, title=f"study {study}", title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    label = "" if measurement is Measurement.MEASURED else f"  — numbers are {measurement}"
    table.add_row("engine", f"{preflight.build.engine} {preflight.build.version}{label}")
    for model in preflight.models:
        table.add_row(model.role, f"{model.name or model.path} {model.quantisation or ''}  sha256 {model.sha256[:12]}")
    names = [device.name for device in preflight.devices]
    table.add_row("workers", f"{len(names)} × {names[0]}" if len(set(names)) == 1 else ", ".join(names))
    header, turns = preflight.trace.header, preflight.trace.turns
    conversations = len({turn.conversation for turn in turns})
    table.add_row("trace", f"{header.name}: {len(turns)} turns, {conversations} conversation(s), {header.sha256[:12]}")
    for axis in preflight.axes:
        dead = "  (no effect with this engine and these settings)" if axis.name in preflight.dead_axes else ""
        table.add_row(f"  {axis.name}", f"{_axis_values(axis)} {axis.unit}{dead}".rstrip())
    size = "continuous" if preflight.space.size is None else f"{preflight.space.size} points"
    if preflight.effective_points is not None and preflight.effective_points != preflight.space.size:
        size += f", {preflight.effective_points} of them different in effect"
    table.add_row("space", size)
    for reason, count in preflight.impossible.items():
        table.add_row("left out", f"{count} point(s): {reason}")
    table.add_row("trials", f"{n_trials} candidates{budget}")
    for warning in preflight.warnings:
        table.add_row("note", warning)
    return table


def _knobs(knobs: Knobs, axes: Collection[str]) -> str:
    """The knobs that are searched; fixed ones are the same in every line."""
    return " ".join(
        f"{name}={'default' if value is None else str(value).lower() if isinstance(value, bool) else value}"
        for name, value in knobs.items()
        if name in axes
    )


def _who(role: Role, candidate: int | None, speculative: bool) -> str:
    if role is Role.CONFIRM and not speculative:
        return "confirm plain decoding"
    return _ROLE_WORDS[role] + ("" if candidate is None else f" {candidate}")


def trial_words(trial: StoredTrial, value: float | None, shown: Shown) -> str:
    """One trial in one line."""
    who = _who(trial.role, trial.candidate, trial.speculative)
    if trial.result.failure is not None:
        return f"{who}: {trial.result.failure.kind} — {trial.result.failure.message.splitlines()[0][:120]}"
    figure = "no value" if value is None else f"{value:.2f} {shown.unit}"
    knobs = _knobs(trial.knobs, shown.axes) if trial.speculative and trial.role is not Role.CONFIRM else ""
    return f"{who}: {figure}  {knobs}".rstrip()


def best_words(best: Best | None) -> str:
    """The best candidate so far, with its interval if it has one, beside plain decoding."""
    if best is None:
        return "no candidate yet"
    spread = "" if best.low is None or best.high is None else f" [{best.low:.2f}, {best.high:.2f}]"
    plain = "" if best.plain is None else f"; plain decoding {best.plain:.2f}"
    return f"candidate {best.candidate}: {best.value:.2f}{spread} {best.unit}{plain}"


class PlainLines:
    """One line an event, for logs and pipes."""

    def __init__(self, out: Console, shown: Shown) -> None:
        self._out, self._shown = out, shown
        self._done = self._total = 0

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_exc: object) -> None: ...

    def _line(self, text: str) -> None:
        self._out.print(f"{time.strftime('%H:%M:%S')} {text}", markup=False, soft_wrap=True)

    def phase(self, name: str, total: int) -> None:
        self._done, self._total = 0, total
        self._line(f"== {name}: {total} run(s)")

    def started(self, spec: TrialSpec) -> None: ...

    def finished(self, trial: StoredTrial, value: float | None, best: Best | None) -> None:
        self._done += 1
        words = trial_words(trial, value, self._shown)
        self._line(f"[{self._done}/{self._total}] {words}  | best {best_words(best)}")

    def note(self, text: str) -> None:
        self._line(text)

    def verdict(self, verdict: Verdict) -> None:
        self._line(verdict.statement)


class Quiet(PlainLines):
    """Notes only."""

    def phase(self, name: str, total: int) -> None: ...

    def finished(self, trial: StoredTrial, value: float | None, best: Best | None) -> None: ...


class LiveView:
    """A block that is redrawn in place: phase, workers, last trials, best so far, time left."""

    def __init__(self, out: Console, shown: Shown) -> None:
        self._shown = shown
        self._live = Live(console=out, refresh_per_second=4, transient=False, get_renderable=self._render)
        self._phase, self._done, self._total = "starting", 0, 0
        self._phase_began = time.monotonic()
        self._running: dict[str, tuple[TrialSpec, float]] = {}
        self._events: list[Text] = []
        self._best: Best | None = None

    def __enter__(self) -> Watcher:
        self._live.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._running.clear()
        self._live.stop()

    def phase(self, name: str, total: int) -> None:
        self._phase, self._done, self._total = name, 0, total
        self._phase_began = time.monotonic()

    def started(self, spec: TrialSpec) -> None:
        self._running[spec.uid] = (spec, time.monotonic())

    def finished(self, trial: StoredTrial, value: float | None, best: Best | None) -> None:
        self._running.pop(trial.uid, None)
        self._done += 1
        self._best = best
        self._event(Text(trial_words(trial, value, self._shown), style="red" if trial.result.failure else ""))

    def note(self, text: str) -> None:
        self._event(Text(text, style="bold"))

    def verdict(self, verdict: Verdict) -> None:
        self._event(Text(verdict.statement, style="bold"))

    def _event(self, text: Text) -> None:
        text.no_wrap, text.overflow = True, "ellipsis"
        self._events = [*self._events, text][-_EVENTS_SHOWN:]

    def _left(self) -> str:
        if not self._done or self._done >= self._total:
            return ""
        seconds = (time.monotonic() - self._phase_began) / self._done * (self._total - self._done)
        return f", about {seconds:.0f} s left" if seconds < 120 else f", about {seconds / 60:.0f} min left"

    def _render(self) -> Group:
        head = Text(f"{self._phase}  {self._done}/{self._total}{self._left()}", style="bold cyan", no_wrap=True)
        rows = [head]
        for spec, began in list(self._running.values()):
            who = _who(spec.role, spec.candidate, spec.speculative)
            knobs = _knobs(spec.knobs, self._shown.axes) if spec.speculative else ""
            line = f"  running {time.monotonic() - began:5.1f} s  {who}  {knobs}"
            rows.append(Text(line, no_wrap=True, overflow="ellipsis"))
        rows.append(Text(f"  best    {best_words(self._best)}", style="green", no_wrap=True, overflow="ellipsis"))
        return Group(*rows, *self._events)


def view(mode: str, shown: Shown, out: Console) -> PlainLines | LiveView:
    """The view of a `progress` setting: auto is live in a terminal, plain elsewhere."""
    if mode == "quiet":
        return Quiet(out, shown)
    if mode == "live" or (mode == "auto" and out.is_terminal):
        return LiveView(out, shown)
    return PlainLines(out, shown)


def first_sentence(text: str) -> str:
    """The statement without its explanation; points inside numbers and abbreviations do not end it."""
    match = re.search(r"(?<=[a-z0-9)\]])[.:;] (?=[A-Z])", text)
    return text if match is None else text[: match.start()] + "."


def summary(verdicts: Iterable[Verdict], command: str | None) -> Group:
    """The main conclusions, most important first, and the command line to use."""
    told = [verdict for verdict in verdicts if verdict.status is not VerdictStatus.NOT_ENOUGH_DATA]
    rows = []
    for verdict in told[:_SUMMARY_VERDICTS]:
        style = "bold" if verdict.status is VerdictStatus.HOLDS else ""
        rows.append(Text(f"{_STATUS_MARKS[verdict.status]} {first_sentence(verdict.statement)}", style=style))
    if command:
        rows += [Text("run it with:", style="bold"), Text(f"  {command}")]
    return Group(*rows)
