"""The one trace format: a JSONL file of a header and turns, read and written exactly. Imports records, errors, schema.

A turn's history is stored as the number of messages kept from the previous turn of its conversation and the messages
added, so a file grows with the conversation and not with its square. In memory a `Turn` always has its whole history.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec

from dflash_sweep.errors import TraceError
from dflash_sweep.records import RecordedAnswer, Trace, TraceHeader, Turn
from dflash_sweep.traces.legal import request_problems
from dflash_sweep.traces.schema import FORMAT, FORMAT_VERSION, line_problem

_LOG = logging.getLogger(__name__)
_BOM = b"\xef\xbb\xbf"


# ---------------------------------------------------------------- writing


def _set_fields(record: Any, *, skip: frozenset[str] = frozenset()) -> dict[str, Any]:
    """A record's fields in their declared order, without those that are None or empty."""
    values = {f.name: getattr(record, f.name) for f in fields(record) if f.name not in skip}
    return {name: value for name, value in values.items() if value is not None and value != () and value != {}}


def _header_object(header: TraceHeader) -> dict[str, Any]:
    return {"type": "header", "format": FORMAT, **_set_fields(header)}


def _turn_object(turn: Turn, keep: int, tools: Any) -> dict[str, Any]:
    line: dict[str, Any] = {"type": "turn", "conversation": turn.conversation, "index": turn.index}
    if keep:
        line["keep"] = keep
    line["add"] = turn.messages[keep:]
    if tools is not None:
        line["tools"] = tools
    line |= _set_fields(turn, skip=frozenset({"conversation", "index", "messages", "tools", "recorded"}))
    if recorded := _set_fields(turn.recorded):
        line["recorded"] = recorded
    return line


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        raise TraceError(
            f"a text holds half of a UTF-16 pair ({error.object[error.start : error.end]!a}), which JSON cannot carry; "
            "normalise the trace first"
        ) from None
    except OverflowError:
        raise TraceError("a whole number outside of 64 bits cannot be stored in a trace") from None


def sha256(turns: Iterable[Turn]) -> str:
    """Hash of the turns with their whole histories: the same however the file stored them (64 hex digits)."""
    digest = hashlib.sha256()
    for turn in turns:
        digest.update(_encode(_turn_object(turn, 0, turn.tools)))
        digest.update(b"\n")
    return digest.hexdigest()


def _common(before: list[bytes], after: list[bytes]) -> int:
    count = 0
    for old, new in zip(before, after, strict=False):
        if old != new:
            break
        count += 1
    return count


def lines(trace: Trace) -> Iterator[bytes]:
    """The file's lines without line ends: header, then turns. Messages are compared as bytes, so key order counts."""
    yield _encode(_header_object(trace.header))
    history: dict[str, list[bytes]] = {}
    tools_before: dict[str, bytes] = {}
    for turn in trace.turns:
        encoded = [_encode(message) for message in turn.messages]
        keep = _common(history.get(turn.conversation, []), encoded)
        history[turn.conversation] = encoded
        tools: Any = turn.tools
        if turn.tools is not None:
            encoded_tools = _encode(turn.tools)
            if tools_before.get(turn.conversation) == encoded_tools:
                tools = "same"
            tools_before[turn.conversation] = encoded_tools
        else:
            tools_before.pop(turn.conversation, None)
        yield _encode(_turn_object(turn, keep, tools))


def with_hash(trace: Trace) -> Trace:
    """The same trace with the header's `sha256` made from its turns."""
    return replace(trace, header=replace(trace.header, sha256=sha256(trace.turns)))


def save(trace: Trace, path: str | Path) -> Trace:
    """Write a trace in one step (a reader sees the old file or the new one) and return it with its hash filled in."""
    trace = with_hash(trace)
    target = Path(path)
    body = b"\n".join(lines(trace)) + b"\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(body)
        Path(scratch).chmod(0o644)
        Path(scratch).replace(target)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
    return trace


# ---------------------------------------------------------------- reading


def _decoded_lines(data: bytes, where: str, warnings: list[str]) -> Iterator[tuple[int, Any]]:
    """Numbered, decoded lines. Tolerates a byte-order mark, CRLF, blank lines and a torn last line, with a warning."""
    if data.startswith(_BOM):
        warnings.append("line 1: byte-order mark skipped")
        data = data[len(_BOM) :]
    if b"\r\n" in data:
        warnings.append("line ends are CRLF")
    rows = [row.removesuffix(b"\r") for row in data.split(b"\n")]
    if rows[-1] == b"":
        rows.pop()
    last = max((n for n, row in enumerate(rows, 1) if row.strip()), default=0)
    for number, row in enumerate(rows, 1):
        if not row.strip():
            warnings.append(f"line {number}: blank, skipped")
            continue
        try:
            yield number, msgspec.json.decode(row)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if number == last and number > 1:
                warnings.append(f"line {number}: torn ({error}), left out")
                return
            raise TraceError(f"{where}, line {number}: not JSON: {error}") from None


