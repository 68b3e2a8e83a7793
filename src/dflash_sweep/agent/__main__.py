"""Make a shipped trace again: `python -m dflash_sweep.agent agent --out agent.jsonl`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import httpx
import typer

from dflash_sweep.agent.bursts import TOOL_BURSTS
from dflash_sweep.agent.policy import AGENT, AGENT_SHORT
from dflash_sweep.agent.prompt_sets import CODING, PROSE, long_context, record_prompts
from dflash_sweep.agent.recording import ESTIMATE, estimated_tokens, record
from dflash_sweep.errors import ConfigError, DflashSweepError
from dflash_sweep.records import Trace
from dflash_sweep.traces.canonical import save

SCRIPTS = {script.name: script for script in (AGENT, AGENT_SHORT, TOOL_BURSTS)}
PROMPT_SETS = {"coding": lambda: CODING, "prose": lambda: PROSE, "long_context": long_context}


def _server_counter(url: str) -> Callable[[str], int]:
    def count(text: str) -> int:
        try:
            answer = httpx.post(f"{url.rstrip('/')}/tokenize", json={"content": text}, timeout=30.0).raise_for_status()
            return len(answer.json()["tokens"])
        except (httpx.HTTPError, KeyError, ValueError) as error:
            raise ConfigError(
                f"--tokenizer-url {url}: /tokenize did not answer as llama-server does: {error}"
            ) from None

    return count


def make(name: str, count_tokens: Callable[[str], int] = estimated_tokens, tokenizer: str = ESTIMATE) -> Trace:
    """A shipped trace, made anew. Raises ConfigError for a name that is not known."""
    if name in PROMPT_SETS:
        return record_prompts(PROMPT_SETS[name](), count_tokens, tokenizer)
    if name not in SCRIPTS:
        raise ConfigError(f"no script {name!r}; there are {', '.join([*SCRIPTS, *PROMPT_SETS])}")
    with tempfile.TemporaryDirectory() as folder:
        return record(SCRIPTS[name], Path(folder), count_tokens, tokenizer)


def main(
    script: Annotated[str, typer.Argument(help=f"one of {', '.join([*SCRIPTS, *PROMPT_SETS])}")],
    out: Annotated[Path, typer.Option(help="trace file to write")],
    tokenizer_url: Annotated[str | None, typer.Option(help="llama-server whose /tokenize counts the answers")] = None,
    tokenizer_name: Annotated[str | None, typer.Option(help="what to call that tokenizer in the header")] = None,
) -> None:
    """Play a script with tools that really run (or lay out a set of prompts), and write the trace."""
    try:
        if tokenizer_url is None:
            trace = make(script)
        else:
            trace = make(script, _server_counter(tokenizer_url), tokenizer_name or tokenizer_url)
        trace = save(trace, out)
    except DflashSweepError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{out}: {len(trace.turns)} turns, sha256 {trace.header.sha256}")


if __name__ == "__main__":
    typer.run(main)
