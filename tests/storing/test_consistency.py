"""`dflash-sweep db check` finds each planted fault, says it in one line, and changes nothing."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dflash_sweep.cli import app
from dflash_sweep.consistency import check
from dflash_sweep.exits import EXIT_FAULTY, EXIT_OK
from dflash_sweep.lease import Lease
from dflash_sweep.records import Measurement, StudyInfo
from dflash_sweep.store import Store
from fakes import first_schema
from fakes.builders import make_result, make_spec, make_stored

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The kept study of the first version, brought up to date."""
    path = first_schema.unpack(tmp_path_factory.mktemp("upgraded"))
    Store(f"sqlite:///{path}").close()
    return path.read_bytes()


@pytest.fixture
def database(upgraded: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "studies.db"
    path.write_bytes(upgraded)
    return path


def _faults(path: Path, *statements: str) -> list[str]:
    """What is found after these statements, as a tool might run them that knows nothing of keys."""
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    with Store(f"sqlite:///{path}", upgrade=False) as store:
        found = check(store)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert all("\n" not in fault for fault in found)
    return list(found)


def test_a_whole_database_has_no_fault(database: Path) -> None:
    assert _faults(database) == []


def test_an_older_schema_is_no_fault_and_stays_as_it_is(tmp_path: Path) -> None:
    assert _faults(first_schema.unpack(tmp_path)) == []


SEARCHED = "ddtree/search/1/0/0"
CANDIDATE = "study 'ddtree': candidate 1: "


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        (f"DELETE FROM dfs_trial WHERE uid = '{SEARCHED}'", "study 'ddtree': number(s) that no trial has: 6"),
        ("UPDATE trial_values SET value = 99.5 WHERE trial_id = 2",
         CANDIDATE + "Optuna was told 99.5, its row says 12.1"),
        ("UPDATE dfs_turn SET invalid_reason = 'x' WHERE trial_uid = 'ddtree/search/1/0/0'",
         CANDIDATE + "Optuna was told 12.1"),
        ("DELETE FROM trials WHERE number = 1", CANDIDATE + "has 1 row(s), but Optuna does not know it"),
        ("UPDATE trials SET state = 'RUNNING' WHERE number = 1",
         CANDIDATE + "still running for Optuna, but the study is finished"),
        (f"UPDATE dfs_trial SET candidate = NULL WHERE uid = '{SEARCHED}'",
         f"study 'ddtree': trial {SEARCHED}: of the search, without a candidate"),
        (f"UPDATE dfs_trial SET knobs = json_set(knobs, '$.budget', 40) WHERE uid = '{SEARCHED}'",
         CANDIDATE + f"trial {SEARCHED} has another budget than Optuna"),
        ("INSERT INTO trial_user_attributes (trial_id, key, value_json) VALUES (2, 'duplicate', 'true')",
         CANDIDATE + "told as a duplicate, but it has 1 row(s)"),
        ("DELETE FROM studies",
         "study 'ddtree': 3 trial(s) of the search, but Optuna has no search study of this name"),
        ("UPDATE studies SET study_name = 'other'", "search study 'other': Optuna has it, dflash-sweep has not"),
        ("UPDATE dfs_trial SET number = 2 WHERE number = 3", "study 'ddtree': number(s) given twice: 2"),
        ("UPDATE dfs_trial SET number = 30 WHERE number = 11",
         "study 'ddtree': number(s) that no trial has: 11, 12, 13, 14, 15, 16, 17, 18 …"),
        (f"UPDATE dfs_trial SET number = NULL WHERE uid = '{SEARCHED}'",
         f"study 'ddtree': trial {SEARCHED}: finished without a number"),
        (f"UPDATE dfs_trial SET result = NULL WHERE uid = '{SEARCHED}'",
         f"study 'ddtree': trial {SEARCHED}: finished without a result"),
        (f"UPDATE dfs_trial SET comparability_key = '' WHERE uid = '{SEARCHED}'",
         f"study 'ddtree': trial {SEARCHED}: no comparability key: nothing says what it may be ranked with"),
        (f"UPDATE dfs_trial SET result = json_set(result, '$.uid', 'x') WHERE uid = '{SEARCHED}'",
         f"study 'ddtree': trial {SEARCHED}: its result is that of x"),
        (f"UPDATE dfs_trial SET spec = json_set(spec, '$.uid', 'x') WHERE uid = '{SEARCHED}'",
         f"study 'ddtree': trial {SEARCHED}: its spec is that of x"),
        (f"UPDATE dfs_trial SET result = json_set(result, '$.clock', 7) WHERE uid = '{SEARCHED}'",
         "study 'ddtree': a row cannot be read: "),
        (f"UPDATE dfs_trial SET state = 'lost' WHERE uid = '{SEARCHED}'",
         f"study 'ddtree': trial {SEARCHED}: state 'lost' is not known"),
        (f"UPDATE dfs_trial SET state = 'running' WHERE uid = '{SEARCHED}'",
         f"study 'ddtree': trial {SEARCHED}: running, but no driver holds the study"),
        ("INSERT INTO dfs_lease VALUES ('ddtree', 'gone:1:0', 'gone', 'b', 3, 0, 0, 0)",
         "study 'ddtree': the lease of process 1 on gone since 1970-01-01 00:00:00 UTC"),
        ("UPDATE dfs_turn SET trial_uid = 'nobody' WHERE id = 3", "rows: 1 turn(s) of a trial that is not there"),
        ("UPDATE dfs_stage SET turn_id = 99999 WHERE id < 4", "rows: 3 stage(s) of a turn that is not there"),
        ("DELETE FROM dfs_study", "rows: 12 trial(s) of a study that is not there"),
        ("DROP TABLE dfs_stage", "schema: table dfs_stage is missing"),
        ("ALTER TABLE dfs_trial DROP COLUMN label", "schema: table dfs_trial has no column label"),
        ("UPDATE dfs_schema_version SET version_num = '9999'", "schema: version 9999 is not known here"),
    ],
)  # fmt: skip
def test_each_planted_fault_is_found(database: Path, statement: str, fault: str) -> None:
    found = _faults(database, statement)
    assert any(line.startswith(fault) for line in found), found


