"""One thread that writes, so that many callers share a commit.

Callers hand in a piece of work and are woken when the commit that holds it is done. Pieces that come in one turn of the
event loop share a commit, and while one commit is under way the next pieces gather: the busier the store, the fewer
commits a piece costs. The event loop never waits for a lock or for a disk to sync. A batch that needs to wait for
neither is committed on the spot (`AtOnce` in `statement.py`) while the thread has nothing to do. This module does not
know what is written.

A piece is a function of a connection, or a `Statement` of the hot path. It runs twice if a neighbour spoils the commit
that they share, so it must use nothing but its connection. Pieces are carried out in the order in which they came.

A PostgreSQL that hangs without dying blocks only the thread, until the connection is abandoned
(`postgres_timeouts.py`): once a commit has taken `SILENT_S`, every caller that waits gets a `StoreError`, and so does
every caller
that comes until then. A piece that had not begun by then is not carried out later. A piece that had begun may be, as
when a connection is lost in the middle of a commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine, PoolProxiedConnection
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from dirigent.errors import StoreError
from dirigent.store.engine import explain, where, writing
from dirigent.store.statement import AtOnce, Cursor, Statement

MAX_BATCH = 128
"""Most pieces in one commit: bounds how long another process waits for the lock."""

SOON_S = 0.05
"""Seconds that a piece without a waiting caller may wait for others."""

SILENT_S = 15.0
"""A PostgreSQL whose commit takes this long hangs: for a lock is waited 5 s, for a connection 10."""

LOOK_EVERY_S = 0.5

P = TypeVar("P")
T = TypeVar("T")

Work = Callable[[Connection, P], T]


class _Job:
    """A piece of work on its way; `prepared` and `outcome` are filled in by the writer's thread."""

    __slots__ = ("done", "given_up", "loop", "outcome", "prepare", "prepared", "work")

    def __init__(self, work: Work[Any, Any] | Statement, prepare: Callable[[], Any]) -> None:
        self.work = work
        self.prepare = prepare
        self.prepared: Any = None
        self.outcome: Any = None
        self.given_up = False
        """Its caller got a `StoreError`: it must not begin any more."""
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Any] = self.loop.create_future()


