"""A study packed into one file and taken into another database: nothing is lost, nothing private is told."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import text

from dflash_sweep import frames, optuna_rows, originals, raw_rows, report, traces
from dflash_sweep.archive import packing, unpacking
from dflash_sweep.archive.packing import Exported
from dflash_sweep.errors import StorageError
from dflash_sweep.store import Store
from fakes import first_schema

pytestmark = pytest.mark.long

SECRET = "sk-very-secret"
_HERE: dict[str, Any] = {"home": None, "launch_dir": Path(), "findings": False}
PROMPT_PATH = "please read /home/somebody/notes.txt"


@dataclass(frozen=True)
class Source:
    """A database with a study and its evidence under a home folder, the archive of it, and `_findings`."""

    url: str
    home: Path
    done: Exported
    findings: dict[str, str]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """The kept study of the first version, with evidence written for its first two trials."""
    folder = tmp_path_factory.mktemp("source")
    home = folder / "home" / "somebody"
    runs = home / "sweeps" / "run"
    url = f"sqlite:///{first_schema.unpack(folder)}"
    with Store(url) as store:
        _write_evidence(store, runs)
        done = packing.export(
            store, "ddtree", folder / "ddtree.zip", evidence_bytes=1 << 20, home=str(home), launch_dir=folder
        )
        return Source(url, home, done, _findings(store, folder / "findings"))


def _write_evidence(store: Store, runs: Path) -> None:
    trials = store.trials("ddtree")
    with store.session() as session:
        for trial in trials[:2]:
            folder = runs / "trials" / trial.uid.partition("/")[2]
            folder.mkdir(parents=True)
            (folder / "server.log").write_text(f"loading {runs.parent}/model.gguf\nready\n")
            (folder / "turns.jsonl").write_text(json.dumps({"content": PROMPT_PATH}) + "\n")
            (folder / "launch.json").write_text(
                json.dumps(
                    {"argv": ["server", "--api-key", SECRET, f"--model={runs}/m.gguf"], "env": {"HF_TOKEN": SECRET}}
                )
            )
            (folder / "secret-link").symlink_to("/etc/hostname")
            session.execute(
                text("UPDATE dfs_trial SET spec = json_set(spec, '$.evidence_dir', :folder) WHERE uid = :uid"),
                {"folder": str(folder), "uid": trial.uid},
            )
        session.execute(
            text(
                "UPDATE dfs_study SET info = json_set(info, '$.config.storage.url', :url,"
                " '$.config.engine.env.API_KEY', :secret, '$.config.report.formats', json_array('png'),"
                " '$.provenance.launch_dir', :launch, '$.provenance.host', 'rig-7')"
            ),
            {"url": f"postgresql://me:{SECRET}@db/x", "secret": SECRET, "launch": str(runs.parent)},
        )


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'studies.db'}") as store:
        yield store


def _take(store: Store, source: Source, tmp_path: Path, name: str | None = None) -> unpacking.Imported:
    return unpacking.read(store, source.done.path, name=name, evidence_root=tmp_path / "sweeps")


# ---------------------------------------------------------------- nothing is lost


def _findings(store: Store, folder: Path) -> dict[str, str]:
    """The findings page and its data, without paths and dates."""
    info = store.study("ddtree")
    assert info is not None
    page = report.write(info, store.trials("ddtree"), folder, formats=("png",))
    texts = {name: (page.parent / name).read_text() for name in ("findings.md", "findings.json", "results.csv")}
    return {name: _masked(content) for name, content in texts.items()}


def _masked(content: str) -> str:
    dated = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00| UTC)?", "DATE", content)
    placed = re.sub(r"(?<![\w.])[~/][\w.+-]*(/[\w.+-]+)+", "PATH", dated)
    return re.sub(r"\b(bench|host\d):\d+", "WORKER", placed)


def test_another_machine_gives_the_same_findings(source: Source, target: Store, tmp_path: Path) -> None:
    done = _take(target, source, tmp_path)
    assert (done.study, done.trials) == ("ddtree", 12)
    assert _findings(target, tmp_path / "new") == source.findings
    assert _masked((done.folder / "findings" / "findings.md").read_text()) == source.findings["findings.md"]


def test_another_kind_of_database_gives_the_same_rows(source: Source, postgres_url: str, tmp_path: Path) -> None:
    with Store(postgres_url) as there, Store(source.url) as here:
        _take(there, source, tmp_path)
        ours, theirs = here.trials("ddtree"), there.trials("ddtree")
        same = pd.testing.assert_frame_equal
        same(frames.trial_frame(ours).drop(columns="worker"), frames.trial_frame(theirs).drop(columns="worker"))
        same(frames.turn_frame(ours), frames.turn_frame(theirs))
        assert optuna_rows.names(there) == ("ddtree",)


def test_every_row_and_every_candidate_comes_back(source: Source, target: Store, tmp_path: Path) -> None:
    _take(target, source, tmp_path)
    with Store(source.url) as old:
        before, after = list(raw_rows.dump(old, "ddtree")), list(raw_rows.dump(target, "ddtree"))
        candidates = optuna_rows.dump(old, "ddtree")
    told = optuna_rows.dump(target, "ddtree")
    assert candidates is not None
    assert told is not None
    owners = [
        [trial["user_attrs"].pop("owner").split(":")[1:] for trial in side["trials"]] for side in (candidates, told)
    ]
    assert owners[0] == owners[1]
    assert told == candidates
    assert len(told["trials"]) == 3
    for old_row, new_row in zip(before, after, strict=True):
        assert new_row["turns"] == old_row["turns"]  # prompts, answers, times: untouched
        same = {"uid", "number", "candidate", "comparability_key", "knobs", "measurement", "label", "trace_sha256"}
        assert {name: new_row[name] for name in same} == {name: old_row[name] for name in same}
        assert new_row["result"]["effective"] == old_row["result"]["effective"]


def test_logs_and_traces_are_found_from_the_rows(source: Source, target: Store, tmp_path: Path) -> None:
    done = _take(target, source, tmp_path)
    assert done.folder == tmp_path / "sweeps" / "ddtree" / "imported"
    spec = target.spec_json("ddtree/baseline/plain/0/0")
    assert spec is not None
    folder = Path(spec["evidence_dir"])
    assert folder.is_relative_to(done.folder)
    assert sorted(path.name for path in folder.iterdir()) == ["launch.json", "server.log", "turns.jsonl"]
    info = target.study("ddtree")
    assert info is not None
    (path,) = info.provenance["traces"].values()
    assert traces.load(path).header.sha256 == spec["trace"]["sha256"]
    assert info.provenance["archive"]["file"] == "ddtree.zip"
    again = originals.load(target, "ddtree", 0, launch_dir=tmp_path)  # ready to be run again
    assert (again.trace_path, len(again.spec.trace.turns)) == (path, 3)
    missing = [reason for reason in done.left_out if "evidence of 10 trial(s)" in reason]
    assert missing


def test_a_study_can_be_taken_in_under_another_name(source: Source, target: Store, tmp_path: Path) -> None:
    _take(target, source, tmp_path)
    done = _take(target, source, tmp_path, name="friend's".replace("'", "-"))
    assert done.study == "friend-s"
    assert target.study_names() == ("ddtree", "friend-s")
    trial = target.trials("friend-s")[0]
    assert (trial.uid, trial.study, trial.result.uid) == ("friend-s/baseline/plain/0/0", "friend-s", trial.uid)
    assert optuna_rows.names(target) == ("ddtree", "friend-s")
    assert len(target.trials("ddtree")) == 12


def test_an_imported_study_can_be_packed_again(source: Source, target: Store, tmp_path: Path) -> None:
    _take(target, source, tmp_path)
    again = packing.export(target, "ddtree", tmp_path / "again.zip", evidence_bytes=1 << 20, **_HERE)
    assert again.trials == source.done.trials
    first, second = _members(source.done.path), _members(again.path)
    assert set(second) == {name for name in first if not name.startswith("findings/")}
    assert second["candidates.json"] == first["candidates.json"]


# ---------------------------------------------------------------- nothing private is told


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_no_secret_and_no_home_folder_is_in_it(source: Source) -> None:
    members = _members(source.done.path)
    for name, content in members.items():
        assert SECRET.encode() not in content, name
        assert str(source.home).encode() not in content, name
        assert b"rig-7" not in content, name
    launch = json.loads(members["evidence/00000/launch.json"])
    assert launch["argv"] == ["server", "--api-key", "(hidden)", "--model=~/sweeps/run/m.gguf"]
    assert launch["env"] == {"HF_TOKEN": "(hidden)"}
    assert json.loads(members["config.json"])["storage"]["url"] == "postgresql://me:(hidden)@db/x"
    assert json.loads(members["provenance.json"])["host"] == "host1"


def test_logs_keep_every_byte_at_its_place_and_prompts_are_untouched(source: Source) -> None:
    members = _members(source.done.path)
    log = members["evidence/00000/server.log"]
    original = (source.home / "sweeps/run/trials/baseline/plain/0/0/server.log").read_bytes()
    assert len(log) == len(original)
    assert log.index(b"ready") == original.index(b"ready")
    assert b"loading ~" in log
    assert json.loads(members["evidence/00000/turns.jsonl"])["content"] == PROMPT_PATH
    assert not [name for name in members if "secret-link" in name]  # links are not followed


def test_names_are_kept_when_asked_for(source: Source, tmp_path: Path) -> None:
    with Store(source.url) as store:
        packing.export(store, "ddtree", tmp_path / "a.zip", evidence_bytes=0, **_HERE)
    members = _members(tmp_path / "a.zip")
    assert json.loads(members["provenance.json"])["host"] == "rig-7"
    assert str(source.home) in json.loads(members["provenance.json"])["launch_dir"]
    assert not [name for name in members if name.startswith("evidence/")]
    assert all(SECRET.encode() not in content for content in members.values())
    manifest = json.loads(members["manifest.json"])
    assert any(reason.startswith("6 file(s) of evidence") for reason in manifest["left_out"])


def test_logs_are_left_out_first(source: Source, tmp_path: Path) -> None:
    """Room for the records of both trials (some 200 bytes each), not for their logs."""
    with Store(source.url) as store:
        records = sum(
            path.stat().st_size for path in (source.home / "sweeps").rglob("*.json*") if not path.is_symlink()
        )
        packing.export(store, "ddtree", tmp_path / "a.zip", evidence_bytes=records, **_HERE)
    kept = [name.rpartition("/")[2] for name in _members(tmp_path / "a.zip") if name.startswith("evidence/")]
    assert sorted(kept) == ["launch.json", "launch.json", "turns.jsonl", "turns.jsonl"]


def test_an_export_that_cannot_be_made_leaves_nothing(source: Source, tmp_path: Path) -> None:
    options: dict[str, Any] = {"evidence_bytes": 0, **_HERE}
    with Store(source.url) as store:
        with pytest.raises(StorageError, match="study 'nope' is not stored; there are: ddtree"):
            packing.export(store, "nope", tmp_path / "a.zip", **options)
        with pytest.raises(StorageError, match="there is no folder"):
            packing.export(store, "ddtree", tmp_path / "no" / "a.zip", **options)
        (tmp_path / "dir.zip").mkdir()
        with pytest.raises(StorageError, match=r"dir\.zip: cannot be written"):
            packing.export(store, "ddtree", tmp_path / "dir.zip", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["dir.zip"]
