"""The traces that ship with the package, by name. Imports `errors` only."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from dflash_sweep.errors import TraceError

SHIPPED: dict[str, str] = {
    "agent": "a coding agent repairs a small package: long system prompt, six tools, 13 turns, fits an 8k context",
    "agent_short": "the same agent with a short prompt and two tools, 3 turns: for tests",
    "workloads": "thirteen single requests of three kinds: code, JSON and tool calls, prose",
    "coding": "three coding tasks, one turn each, no tools",
    "prose": "four writing tasks, one turn each, no tools",
    "tool_bursts": "short tool calls in quick succession, 11 turns, short prompts",
    "long_context": "three questions about a long text of code; needs a context of 40,000 tokens",
}
"""Name → what it is, in the order they are listed."""


def shipped(name: str) -> Path:
    """The file of a shipped trace. Raises TraceError naming the ones there are."""
    if name not in SHIPPED:
        raise TraceError(f"no shipped trace {name!r}; there are {', '.join(SHIPPED)}")
    return Path(str(files("dflash_sweep.traces"))) / "data" / f"{name}.jsonl"


def resolve(path_or_name: str | Path) -> Path:
    """A file that exists under this path, else the shipped trace of this name. Raises TraceError naming both."""
    path = Path(path_or_name)
    if path.is_file():
        return path
    if str(path_or_name) in SHIPPED:
        return shipped(str(path_or_name))
    raise TraceError(f"trace {path_or_name}: no such file, and no shipped trace ({', '.join(SHIPPED)})")
