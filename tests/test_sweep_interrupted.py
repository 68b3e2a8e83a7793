"""Studies that are killed or interrupted: no server stays behind, nothing is lost, nothing counts twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dflash_sweep.records import Role
from fakes.sweeping import start, sweep, trials, wait_for_trials, wait_until_no_server

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same study, run without a break."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run = sweep(folder, "n_trials=3")
    assert run.returncode == 0, run.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "cluster", [pytest.param("inline"), pytest.param("local", marks=[pytest.mark.ray, pytest.mark.long])]
)
def test_a_killed_driver_leaves_no_server_and_resume_loses_and_doubles_nothing(
    undisturbed: Path, tmp_path: Path, cluster: str
) -> None:
    process = start(tmp_path, "n_trials=3", f"cluster={cluster}")
    wait_for_trials(tmp_path, process, 4)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until_no_server(tmp_path)
    run = sweep(tmp_path, "n_trials=3", f"cluster={cluster}", "resume=true")
    assert run.returncode == 0, run.stderr
    rows = trials(tmp_path)
    assert len({row.uid for row in rows}) == len(rows)
    expected = {row.uid: row.knobs for row in trials(undisturbed) if row.role is not Role.CONFIRM}
    assert {row.uid: row.knobs for row in rows if row.role is not Role.CONFIRM} == expected


@pytest.mark.slow
def test_ctrl_c_keeps_everything_and_ends_with_130(tmp_path: Path) -> None:
    process = start(tmp_path, "n_trials=50")
    wait_for_trials(tmp_path, process, 3)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 130
    wait_until_no_server(tmp_path)
    assert len(trials(tmp_path)) >= 3
    assert "resume=true" in (tmp_path / "output.txt").read_text()
    assert (tmp_path / "reports" / "ddtree" / "findings.md").is_file()
