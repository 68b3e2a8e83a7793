"""Emulated cards: cost and memory parameters read from `devices/<name>.toml`. Imports `errors` only."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from dflash_sweep.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One card. `costs` is the file's tables as they are: table name → parameter → number (ms unless named)."""

    key: str
    name: str
    memory_mib: int
    source: str
    costs: dict[str, Any]


def names() -> tuple[str, ...]:
    """Keys of the cards there are files for."""
    files = resources.files("dflash_sweep.emulator").joinpath("devices").iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


@cache
def load(key: str) -> Card:
    """The card of one key, e.g. rtx4090. Raises ConfigError, listing the cards."""
    if key not in names():
        raise ConfigError(f"emulator device {key!r} is unknown; allowed: {', '.join(names())}")
    file = resources.files("dflash_sweep.emulator").joinpath("devices", f"{key}.toml")
    return card_from(key, tomllib.loads(file.read_text("utf-8")))


def card_from(key: str, tables: dict[str, Any]) -> Card:
    """A card from the tables of its file (the fitting program makes them without one)."""
    costs = {name: value for name, value in tables.items() if isinstance(value, dict)}
    return Card(
        key=key, name=tables["name"], memory_mib=int(tables["memory_mib"]), source=tables["source"], costs=costs
    )
