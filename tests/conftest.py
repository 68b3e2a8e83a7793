"""Shared test set-up: the fakes folder is importable, and no study variable of the caller leaks in."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# A loaded machine is no reason to fail: no test here is about how long one example takes.
settings.register_profile("shared", deadline=None, max_examples=60)
settings.load_profile("shared")

# A shell's background job ignores Ctrl-C, and so would every study that a test starts from it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = (
    "test_docs_commands.py", "test_terminal_tmux.py", "test_sweep.py", "test_sweep_interrupted.py", "test_rerun.py",
    "test_sweep_deterministic.py", "test_study.py", "test_progress_modes.py", "test_driver.py", "test_pool.py",
    "test_dashboard_cli.py", "test_llamacpp_traps.py",
)  # fmt: skip
"""Files of tests by the time that they take."""

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("LLAMA_", "GGML_", "DFLASH", "LUCE_", "RAY_ADDRESS", "HYDRA_")):
            monkeypatch.delenv(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that two workers end together."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
