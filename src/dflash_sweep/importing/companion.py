"""Facts about a log that its rows do not hold: a JSON file beside it. Imports `errors` and the package's data only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from dflash_sweep.errors import ConfigError

SUFFIX = ".context.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the log's author states elsewhere. `aliases`: rules as for --alias; `device`/`memory_mib` None = unknown."""

    source: str = ""
    device: str | None = None
    memory_mib: int | None = None
    engine: str | None = None
    trace: str | None = None
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)


def find(path: Path, content: bytes) -> Context | None:
    """The context of a log: `<stem>.context.json` beside it, or that of a shipped example with the very same bytes."""
    beside = path.with_name(path.stem + SUFFIX)
    if beside.is_file():
        return _read(beside.name, beside.read_text(encoding="utf-8"))
    digest = hashlib.sha256(content).hexdigest()
    for name, text in _shipped():
        if digest in json.loads(text).get("sha256", ()):
            return _read(name, text)
    return None


def _shipped() -> Iterator[tuple[str, str]]:
    for entry in resources.files("dflash_sweep").joinpath("data").iterdir():
        if entry.name.endswith(SUFFIX):
            yield entry.name, entry.read_text(encoding="utf-8")


def _read(name: str, text: str) -> Context:
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name}: not JSON: {error}") from error
    allowed = {*Context.__dataclass_fields__, "sha256"}
    if not isinstance(data, dict) or set(data) - allowed:
        extra = ", ".join(sorted(set(data) - allowed)) if isinstance(data, dict) else type(data).__name__
        raise ConfigError(f"{name}: unknown key(s) {extra}; allowed are {', '.join(sorted(allowed))}")
    return Context(
        source=str(data.get("source", "")),
        device=data.get("device"),
        memory_mib=data.get("memory_mib"),
        engine=data.get("engine"),
        trace=data.get("trace"),
        aliases=tuple(str(rule) for rule in data.get("aliases", ())),
        notes=tuple(str(note) for note in data.get("notes", ())),
    )
