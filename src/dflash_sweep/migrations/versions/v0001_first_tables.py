"""The first tables: study, trial attempt, turn, stage."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "dfs_study",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("info", sa.JSON, nullable=False),
    )
    op.create_table(
        "dfs_trial",
        sa.Column("uid", sa.String(250), primary_key=True),
        sa.Column("study", sa.String(200), sa.ForeignKey("dfs_study.name", ondelete="CASCADE"), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("number", sa.Integer),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("candidate", sa.Integer),
        sa.Column("repeat", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("speculative", sa.Boolean, nullable=False),
        sa.Column("knobs", sa.JSON, nullable=False),
        sa.Column("engine", sa.String(64), nullable=False),
        sa.Column("build", sa.String(200), nullable=False),
        sa.Column("trace_name", sa.String(200), nullable=False),
        sa.Column("trace_sha256", sa.String(64), nullable=False),
        sa.Column("comparability_key", sa.String(64), nullable=False),
        sa.Column("measurement", sa.String(16)),
        sa.Column("failure_kind", sa.String(32)),
        sa.Column("failure_message", sa.Text),
        sa.Column("label", sa.Text),
        sa.Column("status_claimed", sa.String(32)),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("result", sa.JSON),
    )
    op.create_index("dfs_trial_study_number", "dfs_trial", ["study", "number"])
    op.create_table(
        "dfs_turn",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column(
            "trial_uid", sa.String(250), sa.ForeignKey("dfs_trial.uid", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column("order", sa.Integer, nullable=False),
        sa.Column("conversation", sa.String(200), nullable=False),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("bucket", sa.String(32), nullable=False),
        sa.Column("warmup", sa.Boolean, nullable=False),
        sa.Column("invalid_reason", sa.Text),
        sa.Column("prompt_sha256", sa.String(64), nullable=False),
        sa.Column("text_sha256", sa.String(64), nullable=False),
        sa.Column("output_tokens", sa.BigInteger),
        sa.Column("decode_tokens", sa.BigInteger),
        sa.Column("decode_ms", sa.Float),
        sa.Column("verify_steps", sa.BigInteger),
        sa.Column("counters", sa.JSON, nullable=False),
        sa.Column("exchange", sa.JSON, nullable=False),
    )
    op.create_table(
        "dfs_stage",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("turn_id", sa.Integer, sa.ForeignKey("dfs_turn.id", ondelete="CASCADE"), nullable=False, index=True),
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("total_ms", sa.Float, nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
    )


def downgrade() -> None:
    for table in ("dfs_stage", "dfs_turn", "dfs_trial", "dfs_study"):
        op.drop_table(table)
