"""docs/replay.md names every policy with the default that the program has."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from dflash_sweep.live_history import NO_RESULT
from dflash_sweep.records import ReplayPolicy
from dflash_sweep.schema import ReplayConfig

DOC = (Path(__file__).parent.parent / "docs" / "replay.md").read_text(encoding="utf-8")


def _shown(default: Any) -> str:
    if default is None or default is MISSING:
        return "empty"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def test_every_field_with_its_default() -> None:
    rows = [line.split("|")[1:3] for line in DOC.splitlines() if line.startswith("| `")]
    shown = {name.strip().strip("`"): default.strip() for name, default in rows}
    defaults = {field.name: field.default for field in fields(ReplayPolicy)}
    defaults["fresh_server"] = ReplayConfig().fresh_server  # records of older programs had no sharing
    assert shown == {name: _shown(default) for name, default in defaults.items()}
    assert NO_RESULT in " ".join(DOC.split())
