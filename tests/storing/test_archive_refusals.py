"""Archives that are damaged, foreign or hostile are refused in one line, and leave neither rows nor files."""

from __future__ import annotations

import hashlib
import json
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash_sweep import optuna_rows
from dflash_sweep.archive import unpacking
from dflash_sweep.archive.members import Reader, is_safe
from dflash_sweep.errors import StorageError
from dflash_sweep.store import Store

Members = dict[str, bytes]
ROW: dict[str, Any] = {
    "uid": "s/baseline/plain/0/0", "study": "s", "state": "finished", "owner": "o", "number": 0, "role": "baseline",
    "candidate": None, "repeat": 0, "attempt": 0, "speculative": False, "knobs": {}, "engine": "emulator", "build": "1",
    "trace_name": "t", "trace_sha256": "0" * 64, "comparability_key": "k", "measurement": "emulated",
    "failure_kind": None, "failure_message": None, "label": None, "status_claimed": None,
    "spec": {"evidence_dir": "archive:evidence/00000"},
    "result": {
        "uid": "s/baseline/plain/0/0", "measurement": "emulated", "clock": "virtual",
        "device": {"kind": "emulated", "index": 0, "name": "card"},
    },
    "turns": [],
}  # fmt: skip
MANIFEST: dict[str, Any] = {
    "format": "dflash-sweep archive", "format_version": 1, "schema": "0002", "study": "s", "traces": {}, "left_out": [],
}  # fmt: skip


def _content() -> Members:
    return {
        "study.json": json.dumps({"name": "s", "engine": "emulator", "measurement": "emulated"}).encode(),
        "config.json": b"{}",
        "provenance.json": b"{}",
        "trials.jsonl": json.dumps(ROW).encode() + b"\n",
        "evidence/00000/server.log": b"ready\n",
    }


def _listed(members: Members) -> dict[str, Any]:
    return {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()} for name, content in members.items()
    }


def _pack(path: Path, members: Members, manifest: dict[str, Any] | None = None) -> Path:
    whole = {**MANIFEST, "members": _listed(members), **(manifest or {})}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
        file.writestr("manifest.json", json.dumps(whole))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'studies.db'}") as opened:
        yield opened


def _read(store: Store, path: Path, name: str | None = None, max_bytes: int = 1 << 24) -> unpacking.Imported:
    return unpacking.read(store, path, name=name, evidence_root=path.parent / "sweeps", max_bytes=max_bytes)


def _refused(store: Store, path: Path, reason: str, **options: Any) -> None:
    with pytest.raises(StorageError, match=reason) as found:
        _read(store, path, **options)
    assert "\n" not in str(found.value)
    assert str(path) in str(found.value) or "study" in str(found.value)
    assert store.study_names() == ()
    assert optuna_rows.names(store) == ()
    assert not (path.parent / "sweeps" / "s").exists()


def test_the_archive_that_the_others_are_made_of_is_taken(store: Store, tmp_path: Path) -> None:
    done = _read(store, _pack(tmp_path / "a.zip", _content()))
    assert (done.study, done.trials) == ("s", 1)
    assert (done.folder / "evidence/00000/server.log").read_bytes() == b"ready\n"


@pytest.mark.parametrize(
    "name",
    ["/etc/cron.d/x", "../x", "evidence/../../x", "evidence//x", "C:/x", "a\\..\\x", "evidence/./x", "evidence/ /x",
     "./x", "evidence/x\n", "evidence/.../x"],
)  # fmt: skip
def test_names_that_lead_elsewhere(store: Store, tmp_path: Path, name: str) -> None:
    assert not is_safe(name)
    _refused(store, _pack(tmp_path / "a.zip", {**_content(), name: b"x"}), "is no plain relative path")


def _special(mode: int) -> Callable[[zipfile.ZipInfo], None]:
    def change(info: zipfile.ZipInfo) -> None:
        info.create_system = 3
        info.external_attr = (mode | 0o777) << 16

    return change


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO, stat.S_IFCHR])
def test_members_that_are_no_plain_files(store: Store, tmp_path: Path, mode: int) -> None:
    members = {**_content(), "evidence/00000/link": b"/etc/passwd"}
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            if name.endswith("link"):
                _special(mode)(info)
            file.writestr(info, content)
        file.writestr("manifest.json", json.dumps({**MANIFEST, "members": _listed(members)}))
    _refused(store, path, "is no plain file")


def test_two_members_of_one_name(store: Store, tmp_path: Path) -> None:
    path = _pack(tmp_path / "a.zip", _content())
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as file:
        file.writestr("config.json", b'{"other": 1}')
    _refused(store, path, "two members of one name")


def test_an_archive_that_unpacks_to_too_much(store: Store, tmp_path: Path) -> None:
    """4 MiB of zeros in some 4 KiB of file."""
    path = _pack(tmp_path / "a.zip", {**_content(), "evidence/00000/turns.jsonl": bytes(4 << 20)})
    assert path.stat().st_size < 20_000
    _refused(store, path, r"unpacks to 4 MiB; at most 1 MiB are unpacked \(--max-mib allows more\)", max_bytes=1 << 20)


def test_a_manifest_that_lies_about_a_size(store: Store, tmp_path: Path) -> None:
    members = {**_content(), "evidence/00000/turns.jsonl": bytes(64 << 20)}
    listed = _listed(members)
    listed["evidence/00000/turns.jsonl"]["size"] = 10
    _refused(store, _pack(tmp_path / "a.zip", members, {"members": listed}), "larger than its manifest says")


