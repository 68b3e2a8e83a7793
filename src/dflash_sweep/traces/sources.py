"""Reads a file or a folder of event files as records, whatever container they are in. Imports importers, errors.

Containers: JSON Lines, one JSON object or array, a folder of JSON files (one event each), a text log, the HTML page
that Pi exports (its session is in it as base64). A torn last line,
a byte-order mark, CRLF and blank lines are tolerated and listed; other lines that are no JSON are counted.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from dflash_sweep.errors import TraceError
from dflash_sweep.traces.importers import pi
from dflash_sweep.traces.importers.base import Ledger, Record, Source

_LOG_SHARE = 0.5
"""A file is a log when fewer than half of its lines are JSON."""


def _decode(text: str) -> Any:
    # The standard library's reader, because recordings hold halves of UTF-16 pairs, which stricter readers refuse.
    return json.loads(text, parse_constant=lambda _: None)


def _whole(text: str) -> Any:
    """The value if the file is one JSON document (possibly over many lines), else None."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return _decode(text)
    except (ValueError, RecursionError):
        return None


def _take(records: list[Record], number: int, value: Any, ledger: Ledger) -> None:
    if isinstance(value, dict):
        records.append(Record(line=number, value=value))
    else:
        ledger.skip("record that is no JSON object")


def _line_records(rows: list[str], ledger: Ledger) -> tuple[Record, ...]:
    records: list[Record] = []
    filled = [number for number, row in enumerate(rows, 1) if row.strip()]
    for number in filled:
        try:
            value = _decode(rows[number - 1])
        except (ValueError, RecursionError) as error:
            if number == filled[-1]:
                ledger.warn(f"line {number}: torn, left out")
                ledger.skip("torn last line")
            else:
                ledger.warn(f"line {number}: no JSON ({str(error)[:80]})")
                ledger.skip("line that is no JSON")
        else:
            _take(records, number, value, ledger)
    if len(filled) < len(rows):
        ledger.warn(f"{len(rows) - len(filled)} blank lines skipped")
    ledger.read += len(filled)
    return tuple(records)


def _document_records(value: Any, ledger: Ledger) -> tuple[Record, ...]:
    values = value if isinstance(value, list) else [value]
    ledger.read += len(values)
    records: list[Record] = []
    for number, one in enumerate(values, 1):
        _take(records, number, one, ledger)
    return tuple(records)


def _text(path: Path, ledger: Ledger) -> str:
    data = path.read_bytes()
    if data.startswith(b"\xef\xbb\xbf"):
        ledger.warn("byte-order mark skipped")
        data = data[3:]
    if b"\r\n" in data:
        ledger.warn("line ends are CRLF")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        ledger.warn(f"not UTF-8 at byte {error.start}: such bytes were replaced")
        return data.decode("utf-8", errors="replace")


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key: event-2 before event-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name) if part]


def _folder(path: Path, ledger: Ledger) -> Source:
    records: list[Record] = []
    for file in sorted(path.glob("*.json"), key=_natural):
        value = _whole(_text(file, ledger))
        ledger.read += 1
        if value is None:
            ledger.skip("file that is no JSON")
        else:
            _take(records, len(records) + 1, value, ledger)
    if not records:
        raise TraceError(f"{path}: no .json files in this folder; a folder holds one event a file")
    return Source(path=path, records=tuple(records))


def _file(path: Path, ledger: Ledger) -> Source:
    text = _text(path, ledger)
    if not text.strip():
        raise TraceError(f"{path}: empty")
    if text.lstrip()[:1] == "<":
        return _html(path, text, ledger)
    whole = _whole(text)
    if whole is not None:
        return Source(path=path, records=_document_records(whole, ledger))
    rows = [row.removesuffix("\r") for row in text.split("\n")]
    if rows[-1] == "":
        rows.pop()
    filled = [row for row in rows if row.strip()]
    if sum(row.lstrip()[:1] in ("{", "[") for row in filled) < _LOG_SHARE * len(filled):
        ledger.read += len(filled)
        return Source(path=path, log_lines=tuple(rows))
    return Source(path=path, records=_line_records(rows, ledger))


_EMBEDDED = re.compile(r"""<script[^>]*\bid=["']session-data["'][^>]*>([A-Za-z0-9+/=\s]*)</script>""")


def _html(path: Path, text: str, ledger: Ledger) -> Source:
    """The session inside a page that Pi exported. Raises TraceError for any other page."""
    embedded = _EMBEDDED.search(text)
    try:
        data = _decode(base64.b64decode(embedded[1]).decode()) if embedded else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("entries"), list):
        raise TraceError(
            f"{path}: an HTML page without a session in it; of Pi give the session's .jsonl file, or a page exported "
            "with /export by a version that embeds its data"
        )
    export = {"type": pi.EXPORT, **{key: data[key] for key in ("systemPrompt", "tools", "leafId") if key in data}}
    return Source(path=path, records=_document_records([data.get("header"), export, *data["entries"]], ledger))


def open_source(path: str | Path, ledger: Ledger) -> Source:
    """The records of a file or folder. Raises TraceError when there is nothing readable."""
    source = Path(path)
    try:
        return _folder(source, ledger) if source.is_dir() else _file(source, ledger)
    except FileNotFoundError:
        raise TraceError(f"{source}: no such file or folder") from None
    except OSError as error:
        raise TraceError(f"{source}: cannot be read: {error.strerror}") from None
