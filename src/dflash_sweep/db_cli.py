"""`dflash-sweep db`. Imports typer; everything else when a command runs."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Look after the database of studies.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Look after the database of studies."""


@app.command()
def check(
    overrides: Annotated[list[str] | None, typer.Argument(help="Dotted overrides, e.g. storage.url=…")] = None,
) -> None:
    """Hold Optuna's tables and ours against each other; one line a fault. Changes nothing.

    Exit code 0 = whole, 6 = there are faults.
    """
    from dflash_sweep import consistency, upgrades
    from dflash_sweep.cli import opened_store
    from dflash_sweep.exits import EXIT_FAULTY, EXIT_OK

    with opened_store(overrides, upgrade=False) as store:
        faults = consistency.check(store)
        version = upgrades.current(store.engine)
        studies = len(store.study_names()) if version else 0
    for fault in faults:
        typer.echo(fault)
    older = "" if version in (None, upgrades.head()) else f", {upgrades.head()} is the newest"
    counted = f"{len(faults)} fault(s)" if faults else "no fault"
    typer.echo(f"{counted} in {studies} study(ies), schema {version}{older}", err=True)
    raise typer.Exit(EXIT_FAULTY if faults else EXIT_OK)
