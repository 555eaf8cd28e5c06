"""The tables of the store, as they are after the newest migration.

Queries are written against these; `migrations/` is what makes a database look like them, and a test compares
the two. Later tables (keys, ledger, audit) join here together with a migration of their own.
"""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, Integer, LargeBinary, MetaData, String, Table, Text

REVISIONS = ("0001",)
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
    Index(None, "created_at", "id"),
)
