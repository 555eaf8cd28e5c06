"""API keys, the ledger of attempts with each key's spending, and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    _keys()
    _attempts()
    _spending()
    _audit()
    for statement in APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)


def _keys() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column(
            "digest", sa.String(64), nullable=False, comment="HMAC of the key's text; the text itself is kept nowhere"
        ),
        sa.Column("pepper_id", sa.String(16), nullable=False, comment="which pepper the digest was made with"),
        sa.Column("last4", sa.String(4), nullable=False),
        sa.Column("caller", sa.Text, nullable=False, comment="JSON: role, label, bounds"),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.Column("expires_at", sa.String(27)),
        sa.Column("revoked_at", sa.String(27)),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.UniqueConstraint("digest", name="uq_keys_digest"),
    )


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False, comment="the process that made the call"),
        sa.Column("state", sa.String(8), nullable=False, comment="open, settled or lost"),
        sa.Column("reserved_at", sa.String(27), nullable=False),
        sa.Column("charged_day", sa.String(10), nullable=False, comment="the UTC day whose budget pays"),
        sa.Column("hold_nusd", sa.BigInteger, nullable=False, comment="the worst case"),
        sa.Column("settled_at", sa.String(27)),
        sa.Column("cost_nusd", sa.BigInteger),
        sa.Column("output_tokens", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
    )
    op.create_index("ix_attempts_key_id_reserved_at", "attempts", ["key_id", "reserved_at"])
    op.create_index("ix_attempts_run_id", "attempts", ["run_id"])
    is_open = sa.text("state = 'open'")
    op.create_index("ix_attempts_open", "attempts", ["owner"], sqlite_where=is_open, postgresql_where=is_open)


def _spending() -> None:
    op.create_table(
        "spending",
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("day", sa.String(10), nullable=False, comment="the newest UTC day with a reservation"),
        sa.Column("day_nusd", sa.BigInteger, nullable=False, comment="spent and held on that day"),
        sa.Column("month_nusd", sa.BigInteger, nullable=False, comment="in that day's month"),
        sa.Column("total_nusd", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("key_id", name="pk_spending"),
    )


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("number", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("at", sa.String(27), nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("details", sa.Text, nullable=False, comment="JSON"),
        sa.Column("previous", sa.String(64), nullable=False, comment="the hash of the row before"),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_audit"),
    )
    op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False, comment="of the newest row"),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_head"),
    )


# The chain shows what was changed; these keep an accident from changing it in the first place.
APPEND_ONLY = {
    "sqlite": [
        f"CREATE TRIGGER audit_no_{event.lower()} BEFORE {event} ON audit "
        "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
        for event in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        "CREATE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$",
        "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse()",
    ],
}
