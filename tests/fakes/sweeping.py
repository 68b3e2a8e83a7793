"""Whole runs of `sweep.py` in a folder of their own, as a user starts them."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dflash_sweep.records import StoredTrial
from dflash_sweep.store import Store

SWEEP = Path(__file__).parents[2] / "sweep.py"
QUICK = (
    "+study=ddtree", "cluster=inline", "trace=agent_short", "progress=plain", "seed=7", "report.formats=[png]",
    "protocol.baseline_repeats=2", "protocol.default_repeats=1", "protocol.confirm_top=2", "protocol.confirm_blocks=2",
    "protocol.half_width=null", "storage.dashboard=false",
)  # fmt: skip


def command(*overrides: str) -> list[str]:
    return [sys.executable, str(SWEEP), *QUICK, *overrides]


def sweep(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*overrides), cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def trials(folder: Path, study: str = "ddtree") -> tuple[StoredTrial, ...]:
    with Store(f"sqlite:///{folder / 'studies.db'}", create=False) as store:
        return store.trials(study)


def figures(rows: tuple[StoredTrial, ...]) -> list[tuple[object, ...]]:
    """What must not change between two runs with one seed: who ran, with what, and what came out."""
    return [
        (row.uid.partition("/")[2], row.knobs, [turn.counters for turn in row.result.turns], row.result.failure is None)
        for row in rows
    ]


def servers_of(study_folder: Path) -> list[psutil.Process]:
    """Emulator processes that were started with this folder as their working directory or log."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if "dflash_sweep.emulator" in words and process.info["cwd"] == str(study_folder):
            found.append(process)
    return found


def start(folder: Path, *overrides: str) -> subprocess.Popen[bytes]:
    with (folder / "output.txt").open("wb") as log:
        return subprocess.Popen(command(*overrides), cwd=folder, stdout=log, stderr=log, start_new_session=True)


def wait_for_trials(folder: Path, process: subprocess.Popen[bytes], count: int) -> None:
    """Until `count` trials are stored; fails if the study ends first."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, (folder / "output.txt").read_text()
        if len(re.findall(r"\[\d+/\d+\]", (folder / "output.txt").read_text())) >= count:
            return
        time.sleep(0.05)
    pytest.fail("the study did not get on")


def wait_until_no_server(folder: Path) -> None:
    deadline = time.monotonic() + 20
    while servers_of(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert servers_of(folder) == []
