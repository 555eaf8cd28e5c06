"""The first table: traces."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "traces",
        sa.Column("id", sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql"), nullable=False),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.Column("profile", sa.Text, nullable=False),
        sa.Column("planner", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("question", sa.Text, nullable=False, comment="its beginning"),
        sa.Column("answer", sa.Text, nullable=False, comment="its beginning"),
        sa.Column("steps", sa.Integer, nullable=False),
        sa.Column("calls", sa.Integer, nullable=False),
        sa.Column("tokens", sa.Integer, nullable=False),
        sa.Column("cost_usd", sa.Float, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("searchable", sa.Text, nullable=False, comment="question, answer and error, case folded"),
        sa.Column("format", sa.Integer, nullable=False, comment="how body is written"),
        sa.Column("body", sa.LargeBinary, nullable=False, comment="the whole trace"),
        sa.PrimaryKeyConstraint("id", name="pk_traces"),
    )
    op.create_index("ix_traces_created_at_id", "traces", ["created_at", "id"])
