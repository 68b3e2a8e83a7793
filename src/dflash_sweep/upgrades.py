"""The schema of our tables: its version in a database, the versions this program knows, and the way up. Alembic's home.

Imports `errors` and `migrations` (through alembic).
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from dflash_sweep.errors import StorageError

VERSION_TABLE = "dfs_schema_version"
_MIGRATIONS = Path(__file__).parent / "migrations"
_LOCKS = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "SELECT pg_advisory_xact_lock(46451)"}
"""Drivers that start together make the tables one after another."""


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    return config


def head() -> str:
    """The newest schema version this program knows."""
    return ScriptDirectory.from_config(_config()).get_current_head() or ""


def known() -> tuple[str, ...]:
    """Every schema version this program knows, oldest first."""
    return tuple(sorted(step.revision for step in ScriptDirectory.from_config(_config()).walk_revisions()))


def current(engine: Engine) -> str | None:
    """The version of a database's tables; None = it has none of ours."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def to(connection: Connection, version: str) -> None:
    """Run the steps up to a version, in the connection's transaction."""
    command.upgrade(_config(connection), version)


def upgrade(engine: Engine, url: str) -> None:
    """Bring a database up to date. Raises StorageError for one that this program does not know or cannot use."""
    try:
        if current(engine) == head():
            return  # nothing to write: a database may be read where it cannot be written
        with engine.begin() as connection:
            if (lock := _LOCKS.get(connection.dialect.name)) is not None:
                connection.exec_driver_sql(lock)
            to(connection, "head")
    except CommandError as error:
        raise StorageError(
            f"storage.url={url}: was made by another version of dflash-sweep ({error}); "
            f"this one knows schema {head()}; use that version or another file"
        ) from error
    except DBAPIError as error:
        raise StorageError(f"storage.url={url}: not a usable database: {error.orig}") from error