def test_a_member_that_was_changed(store: Store, tmp_path: Path) -> None:
    members = _content()
    listed = _listed(members)
    members["trials.jsonl"] = members["trials.jsonl"].replace(b'"build": "1"', b'"build": "2"')
    path = _pack(tmp_path / "a.zip", members, {"members": listed})
    _refused(store, path, r"member 'trials\.jsonl' is not the one of its manifest")


def test_damaged_bytes(store: Store, tmp_path: Path) -> None:
    path = _pack(tmp_path / "a.zip", _content())
    content = bytearray(path.read_bytes())
    place = content.index(b"trials.jsonl") + 40
    content[place : place + 8] = bytes(8)
    path.write_bytes(content)
    _refused(store, path, r"is damaged|is not the one of its manifest")


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ({"format": "something else"}, "is no archive of a study"),
        ({"format_version": 2}, "has format version 2; this version of dflash-sweep reads 1"),
        ({"schema": "9999"}, "was made with schema 9999; this version of dflash-sweep knows up to "),
        ({"members": 7}, "cannot be read"),
        ({"members": {"study.json": {}}}, "cannot be read"),
        (
            {"members": {**_listed(_content()), "more.json": {"size": 1, "sha256": ""}}},
            "member 'more.json' .* is missing",
        ),
        ({"members": {"study.json": _listed(_content())["study.json"]}}, "member 'config.json' is not in its manifest"),
        ({"members": {**_listed(_content()), "config.json": {"size": -1, "sha256": ""}}}, "negative size"),
        ({"study": "other"}, "a row is none of its study's"),
        ({"study": "../../etc"}, "cannot be used; choose one with --as"),
    ],
)
def test_manifests_that_do_not_fit(store: Store, tmp_path: Path, manifest: dict[str, Any], reason: str) -> None:
    _refused(store, _pack(tmp_path / "a.zip", _content(), manifest), reason)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("trials.jsonl", b"{]\n", "no JSON"),
        ("trials.jsonl", b"[" * 100_000 + b"\n", "no JSON"),
        ("trials.jsonl", json.dumps(ROW).replace('"label": null', f'"label": {"[" * 700}{"]" * 700}').encode(),
         "nested too deeply|does not fit"),
        ("trials.jsonl", json.dumps({**ROW, "spec": {"evidence_dir": "/etc"}}).encode(), "outside the archive"),
        ("trials.jsonl", json.dumps({**ROW, "spec": {"evidence_dir": "archive:../../etc"}}).encode(), "no place in"),
        ("trials.jsonl", json.dumps({**ROW, "result": None}).encode(), "a row has no result"),
        ("trials.jsonl", json.dumps({**ROW, "result": {}}).encode(), "a row of study 's' does not fit"),
        ("trials.jsonl", json.dumps({**ROW, "role": None}).encode(), "a row of study 's' does not fit"),
        ("trials.jsonl", (json.dumps(ROW) + "\n" + json.dumps(ROW)).encode(), "a row of study 's' does not fit"),
        ("study.json", b'{"name": "s"}', "its study cannot be read"),
        ("study.json", b"[1]", "its study cannot be read"),
        ("candidates.json", b'{"directions": ["sideways"]}', "candidates of search study 's' cannot be stored"),
        ("candidates.json", b'{"directions": ["maximize"], "user_attrs": {}, "system_attrs": {}, "trials": [{}]}',
         "candidates of search study 's' cannot be stored"),
    ],
)  # fmt: skip
def test_content_that_does_not_fit(store: Store, tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    _refused(store, _pack(tmp_path / "a.zip", {**_content(), name: content}), reason)


def test_a_zip_file_of_which_any_byte_was_changed(tmp_path: Path) -> None:
    """It is refused, or the change was in a place that says nothing (a time, a comment): then all is as it was."""
    path = _pack(tmp_path / "a.zip", _content())
    packed = path.read_bytes()
    for place in range(0, len(packed), 3):
        path.write_bytes(packed[:place] + bytes((packed[place] ^ 0xFF,)) + packed[place + 1 :])
        try:
            with Reader(path, max_bytes=1 << 24) as archive:
                archive.verify()
                assert {name: archive.whole(name) for name in archive.members} == _content()
        except StorageError:
            continue
    for size in range(0, len(packed), 50):
        path.write_bytes(packed[:size])
        with pytest.raises(StorageError):
            Reader(path, max_bytes=1 << 24)


def test_what_is_no_zip_file(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    _refused(store, path, "No such file")
    path.write_bytes(b"")
    _refused(store, path, "is no archive of a study")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a", b"")
    _refused(store, path, r"it has no manifest\.json")


def test_a_name_that_is_taken(store: Store, tmp_path: Path) -> None:
    path = _pack(tmp_path / "a.zip", _content())
    _read(store, path)
    with pytest.raises(StorageError, match=r"study 's' is stored already; choose another name with --as"):
        _read(store, path)
    with pytest.raises(StorageError, match=r"study name 'a/b' cannot be used"):
        _read(store, path, name="a/b")
    store.delete_study("s")
    with pytest.raises(StorageError, match=r"imported is there already; choose another name with --as, or move it"):
        _read(store, path)
    assert _read(store, path, name="t").study == "t"
