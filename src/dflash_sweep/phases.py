"""Which phases of the protocol are played, and what each needs to be there. Imports `records` and `errors`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dflash_sweep.errors import ConfigError, StorageError
from dflash_sweep.records import Role, StoredTrial

PHASES = ("calibrate", "gate", "search", "confirm")
"""In the order in which they are played, whatever the order they are named in."""

_NEEDS: dict[str, tuple[str, str, Callable[[StoredTrial], bool]]] = {
    "gate": ("calibrate", "plain decoding", lambda trial: not trial.speculative),
    "search": ("calibrate", "plain decoding", lambda trial: not trial.speculative),
    "confirm": ("search", "a candidate of the search", lambda trial: trial.role is Role.SEARCH),
}
"""Phase → the phase it builds on, what of it must be measured, and which runs these are."""


def chosen(value: object) -> tuple[str, ...]:
    """The phases of a configuration, in their own order. Raises ConfigError."""
    listed = list(value) if isinstance(value, list | tuple) else [value]
    for name in listed:
        if name not in PHASES:
            raise ConfigError(f"phases={name}: not known; allowed: one or several of {', '.join(PHASES)}")
    if not listed:
        raise ConfigError(f"phases: name at least one of {', '.join(PHASES)}")
    return tuple(name for name in PHASES if name in listed)


def check_inputs(
    phases: Sequence[str], stored: Sequence[StoredTrial], measured: Callable[[StoredTrial], bool], study: str
) -> None:
    """Raises StorageError for the first phase whose inputs neither are stored nor come from a phase before it."""
    for name in phases:
        if name not in _NEEDS:
            continue
        before, what, needed = _NEEDS[name]
        if before not in phases and not any(needed(trial) and measured(trial) for trial in stored):
            raise StorageError(
                f"phases={name}: study {study!r} has no measurement of {what} yet; play {before} first "
                "(a stored study is taken up with resume=true)"
            )
