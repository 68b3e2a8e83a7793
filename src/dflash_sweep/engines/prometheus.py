"""Prometheus text pages and what changed between two of them. Imports nothing of ours.

Only counters are differenced: gauges of an interval or of a server's whole life say nothing about one request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{([^}]*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Page:
    """One page: (name without `_total`, labels as sorted pairs) → value. Non-finite values are left out."""

    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)

    def total(self, name: str, **labels: str) -> float | None:
        """Sum of a name over all series that carry these labels (engines, models); None if there is no such series."""
        wanted = set(labels.items())
        values = [value for (key, own), value in self.samples.items() if key == name and wanted <= set(own)]
        return sum(values) if values else None

    def label_values(self, name: str, label: str) -> tuple[str, ...]:
        """The values a label takes on a name, sorted as text."""
        return tuple(
            sorted({value for (key, own) in self.samples if key == name for key_, value in own if key_ == label})
        )


def page(text: str | None) -> Page:
    """Read a page; comment lines and lines of no known shape are left out. None = an empty page."""
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for line in (text or "").splitlines():
        found = _SAMPLE.match(line.strip()[:4096]) if line[:1] != "#" else None
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        if math.isfinite(value):
            labels = tuple(sorted(_LABEL.findall(found[2] or "")))
            samples[found[1].removesuffix("_total"), labels] = value
    return Page(samples)


@dataclass(frozen=True, slots=True)
class Change:
    """Two pages around one request."""

    before: Page
    after: Page

    def of(self, name: str, **labels: str) -> float | None:
        """Growth of a counter. None: absent after the request, or it went down (another process answers now).

        A counter that appears only after its first event counts from 0, if the page before was there at all.
        """
        now, then = self.after.total(name, **labels), self.before.total(name, **labels)
        if now is None or not self.before.samples:
            return None
        growth = now - (then or 0.0)
        return growth if growth >= 0 else None

    def count(self, name: str, **labels: str) -> int | None:
        """Growth as a whole number."""
        growth = self.of(name, **labels)
        return None if growth is None else round(growth)

    def went_back(self, name: str) -> bool:
        """True if a counter is lower than before: the server was restarted in between."""
        now, then = self.after.total(name), self.before.total(name)
        return now is not None and then is not None and now < then

    def by_position(self, name: str) -> tuple[int, ...]:
        """Growth per `position` label 0, 1, 2 …; empty if a position is missing or went down."""
        positions = self.after.label_values(name, "position")
        growths = [self.count(name, position=str(index)) for index in range(len(positions))]
        known = tuple(growth for growth in growths if growth is not None)
        return known if len(known) == len(growths) else ()


def change(before: str | None, after: str | None) -> Change | None:
    """The change between two pages; None unless both were read."""
    if not before or not after:
        return None
    return Change(page(before), page(after))


def histogram(steps: int | None, reached: tuple[int, ...]) -> dict[int, int] | None:
    """Steps per accepted-draft count, from how many steps accepted at least i + 1 drafts.

    h[0] = steps − reached[0], h[j] = reached[j−1] − reached[j], h[k] = reached[k−1]. None if unknown or not falling.
    """
    if steps is None or not reached:
        return None
    falling = (steps, *reached, 0)
    counts = [falling[index] - falling[index + 1] for index in range(len(falling) - 1)]
    return dict(enumerate(counts)) if all(value >= 0 for value in counts) else None
