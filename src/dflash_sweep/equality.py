"""Whether a run wrote the same text as plain decoding, turn by turn. Imports `records` only. Pure.

Texts are compared by their hash. A turn on which plain decoding itself did not repeat says nothing and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dflash_sweep.records import StoredTrial

TurnKey: TypeAlias = tuple[str, str, int]
"""Trace (hash), conversation, index: turns of different traces are different turns."""

Texts: TypeAlias = Mapping[TurnKey, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """`differing` of `compared` turns have another text than plain decoding; 0 compared = it is not known."""

    differing: int
    compared: int

    @property
    def share(self) -> float | None:
        """Share of turns that differ; None = not known."""
        return self.differing / self.compared if self.compared else None

    def words(self) -> str:
        """Empty where all texts are equal or nothing is known."""
        if not self.differing:
            return ""
        return f"not bit-equal to plain decoding on {self.differing} of {self.compared} turns"


def texts(trial: StoredTrial) -> dict[TurnKey, str]:
    """The text hashes of a trial's counted turns."""
    return {
        (trial.trace_sha256, turn.conversation, turn.index): turn.text_sha256
        for turn in trial.result.turns
        if turn.invalid_reason is None and not turn.warmup and turn.text_sha256
    }


def reference(plain: Iterable[Texts]) -> dict[TurnKey, str]:
    """What plain decoding wrote, of the turns on which all of its runs agree."""
    seen: dict[TurnKey, set[str]] = {}
    for run in plain:
        for key, text in run.items():
            seen.setdefault(key, set()).add(text)
    return {key: next(iter(found)) for key, found in seen.items() if len(found) == 1}


def compare(found: Texts, expected: Texts) -> Equality:
    """One run against the reference, over the turns that both have."""
    both = found.keys() & expected.keys()
    return Equality(differing=sum(found[key] != expected[key] for key in both), compared=len(both))


def together(parts: Iterable[Equality]) -> Equality:
    """Several runs as one: turns of all of them are counted."""
    listed = list(parts)
    return Equality(differing=sum(part.differing for part in listed), compared=sum(part.compared for part in listed))
