"""The deletion job: deletes expired runs at start and once a day (`store/retention.py`).

If the store fails, the job tries again the next time: rows that stay too long are no reason to stop serving. Several
servers over one store may each run it; the second finds nothing left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from dirigent.config.server_settings import ServeSettings
from dirigent.errors import DirigentError
from dirigent.store import Store
from dirigent.store.retention import prune

log = logging.getLogger(__name__)

EVERY_S = 24 * 3600.0


@asynccontextmanager
async def pruning(store: Store, settings: ServeSettings, *, every_s: float = EVERY_S) -> AsyncIterator[None]:
    """Delete in the background while the block runs."""
    task = asyncio.ensure_future(_prune_for_ever(store, settings, every_s))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _prune_for_ever(store: Store, settings: ServeSettings, every_s: float) -> None:
    while True:
        try:
            await prune(store, days=settings.retention_days)
        except DirigentError as error:
            log.warning("old runs were not deleted: %s", error)
        await asyncio.sleep(every_s)
