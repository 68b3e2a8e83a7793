"""A setting that was running when the machine went down is not tried again; one whose driver was killed is."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
import pytest

from dflash_sweep import crash_journal, leftovers, owner
from dflash_sweep.errors import FailureKind
from dflash_sweep.jobs import Job, is_final, unfinished
from dflash_sweep.records import Measurement, Role, StudyInfo
from dflash_sweep.store import Store
from fakes.builders import DEVICE, make_result, make_spec

HOST = socket.gethostname()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store(f"sqlite:///{tmp_path / 's.db'}")
    opened.save_study(StudyInfo(name="s", engine="emulator", measurement=Measurement.EMULATED))
    return opened


def begin(store: Store, uid: str, name: str, folder: Path | None = None) -> None:
    store.begin(make_spec(uid, evidence_dir=str(folder or "none")), name, "key")


def test_a_name_tells_whether_the_machine_was_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    name = owner.current()
    assert not owner.machine_went_down(name)
    assert owner.is_alive(name)
    monkeypatch.setattr(leftovers, "boot_id", lambda: "another start")
    assert owner.machine_went_down(name)
    assert owner.is_gone(name)  # its pid is somebody else's by now
    assert not owner.is_alive(name)


def test_of_other_hosts_and_strange_names_nothing_is_known() -> None:
    assert not owner.machine_went_down("elsewhere:12:1.00@boot")
    assert not owner.machine_went_down("import")
    assert not owner.machine_went_down(f"{HOST}:12:soon")


def test_a_name_of_an_older_version_is_judged_by_its_time() -> None:
    boot = psutil.boot_time()
    assert owner.machine_went_down(f"{HOST}:12:{boot - 1000:.2f}")
    assert not owner.machine_went_down(f"{HOST}:12:{boot - 60:.2f}")  # the clock may have been set since
    assert not owner.machine_went_down(f"{HOST}:12:{boot + 5:.2f}")


def test_runs_that_went_down_with_the_machine_get_a_result(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.log").write_text("last words")
    begin(store, "s/search/0/0/0", owner.current())
    store.finish(make_result("s/search/0/0/0"))
    monkeypatch.setattr(leftovers, "boot_id", lambda: "the start before")
    begin(store, "s/search/1/0/0", owner.current(), tmp_path)
    monkeypatch.undo()
    begin(store, "s/search/2/0/0", owner.current())

    assert crash_journal.settle(store, "s", DEVICE, Measurement.EMULATED) == ("s/search/1/0/0",)
    assert crash_journal.settle(store, "s", DEVICE, Measurement.EMULATED) == ()
    assert store.forget_running("s") == ("s/search/2/0/0",)
    done, lost = store.trials("s")
    assert done.result.failure is None
    failure = lost.result.failure
    assert failure is not None
    assert failure.kind is FailureKind.HOST_LOST
    assert failure.log_path == str(tmp_path / "server.log")
    assert "not tried again" in failure.message
    # told as impossible, final, and not due again; the other one is
    assert failure.kind.is_repeatable
    assert is_final(lost, retries=2)
    jobs = [Job(role=Role.SEARCH, candidate=number) for number in range(3)]
    assert [job.candidate for job in unfinished(jobs, "s", store.trials("s"), retries=2)] == [2]
