"""Runs that wait or go on later, kept responses, idempotent replies, feedback."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "run_states",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False, comment="running or waiting"),
        sa.Column("owner", sa.Text, nullable=False, comment="the process that carries it out"),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.Column("updated_at", sa.String(27), nullable=False),
        sa.Column("format", sa.Integer, nullable=False, comment="how body is written"),
        sa.Column("body", sa.LargeBinary, nullable=False, comment="all that is needed to go on"),
        sa.PrimaryKeyConstraint("run_id", name="pk_run_states"),
    )
    op.create_index("ix_run_states_state_owner", "run_states", ["state", "owner"])
    op.create_table(
        "responses",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("previous_id", sa.String(64)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.Column("updated_at", sa.String(27), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False, comment="the request's items and the response, as JSON"),
        sa.PrimaryKeyConstraint("id", name="pk_responses"),
    )
    op.create_index("ix_responses_run_id", "responses", ["run_id"])
    op.create_index("ix_responses_created_at", "responses", ["created_at"])
    op.create_table(
        "idempotency",
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("name", sa.String(255), nullable=False, comment="what the caller sent as Idempotency-Key"),
        sa.Column("digest", sa.String(64), nullable=False, comment="of the request's route and body"),
        sa.Column("owner", sa.Text, nullable=False, comment="the process that carries it out"),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.Column("run_id", sa.String(64)),
        sa.Column("status", sa.Integer, comment="of the reply; empty while it is carried out"),
        sa.Column("headers", sa.Text, comment="JSON"),
        sa.Column("body", sa.LargeBinary),
        sa.PrimaryKeyConstraint("key_id", "name", name="pk_idempotency"),
    )
    op.create_index("ix_idempotency_created_at", "idempotency", ["created_at"])
    op.create_table(
        "feedback",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("score", sa.Float, nullable=False, comment="0 to 1"),
        sa.Column("comment", sa.Text, nullable=False),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "key_id", name="pk_feedback"),
    )
    op.create_index("ix_feedback_created_at", "feedback", ["created_at"])
