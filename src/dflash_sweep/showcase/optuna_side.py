"""A study as Optuna keeps it: where its notes, tags, figures and files are put. Imports optuna and optuna_dashboard.

Optuna refuses every change of a trial once it is told, its own attributes included. What comes later (a note, a file of
a finished trial) is an attribute of the study, as the dashboard itself does it. A note that people have edited keeps
their words: all that stands below `OWN_WORDS` is theirs.
"""

from __future__ import annotations

import io
import json
import mimetypes
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
from optuna.artifacts import ArtifactMeta, FileSystemArtifactStore
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna_dashboard import get_note, save_note, save_plotly_graph_object

from dflash_sweep import optuna_storage

OWN_WORDS = "\n\n---\n\n*What you write below this line is kept.*\n"
"""The end of every note of ours."""

MAX_NOTE = 16_000
"""Longest note of ours, characters: a page of the dashboard loads all notes of a study."""

_LOCK_TIMEOUT_S = 10.0
"""How long a write waits for another process's lock on an SQLite file: a picture is not worth a study's time."""

_FILE = "artifacts:"
_FILE_OF_TRIAL = "dashboard:artifacts:{trial_id}:"
"""Keys under which the dashboard looks for files: of a study or a trial in its own attributes, of a finished trial in
its study's."""


def storage_for(url: str) -> RDBStorage:
    """Optuna's tables in this database, for pages and pictures."""
    return optuna_storage.storage_for(url, lock_timeout_s=_LOCK_TIMEOUT_S)


