"""The kept database of the first schema version, as it was written, on SQLite or copied to PostgreSQL."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

from sqlalchemy import JSON, Boolean, MetaData, create_engine

from dflash_sweep import upgrades

PACKED = Path(__file__).parents[1] / "fixtures" / "schema_0001.db.gz"
OURS = ("dfs_study", "dfs_trial", "dfs_turn", "dfs_stage")


def unpack(folder: Path) -> Path:
    """The database file, as a user of the first version has it."""
    path = folder / "studies.db"
    path.write_bytes(gzip.decompress(PACKED.read_bytes()))
    return path


def copy_to(url: str, folder: Path) -> None:
    """Our tables of that version in another database, made by that version's own steps."""
    source = sqlite3.connect(unpack(folder))
    source.row_factory = sqlite3.Row
    engine = create_engine(url)
    with engine.begin() as connection:
        upgrades.to(connection, "0001")
        tables = MetaData()
        tables.reflect(connection, only=OURS)
        for name in OURS:
            table = tables.tables[name]
            json_columns = [column.name for column in table.columns if isinstance(column.type, JSON)]
            truths = [column.name for column in table.columns if isinstance(column.type, Boolean)]
            for row in source.execute(f"SELECT * FROM {name} ORDER BY rowid"):
                values = dict(row)
                values.update({key: json.loads(values[key]) for key in json_columns if values[key] is not None})
                values.update({key: bool(values[key]) for key in truths})
                connection.execute(table.insert().values(values))
    engine.dispose()
    source.close()
