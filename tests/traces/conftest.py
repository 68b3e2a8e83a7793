"""Where the sample files of the importers lie. All of them are invented: toy model, toy files, year 2030."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def samples() -> Path:
    return Path(__file__).parent / "samples"
