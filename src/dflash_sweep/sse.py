"""Server-sent events from bytes, by the WHATWG HTML standard, section "Server-sent events". Imports nothing of ours.

Works on bytes until an event is complete: a network read may end anywhere, also inside a UTF-8 character or between
CR and LF, and only CR and LF end a line (U+2028, U+2029 and U+0085 are text).
"""

from __future__ import annotations

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"
_LF, _CR = 0x0A, 0x0D


class SSEEvent(NamedTuple):
    """One dispatched event. `data` joins the event's data lines with LF; `id` is the last event id seen, if any."""

    data: bytes
    event: str = "message"
    id: str | None = None

    @property
    def text(self) -> str:
        """`data` as text; a byte sequence that is no UTF-8 becomes U+FFFD, as the standard asks."""
        return self.data.decode("utf-8", "replace")


class SSEParser:
    """Incremental parser: `feed` bytes as they come, get the events they complete. One parser per response."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0  # bytes of the buffer known to hold no line end
        self._at_start = True
        self._skip_lf = False
        self._data: list[bytes] = []
        self._event = ""
        self._id: str | None = None
        self.comments = 0
        """Comment lines seen so far (servers send them to keep a silent connection open)."""

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        """Events completed by these bytes, in order."""
        if self._is_one_plain_event(chunk):
            return [SSEEvent(chunk[6:-2], "message", self._id)]
        self._buffer += chunk
        if self._at_start and not self._drop_bom():
            return []
        events: list[SSEEvent] = []
        for line in self._lines():
            if not line:
                if self._data:
                    events.append(self._dispatch())
                self._event = ""
            else:
                self._field(line)
        return events

    def _is_one_plain_event(self, chunk: bytes) -> bool:
        """Whether a read is one whole event of one data line: nearly always so, and worth a short cut."""
        return (
            chunk.startswith(b"data: ")
            and chunk.find(b"\n") == len(chunk) - 2
            and chunk.endswith(b"\n")
            and b"\r" not in chunk
            and not (self._at_start or self._buffer or self._data or self._event or self._skip_lf)
        )

    def finish(self) -> list[SSEEvent]:
        """The event that the end of the stream cut off before its blank line, if it has data.

        The standard discards it. Some servers close right after the last data line, so a caller may want to look: it
        is whole if its data is.
        """
        if self._at_start:
            self._drop_bom(at_end=True)
        if self._buffer:
            self._field(bytes(self._buffer))
            self._buffer.clear()
        return [self._dispatch()] if self._data else []

    def _drop_bom(self, at_end: bool = False) -> bool:
        """Remove a leading byte order mark; False while too few bytes are there to tell."""
        if not at_end and len(self._buffer) < len(_BOM) and _BOM.startswith(self._buffer):
            return False
        if self._buffer.startswith(_BOM):
            del self._buffer[: len(_BOM)]
        self._at_start = False
        return True

    def _lines(self) -> list[bytes]:
        """Take the complete lines out of the buffer. A CR ends its line at once; an LF right after it is skipped."""
        buffer, lines, start = self._buffer, [], 0
        if self._skip_lf and buffer:
            self._skip_lf = False
            start = 1 if buffer[0] == _LF else 0
        has_cr = buffer.find(b"\r", self._searched) >= 0
        search = max(start, self._searched)
        while True:
            end = buffer.find(b"\n", search)
            if has_cr:
                cr = buffer.find(b"\r", search, len(buffer) if end < 0 else end)
                end = cr if cr >= 0 else end
            if end < 0:
                break
            lines.append(bytes(buffer[start:end]))
            start = end + 1
            if buffer[end] == _CR:
                if start == len(buffer):
                    self._skip_lf = True
                elif buffer[start] == _LF:
                    start += 1
            search = start
        del buffer[:start]
        self._searched = len(buffer)
        return lines

    def _field(self, line: bytes) -> None:
        if line[0:1] == b":":
            self.comments += 1
            return
        name, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")

    def _dispatch(self) -> SSEEvent:
        event = SSEEvent(b"\n".join(self._data), self._event or "message", self._id)
        self._data = []
        self._event = ""
        return event
