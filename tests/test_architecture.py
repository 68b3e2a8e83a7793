"""docs/architecture.md is complete and true: every room is in its table, and imports point downwards."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dflash_sweep"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
COMMANDS = {"traces/cli.py", "emulator/cli.py"}
HOMES = {
    "ray": {"ray_pool"},
    # showcase: what people look at, never a tell
    "optuna": {
        "study",
        "optuna_rows",
        "optuna_storage",
        "samplers",
        "levelling",
        "importance",
        "grid",
        "hill_climb",
        "showcase",
    },
    "optuna_dashboard": {"showcase"},
    "plotly": {"showcase"},
    "sqlalchemy": {"store", "tables", "migrations", "lease", "raw_rows", "optuna_rows", "upgrades", "consistency"},
    "hydra": {"app", "space"},
    "omegaconf": {"app", "schema", "settings", "run", "comparison", "rerun_study"},
    "httpx": {"client", "recorder", "agent"},
    "matplotlib": {"report"},
}


def layers() -> dict[str, int]:
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|", PAGE, flags=re.MULTILINE)
    return {name: int(layer) for layer, names in rows for name in re.findall(r"`(\w+)`", names)}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def layer(path: Path) -> int:
    return 5 if str(path.relative_to(PACKAGE)) in COMMANDS else layers()[room(path)]


def imports(path: Path) -> Iterator[str]:
    """Dotted names of everything a module imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_table_lists_every_room_and_no_other() -> None:
    rooms = {room(path) for path in modules()} - {"__init__"}
    folders = {"data"}
    assert set(layers()) - folders == rooms


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    if path.name == "__init__.py" and path.parent == PACKAGE:
        return
    table = layers()
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "dflash_sweep" or len(parts) < 2 or parts[1] not in table:
            continue
        target = "/".join(parts[1:3]) + ".py"
        reached = 5 if target in COMMANDS else table[parts[1]]
        assert reached <= layer(path), f"{path.name} (layer {layer(path)}) imports {name} (layer {reached})"


@pytest.mark.parametrize(("library", "homes"), HOMES.items())
def test_each_big_library_has_one_home(library: str, homes: set[str]) -> None:
    users = {room(path) for path in modules() if any(name.split(".")[0] == library for name in imports(path))}
    assert users <= homes


def test_no_module_is_too_long() -> None:
    long = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in modules()}
    assert {name: lines for name, lines in long.items() if lines > 400} == {}


def test_nobody_builds_a_room_for_everything() -> None:
    assert not [path for path in modules() if path.stem in {"utils", "util", "helpers", "common", "misc"}]
