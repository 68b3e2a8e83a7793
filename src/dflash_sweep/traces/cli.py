"""`dflash-sweep traces …`: show, validate, split, stats, redact, share, import. Top layer: may import anything.

Imports stay inside the commands, so that --help is quick.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dflash_sweep.records import Trace

app = typer.Typer(name="traces", help="Look at, check, cut, clean and import traces.", no_args_is_help=True)

TraceArgument = Annotated[str, typer.Argument(metavar="TRACE", help="trace file, or the name of a shipped trace")]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="file to write")]


def _load(trace: str) -> Trace:
    from dflash_sweep import traces

    loaded, warnings = traces.read(traces.resolve(trace))
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    return loaded


@app.command(name="list")
def list_shipped() -> None:
    """List the traces that ship with the program."""
    from dflash_sweep import traces

    for name, text in traces.SHIPPED.items():
        typer.echo(f"{name:<14} {text}")


@app.command()
def show(
    trace: TraceArgument,
    turn: Annotated[int | None, typer.Option(help="show the messages of this turn instead")] = None,
    conversation: Annotated[str | None, typer.Option(help="conversation of --turn; the first when left out")] = None,
    png: Annotated[Path | None, typer.Option(help="also draw the picture into this PNG file")] = None,
) -> None:
    """Show what a trace is and how its prompts grow."""
    from dflash_sweep.traces.stats import trace_stats
    from dflash_sweep.traces.text_picture import figure_lines, header_lines, picture_lines

    loaded = _load(trace)
    if turn is not None:
        _show_turn(loaded, turn, conversation)
        return
    stats = trace_stats(loaded)
    typer.echo("\n".join([*header_lines(loaded, stats), *figure_lines(stats), "", *picture_lines(stats.turns)]))
    if png is not None:
        from dflash_sweep.report.trace_picture import write_png

        typer.echo(write_png(loaded, stats, png))


def _show_turn(loaded: Trace, index: int, conversation: str | None) -> None:
    from dflash_sweep.errors import TraceError

    name = conversation if conversation is not None else loaded.turns[0].conversation
    found = next((t for t in loaded.turns if t.conversation == name and t.index == index), None)
    if found is None:
        known = ", ".join(dict.fromkeys(t.conversation for t in loaded.turns))
        raise TraceError(f"no turn {index} in conversation {name!r}; conversations: {known}")
    for message in found.messages:
        typer.echo(f"--- {message['role']}")
        typer.echo(str(message.get("content") or ""))
        for call in message.get("tool_calls") or ():
            typer.echo(f"→ {call['function']['name']} {call['function']['arguments']}")
    typer.echo("--- recorded answer")
    typer.echo(found.recorded.content or "")
    for call in found.recorded.tool_calls:
        typer.echo(f"→ {call['function']['name']} {call['function']['arguments']}")


@app.command()
def stats(trace: TraceArgument) -> None:
    """Print the figures of a trace as JSON: totals, buckets, and one object a turn."""
    from dflash_sweep.traces.stats import trace_stats

    figures = trace_stats(_load(trace))
    whole = asdict(figures) | {"longest_tokens": figures.longest_tokens, "estimated": figures.estimated}
    typer.echo(json.dumps(whole, indent=2, ensure_ascii=False))


@app.command()
def validate(
    trace: TraceArgument,
    objective: Annotated[str | None, typer.Option("--for", help="also: may it be used for this objective?")] = None,
    faithful: Annotated[bool, typer.Option("--faithful", help="also: are its requests those that were sent?")] = False,
) -> None:
    """Check a trace: format, hash, and whether servers accept every request. Exit code 2 when something is wrong."""
    from dflash_sweep import traces
    from dflash_sweep.errors import ConfigError
    from dflash_sweep.objective import OBJECTIVES
    from dflash_sweep.traces.purpose import LOAD_OBJECTIVES, check_faithful, check_purpose

    known = dict.fromkeys((*OBJECTIVES, *LOAD_OBJECTIVES))
    if objective is not None and objective not in known:
        raise ConfigError(f"--for {objective}: there is no such objective; allowed: {', '.join(known)}")
    path = traces.resolve(trace)
    problems = traces.validate(path)
    for problem in problems:
        typer.echo(f"error: {problem}", err=True)
    if problems:
        raise typer.Exit(2)
    loaded = _load(trace)
    if objective is not None:
        check_purpose(loaded, objective)
    if faithful:
        check_faithful(loaded)
    typer.echo(f"{path.name}: {len(loaded.turns)} turns, every request is acceptable, sha256 {loaded.header.sha256}")


@app.command()
def split(
    trace: TraceArgument,
    out_dir: Annotated[Path, typer.Option("--out-dir", "-d", help="folder for the pieces")],
    by: Annotated[str | None, typer.Option(help="conversation or bucket")] = None,
    turns: Annotated[str | None, typer.Option(help="FIRST-LAST, for example 0-4")] = None,
    check: Annotated[float | None, typer.Option(help="share of the conversations to keep for checking, 0 to 1")] = None,
) -> None:
    """Cut a trace into several files. Every turn keeps its whole history."""
    from dflash_sweep import traces

    for label, piece in _pieces(_load(trace), by, turns, check).items():
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in label)
        stored = traces.save(piece, out_dir / f"{Path(trace).stem}-{safe}.jsonl")
        typer.echo(f"{out_dir / f'{Path(trace).stem}-{safe}.jsonl'}: {len(stored.turns)} turns")


def _pieces(loaded: Trace, by: str | None, turns: str | None, check: float | None) -> dict[str, Trace]:
    from dflash_sweep.errors import TraceError
    from dflash_sweep.traces import splitting

    if [by, turns, check].count(None) != 2:
        raise TraceError("split takes exactly one of --by conversation|bucket, --turns FIRST-LAST, --check SHARE")
    if check is not None:
        return splitting.tune_and_check(loaded, check)
    if turns is not None:
        first, _, last = turns.partition("-")
        if not (first.isdigit() and last.isdigit()):
            raise TraceError(f"--turns {turns}: takes FIRST-LAST, for example 0-4")
        return splitting.turn_range(loaded, int(first), int(last))
    if by == "conversation":
        return splitting.by_conversation(loaded)
    if by == "bucket":
        return splitting.by_bucket(loaded)
    raise TraceError(f"--by {by}: takes conversation or bucket")


@app.command()
def redact(trace: TraceArgument, out: OutOption) -> None:
    """Replace keys, tokens, e-mail addresses, homes, hosts and addresses by stand-ins, and say what was found."""
    from dflash_sweep import traces
    from dflash_sweep.traces.redact import redact as redacted

    done = redacted(_load(trace))
    for line in done.lines():
        typer.echo(line)
    traces.save(done.trace, out)
    typer.echo(f"{out}: {len(done.trace.turns)} turns; read it before you share it, patterns do not find everything")


@app.command()
def share(trace: TraceArgument, out: OutOption) -> None:
    """Write a copy to hand out. Refused when the trace probably holds secrets."""
    from dflash_sweep import traces
    from dflash_sweep.traces.redact import check_shareable

    loaded = _load(trace)
    check_shareable(loaded)
    traces.save(loaded, out)
    typer.echo(f"{out}: {len(loaded.turns)} turns, no probable secrets found")


@app.command(name="import")
def import_(
    source: Annotated[Path, typer.Argument(help="file (or folder of event files) of any known format")],
    out: OutOption,
    format_name: Annotated[str | None, typer.Option("--format", help="format, when its content does not tell")] = None,
    system: Annotated[Path | None, typer.Option(help="text file: the system prompt the format does not store")] = None,
    tools: Annotated[Path | None, typer.Option(help="JSON file: the tool schemas the format does not store")] = None,
    infer_tools: Annotated[bool, typer.Option("--infer-tools", help="make permissive schemas from the calls")] = False,
    require_faithful: Annotated[bool, typer.Option("--require-faithful", help="refuse a trace with gaps")] = False,
    reasoning: Annotated[str, typer.Option(help="keep or drop recorded thinking")] = "keep",
    late_system: Annotated[str, typer.Option(help="system messages inside the history: user or front")] = "user",
    strict_roles: Annotated[bool, typer.Option("--strict-roles", help="for templates that insist on turns")] = False,
    redact_it: Annotated[bool, typer.Option("--redact", help="replace secrets and personal data")] = False,
    name: Annotated[str | None, typer.Option(help="name of the trace; the file's when left out")] = None,
) -> None:
    """Import a session or log. Prints what was read, used, skipped, changed and lost; nothing goes in silence."""
    from dflash_sweep import traces
    from dflash_sweep.errors import TraceError
    from dflash_sweep.traces.build import import_trace, read_side_files
    from dflash_sweep.traces.normalise import NormaliseOptions
    from dflash_sweep.traces.redact import redact as redacted

    try:
        options = NormaliseOptions(reasoning=reasoning, late_system=late_system, strict_roles=strict_roles)
    except ValueError as error:
        raise TraceError(str(error)) from None
    done = import_trace(
        source,
        format_name=format_name,
        side=read_side_files(system, tools, infer_tools=infer_tools),
        options=options,
        require_faithful=require_faithful,
        name=name,
    )
    trace = done.trace
    for line in done.lines():
        typer.echo(line)
    if redact_it:
        clean = redacted(trace)
        trace = clean.trace
        for line in clean.lines():
            typer.echo(f"  redacted: {line}")
    trace = traces.save(trace, out)
    typer.echo(f"{out}: {len(trace.turns)} turns, sha256 {trace.header.sha256}")
