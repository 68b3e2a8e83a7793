"""The request log that llama-server prints at debug verbosity (text). Imports `importers` rules only.

One line a direction after each request; prefixes differ by build and flags, so a line is found by its words and the
JSON read from the first brace. Streamed answers have an empty response.
"""

from __future__ import annotations

import json
import re
from typing import Any

from dflash_sweep.traces.importers.base import Call, Format, Ledger, Source
from dflash_sweep.traces.importers.chat_request import apply_response, call_of_request, is_request

_LINE = re.compile(r"\b(done request|request|response):\s*(.*)$")
_DONE = re.compile(r"^(\w+)\s+(\S+)\s+\S+\s+(\d+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _words(line: str) -> tuple[str, str] | None:
    if "log_server_r" not in line:
        return None
    found = _LINE.search(_COLOUR.sub("", line))
    return (found.group(1), found.group(2)) if found else None


def recognises(source: Source) -> int:
    """Lines with a request's body."""
    return sum(words is not None and words[0] == "request" for words in map(_words, source.log_lines))


def _json(text: str) -> Any:
    brace = text.find("{")
    if brace < 0:
        return None
    try:
        return json.loads(text[brace:])
    except ValueError:
        return None


class _Reader:
    """Joins the lines of one request: what was asked for, its body, its answer."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.calls: list[Call] = []
        self._path = ""
        self._status = "200"
        self._waits = False

    def line(self, kind: str, text: str) -> None:
        if kind == "done request":
            found = _DONE.match(text)
            self._path, self._status = (found.group(2), found.group(3)) if found else ("", "200")
            self._waits = False
        elif kind == "request":
            self._waits = self._request(text)
        elif self._waits:
            apply_response(self.calls[-1], _json(text))
            self._waits = False

    def _request(self, text: str) -> bool:
        self.ledger.read += 1
        body = _json(text)
        path, self._path = self._path, ""
        status, self._status = self._status, "200"
        if path and not path.split("?")[0].endswith("/chat/completions"):
            self.ledger.skip(f"request to {path.split('?')[0][-40:]}, not to chat completions")
        elif not status.startswith("2"):
            self.ledger.skip(f"request that failed (status {status})")
        elif not is_request(body):
            self.ledger.skip("request body that is cut or holds no messages")
        else:
            self.ledger.used += 1
            self.calls.append(call_of_request(body, self.ledger))
            return True
        return False


def read(source: Source, ledger: Ledger) -> list[Call]:
    """One call for each chat request in the log."""
    ledger.recount(source)  # records of a log are its requests, not its lines
    reader = _Reader(ledger)
    for line in source.log_lines:
        if (words := _words(line)) is not None:
            reader.line(*words)
    if any(call.answer is None for call in reader.calls):
        ledger.lose("answers", "streamed answers are not in the log: lengths and buckets of those turns are unknown")
    return reader.calls


FORMAT = Format(name="llama_server", title="llama-server request log (text)", recognises=recognises, read=read)
