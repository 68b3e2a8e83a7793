"""Server logs as clean lines, and the line shapes that the llama.cpp family shares. Imports `records` only.

Nothing here knows an engine. Every function is linear in the size of the log: lines are cut to `MAX_LINE`
characters before any pattern runs over them, because debug logs hold whole requests (megabytes) in one line.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dflash_sweep.records import Exchange

MAX_LINE = 8192
"""Longest line handed on; of a longer one the first 6144 and the last 2048 bytes are kept, joined by ` … `."""

_HEAD, _TAIL = 6144, 2048
_RAW_LINE = re.compile(rb"[^\r\n]+")
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\^_]?|[\x00-\x08\x0b-\x1a]")
_PAIR = re.compile(r"(?<![\w.])([A-Za-z_][\w.]*)=(\S+)")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line: `offset` of its first byte in the log, `text` without colours, control characters and line end."""

    offset: int
    text: str


def clean_lines(log: bytes | str, start: int = 0, end: int | None = None) -> Iterator[LogLine]:
    """The non-empty lines between two byte offsets. CR and LF both end a line; bad bytes become U+FFFD."""
    raw = log if isinstance(log, bytes) else log.encode("utf-8", "replace")
    for match in _RAW_LINE.finditer(raw, start, len(raw) if end is None else end):
        first, last = match.span()
        if last - first <= MAX_LINE:
            text = raw[first:last].decode("utf-8", "replace")
        else:
            head, tail = raw[first : first + _HEAD], raw[last - _TAIL : last]
            text = f"{head.decode('utf-8', 'replace')} … {tail.decode('utf-8', 'replace')}"
        text = _ESCAPES.sub("", text).rstrip()
        if text:
            yield LogLine(first, text)


def texts(log: bytes | str) -> Iterator[str]:
    """The cleaned lines' texts."""
    return (line.text for line in clean_lines(log))


def spans(exchanges: Sequence[Exchange], log_size: int) -> tuple[tuple[int, int], ...]:
    """(start, end) byte offsets of each exchange's piece of the log, clipped to the log's size.

    The piece of exchange i ends where the next later start begins; exchanges sent at the same log size share one.
    """
    starts = sorted({min(max(exchange.log_start, 0), log_size) for exchange in exchanges})
    following = dict(pairwise([*starts, log_size]))
    clipped = [min(max(exchange.log_start, 0), log_size) for exchange in exchanges]
    return tuple((start, following[start]) for start in clipped)


class Places:
    """Which exchange a byte of the log belongs to: the one in whose piece it stands, the last that shares it."""

    def __init__(self, exchanges: Sequence[Exchange], log_size: int) -> None:
        pieces = spans(exchanges, log_size)
        self._order = sorted(range(len(pieces)), key=lambda index: (pieces[index][0], index))
        self._starts = [pieces[index][0] for index in self._order]

    def owner(self, offset: int) -> int | None:
        """Index of the exchange; None before the first request."""
        position = bisect_right(self._starts, offset) - 1
        return self._order[position] if position >= 0 else None


def overlapping(exchanges: Sequence[Exchange]) -> frozenset[int]:
    """Indices of exchanges that were in flight together with another: log lines without an id cannot be told apart."""
    found: set[int] = set()
    order = sorted(range(len(exchanges)), key=lambda index: exchanges[index].send_ns)
    running_end, running = -math.inf, -1
    for index in order:
        if exchanges[index].send_ns < running_end:
            found |= {index, running}
        end = exchanges[index].end_ns
        if end is not None and end > running_end:
            running_end, running = end, index
    return frozenset(found)


def number(text: str | None) -> float | None:
    """A printed decimal, with point or (another locale's) comma; None for nan, inf, `-` and anything else."""
    if text is None:
        return None
    try:
        value = float(text.strip().replace(",", "."))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def pairs(text: str) -> dict[str, str]:
    """All `key=value` pairs of a line (values without blanks); the last of a repeated key wins."""
    return dict(_PAIR.findall(text))


