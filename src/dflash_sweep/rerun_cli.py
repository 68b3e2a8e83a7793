"""`dflash-sweep rerun STUDY [TRIAL]`. Imports typer; everything else when the command runs."""

from __future__ import annotations

from typing import Annotated

import typer


def rerun(
    study: Annotated[str, typer.Argument(help="Name of a stored study")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRIAL|OVERRIDE",
            help="The trial's number (none = the whole study again), then dotted overrides, e.g. storage.url=…",
        ),
    ] = None,
    repeats: Annotated[int | None, typer.Option(help="Runs of the trial, each beside one of plain decoding")] = None,
    margin: Annotated[
        float | None, typer.Option(help="Largest difference that counts as the same, percent; none = from the noise")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Measure although build, model, trace or device differ; marked")
    ] = False,
) -> None:
    """Measure a stored trial again and say whether it came out: reproduced, drifted, not reproduced, inconclusive."""
    from dflash_sweep.app import main as run_main

    rest = list(words or [])
    chosen = [f"study_name={study}", f"rerun.study={study}"]
    if rest and rest[0].isdigit():
        chosen = [f"study_name={study}", f"rerun.trial={rest.pop(0)}"]
    for name, value in (("repeats", repeats), ("margin", margin)):
        if value is not None:
            chosen.append(f"rerun.{name}={value}")
    if force:
        chosen.append("rerun.force=true")
    raise typer.Exit(run_main([*chosen, *rest]))