def _header(line: Any, where: str) -> TraceHeader:
    if not (isinstance(line, dict) and line.get("format") == FORMAT):
        raise TraceError(
            f"{where}, line 1: not a trace of this program (no header with format {FORMAT!r}); "
            "`dflash-sweep traces import` reads other formats"
        )
    if line.get("format_version") != FORMAT_VERSION:
        raise TraceError(
            f"{where}, line 1: format_version {line.get('format_version')!r}; this program reads {FORMAT_VERSION}"
        )
    if problem := line_problem("header", line):
        raise TraceError(f"{where}, line 1: {problem}")
    known = {f.name for f in fields(TraceHeader)}
    values = {key: value for key, value in line.items() if key in known}
    return TraceHeader(**{**values, "losses": tuple(values.get("losses", ()))})


class _TurnReader:
    """Rebuilds whole histories from what each turn keeps and adds."""

    def __init__(self) -> None:
        self._last: dict[str, Turn] = {}

    def turn(self, line: Any) -> Turn:
        """Raises ValueError with what is wrong with this line."""
        if problem := line_problem("turn", line):
            raise ValueError(problem)
        before = self._last.get(line["conversation"])
        history = before.messages if before else ()
        keep = line.get("keep", 0)
        if keep > len(history):
            raise ValueError(
                f"keeps {keep} messages, but the previous turn of {line['conversation']!r} has {len(history)}"
            )
        if before is not None and line["index"] <= before.index:
            raise ValueError(f"index {line['index']} follows {before.index} in {line['conversation']!r}; it must rise")
        tools = line.get("tools")
        if tools == "same":
            if before is None or before.tools is None:
                raise ValueError('tools is "same", but the previous turn has none')
            tools = before.tools
        recorded = line.get("recorded", {})
        turn = Turn(
            conversation=line["conversation"],
            index=int(line["index"]),
            messages=(*history[:keep], *line["add"]),
            tools=None if tools is None else tuple(tools),
            tool_choice=line.get("tool_choice"),
            max_tokens=line.get("max_tokens"),
            pause_ms=line.get("pause_ms"),
            bucket=line.get("bucket", "other"),
            recorded=RecordedAnswer(**{**recorded, "tool_calls": tuple(recorded.get("tool_calls", ()))}),
        )
        self._last[turn.conversation] = turn
        return turn


def parse(data: bytes, where: str = "trace") -> tuple[Trace, tuple[str, ...]]:
    """A trace from a file's bytes, and warnings about what was tolerated. Raises TraceError naming line and rule."""
    warnings: list[str] = []
    rows = _decoded_lines(data, where, warnings)
    first = next(rows, None)
    if first is None:
        raise TraceError(f"{where}: empty; a trace starts with a header line")
    header = _header(first[1], where)
    reader = _TurnReader()
    turns: list[Turn] = []
    for number, line in rows:
        try:
            turns.append(reader.turn(line))
        except ValueError as error:
            raise TraceError(f"{where}, line {number}: {error}") from None
    if not turns:
        raise TraceError(f"{where}: no turns after the header; nothing to replay")
    actual = sha256(turns)
    if header.sha256 and header.sha256 != actual:
        warnings.append("the turns are not those that the header's sha256 was made from: the file was changed or cut")
    return Trace(header=replace(header, sha256=actual), turns=tuple(turns)), tuple(warnings)


def read(path: str | Path) -> tuple[Trace, tuple[str, ...]]:
    """A trace file and the warnings about what was tolerated. Raises TraceError."""
    source = Path(path)
    try:
        data = source.read_bytes()
    except FileNotFoundError:
        raise TraceError(f"trace {source}: no such file") from None
    except OSError as error:
        raise TraceError(f"trace {source}: cannot be read: {error.strerror}") from None
    return parse(data, f"trace {source}")


def load(path: str | Path) -> Trace:
    """A trace file; warnings go to the log. The header's `sha256` is always that of the turns. Raises TraceError."""
    trace, warnings = read(path)
    for warning in warnings:
        _LOG.warning("trace %s: %s", path, warning)
    return trace


def validate(path: str | Path) -> tuple[str, ...]:
    """Everything wrong with a trace file, one sentence each: format, warnings, requests that servers refuse."""
    try:
        trace, warnings = read(path)
    except TraceError as error:
        return (str(error),)
    problems = list(warnings)
    for turn in trace.turns:
        place = f"conversation {turn.conversation!r}, turn {turn.index}"
        problems += [f"{place}: {problem}" for problem in request_problems(turn.messages, turn.tools)]
    return tuple(problems)
