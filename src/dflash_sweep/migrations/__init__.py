"""Upgrade steps of our tables, run by alembic. Version numbers are those of `dfs_schema_version`."""
