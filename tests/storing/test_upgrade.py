"""A database of the first schema version is brought up to date, keeps every row, and is reported as before."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import msgspec
import pytest

from dflash_sweep import report, upgrades
from dflash_sweep.differences import of_specs
from dflash_sweep.records import TrialSpec
from dflash_sweep.store import Store, comparability_key
from fakes import first_schema
from fakes.builders import make_trace


def _old_url(url: str, folder: Path) -> str:
    if url.startswith("sqlite"):
        first_schema.unpack(folder)
    else:
        first_schema.copy_to(url, folder)
    return url


def test_the_kept_database_is_of_the_first_version(tmp_path: Path) -> None:
    with sqlite3.connect(first_schema.unpack(tmp_path)) as database:
        assert database.execute("SELECT version_num FROM dfs_schema_version").fetchall() == [("0001",)]
        text = "\n".join(database.iterdump())
    assert not [word for word in ("/home/", "/root", "/tmp", "/work") if word in text]  # nothing of where it was made


def test_every_row_survives_the_upgrade(url: str, tmp_path: Path) -> None:
    database = sqlite3.connect(first_schema.unpack(tmp_path))
    rows = "SELECT uid, number, role, comparability_key FROM dfs_trial ORDER BY number"
    before = database.execute(rows).fetchall()
    sums = """SELECT trial_uid, sum(decode_tokens), sum(decode_ms), count(*) FROM dfs_turn
              WHERE NOT warmup AND invalid_reason IS NULL GROUP BY trial_uid"""
    turns = {uid: (tokens, ms, count) for uid, tokens, ms, count in database.execute(sums)}
    (stages_ms,) = database.execute("SELECT sum(total_ms) FROM dfs_stage").fetchone()
    database.close()
    with Store(_old_url(url, tmp_path)) as store:
        assert upgrades.current(store.engine) == upgrades.head() > "0001"
        trials = store.trials("ddtree")
        info = store.study("ddtree")
    assert info is not None
    assert (info.status, info.n_trials, info.seed) == ("finished", 3, 7)
    assert [(trial.uid, trial.number, str(trial.role), trial.comparability_key) for trial in trials] == before
    assert len(trials) == 12  # 3 plain, 2 default, 3 of the search, 4 to confirm
    for trial in trials:
        kept = [turn.counters for turn in trial.result.turns if not turn.warmup and turn.invalid_reason is None]
        tokens, milliseconds = sum(c.decode_tokens or 0 for c in kept), sum(c.decode_ms or 0.0 for c in kept)
        assert (tokens, milliseconds, len(kept)) == pytest.approx(turns[trial.uid])
    found = sum(s.total_ms for trial in trials for turn in trial.result.turns for s in turn.counters.stages)
    assert found == pytest.approx(stages_ms)


def test_it_is_reported_as_before(tmp_path: Path) -> None:
    with Store(f"sqlite:///{first_schema.unpack(tmp_path)}") as store:
        info, trials = store.study("ddtree"), store.trials("ddtree")
    assert info is not None
    page = report.write(info, trials, tmp_path / "findings", formats=("png",))
    findings = json.loads((page.parent / "findings.json").read_text())
    verdicts = {(verdict["id"], verdict["subject"].split("=")[0]): verdict for verdict in findings["verdicts"]}
    # What the first version said of these rows: the best repeated setting reached 0.284 of plain decoding's speed, and
    # the exact verifier alone costs more than plain decoding.
    best = verdicts["break_even", "budget"]
    assert (best["status"], best["value"]) == ("does_not_hold", pytest.approx(0.2839, abs=0.001))
    bound = verdicts["structural_bound", "exact_ms"]
    assert (bound["status"], bound["value"]) == ("holds", pytest.approx(44.815, abs=0.5))
    assert findings["counts"].items() >= {"trials": 12, "failed": 0, "ranked": 12, "turns": 48}.items()
    assert findings["answer"]["candidate"] is None  # nobody is advised to speculate here
    assert "plain decoding" in page.read_text()


def test_an_upgrade_happens_once(url: str, tmp_path: Path) -> None:
    with Store(_old_url(url, tmp_path)) as store:
        first = store.trials("ddtree")
    with Store(url) as store:
        assert store.trials("ddtree") == first


def test_rows_of_the_first_version_can_still_be_compared_with_new_ones(tmp_path: Path) -> None:
    """The same trial, measured by this version, gets the key that the first version gave it."""
    first_schema.unpack(tmp_path)
    with Store(f"sqlite:///{tmp_path / 'studies.db'}") as store:
        for trial in store.trials("ddtree"):
            data = store.spec_json(trial.uid)
            assert data is not None
            whole = {**data, "trace": {"header": data["trace"], "turns": msgspec.to_builtins(make_trace().turns)}}
            spec = msgspec.convert(whole, TrialSpec, str_keys=True)
            assert comparability_key(spec, trial.result.device.name) == trial.comparability_key
            assert of_specs(data, data) == ()
