"""`dflash-sweep archive`. Imports typer; everything else when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Pack a study into one file, and take such a file into another database.", no_args_is_help=True)

Set = Annotated[list[str] | None, typer.Option("--set", help="Dotted override, e.g. storage.url=…")]


@app.command(name="export")
def export_archive(
    study: Annotated[str, typer.Argument(help="Name of a stored study")],
    out: Annotated[Path | None, typer.Option(help="The file; default: <study>.zip")] = None,
    evidence_mib: Annotated[
        float, typer.Option(help="Logs and other files of trials up to this size, MiB unpacked; 0 = none")
    ] = 256.0,
    keep_names: Annotated[
        bool, typer.Option("--keep-names", help="Keep names of hosts and the path of your home folder")
    ] = False,
    findings: Annotated[bool, typer.Option(help="Take the report along")] = True,
    overrides: Set = None,
) -> None:
    """Write a study with rows, traces, logs, configuration and findings into one file; prints its path.

    Prompts and answers are in it as they were; secrets are not. What is inside is told in docs/archive.md.
    """
    from dflash_sweep.archive import packing
    from dflash_sweep.cli import opened_store

    path = out or Path(f"{study}.zip")
    with opened_store(overrides) as store:
        done = packing.export(
            store,
            study,
            path,
            evidence_bytes=round(evidence_mib * 2**20),
            home=None if keep_names else str(Path.home()),
            launch_dir=Path.cwd(),
            findings=findings,
        )
    for reason in done.left_out:
        typer.echo(f"left out: {reason}", err=True)
    typer.echo(done.path)


@app.command(name="import")
def import_archive(
    file: Annotated[Path, typer.Argument(help="An archive made by `dflash-sweep archive export`")],
    name: Annotated[str | None, typer.Option("--as", help="Name of the study here; default: its own")] = None,
    folder: Annotated[Path, typer.Option(help="Where logs and traces go: <folder>/<study>/imported")] = Path("sweeps"),
    max_mib: Annotated[int, typer.Option(help="What the archive may unpack to, MiB", min=1)] = 4096,
    overrides: Set = None,
) -> None:
    """Take a study out of an archive; `dflash-sweep report` then gives the findings that it gave where it was made."""
    from dflash_sweep.archive import unpacking
    from dflash_sweep.cli import opened_store

    with opened_store(overrides, create=True) as store:
        done = unpacking.read(store, file, name=name, evidence_root=folder, max_bytes=max_mib << 20)
    for reason in done.left_out:
        typer.echo(f"not in the archive: {reason}", err=True)
    typer.echo(f"{done.study}: {done.trials} trials; files in {done.folder}")
