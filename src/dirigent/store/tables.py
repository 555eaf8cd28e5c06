"""The tables of the store, as they are after the newest migration, and how times and JSON stand in them.

Queries are written against these tables; `migrations/` makes a database look like them, and a test compares the two. A
new table is added here together with its migration. Money is in whole billionths of a dollar: sums of them are exact,
and sums of fractions are not.

Times are text: UTC, ISO 8601, always 27 characters, so that they sort by time on both databases. JSON is masked before
it is written, the last point before the disk: traces, responses and the states of runs. `dirigent.workers.secret` knows
the secrets.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from dirigent.workers.secret import SHORTEST_REDACTED, may_hold_key, redact

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009")
"""Every schema this code has known, oldest first. Kept here so that opening an up-to-date store need not
import Alembic; a test compares it with the migrations."""

VERSION_TABLE = "dirigent_version"
"""Alembic's own name for it would clash with an application's in a shared PostgreSQL database."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# Bytewise order on both databases, so that a prefix of an id is a range of the primary key.
trace_id = String(64).with_variant(String(64, collation="C"), "postgresql")

traces = Table(
    "traces",
    metadata,
    Column("id", trace_id, primary_key=True),
    # A string of fixed width in UTC: sorts by time on both databases, and SQLite knows no time zones.
    Column("created_at", String(27), nullable=False),
    Column("profile", Text, nullable=False),
    Column("planner", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("question", Text, nullable=False, comment="its beginning"),
    Column("answer", Text, nullable=False, comment="its beginning"),
    Column("steps", Integer, nullable=False),
    Column("calls", Integer, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("cost_usd", Float, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("searchable", Text, nullable=False, comment="question, answer and error, case folded"),
    Column("format", Integer, nullable=False, comment="how body is written"),
    Column("body", LargeBinary, nullable=False, comment="the whole trace"),
    Column("key_id", String(16), comment="who asked; empty: no key, or written before this was kept"),
    Index(None, "created_at", "id"),
    # Retention by key: without it, every row would be read while the write lock is held.
    Index(None, "key_id", "created_at"),
)

# SQLite gives out row numbers by itself, but only to a column that is declared as INTEGER.
row_number = BigInteger().with_variant(Integer, "sqlite")

keys = Table(
    "keys",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("digest", String(64), nullable=False, comment="HMAC of the key's text; the text itself is kept nowhere"),
    Column("pepper_id", String(16), nullable=False, comment="which pepper the digest was made with"),
    Column("last4", String(4), nullable=False),
    Column("caller", Text, nullable=False, comment="JSON: role, label, bounds"),
    Column("created_at", String(27), nullable=False),
    Column("expires_at", String(27)),
    Column("revoked_at", String(27)),
    UniqueConstraint("digest"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", row_number, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("key_id", String(16), nullable=False),
    Column("worker", Text, nullable=False),
    Column("owner", Text, nullable=False, comment="the process that made the call"),
    Column("state", String(8), nullable=False, comment="open, settled or lost"),
    Column("reserved_at", String(27), nullable=False),
    Column("charged_day", String(10), nullable=False, comment="the UTC day whose budget pays"),
    Column("hold_nusd", BigInteger, nullable=False, comment="the worst case"),
    Column("settled_at", String(27)),
    Column("cost_nusd", BigInteger),
    Column("output_tokens", BigInteger),
    Column("end_user", String(200), comment="the caller's own user"),
    Column("tag", String(200)),
    Column("conversation", String(200)),
    Index(None, "key_id", "reserved_at"),
    Index(None, "run_id"),
    Index("ix_attempts_key_id_end_user", "key_id", "end_user", "charged_day"),
    Index("ix_attempts_key_id_tag", "key_id", "tag", "charged_day"),
    Index(None, "conversation"),
    Index("ix_attempts_open", "owner", sqlite_where=text("state = 'open'"), postgresql_where=text("state = 'open'")),
)

spending = Table(
    "spending",
    metadata,
    Column("key_id", String(16), primary_key=True),
    Column("day", String(10), nullable=False, comment="the newest UTC day with a reservation"),
    Column("day_nusd", BigInteger, nullable=False, comment="spent and held on that day"),
    Column("month_nusd", BigInteger, nullable=False, comment="in that day's month"),
    Column("total_nusd", BigInteger, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", String(27), nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("details", Text, nullable=False, comment="JSON"),
    Column("previous", String(64), nullable=False, comment="the hash of the row before"),
    Column("hash", String(64), nullable=False),
)

audit_head = Table(
    "audit_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False, comment="of the newest row"),
    Column("hash", String(64), nullable=False),
)

run_states = Table(
    "run_states",
    metadata,
    Column("run_id", String(64), primary_key=True),
    Column("key_id", String(16), nullable=False),
    Column("state", String(16), nullable=False, comment="running or waiting"),
    Column("owner", Text, nullable=False, comment="the process that carries it out"),
    Column("created_at", String(27), nullable=False),
    Column("updated_at", String(27), nullable=False),
    Column("format", Integer, nullable=False, comment="how body is written"),
    Column("body", LargeBinary, nullable=False, comment="all that is needed to go on"),
    Index(None, "state", "owner"),
)

responses = Table(
    "responses",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("key_id", String(16), nullable=False),
    Column("run_id", String(64), nullable=False),
    Column("previous_id", String(64)),
    Column("status", String(16), nullable=False),
    Column("created_at", String(27), nullable=False),
    Column("updated_at", String(27), nullable=False),
    Column("body", LargeBinary, nullable=False, comment="the request's items and the response, as JSON"),
    Index(None, "run_id"),
    Index(None, "created_at"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("key_id", String(16), primary_key=True),
    Column("name", String(255), primary_key=True, comment="what the caller sent as Idempotency-Key"),
    Column("digest", String(64), nullable=False, comment="of the request's route and body"),
    Column("owner", Text, nullable=False, comment="the process that carries it out"),
    Column("created_at", String(27), nullable=False),
    Column("run_id", String(64)),
    Column("status", Integer, comment="of the reply; empty while it is carried out"),
    Column("headers", Text, comment="JSON"),
    Column("body", LargeBinary),
    Index(None, "created_at"),
    Index(None, "run_id"),
)

feedback = Table(
    "feedback",
    metadata,
    Column("run_id", String(64), primary_key=True),
    Column("key_id", String(16), primary_key=True),
    Column("score", Float, nullable=False, comment="0 to 1"),
    Column("comment", Text, nullable=False),
    Column("created_at", String(27), nullable=False),
    Column("label", Text, comment="what was right; empty: only a score was given"),
    Index(None, "created_at"),
)

comparisons = Table(
    "comparisons",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("key_id", String(16), nullable=False),
    Column("created_at", String(27), nullable=False),
    Column("question", Text, nullable=False, comment="its beginning"),
    Column("runs", Text, nullable=False, comment="JSON: the model and the run of each side"),
    Column("vote", String(64), comment="a run's id, tie or none"),
    Index(None, "key_id", "created_at"),
)

set_questions = Table(
    "set_questions",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("key_id", String(16), nullable=False),
    Column("set_name", String(100), nullable=False),
    Column("question", Text, nullable=False),
    Column("answer", Text, nullable=False, comment="what is right; empty: nobody has said"),
    Column("run_id", String(64)),
    Column("created_at", String(27), nullable=False),
    Index("ix_set_questions_key_id_set_name", "key_id", "set_name", "created_at"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("digest", String(64), primary_key=True, comment="SHA-256 of the cookie's value, which is not kept"),
    Column("key_id", String(16), nullable=False),
    Column("created_at", String(27), nullable=False),
    Column("expires_at", String(27), nullable=False),
    Index(None, "key_id"),
)

switched_off = Table(
    "switched_off",
    metadata,
    Column("worker", Text, primary_key=True, comment="an admin switched it off"),
    Column("at", String(27), nullable=False),
)


# ---- times as text -------------------------------------------------------------------------------------------


def utc_text(moment: datetime) -> str:
    """A time without a zone is taken as UTC."""
    if moment.tzinfo is not None and moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    # Every request writes several: strftime takes five times as long, and dropping the zone first half as long again.
    return moment.isoformat(timespec="microseconds")[:26] + "Z"


def now() -> datetime:
    return datetime.now(UTC)


# ---- JSON without secrets ------------------------------------------------------------------------------------


def clean_json(value: Any) -> bytes | None:
    """Returns the value as JSON, or None if it must be masked first.

    Nearly every value is clean, and one search over the JSON shows it. A value that UTF-8 cannot hold (half a
    surrogate pair, as some providers cut their streams) is not clean either: `masked` mends it.
    """
    try:
        encoded = msgspec.json.encode(value)
        return None if may_hold_key(encoded.decode()) else encoded
    except UnicodeEncodeError:
        return None


def masked(value: Any) -> Any:
    """Returns plain data with the secrets in its strings masked.

    Masks string by string, not in the JSON: there, an escaped line break can hide where a key begins.
    """
    if isinstance(value, str):
        return _masked_text(value)
    if isinstance(value, dict):
        return {name: masked(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return value


def _masked_text(text: str) -> str:
    if text.isascii():
        return text if len(text) < SHORTEST_REDACTED else redact(text)
    return redact(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
