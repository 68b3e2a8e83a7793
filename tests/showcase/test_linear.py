"""The quick application answers exactly what the dashboard itself would answer, and only to this machine."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.artifacts import FileSystemArtifactStore
from optuna_dashboard import wsgi

from dflash_sweep.showcase.linear import Completed, QuickStorage
from dflash_sweep.showcase.optuna_side import OptunaSide, storage_for
from dflash_sweep.showcase.server import OnlyHere


def get(app: Any, path: str, method: str = "GET", host: str = "127.0.0.1:80", body: Any = None) -> tuple[str, Any]:
    raw = b"" if body is None else json.dumps(body).encode()
    environ = {
        "PATH_INFO": path, "REQUEST_METHOD": method, "HTTP_HOST": host, "SERVER_NAME": "x", "SERVER_PORT": "80",
        "wsgi.input": io.BytesIO(raw), "wsgi.url_scheme": "http", "wsgi.errors": io.StringIO(), "QUERY_STRING": "",
        "CONTENT_LENGTH": str(len(raw)), "CONTENT_TYPE": "application/json", "SERVER_PROTOCOL": "HTTP/1.1",
    }  # fmt: skip
    heard: list[str] = []
    answer = b"".join(app(environ, lambda status, *_: heard.append(status)))
    return heard[0], json.loads(answer) if answer[:1] in (b"{", b'"') else answer


@pytest.fixture
def filled(url: str, name: str, tmp_path: Path) -> OptunaSide:
    """A study with all that a trial can have: long and short notes, files of both kinds, one trial with nothing."""
    study = optuna.create_study(storage=url, study_name=name)
    side = OptunaSide(storage_for(url), name, tmp_path)
    for number in range(3):
        trial = study.ask({"x": optuna.distributions.IntDistribution(0, 9)})
        side.put_trial_file(number, "server.log", b"log")
        study.tell(trial, float(number))
    side.put_trial_note(0, "short")
    side.put_trial_note(1, "long line\n" * 900)  # over several attributes
    side.put_trial_file(1, "late.svg", b"<svg/>")
    side.put_note("the study's own")
    return side


def test_the_answer_is_the_dashboards_own(filled: OptunaSide, url: str, tmp_path: Path) -> None:
    plain = wsgi(storage_for(url), FileSystemArtifactStore(tmp_path))
    storage = QuickStorage(url, {})
    quick = Completed(wsgi(optuna.storages.get_storage(storage), FileSystemArtifactStore(tmp_path)), storage)
    path = f"/api/studies/{filled.study_id}"
    status, ours = get(quick, path)
    assert (status, ours) == get(plain, path)
    assert [len(trial["artifacts"]) for trial in ours["trials"]] == [1, 2, 1]
    assert [trial["note"]["body"][:5] for trial in ours["trials"]] == ["short", "long ", ""]
    assert get(quick, "/api/studies") == get(plain, "/api/studies")
    assert get(quick, "/api/studies/99999")[0].startswith("404")


def test_a_note_can_be_edited_through_it(filled: OptunaSide, url: str, tmp_path: Path) -> None:
    storage = QuickStorage(url, {})
    quick = Completed(wsgi(optuna.storages.get_storage(storage), FileSystemArtifactStore(tmp_path)), storage)
    path = f"/api/studies/{filled.study_id}"
    first = get(quick, path)[1]["trials"][0]
    change = {"version": first["note"]["version"] + 1, "body": "edited"}
    status, _ = get(quick, f"{path}/{first['trial_id']}/note", "PUT", body=change)
    assert status.startswith("204")
    assert get(quick, path)[1]["trials"][0]["note"] == change


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", "200"), ("localhost", "200"), ("localhost:9999", "200"), ("[::1]:80", "200"),
        ("evil.example", "403"), ("evil.example:8080", "403"), ("", "403"), ("127.0.0.1.evil.example", "403"),
    ],
)  # fmt: skip
def test_only_this_machine_is_answered(host: str, status: str) -> None:
    def app(_environ: dict[str, Any], start: Any) -> list[bytes]:
        start("200 OK", [])
        return [b"fine"]

    assert get(OnlyHere(app), "/", host=host)[0].startswith(status)
