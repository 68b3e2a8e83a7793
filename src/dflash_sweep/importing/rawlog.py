"""A foreign log as read, before anything is concluded from it. Imports nothing of ours."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRow:
    """One run of a log. `line` counts from 1.

    `metric` is the author's figure, None where it is missing or the row is a crash (a crash's 0 is no measurement).
    `structured`: parameters from a field or columns, by the log's own names; `metrics`: further figures.
    """

    line: int
    run: int
    segment: int
    status: str
    metric: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    description: str = ""
    structured: dict[str, Any] = field(default_factory=dict)
    structured_source: str = "asi"  # asi | column
    timestamp_ms: float | None = None
    commit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLog:
    """A whole log. `segments`: metric name per segment; `direction`: maximize, minimize or None = the log does not say.

    `skipped` counts lines that are no runs, by reason; `torn` names lines that could not be read at all.
    """

    format: str
    rows: tuple[RawRow, ...]
    segments: tuple[str, ...]
    direction: str | None
    name: str | None = None
    skipped: Counter[str] = field(default_factory=Counter)
    torn: tuple[str, ...] = ()
    unused: Counter[str] = field(default_factory=Counter)
