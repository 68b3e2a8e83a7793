"""One machine that goes down in the middle of a study; `benchmarks/kill_moments.py` does it at many moments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "kill_moments.py"


@pytest.mark.long
def test_a_study_whose_machine_went_down_ends_as_if_it_had_not(tmp_path: Path) -> None:
    words = ["--moments", "1", "--trials", "2", "--who", "machine", "--keep", str(tmp_path / "kept")]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *words], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "machine  1 studies" in done.stdout
    assert "0 differences" in done.stdout
