"""The `dflash-sweep` command. Imports stay inside the commands, so that --help is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="dflash-sweep",
    help="Finds the speculative-decoding settings that are really fastest for your agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    rich_markup_mode=None,
)

Overrides = Annotated[list[str] | None, typer.Argument(help="Dotted overrides, e.g. engine=llamacpp storage.url=…")]
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def _version(shown: bool) -> None:
    if shown:
        from dflash_sweep import __version__

        typer.echo(f"dflash-sweep {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Options of every command."""


@app.command(context_settings=_PASS_ON, add_help_option=False)
def run(context: typer.Context) -> None:
    """Run a study: the same as `python sweep.py …`, e.g. `dflash-sweep run +study=ddtree n_trials=20`."""
    from dflash_sweep.app import main as run_main

    raise typer.Exit(run_main(context.args))


@app.command()
def doctor(overrides: Overrides = None) -> None:
    """Say whether an engine can run here: build, dialect, knobs, models, and what is missing."""
    from dflash_sweep import app as hydra_app
    from dflash_sweep import doctor as examination
    from dflash_sweep import settings, terminal

    config = settings.merge(hydra_app.compose_overrides([*(overrides or []), "+study_name=doctor"]))
    report = examination.examine(settings.engine_settings(config.engine, Path.cwd()))
    terminal.console(stderr=False).print(examination.render(report))
    raise typer.Exit(0 if report.ok else 2)


@app.command()
def report(study: str, overrides: Overrides = None) -> None:
    """Write the findings of a stored study again; prints the path of findings.md."""
    from dflash_sweep import app as hydra_app
    from dflash_sweep import report as reporting
    from dflash_sweep import settings
    from dflash_sweep.errors import StorageError
    from dflash_sweep.store import Store

    config = settings.merge(hydra_app.compose_overrides([*(overrides or []), f"study_name={study}"]))
    with Store(settings.absolute_url(config.storage.url, Path.cwd()), create=False) as store:
        info = store.study(study)
        if info is None:
            raise StorageError(f"study {study!r} is not stored; there are: {', '.join(store.study_names()) or 'none'}")
        folder = (Path.cwd() / config.report.dir / study).resolve()
        formats = tuple(config.report.formats)
        typer.echo(reporting.write(info, store.trials(study), folder, lang=config.report.lang, formats=formats))


@app.command(name="list")
def list_studies(overrides: Overrides = None) -> None:
    """List the stored studies."""
    from dflash_sweep import app as hydra_app
    from dflash_sweep import settings
    from dflash_sweep.store import Store

    config = settings.merge(hydra_app.compose_overrides([*(overrides or []), "study_name=list"]))
    with Store(settings.absolute_url(config.storage.url, Path.cwd()), create=False) as store:
        for name in store.study_names():
            info = store.study(name)
            if info is not None:
                typer.echo(f"{name}\t{info.status}\t{info.engine}\t{info.measurement}\t{info.created_utc}")


def main() -> None:
    """Console entry: one line for an error, never a traceback without -v."""
    from dflash_sweep.errors import ConfigError, DflashSweepError

    try:
        app()
    except DflashSweepError as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        sys.exit(2 if isinstance(error, ConfigError) else 3)
    except KeyboardInterrupt:
        sys.exit(130)
