"""What a foreign row's status and words say about its failure. Imports `errors`, `rawlog`, `records`."""

from __future__ import annotations

import re

from dflash_sweep.errors import FailureKind
from dflash_sweep.importing.rawlog import RawRow
from dflash_sweep.records import Failure

KNOWN_STATUS = frozenset({"keep", "discard", "crash", "checks_failed", "baseline", "measured"})

_WORDS: tuple[tuple[str, FailureKind], ...] = (
    (r"out of memory|\boom\b|cudaMalloc|failed to allocate", FailureKind.OUT_OF_MEMORY),
    (r"differs from|mismatch|wrong output|not equal", FailureKind.OUTPUT_MISMATCH),
    (r"refused|invalid|unsupported|not supported|unknown (?:flag|argument|option)", FailureKind.INVALID_CONFIG),
    (r"time[d ]?-?out", FailureKind.TRIAL_TIMEOUT),
    (
        r"before the benchmark|remote sync|shell|quoting|\bssh\b|harness|build (?:failed|error)",
        FailureKind.LAUNCH_FAILED,
    ),
)


def failure(row: RawRow) -> Failure | None:
    """The failure a row stands for; None = it has a figure that may be used.

    A crash is classified by its description; failed checks are an output mismatch; a run without a positive figure
    is `no_measurement`, whatever its status says.
    """
    if row.status == "crash":
        return Failure(kind=_kind(row.description), message=row.description or "crash without a description")
    if row.status == "checks_failed":
        return Failure(kind=FailureKind.OUTPUT_MISMATCH, message=f"the author's checks failed: {row.description}")
    if row.metric is None:
        return Failure(kind=FailureKind.NO_MEASUREMENT, message=f"status {row.status} but no figure")
    if row.metric <= 0:
        return Failure(kind=FailureKind.NO_MEASUREMENT, message=f"status {row.status} but a figure of {row.metric:g}")
    return None


def _kind(description: str) -> FailureKind:
    for pattern, kind in _WORDS:
        if re.search(pattern, description, re.IGNORECASE):
            return kind
    return FailureKind.CRASHED
