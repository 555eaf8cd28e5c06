"""Whose run it is: the keys that paid for its calls. A trace itself names nobody."""

from __future__ import annotations

from sqlalchemy import select

from dirigent.store import Store
from dirigent.store.tables import attempts


async def run_keys(store: Store, run_id: str) -> frozenset[str]:
    """The ids of the keys that this run's attempts are charged to; empty where it made none."""
    query = select(attempts.c.key_id).where(attempts.c.run_id == run_id).distinct()
    return frozenset(await store.read(lambda connection: list(connection.scalars(query))))
