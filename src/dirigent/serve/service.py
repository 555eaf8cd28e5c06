"""Service: everything one server holds open, and what a request is served with.

The pool, the store and the counters are opened together and closed in the other order. Several servers may
share one PostgreSQL store; nothing here is shared between processes but the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from dirigent.config import Loaded
from dirigent.errors import ConfigError
from dirigent.runtime import Runtime, open_runtime, open_store
from dirigent.serve.metrics import Metrics
from dirigent.serve.models import Models
from dirigent.store import Store
from dirigent.store.admission import Admission

T = TypeVar("T")


class ServeSettings(msgspec.Struct, frozen=True):
    """How the server behaves towards its callers."""

    max_in_flight: int = 2000
    """Runs at once; more get a 503 with Retry-After."""
    hold_status_s: float = 10.0
    """How long a stream waits for its first word before it says 200: until then a failure has a status of its own."""
    keep_alive_s: float = 10.0
    """A comment goes out on a stream that has been silent for this long."""
    body_timeout_s: float = 30.0
    """For a caller to send its whole request."""
    send_timeout_s: float = 30.0
    """For a caller to take one piece of the reply."""
    grace_s: float = 30.0
    """For what is under way when the server is told to stop."""
    keys_required: bool = False
    """True where the server listens beyond this machine: without keys nobody comes in."""


DEFAULT_SETTINGS = ServeSettings()


class Service:
    """One server's parts."""

    def __init__(self, runtime: Runtime, store: Store, settings: ServeSettings = DEFAULT_SETTINGS) -> None:
        self.runtime = runtime
        self.store = store
        self.settings = settings
        self.models = Models(runtime)
        self.admission = Admission(max_in_flight=settings.max_in_flight)
        self.metrics = Metrics(runtime.pool, self.admission)
        self._runs: set[asyncio.Task[Any]] = set()

    def own(self, run: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a run of this server's: it is waited for before the store is closed."""
        task = asyncio.ensure_future(run)
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)
        return task

    async def close(self) -> None:
        """Cancel what is left when the server has stopped, and wait until it is kept."""
        for task in self._runs:
            task.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)


@asynccontextmanager
async def open_service(loaded: Loaded, *, settings: ServeSettings = DEFAULT_SETTINGS) -> AsyncIterator[Service]:
    """Open the pool and the store. A worker that cannot be used keeps the server from starting, with the fix."""
    from dirigent.store.ledger import reconcile

    async with open_runtime(loaded) as runtime, open_store(loaded.config) as store:
        if runtime.problems:
            raise ConfigError("; ".join(runtime.problems.values()))
        await reconcile(store)
        service = Service(runtime, store, settings)
        try:
            yield service
        finally:
            await service.close()