# ---------------------------------------------------------------- timing lines of the llama.cpp family

_NUM = r"(-?(?:nan|inf|\d+(?:[.,]\d+)?))"
_TIME = re.compile(
    r"(?:^|[|:)\]\dZ\"]|(?<![A-Za-z])[IWED] )\s*(prompt eval|generation eval|eval|total) time\s*=\s*"
    + _NUM
    + r"\s*ms(?:\s*/\s*(\d+)\s*(?:tokens?|runs?))?"
)
_DRAFT = re.compile(
    r"draft acceptance(?: rate)?\s*=\s*" + _NUM + r"\s*\(\s*(\d+)\s*accepted\s*/\s*(\d+)\s*generated\s*\)"
    r"(?:,\s*mean len\s*=\s*" + _NUM + r")?"
)
_TASK = re.compile(r"\btask\s+(-?\d+)(?=\s*\||\s*$)|\bid_task(?:=|\":\s*)(\d+)")
_HEADER = re.compile(r"print_timings?:.*\btask\s+-?\d+\s*\|?\s*$")
_FOREIGN_TIMES = ("llama_perf", "llama_print_timings", "common_perf_print", "load time")
_FIELD = {"prompt eval": "prompt", "eval": "eval", "generation eval": "eval", "total": "total"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingBlock:
    """What a server printed at the end of one request. `offset`: where its first line stands in the log.

    `ambiguous`: blocks of parallel slots were mixed without task ids, so the figures may be another request's.
    """

    offset: int
    task: int | None = None
    prompt_ms: float | None = None
    prompt_tokens: int | None = None
    eval_ms: float | None = None
    eval_tokens: int | None = None
    total_ms: float | None = None
    total_tokens: int | None = None
    accepted: int | None = None
    generated: int | None = None
    mean_length: float | None = None
    ambiguous: bool = False


def task_id(text: str) -> int | None:
    """The task a line names (`| task 7 |` or `id_task=7`); None if it names none."""
    found = _TASK.search(text)
    return int(found[1] or found[2]) if found else None


class _Blocks:
    """Collects timing lines into blocks: by task id where a line has one, by order where it has none."""

    def __init__(self) -> None:
        self.blocks: list[TimingBlock] = []
        self._by_task: dict[int, int] = {}
        self._bare: int | None = None

    def _open(self, offset: int, task: int | None) -> int:
        self.blocks.append(TimingBlock(offset=offset, task=task))
        if task is not None:
            self._by_task[task] = len(self.blocks) - 1
        return len(self.blocks) - 1

    def header(self, offset: int, task: int | None) -> None:
        """A header line without figures: the bare lines that follow belong to it."""
        if self._bare is not None and self.blocks[self._bare].eval_ms is None:
            self._change(self._bare, ambiguous=True)
            self._bare = self._open(offset, task)
            self._change(self._bare, ambiguous=True)
        else:
            self._bare = self._open(offset, task)

    def add(self, line: LogLine, task: int | None, **figures: float | int | None) -> None:
        if task is not None:
            index = self._by_task[task] if task in self._by_task else self._open(line.offset, task)
        elif self._bare is None or any(getattr(self.blocks[self._bare], name) is not None for name in figures):
            index = self._bare = self._after_bare(line.offset, figures)
        else:
            index = self._bare
        self._change(index, **figures)

    def _after_bare(self, offset: int, figures: Iterable[str]) -> int:
        """A bare line that repeats a figure: of another waiting header if blocks are mixed, else of a new block."""
        names = tuple(figures)
        for index, block in enumerate(self.blocks):
            if block.ambiguous and all(getattr(block, name) is None for name in names):
                return index
        return self._open(offset, None)

    def _change(self, index: int, **figures: float | int | bool | None) -> None:
        self.blocks[index] = replace(self.blocks[index], **figures)  # type: ignore[arg-type]


def timing_blocks(lines: Iterable[LogLine]) -> tuple[tuple[TimingBlock, ...], int]:
    """End-of-request blocks in order, and how many lines looked like a timing but had no known shape.

    Reads three shapes: one prefixed line a figure, a header followed by bare lines, and `| id_task=…` key-values.
    """
    blocks, unparsed = _Blocks(), 0
    for line in lines:
        text = line.text
        if " time " not in text and "draft acceptance" not in text:
            if "print_timing" in text and _HEADER.search(text):
                blocks.header(line.offset, task_id(text))
            continue
        if any(mark in text for mark in _FOREIGN_TIMES):
            continue
        found = list(_TIME.finditer(text))
        drafts = list(_DRAFT.finditer(text))
        for time in found:
            name = _FIELD[time[1]]
            tokens = int(time[3]) if time[3] else None
            blocks.add(line, task_id(text), **{f"{name}_ms": number(time[2]), f"{name}_tokens": tokens})
        for draft in drafts:
            mean = number(draft[4])
            blocks.add(line, task_id(text), accepted=int(draft[2]), generated=int(draft[3]), mean_length=mean)
        if not found and not drafts and ("eval time" in text or "draft acceptance" in text):
            unparsed += 1
    return tuple(blocks.blocks), unparsed


# ---------------------------------------------------------------- cumulative statistics of the llama.cpp family

_STATISTICS = re.compile(r"\bstatistics\s+([\w-]+):\s")
_CALLS = re.compile(r"#calls(?:\(b,g,a\))?\s*=\s*(\d+)(?:\s+(\d+)\s+(\d+))?")
_COUNTS = {
    "generated_drafts": re.compile(r"#gen drafts\s*=\s*(\d+)"),
    "accepted_drafts": re.compile(r"#acc drafts\s*=\s*(\d+)"),
    "generated_tokens": re.compile(r"#gen tokens\s*=\s*(\d+)"),
    "accepted_tokens": re.compile(r"#acc tokens\s*=\s*(\d+)"),
}
_DURATIONS = re.compile(r"dur\(b,g,a\)\s*=\s*" + _NUM + r",\s*" + _NUM + r",\s*" + _NUM + r"\s*ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A drafter's totals since the server started; subtract two of them to get one request.

    `draft_calls` and `draft_ms` are the g (generate) part of #calls and dur; the a part is bookkeeping, not verifying.
    """

    offset: int
    name: str
    draft_calls: int | None = None
    accept_calls: int | None = None
    generated_drafts: int | None = None
    accepted_drafts: int | None = None
    generated_tokens: int | None = None
    accepted_tokens: int | None = None
    begin_ms: float | None = None
    draft_ms: float | None = None
    accept_ms: float | None = None

    def since(self, earlier: Statistics | None) -> Statistics:
        """What happened after `earlier` (None = since the start). A figure that went down (a restart) is None."""
        if earlier is None:
            return self
        changes: dict[str, float | int | None] = {}
        for name in self.__dataclass_fields__:
            now, then = getattr(self, name), getattr(earlier, name)
            if name in ("offset", "name"):
                continue
            changes[name] = None if now is None or then is None or now < then else now - then
        return replace(self, **changes)  # type: ignore[arg-type]


def statistics(lines: Iterable[LogLine]) -> tuple[Statistics, ...]:
    """Every `statistics <name>: …` line in order."""
    found = []
    for line in lines:
        head = _STATISTICS.search(line.text) if "statistics" in line.text else None
        if head is None:
            continue
        calls, durations = _CALLS.search(line.text), _DURATIONS.search(line.text)
        counts = {name: int(hit[1]) for name, pattern in _COUNTS.items() if (hit := pattern.search(line.text))}
        found.append(
            Statistics(
                offset=line.offset,
                name=head[1],
                draft_calls=int(calls[2] or calls[1]) if calls else None,
                accept_calls=int(calls[3]) if calls and calls[3] else None,
                begin_ms=number(durations[1]) if durations else None,
                draft_ms=number(durations[2]) if durations else None,
                accept_ms=number(durations[3]) if durations else None,
                **counts,
            )
        )
    return tuple(found)
