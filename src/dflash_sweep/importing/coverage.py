"""What of a log was understood: counts and sentences. Imports nothing of ours."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """`values`: parameter values by provenance (asi, column, rule, description, default); `notes`: assumptions made.

    `unknown`: fields or columns that no rule knows, with the rows that have them; `without_parameters`: runs of which
    no knob is known at all; `torn`: lines that could not be read.
    """

    format: str
    runs: int
    usable: int
    failed: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    torn: tuple[str, ...] = ()
    values: Counter[str] = field(default_factory=Counter)
    knobs: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    odd_status: Counter[str] = field(default_factory=Counter)
    without_parameters: int = 0
    conflicts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def lines(self) -> tuple[str, ...]:
        """The report as printed by the import command, one fact a line."""
        facts = [
            f"format: {self.format}",
            f"runs: {self.runs}, of which {self.usable} have a usable figure",
            _counts("failed runs", self.failed),
            _counts("lines that are no runs", self.skipped),
            _counts("parameter values by source", self.values),
            _counts("knobs", self.knobs),
            _counts("fields not understood (give --alias FIELD=KNOB)", self.unknown),
            _counts("unknown status, not taken for a keep", self.odd_status),
            f"runs of which no parameter is known: {self.without_parameters}" if self.without_parameters else "",
            *(f"could not be read: {text}" for text in self.torn[:10]),
            f"… and {len(self.torn) - 10} more lines that could not be read" if len(self.torn) > 10 else "",
            *(f"contradiction: {text}" for text in self.conflicts),
            *(f"note: {text}" for text in self.notes),
        ]
        return tuple(fact for fact in facts if fact)


def _counts(title: str, counts: Counter[str]) -> str:
    return f"{title}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()) if counts else ""
