"""The store gives back what it was given, counts nothing twice and refuses what it cannot use."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_sweep import tables
from dflash_sweep.errors import FailureKind, StorageError
from dflash_sweep.records import AxisInfo, Failure, Measurement, StudyInfo
from dflash_sweep.store import Store, comparability_key
from fakes.builders import make_result, make_spec, make_stored, make_turn

INFO = StudyInfo(
    name="s",
    engine="emulator",
    measurement=Measurement.EMULATED,
    axes=(AxisInfo(name="budget", kind="int", values=(8, 22)),),
    config={"seed": 7, "space": {"budget": "choice(8,22)"}},
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store(f"sqlite:///{tmp_path / 'studies.db'}")
    opened.save_study(INFO)
    return opened


def test_study_round_trip(store: Store) -> None:
    assert store.study("s") == INFO
    assert store.study("other") is None
    assert store.study_names() == ("s",)


def test_trial_round_trip_keeps_every_field(store: Store) -> None:
    spec = make_spec(
        knobs={"budget": 22, "chain_seed": True, "proposal_temp": 1.0, "cache_type_k": "q8_0", "top_k": None}
    )
    result = make_result(turns=(make_turn(0, acceptance_histogram={0: 3, 2: 1}), make_turn(1)))
    store.begin(spec, "host:1:0", "key")
    assert store.trials("s") == ()
    store.finish(result)
    (trial,) = store.trials("s")
    assert trial.result == result
    assert trial.knobs == spec.knobs
    assert [type(value) for value in trial.knobs.values()] == [type(value) for value in spec.knobs.values()]
    assert (trial.number, trial.comparability_key) == (0, "key")
    stored_spec = store.spec_json(spec.uid)
    assert stored_spec is not None
    assert stored_spec["trace"]["sha256"] == "0" * 64


def test_a_second_result_for_a_trial_is_not_counted(store: Store) -> None:
    store.begin(make_spec(), "o", "key")
    store.finish(make_result())
    store.finish(make_result(turns=()))
    (trial,) = store.trials("s")
    assert len(trial.result.turns) == 2


def test_runs_that_were_stopped_early_are_not_counted_as_failed(store: Store) -> None:
    for place, kind in enumerate((None, FailureKind.PRUNED, FailureKind.CRASHED)):
        uid = f"s/search/{place}/0/0"
        store.begin(make_spec(uid), "o", "key")
        store.finish(make_result(uid, failure=None if kind is None else Failure(kind=kind, message="why")))
    with store.session() as session:
        assert tables.counts(session) == {"s": (3, 1)}


def test_a_row_gets_the_key_of_the_device_that_ran_it(store: Store) -> None:
    """On a machine with cards of several models the worker that is free decides: such rows are never pooled."""
    for uid, key in (("a", "key of one card"), ("b", None)):
        store.begin(make_spec(uid), "o", "key as planned")
        store.finish(make_result(uid), key)
    assert [trial.comparability_key for trial in store.trials("s")] == ["key of one card", "key as planned"]


def test_numbers_follow_the_order_of_finishing(store: Store) -> None:
    for uid in ("a", "b"):
        store.begin(make_spec(uid), "o", "key")
    store.finish(make_result("b"))
    store.finish(make_result("a"))
    assert [(trial.uid, trial.number) for trial in store.trials("s")] == [("b", 0), ("a", 1)]


def test_failure_is_kept_in_full(store: Store) -> None:
    failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message="no memory", exit_code=-6, log_tail="cudaMalloc")
    store.begin(make_spec(), "o", "key")
    store.finish(make_result(turns=(), failure=failure))
    (trial,) = store.trials("s")
    assert trial.result.failure == failure


def test_only_rows_of_dead_drivers_are_forgotten(store: Store) -> None:
    store.begin(make_spec("mine"), "dead", "key")
    store.begin(make_spec("theirs"), "alive", "key")
    assert sorted(store.running_owners("s")) == ["alive", "dead"]
    assert store.forget_running("s", ["dead"]) == ("mine",)
    assert store.running_owners("s") == ("alive",)


def test_imported_rows_come_back(store: Store) -> None:
    trials = (make_stored(3, status_claimed="keep", label="first"), make_stored(5))
    store.add_imported(trials)
    assert store.trials("s") == trials


def test_a_result_survives_another_writers_lock(store: Store, tmp_path: Path) -> None:
    store.begin(make_spec(), "o", "key")
    other = sqlite3.connect(tmp_path / "studies.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(1.0, lambda: other.execute("COMMIT"))
    release.start()
    store.finish(make_result())
    release.join()
    other.close()
    assert len(store.trials("s")) == 1


def test_a_lock_that_stays_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_sweep.store._LOCK_TIMEOUT_S", 0.1)
    with Store(f"sqlite:///{tmp_path / 'studies.db'}") as store:
        store.save_study(INFO)
        store.begin(make_spec(), "o", "key")
        other = sqlite3.connect(tmp_path / "studies.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageError, match=r"^storage\.url=sqlite.* cannot be read or written: database is locked"):
            store.finish(make_result())
        other.execute("COMMIT")
        other.close()
        store.finish(make_result())  # nothing was half written
        assert len(store.trials("s")) == 1


def test_drivers_that_start_together_on_a_new_file_make_its_tables_once(tmp_path: Path) -> None:
    url, start = f"sqlite:///{tmp_path / 'studies.db'}", threading.Barrier(8)

    def opened(index: int) -> None:
        start.wait()
        with Store(url) as store:
            store.save_study(replace(INFO, name=f"s{index}"))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(opened, range(8)))
    with Store(url, create=False) as store:
        assert len(store.study_names()) == 8


def test_a_database_can_be_read_where_it_cannot_be_written(store: Store, tmp_path: Path) -> None:
    """Reports are made while another process writes, or from a copy that is write-protected: opening writes nothing."""
    writer = sqlite3.connect(tmp_path / "studies.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with Store(store.url, create=False) as reader:
        assert reader.study("s") == INFO
    writer.execute("ROLLBACK")
    writer.close()


def test_a_trial_is_begun_once(store: Store) -> None:
    store.begin(make_spec(), "one driver", "key")
    with pytest.raises(StorageError, match="another driver has begun s/search/0/0/0; two runs at a time need two"):
        store.begin(make_spec(), "another driver", "key")


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    path.write_text("not a database, but long enough to be looked at as one " * 40)
    with pytest.raises(StorageError, match="not a usable database"):
        Store(f"sqlite:///{path}")


def test_a_newer_schema_is_refused_and_left_alone(store: Store, tmp_path: Path) -> None:
    store.close()
    with sqlite3.connect(tmp_path / "studies.db") as connection:
        connection.execute("UPDATE dfs_schema_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StorageError, match="another version of dflash-sweep"):
        Store(store.url)


def test_reading_needs_an_existing_database(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no database yet"):
        Store(f"sqlite:///{tmp_path / 'none.db'}", create=False)
    assert not (tmp_path / "none.db").exists()


def test_comparability_key_ignores_knobs_and_seeds_but_not_the_rest() -> None:
    base = make_spec()
    key = comparability_key(base, "card")
    assert comparability_key(replace(base, knobs={"budget": 8}), "card") == key
    noisy = replace(base.engine, options={"launch_seed": 4})
    assert comparability_key(replace(base, engine=noisy), "card") == key
    assert comparability_key(base, "other card") != key
    assert comparability_key(replace(base, policy=replace(base.policy, thinking=True)), "card") != key
    switched = replace(base.trace.header, template_kwargs={"enable_thinking": False})  # the trace's own switch
    assert comparability_key(replace(base, trace=replace(base.trace, header=switched)), "card") != key
    assert comparability_key(replace(base, policy=replace(base.policy, cache_prompt=False)), "card") != key
    assert comparability_key(replace(base, policy=replace(base.policy, temperature=0.7)), "card") != key
    assert comparability_key(replace(base, policy=replace(base.policy, warmup_turns=0)), "card") != key
    assert comparability_key(replace(base, build=replace(base.build, version="2")), "card") != key
