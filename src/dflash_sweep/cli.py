"""The `dflash-sweep` command. Imports stay inside the commands, so that --help is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_sweep.archive.cli import app as archive_app
from dflash_sweep.compare_cli import compare
from dflash_sweep.db_cli import app as db_app
from dflash_sweep.emulator.cli import app as emulator_app
from dflash_sweep.recorder_cli import record
from dflash_sweep.rerun_cli import rerun
from dflash_sweep.showcase.dashboard_cli import dashboard
from dflash_sweep.traces.cli import app as traces_app

if TYPE_CHECKING:
    from dflash_sweep.schema import Config
    from dflash_sweep.store import Store

app = typer.Typer(
    name="dflash-sweep",
    help="Finds the speculative-decoding settings that are really fastest for your agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    rich_markup_mode=None,
)

app.add_typer(traces_app, name="traces")
app.add_typer(emulator_app, name="emulator")
app.add_typer(archive_app, name="archive")
app.add_typer(db_app, name="db")
app.command()(record)
app.command()(rerun)
app.command()(compare)
app.command()(dashboard)


def _version(shown: bool) -> None:
    if shown:
        from dflash_sweep import __version__

        typer.echo(f"dflash-sweep {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Tracebacks and debug messages.")] = False,
) -> None:
    """Options of every command."""


def _complete(context: typer.Context, incomplete: str) -> list[str]:
    """What an override can go on with: keys and groups, and after "group=" the names in it."""
    from dflash_sweep.completion import overrides

    return overrides(incomplete, list(context.params.get("overrides") or ()))


Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Dotted overrides, e.g. engine=llamacpp storage.url=…", autocompletion=_complete),
]
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=_PASS_ON, add_help_option=False)
def run(context: typer.Context, overrides: Overrides = None) -> None:
    """Run a study: the same as `python sweep.py …`, e.g. `dflash-sweep run +study=ddtree n_trials=20`."""
    from dflash_sweep.help_page import main as run_main

    raise typer.Exit(run_main([*(overrides or []), *context.args, *(["-v"] if context.obj else [])]))


def _config(overrides: list[str] | None, study_name: str) -> Config:
    from dflash_sweep import app as hydra_app
    from dflash_sweep import settings

    words = hydra_app.normalise([*(overrides or []), f"study_name={study_name}"])
    return settings.merge(hydra_app.compose_overrides(words, hydra_app.user_folder()))


def opened_store(overrides: list[str] | None, *, create: bool = False, upgrade: bool = True) -> Store:
    """The database of the configuration, or of overrides."""
    from dflash_sweep import settings
    from dflash_sweep.store import Store

    url = settings.absolute_url(_config(overrides, "none").storage.url, Path.cwd())
    return Store(url, create=create, upgrade=upgrade)


@app.command()
def doctor(overrides: Overrides = None) -> None:
    """Say whether an engine can run here: build, dialect, knobs, models, and what is missing."""
    from dflash_sweep import doctor as examination
    from dflash_sweep import settings, terminal

    engine = _config(overrides, "doctor").engine
    report = examination.examine(settings.engine_settings(engine, Path.cwd()))
    terminal.console(stderr=False).print(examination.render(report))
    raise typer.Exit(0 if report.ok else 2)


@app.command()
def report(study: str, overrides: Overrides = None) -> None:
    """Write the findings of a stored study again; prints the path of findings.md."""
    from dflash_sweep import report as reporting
    from dflash_sweep.errors import StorageError

    section = _config(overrides, study).report
    with opened_store(overrides) as store:
        info = store.study(study)
        if info is None:
            raise StorageError(f"study {study!r} is not stored; there are: {', '.join(store.study_names()) or 'none'}")
        folder = (Path.cwd() / section.dir / study).resolve()
        typer.echo(
            reporting.write(info, store.trials(study), folder, lang=section.lang, formats=tuple(section.formats))
        )


@app.command(name="list")
def list_studies(overrides: Overrides = None) -> None:
    """List the stored studies: a table in a terminal, tab-separated lines elsewhere."""
    from dflash_sweep import tables, terminal
    from dflash_sweep.terminal import studies_table

    with opened_store(overrides) as store:
        studies = [info for name in store.study_names() if (info := store.study(name)) is not None]
        with store.session() as session:
            counts = tables.counts(session)
    out = terminal.console(stderr=False)
    if out.is_terminal:
        out.print(studies_table.table(studies, counts, out.width))
    else:
        for line in studies_table.lines(studies, counts):
            typer.echo(line)


@app.command(name="import")
def import_log(
    log: Annotated[Path, typer.Argument(help="pi-autoresearch log, autoresearch TSV, or CSV of runs")],
    study: Annotated[str | None, typer.Option(help="Name of the new study; default: the file's name")] = None,
    alias: Annotated[list[str] | None, typer.Option(help="Rule that finds a parameter, see docs/importing.md")] = None,
    direction: Annotated[str | None, typer.Option(help="maximize or minimize, where the log does not say")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Dotted override, e.g. storage.url=…")] = None,
) -> None:
    """Read somebody's log as a study of its own; its rows are marked as imported and graded again by the report."""
    from dflash_sweep import importing
    from dflash_sweep.errors import StorageError

    imported = importing.read(log, aliases=alias or (), study=study, direction=direction)
    with opened_store(overrides, create=True) as store:
        if store.study(imported.study.name) is not None:
            raise StorageError(f"study {imported.study.name!r} is stored already; choose another name with --study")
        store.save_study(imported.study)
        store.add_imported(imported.trials)
    typer.echo("\n".join(imported.coverage.lines()))


