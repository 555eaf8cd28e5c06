"""Service: everything that one server holds open for its requests.

The pool, the store and the counters are opened together and closed in reverse order. Several servers may share one
PostgreSQL store; processes share nothing else.

While the server runs, expired runs are deleted at start and once a day (`pruning`), and the switches of workers are
read every few seconds, because another server may have changed them. If the store fails, that is tried again the next
time: it is no reason to stop serving. Several servers over one store may each delete; the second finds nothing left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from dirigent.config.file import Loaded
from dirigent.config.runtime import Runtime, open_runtime, open_store
from dirigent.config.server_settings import ServeSettings
from dirigent.errors import ConfigError, DirigentError
from dirigent.messages import Observe
from dirigent.run.trace import Trace
from dirigent.serve.http.metrics import Metrics
from dirigent.serve.http.telemetry import telemetry
from dirigent.serve.policy.admission import Admission
from dirigent.serve.policy.guardrails import guarded
from dirigent.serve.policy.models import Models
from dirigent.serve.runs.conversation import Conversations
from dirigent.store import Store
from dirigent.store.retention import prune
from dirigent.store.switches import workers_off

if TYPE_CHECKING:
    from dirigent.serve.runs.handle import Run


__all__ = ["DEFAULT_SETTINGS", "ServeSettings", "Service", "open_service"]

T = TypeVar("T")

OnFinished = Callable[["Service", Mapping[str, str], Trace], Awaitable[None]]
"""Takes the service, the run's purpose and its trace."""


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
        """They watch every run of this server."""
        self.on_finished: dict[str, OnFinished] = {}
        """Called when a background run is over, by the `kind` of its purpose (`runs/takeover.py`)."""
        self.conversations = Conversations()
        """The conversations whose prompts providers may still hold in their caches."""
        self.runs: set[Run] = set()
        """The runs that this process carries out."""
        self.run_watchers: list[Callable[[Run], None]] = []
        """Called when a run of this process begins, and again when it has ended and is stored."""
        self.bodies = 0
        """Requests whose body is being read."""
        self.stopping = False
        """The server is stopping: `/readyz` fails, and no reply leaves its connection open."""
        self.running: set[asyncio.Task[Any]] = set()
        """Tasks of this server that must have ended before the store is closed."""

    def own(self, run: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a run in a task of its own."""
        task = asyncio.ensure_future(run)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task

    async def read_switches(self) -> None:
        """Leave out the workers that are switched off in the store."""
        self.models.leave_out(await workers_off(self.store))

    async def close(self) -> None:
        """Cancel the tasks that are left when the server has stopped, and wait until their runs are stored."""
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)


@asynccontextmanager
async def open_service(loaded: Loaded, *, settings: ServeSettings | None = None) -> AsyncIterator[Service]:
    """Open the pool and the store. A worker that cannot be used stops the server from starting; the error has the fix.

    `settings` default to those of the configuration.
    """
    import aiohttp  # noqa: F401  # its import at the first call would block the event loop for 0.3 s

    from dirigent.store.ledger import reconcile

    async with open_runtime(loaded) as runtime, open_store(loaded.config) as store:
        if runtime.problem:
            raise ConfigError(runtime.problem)
        await reconcile(store)
        settings = settings or loaded.config.serve
        pool = guarded(runtime.pool, loaded.config.guardrails)
        runtime = Runtime(runtime.loaded, pool, runtime.problems, runtime.cards)
        for why in runtime.left_out().values():  # reads the policies too, so that no request waits for them
            log.warning("%s", why)
        service = Service(runtime, store, settings)
        await service.read_switches()
        with telemetry(settings) as watch:
            service.observers += [watch] if watch is not None else []
            async with pruning(store, settings), _repeated(service.read_switches, SWITCHES_S, "switches"):
                try:
                    yield service
                finally:
                    await service.close()


# ---- work of every few seconds or days ------------------------------------------------------------------------


log = logging.getLogger(__name__)

EVERY_S = 24 * 3600.0
SWITCHES_S = 5.0


def pruning(store: Store, settings: ServeSettings, *, every_s: float = EVERY_S) -> AbstractAsyncContextManager[None]:
    """Delete old runs in the background while the block runs."""
    return _repeated(lambda: prune(store, days=settings.retention_days), every_s, "the deletion of old runs")


@asynccontextmanager
async def _repeated(work: Callable[[], Awaitable[Any]], every_s: float, what: str) -> AsyncIterator[None]:
    """Do the work at once and every so many seconds, in the background, while the block runs."""

    async def for_ever() -> None:
        while True:
            try:
                await work()
            except DirigentError as error:
                log.warning("%s failed: %s", what, error)
            await asyncio.sleep(every_s)

    task = asyncio.ensure_future(for_ever())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
