"""Optuna's side of a study, made readable: notes, tags, figures and files, and the dashboard that shows them.

Rows stay in the store; what is written here is a copy for people to look at, and nothing reads it back. Heavy
libraries are loaded when something is written or shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Progress", "files_dir"]

_SQLITE = "sqlite:///"


def files_dir(chosen: str | None, url: str, base: Path) -> Path:
    """The folder of the dashboard's files, absolute: the chosen one (relative ones count from `base`), else `artifacts`
    beside an SQLite file, else `artifacts` in `base`. `url` is absolute."""
    if chosen is not None:
        return (base / Path(chosen).expanduser()).resolve()
    beside = Path(url.removeprefix(_SQLITE)).parent if url.startswith(_SQLITE) and ":memory:" not in url else base
    return (beside / "artifacts").resolve()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a driver does at the moment: its phase, how many of the phase's runs are done, the best so far in words."""

    phase: str
    done: int
    total: int
    best: str = ""
