"""Which replies are a run's: they are deleted with it."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_index("ix_idempotency_run_id", "idempotency", ["run_id"])
