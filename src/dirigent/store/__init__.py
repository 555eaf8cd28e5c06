"""The store of runs and everything about them. Other modules use only `Store`. Behind it: `tables.py` (the schema, and
the form of times and masked JSON in it), `migrations/` (changes of the schema), `engine.py` (SQLite or PostgreSQL;
`postgres_timeouts.py`), `writer.py`
(many writes, one commit; `statement.py`), `traces.py` (runs as rows). Beside it, over the same `read` and `write`:
`keys.py` (who may call), `ledger.py` (what calls cost; `process_id.py`, `usage.py`), `run_states.py` (runs that go on
later), `responses.py` (stored responses), `audit.py` (who did what), `idempotency.py` (replies that are sent again),
`feedback.py` (what callers thought), `retention.py` (what is deleted when).

    async with Store.open("traces.db") as store:
        await store.save(trace)
        same = await store.get(trace.id[:4])
"""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from dirigent.errors import StoreError
from dirigent.run.trace import RunStatus, Trace
from dirigent.store.engine import explain, open_engine, where
from dirigent.store.migrations import upgrade
from dirigent.store.statement import Statement
from dirigent.store.traces import (
    INSERT_ROW,
    TraceFilter,
    TraceRow,
    get_trace,
    list_rows,
    page_of_bodies,
    read_body,
    to_row,
    whole_id,
)
from dirigent.store.writer import Writer

__all__ = ["Store", "TraceRow"]

PAGE = 64
"""Traces an export holds in memory at a time."""

P = TypeVar("P")
T = TypeVar("T")


class Store:
    """An open store. Every method waits off the event loop; its `StoreError`s name the fix."""

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self.where = where(engine)
        """Its file, or its URL without the password."""
        self._engine = engine
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def open(cls, url_or_path: str | Path, *, wait_s: float = 5.0) -> AsyncIterator[Store]:
        """Opens a SQLite file (created private to its owner if it is missing) or a `postgresql://` URL. A write waits
        `wait_s` for another program's lock. A write that came while an earlier one was waiting may wait twice as long.
        """
        engine = await asyncio.to_thread(_open, url_or_path, wait_s)
        writer = Writer(engine)
        try:
            yield cls(engine, writer)
        finally:
            await writer.close()
            await asyncio.to_thread(engine.dispose)  # SQLite tidies its journal up when the last one leaves

    @property
    def commits(self) -> int:
        """How many commits this store has made: far fewer than writes, when many come at once."""
        return self._writer.commits

    async def save(self, trace: Trace, *, key_id: str | None = None) -> None:
        """Keep a run, as this key's. Returns when it is committed. Saving the same id again changes nothing."""
        await self._writer.write(INSERT_ROW, prepare=partial(to_row, trace, key_id))

    async def get(self, id_or_prefix: str) -> Trace:
        """The run with this id, or the only one whose id begins so."""
        return await self.read(lambda connection: get_trace(connection, id_or_prefix))

    async def whole_id(self, id_or_prefix: str) -> str:
        """The id of that run, also where its trace cannot be read any more."""
        return await self.read(lambda connection: whole_id(connection, id_or_prefix))

    async def list(
        self,
        *,
        limit: int | None = 20,
        status: RunStatus | None = None,
        profile: str | None = None,
        since: datetime | None = None,
        search: str = "",
    ) -> builtins.list[TraceRow]:
        """The newest runs first; `limit=None` for all of them."""
        filter = TraceFilter(status, profile, since, search)
        return await self.read(lambda connection: list_rows(connection, filter, limit))

    async def find(self, filter: TraceFilter, *, limit: int) -> builtins.list[TraceRow]:
        """The newest runs that this filter lets through."""
        return await self.read(lambda connection: list_rows(connection, filter, limit))

    async def export(
        self,
        *,
        status: RunStatus | None = None,
        profile: str | None = None,
        since: datetime | None = None,
        search: str = "",
    ) -> AsyncIterator[Trace]:
        """Whole runs, the oldest first, a page in memory at a time. Runs saved meanwhile may be missed."""
        filter = TraceFilter(status, profile, since, search)
        after: tuple[str, str] | None = None
        while True:
            page = await self.read(partial(page_of_bodies, filter=filter, after=after, size=PAGE))
            for created_at, id, format, body in page:
                yield read_body(id, format, body)
                after = (created_at, id)
            if len(page) < PAGE:
                return

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query in a thread, in a transaction of its own."""
        return await asyncio.to_thread(self._read, query, time.monotonic())

    def write(
        self, work: Callable[[Connection, P], T] | Statement, *, prepare: Callable[[], P]
    ) -> Coroutine[Any, Any, T]:
        """Run `work(connection, prepare())` off the event loop, a `Statement` wherever that is quickest; returns when
        it is committed."""
        return self._writer.write(work, prepare=prepare)

    def write_soon(
        self, work: Callable[[Connection, P], T] | Statement, *, prepare: Callable[[], P]
    ) -> asyncio.Future[T]:
        """The same for a caller with more to write: it shares the next commit, and is committed before what follows."""
        return self._writer.write_soon(work, prepare=prepare)

    def _read(self, query: Callable[[Connection], T], asked_at: float) -> T:
        if self._writer.silent_s < time.monotonic() - asked_at:  # its thread comes from reads that waited in vain
            raise StoreError(f"the store {self.where} keeps its readers waiting: check its server")
        try:
            with self._engine.connect() as connection:
                return query(connection)
        except SQLAlchemyError as error:
            raise explain(error, self._engine) from error


def _open(url_or_path: str | Path, wait_s: float) -> Engine:
    engine = open_engine(url_or_path, wait_s=wait_s)
    try:
        upgrade(engine)
    except Exception as error:
        engine.dispose()
        raise explain(error, engine) from error
    return engine
