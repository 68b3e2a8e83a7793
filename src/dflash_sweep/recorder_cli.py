"""The command `dflash-sweep record`. Imports `recorder` inside the command, so that --help is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_PORT = 8089


def record(
    upstream: Annotated[str, typer.Option(help="The model server, http://host:port or https://…")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 = any free one.")] = DEFAULT_PORT,
    out: Annotated[Path, typer.Option(help="Folder for the traces, one file per conversation.")] = Path("traces"),
    name: Annotated[str, typer.Option(help="Beginning of the files' names.")] = "recorded",
) -> None:
    """Record an agent's calls: point its base URL here, work as usual, end with Ctrl-C.

    Calls go through untouched. Chat-completions, responses and Anthropic messages become traces; keys are never kept.
    """
    from dflash_sweep.recorder import serve

    serve(upstream, host, port, out, name, announce=typer.echo)
