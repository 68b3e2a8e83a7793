"""`dflash-sweep dashboard` as a user meets it: the URL, one line for what is wrong, and how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from dflash_sweep import cli
from dflash_sweep.exits import EXIT_CONFIG, EXIT_INTERRUPTED
from fakes.shown_study import ShownStudy

pytestmark = pytest.mark.long


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and standard error of the command, run here."""
    monkeypatch.setattr(sys, "argv", ["dflash-sweep", "dashboard", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_database_that_is_not_there_is_one_clear_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(monkeypatch, capsys)
    assert code == EXIT_CONFIG
    assert "there is no database yet" in text
    assert len(text.strip().splitlines()) == 1
    assert list(folder.iterdir()) == []


def test_wrong_words_are_one_clear_line(
    folder: Path, url: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ShownStudy(url, folder / "evidence", name=name).close()
    here = f"storage.url={url}"
    code, text = said(monkeypatch, capsys, "nobody", here, "--port", "0")
    assert (code, "nobody" in text, name in text) == (EXIT_CONFIG, True, True)
    code, text = said(monkeypatch, capsys, "one", "two", here)
    assert (code, "one study at most" in text) == (EXIT_CONFIG, True)
    code, text = said(monkeypatch, capsys, here, "--port", "70000")
    assert (code, "--port 70000" in text) == (EXIT_CONFIG, True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, text = said(monkeypatch, capsys, here, "--port", str(port))
    assert (code, f"--port {port}" in text, "0 for any free one" in text) == (EXIT_CONFIG, True, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_the_url_serves_and_ends_when_asked(folder: Path, number: signal.Signals) -> None:
    study = ShownStudy(f"sqlite:///{folder / 'studies.db'}", folder / "evidence", name="s")
    study.search()
    study.save("finished")
    study.close()
    command = [sys.executable, "-m", "dflash_sweep", "dashboard", "s", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        assert "/dashboard/studies/" in address
        base, _, study_id = address.partition("/dashboard/studies/")
        with urllib.request.urlopen(f"{base}/api/studies/{study_id}", timeout=20) as answer:
            assert b"search #0" in answer.read()
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == EXIT_INTERRUPTED
    assert errors.strip() == "Ctrl-C ends it."
    assert {path.name for path in (folder / "artifacts").iterdir()}
