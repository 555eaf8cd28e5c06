"""Whom a call was made for, comparisons with their vote, and sets of questions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("end_user", sa.String(200), comment="the caller's own user"))
    op.add_column("attempts", sa.Column("tag", sa.String(200)))
    op.add_column("attempts", sa.Column("conversation", sa.String(200)))
    op.create_index("ix_attempts_key_id_end_user", "attempts", ["key_id", "end_user", "charged_day"])
    op.create_index("ix_attempts_key_id_tag", "attempts", ["key_id", "tag", "charged_day"])
    op.create_index("ix_attempts_conversation", "attempts", ["conversation"])
    op.create_table(
        "comparisons",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.Column("question", sa.Text, nullable=False, comment="its beginning"),
        sa.Column("runs", sa.Text, nullable=False, comment="JSON: the model and the run of each side"),
        sa.Column("vote", sa.String(64), comment="a run's id, tie or none"),
        sa.PrimaryKeyConstraint("id", name="pk_comparisons"),
    )
    op.create_index("ix_comparisons_key_id_created_at", "comparisons", ["key_id", "created_at"])
    op.create_table(
        "set_questions",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("set_name", sa.String(100), nullable=False),
        sa.Column("question", sa.Text, nullable=False),
        sa.Column("answer", sa.Text, nullable=False, comment="what is right; empty: nobody has said"),
        sa.Column("run_id", sa.String(64)),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_set_questions"),
    )
    op.create_index("ix_set_questions_key_id_set_name", "set_questions", ["key_id", "set_name", "created_at"])
