"""`dflash-sweep emulator …`: compare with published runs, list what the emulator can do. Imports typer, rich, `check`.

`app` is mounted by the program's command line; heavy modules are imported inside the commands.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dflash_sweep.emulator.check import Report

app = typer.Typer(help="The embedded emulator: how far it can be trusted, and what it can do.", no_args_is_help=True)

_UNFOLDED = 10_000
"""Columns where no table is too wide."""


@app.command("check")
def check_command(
    file: Annotated[
        Path | None, typer.Argument(help="CSV with the published runs' columns; none = the shipped one")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="prompts that a prediction is the mean of")] = 300,
) -> None:
    """Predict every row of a file, noise-free, and show the errors per row, per stage and in total."""
    from dflash_sweep.emulator.check import check_file
    from dflash_sweep.errors import ConfigError

    try:
        report = check_file(file, seeds)
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(report.as_dict(), ensure_ascii=False, allow_nan=False))
    else:
        show(report)


@app.command("list")
def list_command() -> None:
    """Cards, workloads and faults that can be chosen."""
    from dflash_sweep.emulator import devices, dials, faults

    for name in devices.names():
        card = devices.load(name)
        typer.echo(f"card      {name:18} {card.name}, {card.memory_mib} MiB: {card.source}")
    for name in dials.names():
        typer.echo(f"workload  {name:18} {dials.load(name).source}")
    for name, meaning in faults.LAUNCH_FAULTS.items():
        typer.echo(f"fault     {name:18} (launch) {meaning}")
    for name, meaning in faults.REQUEST_FAULTS.items():
        typer.echo(f"fault     {name:18} (request) {meaning}")


def show(report: Report) -> None:
    """The report as tables: as wide as the terminal, and unfolded where something else reads it."""
    from rich.console import Console

    from dflash_sweep.emulator import tables

    console = Console()
    width = console.width if console.is_terminal else None
    if width is None:
        console = Console(width=_UNFOLDED)
    for table in tables.all_tables(report, width):
        console.print(table)
    console.print("Emulated figures are noise-free means over prompts; published ones are single runs.", style="dim")


def main() -> None:
    """Entry of `python -m dflash_sweep.emulator.check`-like use in tests and benchmarks."""
    app()


if __name__ == "__main__":
    main()
