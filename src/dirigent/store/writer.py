"""One thread that writes, so that many callers share a commit.

Callers hand in a piece of work and are woken when the commit that holds it is done. While one commit is under
way the next pieces gather, and go together: the busier the store, the fewer commits a piece costs. The event
loop never waits for a disk or a lock. Knows nothing of what is written.

A piece of work runs twice where a neighbour spoils the commit they share, so it must only use its connection.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import InterfaceError, OperationalError

from dirigent.errors import StoreError
from dirigent.store.engine import explain, where, writing

MAX_BATCH = 128
"""Most pieces in one commit: bounds how long another process waits for the lock."""

P = TypeVar("P")
T = TypeVar("T")


class _Job:
    """A piece of work on its way; `prepared` is filled in by the writer's thread."""

    def __init__(self, work: Callable[[Connection, Any], Any], prepare: Callable[[], Any]) -> None:
        self.work = work
        self.prepare = prepare
        self.prepared: Any = None
        self.done: Future[Any] = Future()


class Writer:
    """Owns the thread. `close` carries out what was handed in before it."""

    def __init__(self, engine: Engine) -> None:
        self.commits = 0
        self._engine = writing(engine)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="dirigent-store", daemon=True)
        self._thread.start()

    async def write(self, work: Callable[[Connection, P], T], *, prepare: Callable[[], P]) -> T:
        """Run `work(connection, prepare())` and return its result once it is committed.

        `prepare` runs before the transaction begins, so that no lock is held meanwhile. What was handed in is
        carried out even if the caller is cancelled: a run that its client gave up is still on the record.
        """
        job = _Job(work, prepare)
        with self._closing:
            if self._closed:
                raise StoreError(f"the store {where(self._engine)} is closed; keep it open while runs are saved")
            self._jobs.put(job)
        result: T = await asyncio.shield(asyncio.wrap_future(job.done))
        return result

    async def close(self) -> None:
        with self._closing:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        more = True
        while more:
            batch, more = self._next_batch()
            ready = [job for job in batch if _prepared(job)]
            if ready:
                self._commit(ready)

    def _next_batch(self) -> tuple[list[_Job], bool]:
        """Everything that waits, at least one piece; False when there will be no more."""
        batch: list[_Job] = []
        try:
            while len(batch) < MAX_BATCH:
                job = self._jobs.get(block=not batch)
                if job is None:
                    return batch, False
                batch.append(job)
        except queue.Empty:
            pass
        return batch, True

    def _commit(self, jobs: Sequence[_Job]) -> None:
        try:
            with self._engine.begin() as connection:
                results = [job.work(connection, job.prepared) for job in jobs]
        except Exception as error:  # whatever it is belongs to the callers, and the thread must live on
            if len(jobs) > 1 and not _hits_everyone(error):
                for job in jobs:
                    self._commit([job])
                return
            for job in jobs:
                job.done.set_exception(explain(error, self._engine))
            return
        self.commits += 1
        for job, result in zip(jobs, results, strict=True):
            job.done.set_result(result)


def _prepared(job: _Job) -> bool:
    try:
        job.prepared = job.prepare()
    except Exception as error:  # belongs to the caller
        job.done.set_exception(error)
        return False
    return True


def _hits_everyone(error: Exception) -> bool:
    """Whether the database itself is at fault (locked, full, gone), so that trying one by one helps nobody.

    PostgreSQL files a deadlock (class 40) under the same exception, and that one is worth trying again.
    """
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    return not str(getattr(error.orig, "sqlstate", None) or "").startswith("40")
