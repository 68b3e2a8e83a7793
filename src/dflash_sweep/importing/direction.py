"""Whether larger or smaller is better in a log. Imports `rawlog` only."""

from __future__ import annotations

import re
from itertools import pairwise

from dflash_sweep.importing.figures import RATE_NAMES
from dflash_sweep.importing.rawlog import RawLog


def direction_of(log: RawLog, stated: str | None) -> tuple[str, str]:
    """Direction and, where it was not stated, why it was assumed (a sentence for the coverage report)."""
    if stated is not None:
        return stated, ""
    if log.direction is not None:
        return log.direction, ""
    name = log.segments[-1].lower()
    if name in RATE_NAMES or re.search(r"tps|tok|throughput|speed|score|acc", name):
        return "maximize", f"larger {name} is taken to be better, by its name"
    if re.search(r"loss|bpb|error|latency|(_ms|_s|_ns|time|ppl)$", name):
        return "minimize", f"smaller {name} is taken to be better, by its name"
    kept = [row.metric for row in log.rows if row.status in ("keep", "baseline") and row.metric is not None]
    steps = [later - earlier for earlier, later in pairwise(kept)]
    falling = sum(step < 0 for step in steps) > sum(step > 0 for step in steps)
    if steps:
        word = "smaller" if falling else "larger"
        return "minimize" if falling else "maximize", f"{word} {name} is taken to be better, by what its author kept"
    return "maximize", f"larger {name} is taken to be better: nothing in the log says so; give direction otherwise"
