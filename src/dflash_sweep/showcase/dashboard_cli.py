"""`dflash-sweep dashboard`: a study's pages written, the server started, the URL printed. Heavy imports stay inside."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_sweep.errors import ConfigError, StorageError
from dflash_sweep.exits import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from dflash_sweep.store import Store

DEFAULT_PORT = 8080


def dashboard(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="STUDY", help="A stored study to open at; dotted overrides such as storage.url=…"),
    ] = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 = any free one")] = DEFAULT_PORT,
) -> None:
    """Show the stored studies in Optuna's dashboard on this machine; prints the URL, Ctrl-C ends it."""
    from dflash_sweep import app, settings
    from dflash_sweep.showcase import files_dir
    from dflash_sweep.store import Store

    studies = [word for word in words or () if "=" not in word]
    if len(studies) > 1:
        raise ConfigError(f"dashboard: one study at most, got {', '.join(studies)}; overrides look like storage.url=…")
    study = studies[0] if studies else None
    overrides = [word for word in words or () if "=" in word]
    config = settings.merge(app.compose_overrides(app.normalise([*overrides, f"study_name={study or 'none'}"])))
    here = Path.cwd()
    url = settings.absolute_url(config.storage.url, here)
    with Store(url, create=False) as store:
        code = show(
            store, study, folder=files_dir(config.storage.files, url, here),
            report_dir=(here / config.report.dir).resolve(), lang=config.report.lang, port=port,
        )  # fmt: skip
    raise typer.Exit(code)


def show(store: Store, study: str | None, *, folder: Path, report_dir: Path, lang: str, port: int) -> int:
    """Serve until Ctrl-C or SIGTERM; prints the URL first. Gives the exit code.

    `report_dir`: where findings of studies are written, one folder a study. Raises StorageError for an unknown study or
    an unusable database, ConfigError for a port that is taken.
    """
    from dflash_sweep.showcase.server import address, dashboard_server

    server = dashboard_server(store.url, folder, port=port)  # before anything is written: the port may be taken
    try:
        study_id = None if study is None else _prepared(store, study, folder, report_dir, lang)
        print(address(server, study_id), flush=True)  # noqa: T201 - what the command is for
        print("Ctrl-C ends it.", file=sys.stderr, flush=True)  # noqa: T201
        for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts jobs in the background deaf to Ctrl-C
            signal.signal(number, _interrupt)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    finally:
        server.server_close()
    return EXIT_INTERRUPTED


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _prepared(store: Store, study: str, folder: Path, report_dir: Path, lang: str) -> int:
    """Optuna's number of a study whose pages are up to date. A running study's own driver writes them."""
    from dflash_sweep.showcase.publishing import number_of, publish

    info = store.study(study)
    if info is None:
        raise StorageError(f"study {study!r} is not stored; there are: {', '.join(store.study_names()) or 'none'}")
    if info.status == "running" and (number := number_of(store.url, study)) is not None:
        return number
    written = report_dir / study
    return publish(store, info, folder=folder, lang=lang, report_dir=written if written.is_dir() else None)