@app.command(name="export")
def export_study(
    study: str,
    out: Annotated[Path | None, typer.Option(help="log.jsonl, rows .csv or .parquet; left out: METRIC lines")] = None,
    turns: Annotated[bool, typer.Option(help="One row a turn instead of one a trial")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Dotted override, e.g. storage.url=…")] = None,
) -> None:
    """Print a study's METRIC lines for an agent loop, or write it as an autoresearch log or a table."""
    from dflash_sweep import exporting
    from dflash_sweep.errors import ConfigError, StorageError

    if turns and (out is None or out.suffix == ".jsonl"):
        raise ConfigError("--turns: rows of turns go into a table only; it takes --out FILE.csv or --out FILE.parquet")
    with opened_store(overrides) as store:
        info = store.study(study)
        if info is None:
            raise StorageError(f"study {study!r} is not stored; there are: {', '.join(store.study_names()) or 'none'}")
        trials = store.trials(study)
    if out is None:
        typer.echo("\n".join(exporting.metric_lines(trials, info)))
    elif out.suffix == ".jsonl":
        typer.echo(exporting.write_log(out, trials, info))
    else:
        typer.echo(exporting.write_rows(out, trials, turns=turns))


def _dispatch(words: list[str], verbose: bool) -> int:
    """Run one command. What typer itself does not like of a command line is one line with where to look."""
    from dflash_sweep import mishap
    from dflash_sweep.exits import EXIT_CONFIG, EXIT_INTERRUPTED, EXIT_OK

    try:
        return app(args=words, standalone_mode=False, obj=verbose) or EXIT_OK
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last boundary: one line, whatever it was
        if not hasattr(error, "format_message"):
            return mishap.tell(error, verbose=verbose)
        message = error.format_message()
        if "\n" in message:  # no command at all: the help itself
            typer.echo(message, err=True)
        else:
            command = getattr(getattr(error, "ctx", None), "command_path", "dflash-sweep")
            typer.echo(f"error: {message.rstrip('.')} (see {command} --help)", err=True)
        return EXIT_CONFIG


def main() -> None:
    """Console entry: one line for an error, a traceback with -v."""
    from dflash_sweep.mishap import take_verbose

    words, verbose = take_verbose(sys.argv[1:])
    if verbose:
        import logging

        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger("dflash_sweep").setLevel(logging.DEBUG)
    elif not sys.warnoptions:  # libraries' warnings are written for developers: -v shows them, and so does python -W
        import warnings

        warnings.simplefilter("ignore")
    sys.exit(_dispatch(words, verbose))