class OptunaSide:
    """One study in Optuna's tables, and the folder of its files. Raises KeyError if Optuna has no such study."""

    def __init__(self, storage: RDBStorage, name: str, folder: Path) -> None:
        self.storage = storage
        self.study = optuna.load_study(study_name=name, storage=storage)
        self.study_id: int = self.study._study_id
        self._folder = folder
        self._files = FileSystemArtifactStore(folder)
        self._trial_ids: dict[int, int] = {}

    def close(self) -> None:
        self.storage.remove_session()
        self.storage.engine.dispose()

    def trial_id(self, number: int) -> int:
        """Raises KeyError if the study has no trial of this number."""
        if number not in self._trial_ids:
            self._trial_ids[number] = self.storage.get_trial_id_from_study_id_trial_number(self.study_id, number)
        return self._trial_ids[number]

    def numbers(self) -> set[int]:
        """The numbers of all trials that Optuna has of this study."""
        self._trial_ids = {trial.number: trial._trial_id for trial in self.study.get_trials(deepcopy=False)}
        return set(self._trial_ids)

    def not_run(self) -> Iterator[tuple[int, str | None]]:
        """Trials that were told without a run: number, and why it was impossible; None = it equals an earlier one."""
        for trial in self.study.get_trials(deepcopy=False):
            if trial.user_attrs.get("duplicate"):
                yield trial.number, None
            elif "trial" not in trial.user_attrs and (problem := trial.user_attrs.get("problem")):
                yield trial.number, str(problem)

    # ------------------------------------------------------------ notes

    def put_note(self, text: str) -> None:
        """The study's note."""
        stored = get_note(self.study)
        if (body := _with_own_words(text, stored)) != stored:
            save_note(self.study, body)

    def attributes(self) -> Attributes:
        """The study's attributes as they are now, for writing many notes one after another."""
        return Attributes(self.storage, self.study_id)

    def put_trial_note(self, number: int, text: str, held: Attributes | None = None) -> None:
        """The note of one trial, finished or not. `held`: the attributes as they are known, None = they are read."""
        trial_id = self.trial_id(number)
        held = held or self.attributes()
        target: Any = SimpleNamespace(
            storage=held, study=SimpleNamespace(_study_id=self.study_id), _trial_id=trial_id
        )  # what a trial of Optuna has; a finished one is not open any more
        stored = get_note(target)
        if (body := _with_own_words(text, stored)) != stored:
            save_note(target, body)

    # ------------------------------------------------------------ tags and figures

    def tag(self, number: int, attributes: Mapping[str, Any]) -> bool:
        """User attributes of a trial; False if it is finished and takes none any more."""
        try:
            for name, value in attributes.items():
                self.storage.set_trial_user_attr(self.trial_id(number), name, value)
        except UpdateFinishedTrialError:
            return False
        return True

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """User attributes of the study; unchanged ones are not written again."""
        stored = self.storage.get_study_user_attrs(self.study_id)
        for name, value in attributes.items():
            if stored.get(name) != value:
                self.storage.set_study_user_attr(self.study_id, name, value)

    def put_chart(self, chart_id: str, figure: Any) -> None:
        """A Plotly figure on the study's page; one of the same id is replaced."""
        save_plotly_graph_object(self.study, figure, graph_object_id=chart_id)

    # ------------------------------------------------------------ files

    def put_file(self, name: str, content: bytes) -> None:
        """A file of the study; one of the same name is replaced."""
        old = [meta for meta in self._study_files() if meta["filename"] == name]
        key, value = self._written(name, content)
        self.storage.set_study_system_attr(self.study_id, _FILE + key, value)
        for meta in old:
            self.storage.set_study_system_attr(self.study_id, _FILE + meta["artifact_id"], json.dumps(None))
            (self._folder / meta["artifact_id"]).unlink(missing_ok=True)

    def put_trial_file(self, number: int, name: str, content: bytes | Path) -> None:
        """A file of a trial. A path's file takes no further room where the folder is on the same disk: it is linked."""
        trial_id = self.trial_id(number)
        key, value = self._written(name, content)
        try:
            self.storage.set_trial_system_attr(trial_id, _FILE + key, value)
        except UpdateFinishedTrialError:
            prefix = _FILE_OF_TRIAL.format(trial_id=trial_id)
            self.storage.set_study_system_attr(self.study_id, prefix + key, value)

    def _study_files(self) -> list[dict[str, Any]]:
        held = self.storage.get_study_system_attrs(self.study_id)
        found = [json.loads(value) for key, value in held.items() if key.startswith(_FILE)]
        return [meta for meta in found if meta is not None]

    def _written(self, name: str, content: bytes | Path) -> tuple[str, str]:
        """The file, stored; its id and its description. It is whole before anything points to it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        kind, encoding = mimetypes.guess_type(name)
        if name.endswith((".log", ".jsonl", ".md")):
            kind = "text/plain; charset=utf-8"
        meta = ArtifactMeta(
            artifact_id=str(uuid.uuid4()), filename=name, mimetype=kind or "application/octet-stream", encoding=encoding
        )
        if isinstance(content, bytes):
            self._files.write(meta.artifact_id, io.BytesIO(content))
        else:
            try:
                (self._folder / meta.artifact_id).hardlink_to(content)  # evidence is never changed once it is there
            except OSError:
                with content.open("rb") as source:
                    self._files.write(meta.artifact_id, source)
        return meta.artifact_id, json.dumps(asdict(meta))


class Attributes:
    """The study's attributes, read once: saving a note reads them again and again, and with thousands of trials there
    are thousands. Stands in for Optuna's storage where the dashboard saves a note."""

    def __init__(self, storage: RDBStorage, study_id: int) -> None:
        self._storage = storage
        self._known: dict[str, Any] = storage.get_study_system_attrs(study_id)

    def has_note(self, trial_id: int) -> bool:
        return f"dashboard:{trial_id}:note_ver" in self._known

    def get_study_system_attrs(self, _study_id: int) -> dict[str, Any]:
        return self._known

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self._storage.set_study_system_attr(study_id, key, value)
        self._known[key] = value


def _with_own_words(text: str, stored: str) -> str:
    if len(text) > MAX_NOTE:
        text = text[:MAX_NOTE].rsplit("\n", 1)[0] + "\n\n…"
    _, ours, below = stored.partition(OWN_WORDS)
    own = below if ours else stored  # a note without our line is somebody's own as a whole
    return text.rstrip() + OWN_WORDS + own