def test_what_the_engine_makes_of_a_point_is_no_difference(database: Path) -> None:
    """With budget 12 and one candidate a depth the server seeds the chain whatever it is told, and the temperature is
    dead: the row says true and None where Optuna gave false and 0.7. Another budget is a difference still."""
    settled = {"budget": "12", "top_k": "null", "proposal_temp": "null", "chain_seed": "true"}
    keys = ", ".join(f"'$.{name}', json('{value}')" for name, value in settled.items())
    row = f"UPDATE dfs_trial SET knobs = json_set(knobs, {keys}) WHERE uid = '{SEARCHED}'"
    asked = [  # places in 8, 12, …; 1, 2, 4, 8; true, false
        f"UPDATE trial_params SET param_value = {place} WHERE trial_id = 2 AND param_name = '{name}'"
        for name, place in (("budget", 1), ("top_k", 0), ("chain_seed", 1))
    ]
    assert _faults(database, row, *asked) == []
    other = f"UPDATE dfs_trial SET knobs = json_set(knobs, '$.budget', 8) WHERE uid = '{SEARCHED}'"
    assert _faults(database, other) == [CANDIDATE + f"trial {SEARCHED} has another budget than Optuna"]


def test_a_candidate_whose_row_was_removed(database: Path) -> None:
    statements = [
        f"DELETE FROM dfs_turn WHERE trial_uid = '{SEARCHED}'",
        f"DELETE FROM dfs_trial WHERE uid = '{SEARCHED}'",
    ]
    assert any(fault.startswith(CANDIDATE + "Optuna was told 12.1") for fault in _faults(database, *statements))


def test_a_damaged_file(database: Path) -> None:
    with database.open("r+b") as file:  # one page of the middle of the file, which no header lives in
        file.seek(4096 * 30)
        file.write(bytes(4096))
    found = _faults(database)
    assert any(fault.startswith("file: ") for fault in found), found


def test_trials_of_a_living_driver_are_no_fault(database: Path) -> None:
    with Store(f"sqlite:///{database}") as store, Lease(store, "ddtree", "me"):
        spec = make_spec("ddtree/search/9/0/0", study="ddtree")
        store.begin(spec, "me", "key")
        assert check(store) == ()
        store.begin(make_spec("ddtree/search/8/0/0", study="ddtree"), "somebody", "key")
        assert check(store) == (
            "study 'ddtree': trial ddtree/search/8/0/0: running for a driver that does not hold the study",
        )


def test_a_database_without_tables_of_ours(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "empty.db").close()
    with Store(f"sqlite:///{tmp_path / 'empty.db'}", upgrade=False) as store:
        assert check(store) == ("schema: this database has no tables of dflash-sweep",)


def test_imported_logs_were_never_asked_for(url: str) -> None:
    """Rows of somebody else's log have numbers of their own and no search study."""
    with Store(url) as store:
        store.save_study(StudyInfo(name="s", engine="imported", measurement=Measurement.IMPORTED))
        store.add_imported((make_stored(0), make_stored(1)))
        assert check(store) == ()


def test_a_search_that_optuna_does_not_know_is_found_on_both_kinds_of_database(url: str) -> None:
    with Store(url) as store:
        store.save_study(StudyInfo(name="s", engine="emulator", measurement=Measurement.EMULATED))
        store.begin(make_spec(), "me", "key")
        store.finish(make_result())
        assert check(store) == ("study 's': 1 trial(s) of the search, but Optuna has no search study of this name",)


def test_the_command_prints_a_line_a_fault(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(database.parent)
    whole = CliRunner().invoke(app, ["db", "check"])
    assert (whole.exit_code, whole.stdout) == (EXIT_OK, "")
    assert "no fault in 1 study(ies), schema 0002" in whole.stderr
    with sqlite3.connect(database) as connection:
        connection.execute("DELETE FROM studies")
    broken = CliRunner().invoke(app, ["db", "check"])
    assert broken.exit_code == EXIT_FAULTY
    assert broken.stdout.splitlines() == [
        "study 'ddtree': 3 trial(s) of the search, but Optuna has no search study of this name"
    ]
