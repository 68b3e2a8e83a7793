"""What the driver says while it works. Imports `records` only; the terminal and the tests implement it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dflash_sweep.records import StoredTrial, TrialSpec, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best candidate so far. `low` and `high` None = one run, no interval.

    `gain` is the ratio to `plain`, the figure of plain decoding; None where plain decoding is not measured (`plain`
    None too) or did not run with the candidate's own threads, cache types and the like. Its ends None = a single run
    on either side. `device`: the name of the card it is the best on, where there are cards of several names; else None.
    """

    candidate: int
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    plain: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    device: str | None = None


class Watcher(Protocol):
    """Told of every event, in order, from the driver's own thread."""

    def phase(self, name: str, total: int) -> None:
        """A phase begins; `total` jobs are foreseen."""
        ...

    def started(self, spec: TrialSpec) -> None: ...

    def finished(self, trial: StoredTrial, value: float | None, best: Best | None) -> None:
        """A trial has ended: `value` is its objective, None if it failed."""
        ...

    def note(self, text: str) -> None:
        """One sentence people should read."""
        ...

    def verdict(self, verdict: Verdict) -> None:
        """A conclusion that the rows measured so far allow, told when it is new or has turned round."""
        ...


class Silent:
    """A watcher that says nothing."""

    def phase(self, name: str, total: int) -> None: ...

    def started(self, spec: TrialSpec) -> None: ...

    def finished(self, trial: StoredTrial, value: float | None, best: Best | None) -> None: ...

    def note(self, text: str) -> None: ...

    def verdict(self, verdict: Verdict) -> None: ...
