"""The database behind the store: SQLite in a private file by default, PostgreSQL by URL.

This module handles everything that differs between the two, so that the rest of the store is the same code for both:
file modes, journal, the start of a transaction, and messages for a database's errors. It does not know the tables. With
SQLite, a commit survives the death of the process; the
last few commits may be lost when the machine itself loses power (`synchronous=NORMAL`).
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from dirigent.errors import StoreError
from dirigent.store.postgres_timeouts import FENCE, a_fence, begin_writing, bound_waits

_TAKE_LOCK = text("SELECT pg_advisory_xact_lock(219290979)")
"""An arbitrary number, other than the one of the migrations."""

ELSEWHERE = "set DIRIGENT_HOME to a folder you can write, or url under [store] in dirigent.toml"


def open_engine(url_or_path: str | Path, *, wait_s: float) -> Engine:
    """Returns an engine that threads may share; creates SQLite's file if it is missing."""
    url = parse_url(url_or_path)
    if url.get_backend_name() == "sqlite":
        return _open_sqlite(url, wait_s=wait_s)
    return _open_postgresql(url, wait_s=wait_s)


def writing(engine: Engine) -> Engine:
    """The same engine for transactions that write: on SQLite they take the write lock when they begin.

    A transaction that read first and then wished to write would be refused at once where another process has
    written in between, however long it is ready to wait.
    """
    return engine.execution_options(dirigent_writes=True, **{FENCE: a_fence()})


def one_at_a_time(connection: Connection) -> None:
    """Excludes other processes from such a part until the commit: rows that it reads do not change before it writes.
    SQLite's write lock does that already. One lock for everything rather than one for each row: a shared
    commit touches many rows in no order, and two processes would block one another.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(_TAKE_LOCK)


def as_of_now(connection: Connection) -> None:
    """Every query of this transaction sees the same moment. To be called first; SQLite does so by itself."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def insert_if_new(connection: Connection, table: Table, row: Mapping[str, Any]) -> bool:
    """Inserts a row unless one with its key is there; returns whether it did. (`rowcount` does not say so on
    PostgreSQL.)"""
    statement: sqlite.Insert | postgresql.Insert
    statement = postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)
    asked = statement.on_conflict_do_nothing().returning(*table.primary_key.columns)
    return connection.execute(asked, row).first() is not None


def parse_url(url_or_path: str | Path) -> URL:
    """A path is SQLite; `postgresql://` means the psycopg driver."""
    text = str(url_or_path)
    if isinstance(url_or_path, str) and "://" in text:
        return _parse_url_text(text)
    if text in ("", ".", ":memory:"):
        raise StoreError(f"{text!r} is no file to keep traces in; give a path, or a postgresql:// URL")
    return URL.create("sqlite", database=str(Path(text).expanduser().absolute()))


def where(engine: Engine) -> str:
    """How messages name the store: its file, or its URL without the password."""
    if engine.dialect.name == "sqlite":
        return engine.url.database or ""
    return engine.url.render_as_string(hide_password=True)


def explain(error: Exception, engine: Engine) -> Exception:
    """A database's complaint as a `StoreError` that names the fix; any other error as it is."""
    if not isinstance(error, SQLAlchemyError):
        return error
    cause = error.orig if isinstance(error, DBAPIError) else None
    if isinstance(cause, sqlite3.Error):
        return StoreError(_explain_sqlite(cause, where(engine)))
    said = str(cause if cause is not None else error).strip().splitlines() or [repr(error)]
    fix = _POSTGRES_FIXES.get(getattr(cause, "sqlstate", None) or "", "check the url under [store]")
    return StoreError(f"the store {where(engine)} failed: {said[0]}; {fix}")


