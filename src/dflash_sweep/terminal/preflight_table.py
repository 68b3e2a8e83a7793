"""The table that is shown before anything starts. Pure; imports `preflight`, `records`, `terminal.scene`, rich."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table

from dflash_sweep.preflight import Preflight
from dflash_sweep.records import AxisInfo, Device, Measurement
from dflash_sweep.report.wording import knob_value, number, plural
from dflash_sweep.terminal.scene import Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What a run is going to do. `budget_hours` None = no limit."""

    preflight: Preflight
    n_trials: int
    budget_hours: float | None = None


def _axis_values(axis: AxisInfo) -> str:
    if axis.values is None:
        return f"{number(axis.low)} … {number(axis.high)}"
    return ", ".join(map(knob_value, axis.values))


def _workers(devices: tuple[Device, ...]) -> str:
    names = [device.name for device in devices]
    return f"{len(names)} × {names[0]}" if len(set(names)) == 1 else ", ".join(names)


def _space(preflight: Preflight) -> str:
    if preflight.space.size is None:
        return "continuous"
    size = plural(preflight.space.size, "point")
    if preflight.effective_points is not None and preflight.effective_points != preflight.space.size:
        size += f", {preflight.effective_points} of them different in effect"
    return size


def preflight_table(scene: Scene, overview: Overview) -> Table:
    """Engine, models, workers, trace, axes, budget; numbers that are not measured are said to be so at once."""
    preflight = overview.preflight
    table = Table(
        box=box.SIMPLE_HEAD, show_header=False, pad_edge=False, padding=(0, 1), title_justify="left",
        title=f"study {escape(scene.study)}", title_style="bold",
    )  # fmt: skip
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def row(name: str, text: str) -> None:
        table.add_row(name, escape(text))

    kind = "" if scene.measurement is Measurement.MEASURED else f" — every number is {str(scene.measurement).upper()}"
    row("engine", f"{preflight.build.engine} {preflight.build.version}{kind}")
    for model in preflight.models:
        row(model.role, f"{model.name or model.path} {model.quantisation or ''} sha256 {model.sha256[:12]}")
    row("workers", _workers(preflight.devices))
    header, turns = preflight.trace.header, preflight.trace.turns
    conversations = plural(len({turn.conversation for turn in turns}), "conversation")
    row("trace", f"{header.name}: {plural(len(turns), 'turn')}, {conversations}, sha256 {header.sha256[:12]}")
    for axis in preflight.axes:
        dead = " (no effect with this engine and these settings)" if axis.name in preflight.dead_axes else ""
        row(f"  {axis.name}", f"{_axis_values(axis)} {axis.unit}".rstrip() + dead)
    row("space", _space(preflight))
    for reason, count in preflight.impossible.items():
        row("left out", f"{plural(count, 'point')}: {reason}")
    hours = overview.budget_hours
    row("trials", plural(overview.n_trials, "candidate") + ("" if hours is None else f", at most {hours:g} h"))
    for warning in preflight.warnings:
        row("note", warning)
    return table
