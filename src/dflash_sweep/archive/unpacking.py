"""A study out of an archive, into a database and a folder. Imports `store`, `raw_rows`, `optuna_rows`.

Everything is checked before anything is kept: members and hashes, the schema, every row. The evidence is unpacked
beside its place and moved there in one step; a failed import leaves neither rows nor files.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from dflash_sweep import optuna_rows, raw_rows, upgrades
from dflash_sweep.archive.members import Reader, is_safe
from dflash_sweep.archive.packing import EVIDENCE, HERE
from dflash_sweep.errors import StorageError
from dflash_sweep.records import StudyInfo
from dflash_sweep.store import Store

MAX_BYTES = 4 << 30
"""What an archive may unpack to, unless it is asked for more."""
_NAME = re.compile(r"[\w.][\w .+-]{0,150}")
_UNPACKED = (f"{EVIDENCE}/", "traces/", "findings/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What came in. `folder` holds logs, traces and the findings as they were; `left_out` is the exporter's list."""

    study: str
    trials: int
    folder: Path
    left_out: tuple[str, ...]


def read(
    store: Store, path: Path, *, name: str | None = None, evidence_root: Path, max_bytes: int = MAX_BYTES
) -> Imported:
    """Put an archive's study into a database, under its own name or `name`.

    Its files go to `evidence_root`/<name>/imported. Raises StorageError: the file is no archive, damaged, hostile, of a
    newer version; or a study of this name, or its folder, is there already.
    """
    with Reader(path, max_bytes=max_bytes) as archive:
        return _Unpacking(store, path, archive, name, evidence_root).run()


class _Unpacking:
    """One import under way."""

    def __init__(self, store: Store, path: Path, archive: Reader, name: str | None, evidence_root: Path) -> None:
        self._store, self._path, self._archive = store, path, archive
        self._old = str(archive.manifest.get("study"))
        self._name = name or self._old
        self._folder = evidence_root.resolve() / self._name / "imported"

    def run(self) -> Imported:
        self._check()
        self._archive.verify()
        info = self._info()
        candidates = self._archive.json("candidates.json") if "candidates.json" in self._archive.members else None
        self._unpack()
        try:
            count = raw_rows.load(self._store, info, self._rows())
            try:
                if candidates is not None:
                    optuna_rows.load(self._store, self._name, candidates)
            except StorageError:
                self._store.delete_study(self._name)
                raise
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            with suppress(OSError):  # only if it is empty now
                self._folder.parent.rmdir()
            raise
        left_out = self._archive.manifest.get("left_out") or ()
        return Imported(study=self._name, trials=count, folder=self._folder, left_out=tuple(map(str, left_out)))

    def _refuse(self, reason: str) -> StorageError:
        return StorageError(f"{self._path}: {reason}; nothing was imported")

    def _check(self) -> None:
        schema = self._archive.manifest.get("schema")
        if schema not in upgrades.known():
            raise self._refuse(
                f"was made with schema {schema}; this version of dflash-sweep knows up to {upgrades.head()}"
            )
        if not _NAME.fullmatch(self._name):
            raise self._refuse(f"study name {self._name!r} cannot be used; choose one with --as")
        if self._name in self._store.study_names() or self._name in optuna_rows.names(self._store):
            raise self._refuse(f"study {self._name!r} is stored already; choose another name with --as")
        if self._folder.exists():
            raise self._refuse(f"{self._folder} is there already; choose another name with --as, or move it")

    def _info(self) -> StudyInfo:
        """The study under its new name, with the places of its traces here."""
        try:
            plain = {
                **self._archive.json("study.json"),
                "config": self._archive.json("config.json"),
                "provenance": self._archive.json("provenance.json"),
            }
            info = msgspec.convert(plain, StudyInfo, str_keys=True)
        except (msgspec.ValidationError, TypeError) as error:
            raise self._refuse(f"its study cannot be read: {error}") from error
        found = self._archive.manifest.get("traces")
        listed = found if isinstance(found, dict) else {}
        traces = {
            str(digest): str(self._folder / str(member))
            for digest, member in listed.items()
            if str(member) in self._archive.members
        }
        origin = {"file": self._path.name, "program": str(self._archive.manifest.get("program"))}
        provenance = {**info.provenance, "traces": traces, "archive": origin}
        return replace(info, name=self._name, provenance=provenance)

    # ------------------------------------------------------------ rows

    def _rows(self) -> Iterator[dict[str, Any]]:
        prefix = f"{self._old}/"
        for row in self._archive.json_lines("trials.jsonl"):
            if not isinstance(row, dict) or row.get("study") != self._old or not str(row.get("uid")).startswith(prefix):
                raise self._refuse("a row is none of its study's")
            uid = f"{self._name}/{row['uid'][len(prefix) :]}"
            renamed = {
                **self._placed_safely(row),
                "uid": uid,
                "study": self._name,
                "state": "finished",
                "turns": row["turns"],
            }
            renamed["result"] = {**renamed["result"], "uid": uid}
            if renamed["spec"]:
                renamed["spec"] = {**renamed["spec"], "uid": uid, "study": self._name}
            yield renamed

    def _placed_safely(self, row: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._placed(row)
        except RecursionError:
            raise self._refuse("a row is nested too deeply") from None

    def _placed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row in which paths into the archive lead to our folder; its turns are left alone."""
        placed = {name: self._rebased(value) for name, value in row.items() if name != "turns"}
        for part in ("spec", "result"):
            if not isinstance(placed.get(part), dict):
                raise self._refuse(f"a row has no {part}")
        folder = placed["spec"].get("evidence_dir")
        if folder is not None and not str(folder).startswith(str(self._folder)):
            raise self._refuse(f"a row's evidence is said to be at {str(folder)!r}, outside the archive")
        return placed

    def _rebased(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: self._rebased(entry) for name, entry in value.items()}
        if isinstance(value, list):
            return [self._rebased(entry) for entry in value]
        if isinstance(value, str) and value.startswith(HERE):
            inside = value.removeprefix(HERE)
            if not is_safe(inside):
                raise self._refuse(f"a row names {inside!r}, which is no place in the archive")
            return str(self._folder / inside)
        return value

    # ------------------------------------------------------------ files

    def _unpack(self) -> None:
        draft = self._folder.with_name(self._folder.name + ".new")
        shutil.rmtree(draft, ignore_errors=True)
        try:
            draft.mkdir(parents=True)
            for name in self._archive.members:
                if name.startswith(_UNPACKED):
                    self._archive.copy(name, draft / name)
            draft.rename(self._folder)
        except OSError as error:
            raise self._refuse(f"{error.filename or draft}: {error.strerror}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
