"""Workers that an admin switched off."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "switched_off",
        sa.Column("worker", sa.Text, nullable=False, comment="an admin switched it off"),
        sa.Column("at", sa.String(27), nullable=False),
        sa.PrimaryKeyConstraint("worker", name="pk_switched_off"),
    )
