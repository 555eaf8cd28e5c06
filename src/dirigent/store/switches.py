"""Switches: the workers that an admin switched off. Every server over the store leaves them out of new runs."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from dirigent.store import Store
from dirigent.store.audit import Entry, append
from dirigent.store.tables import now, switched_off, utc_text


async def workers_off(store: Store) -> frozenset[str]:
    """The workers that are switched off."""
    return await store.read(lambda connection: frozenset(connection.scalars(select(switched_off.c.worker))))


async def switch_worker(store: Store, worker: str, *, on: bool, actor: str) -> None:
    """Switch a worker off or on, with a row in the audit log."""

    def work(connection: Connection, entry: Entry) -> None:
        connection.execute(delete(switched_off).where(switched_off.c.worker == worker))
        if not on:
            connection.execute(insert(switched_off), {"worker": worker, "at": utc_text(now())})
        append(connection, entry)

    entry = Entry(actor, "worker.switch", {"worker": worker, "on": on})
    await store.write(work, prepare=lambda: entry)
