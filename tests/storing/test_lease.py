"""One living driver a study: who is refused, who takes over, and what the one that lost may still do."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import update

from dflash_sweep import lease, owner
from dflash_sweep.errors import StorageError
from dflash_sweep.lease import Lease, LeaseLost, holder
from dflash_sweep.records import Measurement, StudyInfo
from dflash_sweep.store import Store
from dflash_sweep.tables import LeaseRow
from fakes.builders import make_result, make_spec

INFO = StudyInfo(name="s", engine="emulator", measurement=Measurement.EMULATED)
ME = owner.current()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(url) as opened:
        opened.save_study(INFO)
        yield opened


def _change(store: Store, **values: object) -> None:
    with store.session() as session:
        session.execute(update(LeaseRow).values(**values))


def _left_by(
    store: Store, name: str, *, host: str | None = None, boot: str | None = None, expired: bool = False
) -> None:
    """A lease as a driver that was killed leaves it."""
    abandoned = Lease(store, "s", name, renew_s=3600)
    abandoned._take()
    changes: dict[str, object] = {"host": host or socket.gethostname(), "boot_id": boot or lease.here()}
    _change(store, **changes)
    if expired:
        _change(store, heartbeat_s=LeaseRow.heartbeat_s - 1000, expires_s=LeaseRow.expires_s - 1000)


def _dead_driver() -> str:
    """The name of a driver on this host whose process has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        name = owner.name_of(child.pid)
    return name


def test_a_lease_lasts_as_long_as_its_block(store: Store) -> None:
    assert holder(store, "s") is None
    with Lease(store, "s", ME) as held:
        found = holder(store, "s")
        assert found is not None
        assert (found.owner, found.is_here, found.is_gone) == (ME, True, False)
        assert 0 <= found.age_s < 30
        assert 60 < found.left_s <= lease.TIME_TO_LIVE_S
        assert held.former is None
        store.begin(make_spec(), ME, "key")
    assert holder(store, "s") is None
    assert store.fence is None


def test_it_is_released_when_the_study_fails(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt), Lease(store, "s", ME):
        raise KeyboardInterrupt
    assert holder(store, "s") is None


def test_a_second_driver_is_refused_in_one_line_that_names_the_first(store: Store) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        _left_by(store, owner.name_of(child.pid), expired=True)  # alive here, however old its heartbeat: it is busy
        with pytest.raises(StorageError) as refused, Lease(store, "s", ME):
            pytest.fail("two drivers")
        child.communicate(b"\n")
    text = str(refused.value)
    assert text.startswith(f"study 's' is being run by process {child.pid} on {socket.gethostname()} since 20")
    assert text.endswith("s ago; wait for it, stop it, or choose another study_name")
    assert "\n" not in text


def test_studies_of_other_names_are_free(store: Store) -> None:
    _left_by(store, "elsewhere:1:0", host="elsewhere", boot="other")
    with Lease(store, "t", ME):
        pass


def test_the_lease_of_a_dead_process_is_taken_over_at_once(store: Store) -> None:
    name = _dead_driver()
    _left_by(store, name)
    with Lease(store, "s", ME) as held:
        assert held.former == name


def test_a_driver_on_another_host_is_believed_until_its_lease_expires(store: Store) -> None:
    _left_by(store, "elsewhere:1:0", host="elsewhere", boot="other")
    with pytest.raises(StorageError, match="process 1 on elsewhere"), Lease(store, "s", ME):
        pytest.fail("two drivers")
    _change(store, heartbeat_s=LeaseRow.heartbeat_s - 1000, expires_s=LeaseRow.expires_s - 1000)
    with Lease(store, "s", ME, renew_s=0.05) as held:
        assert held.former == "elsewhere:1:0"


def test_the_same_host_name_on_another_machine_proves_nothing(store: Store) -> None:
    """Containers are often called alike: a pid that is not here may well live there."""
    _left_by(store, _dead_driver(), boot="another boot")
    with pytest.raises(StorageError, match="is being run by"), Lease(store, "s", ME):
        pytest.fail("two drivers")


def test_clocks_that_differ_take_no_lease_from_a_living_driver(store: Store) -> None:
    """SQLite has no clock of its own: a driver whose clock is ahead sees leases expire early, but also their beats."""
    if not store.url.startswith("sqlite"):
        pytest.skip("a database server has one clock for all")
    _left_by(store, "elsewhere:1:0", host="elsewhere", boot="other", expired=True)
    beating = threading.Event()

    def beat() -> None:
        while not beating.wait(0.02):
            _change(store, beats=LeaseRow.beats + 1)

    other = threading.Thread(target=beat)
    other.start()
    try:
        with pytest.raises(StorageError, match="elsewhere"), Lease(store, "s", ME, renew_s=0.2):
            pytest.fail("two drivers")
    finally:
        beating.set()
        other.join()


def test_heartbeats_go_on_in_the_background(store: Store) -> None:
    with Lease(store, "s", ME, renew_s=0.02):
        _until(lambda: _beats(store) >= 2)


def _beats(store: Store) -> int:
    found = holder(store, "s")
    return -1 if found is None else found.beats


def _until(true: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(2000):
        if true():
            return
        waiting.wait(0.01)
    pytest.fail("it never came true")


def test_a_driver_that_lost_its_lease_writes_nothing_more(store: Store) -> None:
    with Lease(store, "s", ME) as held:
        store.begin(make_spec(), ME, "key")
        _change(store, owner="elsewhere:7:0")
        for write in (
            lambda: store.finish(make_result()),
            lambda: store.begin(make_spec("s/search/1/0/0"), ME, "key"),
            lambda: store.save_study(INFO),
            lambda: store.forget_running("s"),
        ):
            with pytest.raises(LeaseLost, match="taken over by process 7 on elsewhere; this driver stops"):
                write()
        with pytest.raises(LeaseLost):
            held.check()
        with pytest.raises(LeaseLost):
            store.check()
    assert store.trials("s") == ()
    found = holder(store, "s")
    assert found is not None
    assert found.owner == "elsewhere:7:0"  # leaving the block releases nobody else's lease


def test_the_heartbeat_notices_the_loss(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    with Lease(store, "s", ME, renew_s=0.02), caplog.at_level(logging.WARNING):
        _change(store, owner="elsewhere:7:0")

        def lost() -> bool:
            try:
                store.check()
            except LeaseLost:
                return True
            return False

        _until(lost)
    assert "is lost to process 7 on elsewhere" in caplog.text


def test_of_many_drivers_that_start_together_one_gets_the_lease(url: str) -> None:
    with Store(url) as store:
        store.save_study(INFO)
    start, results = threading.Barrier(6), []

    def drive(number: int) -> None:
        with Store(url) as own:
            start.wait()
            try:
                with Lease(own, "s", f"elsewhere{number}:1:0"):
                    results.append("held")
                    done.wait(20)
            except StorageError:
                results.append("refused")

    done = threading.Event()
    threads = [threading.Thread(target=drive, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    _until(lambda: len(results) == 6)
    done.set()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["held"] + ["refused"] * 5


def test_a_living_driver_of_a_version_without_leases_is_seen_by_its_rows(store: Store) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        store.begin(make_spec(), owner.name_of(child.pid), "key")
        with pytest.raises(StorageError, match="a driver of an older version"), Lease(store, "s", ME):
            pytest.fail("two drivers")
        child.communicate(b"\n")
    assert holder(store, "s") is None
    with Lease(store, "s", ME):
        assert store.forget_running("s") == ("s/search/0/0/0",)
