"""Keeps the dashboard's pages quick where a study has thousands of trials. Imports optuna and nothing of ours.

The dashboard keeps the notes of all trials among the attributes of their study, and looks through all attributes for
every trial it sends: the square of the number of trials. Here the attributes of trials are taken out before it looks,
and put into its answer afterwards, each in its place.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from optuna.storages import RDBStorage
from optuna.study._frozen import FrozenStudy

_OF_TRIAL = re.compile(r"dashboard:(?:(?P<note>\d+):note_(?:ver|str:\d+)|artifacts:(?P<file>\d+):.*)")
_DETAIL = re.compile(r"/api/studies/(\d+)/?")

Environ = dict[str, Any]
StartResponse = Callable[..., Any]


class QuickStorage(RDBStorage):
    """Optuna's storage as the dashboard reads it: studies come without the attributes that belong to single trials.

    They are kept for the thread that asked, until it asks again: see `Completed`.
    """

    def __init__(self, url: str, engine_kwargs: dict[str, Any]) -> None:
        super().__init__(url, engine_kwargs=engine_kwargs)
        self._taken = threading.local()

    def get_all_studies(self) -> list[FrozenStudy]:
        studies = super().get_all_studies()
        self._taken.attributes = {study._study_id: _take_out(study.system_attrs) for study in studies}
        return studies

    def taken(self, study_id: int) -> dict[int, dict[str, Any]]:
        """Trial id → its attributes, of the study as this thread read it last."""
        found: dict[int, dict[str, Any]] = getattr(self._taken, "attributes", {}).get(study_id, {})
        return found


def _take_out(attributes: dict[str, Any]) -> dict[int, dict[str, Any]]:
    taken: dict[int, dict[str, Any]] = {}
    for key in list(attributes):
        if match := _OF_TRIAL.fullmatch(key):
            taken.setdefault(int(match["note"] or match["file"]), {})[key] = attributes.pop(key)
    return taken


class Completed:
    """The dashboard's application; a study's answer gets the notes and files of its trials back."""

    def __init__(self, app: Callable[[Environ, StartResponse], Iterable[bytes]], storage: QuickStorage) -> None:
        self._app, self._storage = app, storage

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        match = _DETAIL.fullmatch(environ.get("PATH_INFO", ""))
        if match is None or environ.get("REQUEST_METHOD") != "GET":
            return self._app(environ, start_response)
        heard: list[tuple[str, list[tuple[str, str]]]] = []
        body = b"".join(self._app(environ, lambda status, headers, *_: heard.append((status, headers))))
        (status, headers), *_ = heard
        taken = self._storage.taken(int(match[1]))
        if status.startswith("200") and taken:
            body = _with_attributes(body, taken)
        headers = [(name, value) for name, value in headers if name.lower() != "content-length"]
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [body]


def _with_attributes(body: bytes, taken: dict[int, dict[str, Any]]) -> bytes:
    detail = json.loads(body)
    for trial in _trials(detail):
        attributes = taken.get(trial["trial_id"])
        if attributes:
            trial["note"] = _note(trial["trial_id"], attributes)
            trial["artifacts"] = [*_files(attributes), *trial["artifacts"]]
    return json.dumps(detail).encode()


def _trials(detail: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in ("trials", "best_trials"):
        yield from detail.get(name, ())


def _note(trial_id: int, attributes: dict[str, Any]) -> dict[str, Any]:
    prefix = f"dashboard:{trial_id}:note_str:"
    parts = {int(key.removeprefix(prefix)): text for key, text in attributes.items() if key.startswith(prefix)}
    version = int(attributes.get(f"dashboard:{trial_id}:note_ver", 0))
    return {"version": version, "body": "".join(parts[place] for place in sorted(parts))}


def _files(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    found = [json.loads(value) for key, value in attributes.items() if key.startswith("dashboard:artifacts:")]
    return [meta for meta in found if meta is not None]
