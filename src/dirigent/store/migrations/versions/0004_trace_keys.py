"""Whose run a trace is: until now only the ledger knew, and a run that made no call has no row there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    whose = sa.Column("key_id", sa.String(16), comment="who asked; empty: no key, or written before this was kept")
    op.add_column("traces", whose)
    op.create_index("ix_traces_key_id_created_at", "traces", ["key_id", "created_at"])
