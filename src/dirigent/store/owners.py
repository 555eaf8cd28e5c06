"""Whose run it is: the key that asked for it, as its trace's row has it, and the keys that paid for its calls.

A run under way has no trace yet, and rows from before they named a key have none either: those are the ledger's to
tell. A run that was refused before its first call has no row in the ledger. The trace itself names nobody.
"""

from __future__ import annotations

from sqlalchemy import Connection, select, union

from dirigent.store import Store
from dirigent.store.tables import attempts, traces


async def run_keys(store: Store, run_id: str) -> frozenset[str]:
    """The ids of the keys whose run this is; empty where no key asked for it, or where there is none."""
    return await store.read(lambda connection: keys_of(connection, run_id))


def keys_of(connection: Connection, run_id: str) -> frozenset[str]:
    """The same, within the caller's transaction."""
    paid = select(attempts.c.key_id).where(attempts.c.run_id == run_id)
    asked = select(traces.c.key_id).where(traces.c.id == run_id, traces.c.key_id.is_not(None))
    return frozenset(connection.scalars(union(paid, asked)))
