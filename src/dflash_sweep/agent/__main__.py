"""Record a scripted agent session as a trace: `python -m dflash_sweep.agent agent --out agent.jsonl`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import httpx
import typer

from dflash_sweep.agent.policy import SCRIPTS
from dflash_sweep.agent.recording import record
from dflash_sweep.errors import ConfigError, DflashSweepError
from dflash_sweep.traces.canonical import save


def _server_counter(url: str, text: str) -> int:
    try:
        answer = httpx.post(f"{url.rstrip('/')}/tokenize", json={"content": text}, timeout=30.0).raise_for_status()
        return len(answer.json()["tokens"])
    except (httpx.HTTPError, KeyError, ValueError) as error:
        raise ConfigError(f"--tokenizer-url {url}: /tokenize did not answer as llama-server does: {error}") from None


def main(
    script: Annotated[str, typer.Argument(help=f"one of {', '.join(SCRIPTS)}")],
    out: Annotated[Path, typer.Option(help="trace file to write")],
    tokenizer_url: Annotated[str | None, typer.Option(help="llama-server whose /tokenize counts the answers")] = None,
    tokenizer_name: Annotated[str | None, typer.Option(help="what to call that tokenizer in the header")] = None,
) -> None:
    """Play a script with tools that really run, and write the canonical trace."""
    try:
        if script not in SCRIPTS:
            raise ConfigError(f"no script {script!r}; scripts are {', '.join(SCRIPTS)}")
        with tempfile.TemporaryDirectory() as folder:
            if tokenizer_url is None:
                trace = record(SCRIPTS[script], Path(folder))
            else:
                counter, name = (lambda text: _server_counter(tokenizer_url, text)), tokenizer_name or tokenizer_url
                trace = record(SCRIPTS[script], Path(folder), counter, name)
        trace = save(trace, out)
    except DflashSweepError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{out}: {len(trace.turns)} turns, sha256 {trace.header.sha256}")


if __name__ == "__main__":
    typer.run(main)
