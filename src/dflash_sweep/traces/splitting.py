"""Cuts a trace into several: by conversation, by bucket, by turns, or into a part to tune on and one to check with.

Every turn keeps its whole history, so each piece can be replayed alone. Imports records, errors, `canonical`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from dflash_sweep.errors import TraceError
from dflash_sweep.records import Trace, Turn
from dflash_sweep.traces.canonical import with_hash


def _piece(trace: Trace, label: str, turns: tuple[Turn, ...]) -> Trace:
    return with_hash(replace(trace, header=replace(trace.header, name=f"{trace.header.name}-{label}"), turns=turns))


def _grouped(trace: Trace, key: Callable[[Turn], str]) -> dict[str, Trace]:
    groups: dict[str, list[Turn]] = {}
    for turn in trace.turns:
        groups.setdefault(key(turn), []).append(turn)
    return {label: _piece(trace, label, tuple(turns)) for label, turns in groups.items()}


def by_conversation(trace: Trace) -> dict[str, Trace]:
    """One trace for each conversation."""
    return _grouped(trace, lambda turn: turn.conversation)


def by_bucket(trace: Trace) -> dict[str, Trace]:
    """One trace for each bucket. Its turns are no longer neighbours, so a prompt cache helps them less."""
    return _grouped(trace, lambda turn: turn.bucket)


def turn_range(trace: Trace, first: int, last: int) -> dict[str, Trace]:
    """The turns whose index is in first … last, of every conversation. Raises TraceError if there are none."""
    turns = tuple(turn for turn in trace.turns if first <= turn.index <= last)
    if not turns:
        longest = max(turn.index for turn in trace.turns)
        raise TraceError(f"no turns {first} to {last}: the trace's turns are numbered 0 to {longest}")
    return {f"{first}-{last}": _piece(trace, f"{first}-{last}", turns)}


def tune_and_check(trace: Trace, check_share: float) -> dict[str, Trace]:
    """Two traces: whole conversations to tune on, and others to check the winner with.

    Which conversation goes where follows from a hash of its first prompt, so it is the same in every run and does not
    change when conversations are added. Raises TraceError when one side would stay empty.
    """
    if not 0 < check_share < 1:
        raise TraceError(f"check share {check_share}: must lie between 0 and 1")
    first: dict[str, Turn] = {}
    for turn in trace.turns:
        first.setdefault(turn.conversation, turn)
    if len(first) < 2:
        raise TraceError("one conversation cannot be divided into tuning and checking; record or import more")
    ranked = sorted(first, key=lambda name: hashlib.sha256(repr(first[name].messages).encode()).hexdigest())
    check = set(ranked[: min(len(ranked) - 1, max(1, round(check_share * len(ranked))))])
    return {
        "tune": _piece(trace, "tune", tuple(turn for turn in trace.turns if turn.conversation not in check)),
        "check": _piece(trace, "check", tuple(turn for turn in trace.turns if turn.conversation in check)),
    }
