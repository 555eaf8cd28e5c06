"""Statements of the hot path, and commits of them in the event loop's own thread.

Everything that each served request writes is a `Statement`: written with SQLAlchemy, compiled once, carried out by the
driver itself. A commit of one row costs 0.2 ms of CPU through SQLAlchemy's connection and 0.06 ms without (measured;
SQLite). Everything else in the store uses SQLAlchemy. Only plain values pass: text, numbers, bytes and None need no
conversion on either database.

A commit to SQLite's journal is a write to the system's memory of the file. That is less work than to hand it to another
thread and be woken by it, and the two threads would hold each other up at Python's one lock. So `AtOnce` commits on the
spot as long as there is nothing to wait for:

    another connection has the write lock   `AtOnce` does not wait; the writer's thread does
    the journal must be carried over        it costs a sync of the disk: after `PIECES`, a batch goes to the thread
    a slow disk, or a large batch           after one that took longer than `SLOW_S`, the thread has the next `REST_S`
    anything goes wrong                     nothing is kept; the thread does it again and reports the error

`AtOnce` knows nothing of callers or of their order: `writer.py` uses it only while its thread has nothing to do.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from sqlalchemy import Dialect, Engine, PoolProxiedConnection
from sqlalchemy.sql.dml import UpdateBase


class Cursor(Protocol):
    """The used part of a driver's cursor."""

    lastrowid: int | None

    def execute(self, sql: str, values: Any = ..., /) -> Any: ...

    def fetchone(self) -> Any: ...


class Statement:
    """One INSERT or UPDATE for both databases; `names` are the values it takes."""

    def __init__(self, statement: UpdateBase, *, names: Sequence[str]) -> None:
        self._statement = statement
        self._names = list(names)
        self._compiled: dict[str, tuple[str, list[str] | None]] = {}

    def run(self, cursor: Cursor, values: Mapping[str, Any], *, dialect: Dialect) -> int | None:
        """Carry it out. An INSERT that numbers its rows gives the row's number."""
        sql, order = self._compiled.get(dialect.name) or self._compile(dialect)
        if order is not None:  # SQLite: values by their place
            cursor.execute(sql, tuple(map(values.__getitem__, order)))
            return cursor.lastrowid
        cursor.execute(sql, values)
        if " RETURNING " not in sql:
            return None
        number: int = cursor.fetchone()[0]
        return number

    def _compile(self, dialect: Dialect) -> tuple[str, list[str] | None]:
        compiled: Any = self._statement.compile(dialect=dialect, column_keys=self._names)
        made = self._compiled[dialect.name] = (compiled.string, compiled.positiontup)
        return made


# ---- commits on the spot -------------------------------------------------------------------------------------


PIECES = 256
"""About as many as fill the thousand pages of journal at which SQLite carries it over."""
SLOW_S = 0.05
"""Half of the time that may block the event loop; a commit takes a hundredth of it."""
REST_S = 2.0

Piece = tuple[Statement, Callable[[], Any]]
"""A statement and the function that gives its values."""


class AtOnce:
    """A connection of its own to a SQLite file, opened on first use in the caller's thread."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._open: tuple[PoolProxiedConnection, Cursor] | None = None
        self._left = PIECES
        self._rests_until = 0.0

    def committed(self, pieces: Sequence[Piece]) -> list[Any] | None:
        """Returns the results of the pieces, all in one transaction; None if nothing was done and the thread must do
        it."""
        began = self._clock()
        if len(pieces) > self._left or began < self._rests_until:
            self._left = PIECES
            return None
        try:
            return self._carried_out(pieces)
        except Exception:  # the thread meets any error again and reports it to the callers
            self.close()
            return None
        finally:
            self._left -= len(pieces)
            if self._clock() - began > SLOW_S:
                self._rests_until = self._clock() + REST_S

    def close(self) -> None:
        """Rolls back uncommitted work."""
        opened, self._open = self._open, None
        if opened is not None:
            opened[0].close()

    def _carried_out(self, pieces: Sequence[Piece]) -> list[Any] | None:
        prepared = [(work, prepare()) for work, prepare in pieces]  # before the lock is taken
        _, cursor = self._open or self._connect()
        try:
            cursor.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY"):
                raise
            return None  # another writer has the lock
        outcomes = [work.run(cursor, values, dialect=self._engine.dialect) for work, values in prepared]
        cursor.execute("COMMIT")
        return outcomes

    def _connect(self) -> tuple[PoolProxiedConnection, Cursor]:
        connection = self._engine.raw_connection()
        connection.detach()  # others of the pool do wait for a lock, and carry the journal over
        cursor = cast(Cursor, connection.cursor())
        cursor.execute("PRAGMA busy_timeout = 0")
        cursor.execute("PRAGMA wal_autocheckpoint = 0")
        self._open = connection, cursor
        return self._open
