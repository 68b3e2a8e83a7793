"""Leases: which driver runs a study now."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "dfs_lease",
        sa.Column("study", sa.String(200), primary_key=True),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("boot_id", sa.String(80), nullable=False),
        sa.Column("beats", sa.BigInteger, nullable=False),
        sa.Column("since_s", sa.Double, nullable=False),
        sa.Column("heartbeat_s", sa.Double, nullable=False),
        sa.Column("expires_s", sa.Double, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("dfs_lease")
