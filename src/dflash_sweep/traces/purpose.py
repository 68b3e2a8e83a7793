"""What a trace may be used for: length-only traces measure load, not drafting. Imports records, errors."""

from __future__ import annotations

from dflash_sweep.errors import TraceError
from dflash_sweep.records import Trace

LOAD_OBJECTIVES = ("prefill_tps", "ttft_ms", "wall_tps")
"""Objectives that do not depend on what the model writes: how fast prompts are read and load is carried."""


def check_purpose(trace: Trace, objective: str) -> None:
    """Refuse an invented trace for an objective that depends on real text. Raises TraceError saying why."""
    if trace.header.content_kind == "synthetic" and objective not in LOAD_OBJECTIVES:
        raise TraceError(
            f"trace {trace.header.name}: its texts are invented from lengths, so {objective} would measure how well "
            f"filler words can be guessed, not your traffic; it serves {', '.join(LOAD_OBJECTIVES)}; "
            f"for {objective} import a trace with real texts"
        )


def check_faithful(trace: Trace) -> None:
    """Refuse a trace whose requests are not those that were sent. Raises TraceError naming the losses."""
    if trace.header.losses:
        raise TraceError(f"trace {trace.header.name} is not faithful: {'; '.join(trace.header.losses)}")