class Writer:
    """Owns the thread. `close` carries out the pieces that were handed in before it."""

    def __init__(self, engine: Engine) -> None:
        self.commits = 0
        self._engine = writing(engine)
        self._jobs: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._waiting: list[_Job] = []
        """Pieces that were handed in and not passed on to the thread yet, in order."""
        self._passing_on: asyncio.AbstractEventLoop | None = None
        """The loop that will do so when its turn ends."""
        self._soon_on: asyncio.AbstractEventLoop | None = None
        """The loop whose timer will hand in what waits for company."""
        self._at_once = AtOnce(engine) if engine.dialect.name == "sqlite" else None
        self._with_thread: set[_Job] = set()
        """Pieces that were passed on to the thread and are not committed yet."""
        self.silent_s = SILENT_S if engine.dialect.name == "postgresql" else math.inf
        """Seconds that a caller waits for a database that hangs."""
        self._began = math.inf
        """When the thread began the commit that it is at (monotonic); never, while it is at none."""
        self._watched_on: asyncio.AbstractEventLoop | None = None
        """The loop whose timer sees whether the thread still comes to an end."""
        self._lent: tuple[PoolProxiedConnection, Cursor] | None = None
        """The connection of the hot path; the thread's."""
        self._guard = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="dirigent-store", daemon=True)
        self._thread.start()

    async def write(self, work: Work[P, T] | Statement, *, prepare: Callable[[], P]) -> T:
        """Run `work(connection, prepare())` and return its result once it is committed.

        `prepare` runs before the transaction begins, so that no lock is held meanwhile. A piece that was handed in is
        carried out even if the caller is cancelled: a run whose client left is still recorded.
        """
        job = _Job(work, prepare)
        with self._guard:
            self._check_open()
            self._waiting.append(job)
            if self._passing_on is not job.loop:  # all that comes in this turn of the event loop shares a commit
                self._passing_on = job.loop
                job.loop.call_soon(self._pass_on, job.loop)
        result: T = await job.done
        return result

    def write_soon(self, work: Work[P, T] | Statement, *, prepare: Callable[[], P]) -> asyncio.Future[T]:
        """The same for a caller with more to write: it goes with the next piece, or by itself after `SOON_S`."""
        job = _Job(work, prepare)
        with self._guard:
            self._check_open()
            self._waiting.append(job)
            if self._soon_on is not job.loop:  # one timer for all, since setting it takes as long as handing in
                self._soon_on = job.loop
                job.loop.call_later(SOON_S, self._hand_in_soon, job.loop)
        return job.done

    async def close(self) -> None:
        with self._guard:
            if not self._closed:
                self._closed = True
                self._jobs.put(self._waiting)
                self._waiting = []
                self._jobs.put(None)
                if self._at_once is not None:
                    self._at_once.close()
        await asyncio.to_thread(self._thread.join)

    def _hand_in_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        self._soon_on = None
        self._pass_on(loop)

    def _pass_on(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._guard:
            self._passing_on = None
            batch, self._waiting = self._waiting, []
            if self._is_silent():
                self._give_up(batch)
                return
            if not self._committed_at_once(batch, loop):
                self._with_thread.update(batch)
                self._jobs.put(batch)
                if self._watched_on is not loop and self.silent_s < math.inf:
                    self._watched_on = loop
                    loop.call_later(LOOK_EVERY_S, self._look, loop)
                return
        _wake(batch)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """See whether the thread is still at work; what waits for a database that hangs is given up."""
        with self._guard:
            if self._watched_on is not loop:
                return
            if self._is_silent():  # pieces without a waiting caller may be carried out when it answers
                self._give_up([job for job in self._with_thread if not job.done.done()])
            self._watched_on = loop if self._with_thread else None
            if self._watched_on is not None:
                loop.call_later(LOOK_EVERY_S, self._look, loop)

    def _is_silent(self) -> bool:
        return time.monotonic() - self._began >= self.silent_s

    def _give_up(self, jobs: Sequence[_Job]) -> None:
        said = f"the store {where(self._engine)} has not answered for {self.silent_s:g} s: check its server"
        for job in jobs:
            job.given_up = True
            job.outcome = _Failed(StoreError(said))
        _tell(jobs)

    def _committed_at_once(self, batch: Sequence[_Job], loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the batch could be committed here and now; its outcomes are filled in then."""
        if not batch or self._at_once is None or self._with_thread:
            return not batch
        pieces = [(job.work, job.prepare) for job in batch if isinstance(job.work, Statement) and job.loop is loop]
        outcomes = self._at_once.committed(pieces) if len(pieces) == len(batch) else None
        if outcomes is None:
            return False
        self.commits += 1
        for job, outcome in zip(batch, outcomes, strict=True):
            job.outcome = outcome
        return True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {where(self._engine)} is closed; keep it open while runs are saved")

    # ---- in the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        more = True
        while more:
            batch, more = self._next_batch()
            ready = [job for job in batch if _prepared(job)]
            for first in range(0, len(ready), MAX_BATCH):  # one turn may bring more pieces
                self._commit([job for job in ready[first : first + MAX_BATCH] if not job.given_up])
            with self._guard:
                self._began = math.inf
                self._with_thread.difference_update(batch)
            _tell(batch)
        self._return_lent()

    def _next_batch(self) -> tuple[list[_Job], bool]:
        """Everything that waits, at least one piece; False when there will be no more."""
        batch: list[_Job] = []
        try:
            while len(batch) < MAX_BATCH:
                jobs = self._jobs.get(block=not batch)
                if jobs is None:
                    return batch, False
                batch.extend(jobs)
        except queue.Empty:
            pass
        return batch, True

    def _commit(self, jobs: Sequence[_Job]) -> None:
        if not jobs:
            return
        self._began = time.monotonic()
        try:
            outcomes = self._carried_out(jobs)
        except Exception as error:  # any error belongs to the callers, and the thread must live on
            error = _as_sqlalchemy(error, self._engine)
            if len(jobs) > 1 and not _hits_everyone(error):
                for job in jobs:
                    self._commit([job])
                return
            for job in jobs:
                job.outcome = _Failed(explain(error, self._engine))
            return
        self.commits += 1
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.outcome = outcome

    def _carried_out(self, jobs: Sequence[_Job]) -> list[Any]:
        """Returns the results of the pieces, all in one transaction."""
        dialect = self._engine.dialect
        if dialect.name == "sqlite" and all(isinstance(job.work, Statement) for job in jobs):
            return self._without_sqlalchemy(jobs)
        self._return_lent()  # a writer has one connection at a time
        with self._engine.begin() as connection:
            cursor = cast(Cursor, connection.connection.cursor())
            return [
                job.work.run(cursor, job.prepared, dialect=dialect)
                if isinstance(job.work, Statement)
                else job.work(connection, job.prepared)
                for job in jobs
            ]

    def _without_sqlalchemy(self, jobs: Sequence[_Job]) -> list[Any]:
        """A transaction on SQLite, begun and ended by the driver on a connection that stays: a fourth of the CPU."""
        dialect, (_, cursor) = self._engine.dialect, self._lent or self._lend()
        try:
            cursor.execute("BEGIN IMMEDIATE")
            outcomes = [job.work.run(cursor, job.prepared, dialect=dialect) for job in jobs]  # type: ignore[union-attr]
            cursor.execute("COMMIT")  # which the driver has compiled, other than what its own `commit` sends
        except BaseException:
            self._return_lent()
            raise
        return outcomes

    def _lend(self) -> tuple[PoolProxiedConnection, Cursor]:
        connection = self._engine.raw_connection()
        self._lent = connection, cast(Cursor, connection.cursor())
        return self._lent

    def _return_lent(self) -> None:
        """Returns the connection to the pool, which rolls back uncommitted work."""
        lent, self._lent = self._lent, None
        if lent is not None:
            lent[0].close()


class _Failed:
    """The outcome of a piece that was not carried out."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _prepared(job: _Job) -> bool:
    try:
        job.prepared = job.prepare()
    except Exception as error:  # belongs to the caller
        job.outcome = _Failed(error)
        return False
    return True


def _tell(jobs: Sequence[_Job]) -> None:
    """Wake the callers, a loop at a time: each waking costs a write to the loop's socket."""
    for loop in {job.loop for job in jobs}:
        with contextlib.suppress(RuntimeError):  # the loop is closed: its callers are gone
            loop.call_soon_threadsafe(_wake, [job for job in jobs if job.loop is loop])


def _wake(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        if job.done.done():  # its caller was cancelled
            continue
        if isinstance(job.outcome, _Failed):
            job.done.set_exception(job.outcome.error)
        else:
            job.done.set_result(job.outcome)


def _as_sqlalchemy(error: Exception, engine: Engine) -> Exception:
    """A driver's own error in the class that SQLAlchemy would have given it."""
    base = engine.dialect.loaded_dbapi.Error
    if not isinstance(error, base):
        return error
    wrapped = DBAPIError.instance(None, None, error, base, dialect=engine.dialect)
    return wrapped if isinstance(wrapped, Exception) else error


def _hits_everyone(error: Exception) -> bool:
    """Returns whether the database itself is at fault (locked, full, gone), so that trying one by one would not help.

    PostgreSQL files a deadlock (class 40) under the same exception, and that one is worth trying again.
    """
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    return not str(getattr(error.orig, "sqlstate", None) or "").startswith("40")
