"""docs/traces.md says what the program does: its example is a trace, its tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dflash_sweep import traces
from dflash_sweep.records import Turn
from dflash_sweep.traces.canonical import parse
from dflash_sweep.traces.cli import app
from dflash_sweep.traces.importers import FORMATS
from dflash_sweep.traces.legal import request_problems
from dflash_sweep.traces.schema import trace_schema


@pytest.fixture(scope="module")
def text() -> str:
    return (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")


def first_cells(text: str, heading: str) -> set[str]:
    """Code words in the first column of the tables of one section."""
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def test_example_is_a_trace(text: str) -> None:
    example = re.findall(r"```jsonl\n(.*?)```", text, re.DOTALL)[0]
    trace, warnings = parse(example.encode())
    assert warnings == ()
    problems: list[str] = []
    turn: Turn
    for turn in trace.turns:
        problems += request_problems(turn.messages, turn.tools)
    assert problems == []


def test_tables_are_complete(text: str) -> None:
    assert set(FORMATS) <= first_cells(text, "Importing")
    assert first_cells(text, "Shipped traces") == set(traces.SHIPPED)
    keys = {key for kind in ("header", "turn") for key in trace_schema()["$defs"][kind]["properties"]}
    assert keys - {"type", "format", "format_version"} == first_cells(text, "The file")


def test_commands_exist(text: str) -> None:
    named = set(re.findall(r"dflash-sweep traces ([a-z]+)", text)) | set(re.findall(r"`traces ([a-z]+)", text))
    commands = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    assert named == commands - {"stats"} | (named & {"stats"})
