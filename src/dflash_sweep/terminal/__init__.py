"""What people and programs see of a run: preflight table, live view, plain lines, JSON lines, summary."""

from __future__ import annotations

from dflash_sweep.terminal.ending import Ending
from dflash_sweep.terminal.json_lines import write_end
from dflash_sweep.terminal.preflight_table import Overview
from dflash_sweep.terminal.scene import Scene, scene
from dflash_sweep.terminal.view import View, close, console, results, tell, view

__all__ = [
    "Ending", "Overview", "Scene", "View", "close", "console", "results", "scene", "tell", "view", "write_end",
]  # fmt: skip
