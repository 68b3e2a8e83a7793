"""`dflash-sweep compare A B`. Imports typer; everything else when the command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A stored study, or STUDY:TRIAL")],
    second: Annotated[str, typer.Argument(metavar="B", help="What it is compared with, likewise")],
    force: Annotated[
        bool, typer.Option("--force", help="Rank them although they were measured under other terms; marked")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the page as Markdown, too")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Dotted override, e.g. storage.url=…")] = None,
) -> None:
    """Compare two stored studies or trials: what differs, then their figures with intervals."""
    from dflash_sweep import app, settings, terminal
    from dflash_sweep.compare import compared
    from dflash_sweep.errors import ConfigError
    from dflash_sweep.exits import EXIT_OK, EXIT_UNDECIDED
    from dflash_sweep.report import compare_page, console, markdown, writer
    from dflash_sweep.store import Store

    config = settings.merge(app.compose_overrides(app.normalise([*(overrides or []), "study_name=none"])))
    with Store(settings.absolute_url(config.storage.url, Path.cwd()), create=False) as store:
        page = compared(store, first, second, force=force)
    document = compare_page.document(page)
    terminal.console(stderr=False).print(console.rendered(document))
    if out is not None:
        try:
            writer.replace_file(out, markdown.Renderer({}, "").render(document).encode())
        except OSError as error:
            raise ConfigError(f"--out {out}: cannot be written: {error.strerror}") from error
    raise typer.Exit(EXIT_OK if page.is_ranked else EXIT_UNDECIDED)
