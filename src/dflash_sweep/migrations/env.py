"""Alembic's entry: runs the steps on the connection that `store` hands over."""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table="dfs_schema_version",
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
