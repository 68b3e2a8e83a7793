"""Turns that the search does not see and the confirm phase replays. Imports `traces`, `records` and `errors`. Pure but
for reading a second trace.

A winner was chosen for the turns of the search; on turns it was not chosen by, its figure is not flattered.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from dflash_sweep import traces
from dflash_sweep.errors import ConfigError
from dflash_sweep.records import ReplayPolicy, Trace, Turn
from dflash_sweep.traces.splitting import tune_and_check

KEY = "protocol.held_out"


def parted(trace: Trace, held_out: float | str | None, policy: ReplayPolicy) -> tuple[Trace, Trace | None]:
    """The search's trace and the confirm phase's own one; None = confirm replays the search's. Raises ConfigError.

    `held_out`: a share of the trace (whole conversations by a hash of their first prompt; of a single conversation,
    turns spread evenly over it, never its first), or another trace by name or path; 0 or None = nothing is held out.
    """
    if held_out is None or held_out == 0:
        return trace, None
    if isinstance(held_out, str):
        return trace, _unseen(traces.load(traces.resolve(held_out)), trace, held_out)
    if isinstance(held_out, bool) or not 0 < held_out < 1:
        raise ConfigError(f"{KEY}={held_out}: must be a share between 0 and 1, or the name or path of another trace")
    if len({turn.conversation for turn in trace.turns}) > 1:
        parts = tune_and_check(trace, held_out)
        return parts["tune"], parts["check"]
    return _turns_parted(trace, held_out, policy)


def _unseen(other: Trace, trace: Trace, name: str) -> Trace:
    """The other trace. Raises ConfigError if it has turns that the search sees too."""
    seen = {repr(turn.messages) for turn in trace.turns}
    common = sum(repr(turn.messages) in seen for turn in other.turns)
    if common:
        raise ConfigError(f"{KEY}={name}: {common} of its {len(other.turns)} turns are in the search's trace as well")
    if other.header.content_kind != "real":
        raise ConfigError(f"{KEY}={name}: this trace holds lengths only; acceptance depends on the real text")
    return other


def _turns_parted(trace: Trace, share: float, policy: ReplayPolicy) -> tuple[Trace, Trace]:
    """One conversation in two: each turn carries its whole history, so each can be replayed without the others."""
    if policy.mode != "teacher_forced":
        raise ConfigError(
            f"{KEY}={share:g}: with replay.mode={policy.mode} a conversation cannot be parted, and this trace has one "
            "only; name another trace"
        )
    turns = sorted(trace.turns, key=lambda turn: turn.index)
    count = round(share * len(turns))
    if not 0 < count < len(turns):
        raise ConfigError(f"{KEY}={share:g}: of {len(turns)} turns it leaves one side empty; name another trace")
    chosen = {min(len(turns) - 1, ceil((place + 1) * len(turns) / count) - 1) for place in range(count)}
    held = tuple(turn for place, turn in enumerate(turns) if place in chosen)
    kept = tuple(turn for place, turn in enumerate(turns) if place not in chosen)
    return _piece(trace, "tune", kept), _piece(trace, "check", held)


def _piece(trace: Trace, label: str, turns: tuple[Turn, ...]) -> Trace:
    header = replace(trace.header, name=f"{trace.header.name}-{label}", sha256=traces.sha256(turns))
    return Trace(header=header, turns=turns)
