"""One setting over all its good runs, as pages and figures show it.

Imports `metrics`, `records`, `analysis.intervals`.
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash_sweep import metrics
from dflash_sweep.analysis.intervals import Interval
from dflash_sweep.records import Knobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One setting (or the baseline) over all its good runs. None = not known; memory in MiB, times in ms.

    `samples` are the figures of the runs it is judged by (of a confirmed setting its confirm runs only, see
    `analysis.rows.fair_runs`), in the order of `numbers` and `uids`; n = len(samples) counts runs, never turns.
    `repeats` are the figures of all its good runs. `value`, `low`, `high`: the objective and its 95 % interval (None
    below two runs); `speedup` its ratio to the plain rows with which it may be compared, `unlike` True where it is
    better than those and none of them ran with its own threads, cache types and the like; `plain_ms` those rows' ms per
    token; `tps` … the same for decode tok/s. `n_failed` counts other runs of the candidate, those that were stopped
    early left out. `stages`: ms per verify step of the printed stages only.
    """

    number: int | None
    label: str | None
    speculative: bool
    knobs: Knobs
    samples: tuple[float, ...]
    repeats: tuple[float, ...]
    numbers: tuple[int, ...]
    uids: tuple[str, ...]
    n_failed: int
    value: float | None
    low: float | None
    high: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    unlike: bool
    plain_ms: float | None
    tps: float | None
    tps_low: float | None
    tps_high: float | None
    acceptance_length: float | None
    step_ms: float | None
    peak_memory_mib: float | None
    stages: dict[str, float]
    confirmed: bool

    @property
    def n(self) -> int:
        return len(self.samples)

    @property
    def result(self) -> Interval | None:
        """The objective with its interval; None without a figure."""
        if self.value is None:
            return None
        return Interval(value=self.value, low=self.low, high=self.high, n=self.n, method="")

    @property
    def gain(self) -> Interval | None:
        """The ratio to plain decoding with its interval; None where they may not be compared."""
        if self.speedup is None:
            return None
        return Interval(value=self.speedup, low=self.speedup_low, high=self.speedup_high, n=self.n, method="")

    @property
    def ms_per_token(self) -> float | None:
        """Decode time per token, ms."""
        return metrics.ratio(1000.0, self.tps)
