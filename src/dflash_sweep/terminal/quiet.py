"""Nothing but the summary in the end. Imports `terminal.plain`."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_sweep.records import StoredTrial, TrialSpec, Verdict
from dflash_sweep.terminal.plain import Printed
from dflash_sweep.terminal.preflight_table import Overview
from dflash_sweep.watcher import Best


class Quiet(Printed):
    """Says how the study ended, and why if it did not end well."""

    def begin(self, overview: Overview, notices: Sequence[str]) -> None: ...

    def phase(self, name: str, total: int) -> None: ...

    def started(self, spec: TrialSpec) -> None: ...

    def finished(self, trial: StoredTrial, value: float | None, best: Best | None) -> None: ...

    def note(self, text: str) -> None: ...

    def verdict(self, verdict: Verdict) -> None: ...
