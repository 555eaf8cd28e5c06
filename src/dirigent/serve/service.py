"""Service: everything one server holds open, and what a request is served with.

The pool, the store and the counters are opened together and closed in the other order. Several servers may
share one PostgreSQL store; nothing here is shared between processes but the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from dirigent.config.file import Loaded
from dirigent.config.runtime import Runtime, open_runtime, open_store
from dirigent.config.server_settings import ServeSettings
from dirigent.errors import ConfigError
from dirigent.messages import Observe
from dirigent.run.trace import Trace
from dirigent.serve.http.metrics import Metrics
from dirigent.serve.http.telemetry import telemetry
from dirigent.serve.policy.guardrails import guarded
from dirigent.serve.policy.models import Models
from dirigent.serve.policy.retention import pruning
from dirigent.store import Store
from dirigent.store.admission import Admission

__all__ = ["DEFAULT_SETTINGS", "ServeSettings", "Service", "open_service"]

T = TypeVar("T")

OnFinished = Callable[["Service", Mapping[str, str], Trace], Awaitable[None]]
"""Given the service, the run's purpose and its trace."""


@dataclass
class BackgroundRun:
    """A run that this process carries out on its own."""

    task: asyncio.Task[None]
    cancelled: bool = False
    """It was cancelled for good; else a cancelled task hands its run over."""


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
        self.observers: list[Observe] = []
        """Watch every run of this server."""
        self.on_finished: dict[str, OnFinished] = {}
        """What is done with a background run that is over, by the `kind` of its purpose (`background.py`)."""
        self.background: dict[str, BackgroundRun] = {}
        """The background runs that this process carries out, by run."""
        self.resuming: set[str] = set()
        """Runs that had waited for tools and that a request goes on with now."""
        self.bodies = 0
        """Requests whose body is being read."""
        self.stopping = False
        """The server was told to stop: `/readyz` fails, and no reply leaves its connection open."""
        self.running: set[asyncio.Task[Any]] = set()
        """Tasks that carry out runs of this server: they are waited for before the store is closed."""

    def own(self, run: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a run in a task of its own."""
        task = asyncio.ensure_future(run)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task

    async def close(self) -> None:
        """Cancel what is left when the server has stopped, and wait until it is kept."""
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)


@asynccontextmanager
async def open_service(loaded: Loaded, *, settings: ServeSettings | None = None) -> AsyncIterator[Service]:
    """Open the pool and the store. A worker that cannot be used keeps the server from starting, with the fix.

    `settings` are those of the configuration unless given.
    """
    import aiohttp  # noqa: F401  # which on first use would hold up the event loop, and everybody on it, for 0.3 s

    from dirigent.store.ledger import reconcile

    async with open_runtime(loaded) as runtime, open_store(loaded.config) as store:
        if runtime.problem:
            raise ConfigError(runtime.problem)
        await reconcile(store)
        settings = settings or loaded.config.serve
        runtime = Runtime(loaded, guarded(runtime.pool, loaded.config.guardrails), runtime.problems)
        service = Service(runtime, store, settings)
        with telemetry(settings) as watch:
            service.observers += [watch] if watch is not None else []
            async with pruning(store, settings):
                try:
                    yield service
                finally:
                    await service.close()
