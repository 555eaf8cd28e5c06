"""What was right, for feedback that says so."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("feedback", sa.Column("label", sa.Text, comment="what was right; empty: only a score was given"))