def _parse_url_text(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # The text is not shown: what cannot be parsed may hold a password anywhere.
        raise StoreError("the store's URL cannot be read; it looks like postgresql://user@host/db") from None
    backend = url.get_backend_name()
    if backend in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg")
    if backend == "sqlite":
        return parse_url(Path(url.database or ""))
    raise StoreError(f"a store cannot live in {backend!r}; use a path (SQLite) or a postgresql:// URL")


def _open_sqlite(url: URL, *, wait_s: float) -> Engine:
    file = url.database or ""
    _make_private_file(Path(file))
    _use_wal(file, wait_s=wait_s)
    engine = create_engine(url, connect_args={"timeout": wait_s}, pool_size=4, max_overflow=32, hide_parameters=True)
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _open_postgresql(url: URL, *, wait_s: float) -> Engine:
    connect_args = {} if "connect_timeout" in url.query else {"connect_timeout": 10}
    try:
        engine = create_engine(
            url,
            connect_args=connect_args,
            pool_size=4,
            max_overflow=32,
            pool_pre_ping=True,
            hide_parameters=True,
        )
    except ModuleNotFoundError as error:
        raise StoreError(f"{error.name} is missing: pip install 'dirigent[postgres]'") from None

    def begin(connection: Connection) -> None:
        if connection.get_execution_options().get("dirigent_writes"):
            begin_writing(connection, wait_s=wait_s)

    bound_waits(engine)
    event.listen(engine, "begin", begin)
    event.listen(engine, "connect", _set_up_postgresql)
    return engine


def _set_up_postgresql(connection: Any, _record: object) -> None:
    """No text of PostgreSQL's holds a NUL, and callers may send one anywhere: it is kept, and looked for, as \ufffd."""
    from psycopg.types.string import StrDumperUnknown

    class WithoutNul(StrDumperUnknown):
        def dump(self, text: str) -> Any:
            return super().dump(text.replace("\0", "\ufffd"))

    connection.adapters.register_dumper(str, WithoutNul)


def _make_private_file(path: Path) -> None:
    """Traces hold what people asked: only their owner reads them. SQLite's side files get the same mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreError(f"cannot keep traces in {path}: {error.strerror}; {ELSEWHERE}") from error


def _use_wal(file: str, *, wait_s: float) -> None:
    """Readers and the writer do not wait for one another. The setting stays with the file."""
    give_up_at = time.monotonic() + wait_s
    while True:
        try:
            with closing(sqlite3.connect(file, timeout=wait_s, isolation_level=None)) as connection:
                if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                    connection.execute("PRAGMA journal_mode=WAL").fetchone()
            return
        except sqlite3.Error as error:
            # SQLite does not wait for this lock: two processes that make the store at once meet here.
            if not _code(error).startswith("SQLITE_BUSY") or time.monotonic() > give_up_at:
                raise StoreError(_explain_sqlite(error, file)) from error
            time.sleep(0.02)


def _set_up_sqlite(connection: Any, _record: object) -> None:
    # The driver would begin transactions by its own rules; `_begin_sqlite` does it by ours.
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("dirigent_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _explain_sqlite(cause: sqlite3.Error, file: str) -> str:
    code = _code(cause)
    for prefix, said in _SQLITE_FIXES.items():
        if code.startswith(prefix):
            return said.format(file=file)
    return f"the store {file} failed: {cause} ({code or type(cause).__name__})"


def _code(cause: object) -> str:
    return getattr(cause, "sqlite_errorname", None) or ""


_SQLITE_FIXES = {
    "SQLITE_BUSY": "the store {file} is locked by another program; close what holds it open, then try again",
    "SQLITE_FULL": "no space left for the store {file}; free some disk space, or " + ELSEWHERE,
    "SQLITE_IOERR": "the disk under the store {file} does not read or write (is it full?); " + ELSEWHERE,
    "SQLITE_READONLY": "the store {file} is read-only; make it and its folder writable, or " + ELSEWHERE,
    "SQLITE_CANTOPEN": "the store {file} cannot be opened; make it and its folder writable, or " + ELSEWHERE,
    "SQLITE_NOTADB": "{file} is not a store; move it away (a new one is made), or " + ELSEWHERE,
    "SQLITE_CORRUPT": "the store {file} is damaged; save its readable rows with `sqlite3 {file} .recover`, "
    "then move it away (a new one is made)",
}

_POSTGRES_FIXES = {
    "08006": "check its server",
    "53100": "free disk space on the server",
    "55P03": "another program holds a lock on the store's tables: wait for it, or end it",
    "57P03": "the server is starting or stopping: try again",
    "28P01": "check user and password in the url under [store]",
    "3D000": "create the database first (createdb)",
    "42501": "grant the user rights on the database's schema",
}
