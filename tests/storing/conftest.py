"""A real PostgreSQL server for the tests that need one; they are skipped where none is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

_numbers = count()


def _programs() -> Path | None:
    """The folder of initdb and postgres; distributions keep it off the PATH."""
    found = shutil.which("postgres")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


def _account() -> str | None:
    """PostgreSQL refuses to run as root: the account to run it as, None = our own."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The folder of the socket of a server that is ours alone; it listens to no port."""
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL is installed here")
    account = _account()
    with tempfile.TemporaryDirectory(prefix="dfs-pg-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        data = folder / "data"
        data.mkdir()
        if account is not None:
            for path in (folder, data):
                shutil.chown(path, account)
        subprocess.run(
            [programs / "initdb", "--pgdata", data, "--username=sweep", "--auth=trust", "--no-sync", "--encoding=UTF8"],
            check=True, capture_output=True, user=account, cwd=folder,
        )  # fmt: skip
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [programs / "postgres", "-D", data, "-k", folder, "-h", "", "-c", "fsync=off"],
                stdout=log, stderr=log, user=account, cwd=folder,
            )  # fmt: skip
        try:
            _wait(programs, folder, server)
            yield str(folder)
        finally:
            server.terminate()
            server.wait(30)


def _wait(programs: Path, folder: Path, server: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        ready = subprocess.run(
            [programs / "pg_isready", "-h", folder, "-d", "postgres", "-t", "1"], capture_output=True, check=False
        )
        if ready.returncode == 0:
            return
        assert server.poll() is None, (folder / "log").read_text()
    pytest.fail((folder / "log").read_text())


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """A fresh database of its own."""
    import psycopg

    name = f"studies_{next(_numbers)}"
    with psycopg.connect(f"host={postgres_server} user=sweep dbname=postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql+psycopg://sweep@/{name}?host={postgres_server}"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'studies.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found
