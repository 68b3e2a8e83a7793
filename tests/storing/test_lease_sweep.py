"""Two runs of `sweep.py` on one study: the second is refused, and a driver whose study was taken over stops."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from sqlalchemy import update

from dflash_sweep.exits import EXIT_CONFIG, EXIT_FAILED
from dflash_sweep.lease import holder
from dflash_sweep.store import Store
from dflash_sweep.tables import LeaseRow
from fakes.sweeping import start, sweep, trials, wait_for_trials, wait_until_no_server


@pytest.mark.long
def test_one_driver_a_study(tmp_path: Path) -> None:
    first = start(tmp_path, "n_trials=200")
    wait_for_trials(tmp_path, first, 2)
    os.killpg(first.pid, signal.SIGSTOP)
    try:
        second = sweep(tmp_path, "n_trials=2", "resume=true")
    finally:
        os.killpg(first.pid, signal.SIGCONT)
    assert second.returncode == EXIT_CONFIG
    refusal = next(line for line in second.stderr.splitlines() if line.startswith("error:"))
    assert f"study 'ddtree' is being run by process {first.pid} on " in refusal

    # Somebody else takes the study: the driver stops by itself, and nothing of it is written any more.
    with Store(f"sqlite:///{tmp_path / 'studies.db'}") as store:
        with store.session() as session:
            session.execute(update(LeaseRow).values(owner="elsewhere:7:0", host="elsewhere", boot_id="other"))
        before = trials(tmp_path)
        assert first.wait(240) == EXIT_FAILED
        assert trials(tmp_path) == before
        found, info = holder(store, "ddtree"), store.study("ddtree")
    assert found is not None
    assert found.owner == "elsewhere:7:0"
    assert info is not None
    assert info.status == "running"
    said = " ".join((tmp_path / "output.txt").read_text().split())  # lines are wrapped
    assert "was taken over by process 7 on elsewhere" in said
    wait_until_no_server(tmp_path)
