"""RateLimited: calls wait for their turn in order, so that a provider's limits hold.

`requests_per_minute` holds for every window of 60 s, not on average. `concurrency` bounds the calls in flight of each
event loop. A call whose turn would come after its deadline is refused at once, which leaves time for a substitute. A
call that was never sent (the breaker was open, the ledger refused) uses up no turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from dirigent.concurrency import PerLoop
from dirigent.errors import ConfigError, LimitError, WorkerError
from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.workers.worker import Worker, Wrapper

MINUTE_S = 60.0


class RateLimited(Wrapper):
    """Limits a worker's requests per minute and its calls at a time."""

    def __init__(
        self,
        worker: Worker,
        *,
        requests_per_minute: int | None = None,
        concurrency: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
    ) -> None:
        for name, value in (("requests_per_minute", requests_per_minute), ("concurrency", concurrency)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be 1 or more, not {value}; leave it out for no limit")
        super().__init__(worker)
        self._per_minute = requests_per_minute
        self._concurrency = concurrency
        self._slots = PerLoop(lambda: asyncio.Semaphore(concurrency)) if concurrency is not None else None
        self._turn = PerLoop(asyncio.Lock)
        self._guard = threading.Lock()
        """Guards `_starts`: calls may come from several threads."""
        self._starts: deque[float] = deque()
        """The start times of the calls of the last minute."""
        self._waiting = 0
        self._clock = clock
        self._sleep = sleep

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        async with self._slot(request.deadline):
            start = await self._start(request.deadline)
            try:
                return await self.worker.ask(request, observe=observe)
            except (WorkerError, LimitError) as error:
                if start is not None and (isinstance(error, LimitError) or error.fault == "open"):
                    with self._guard, contextlib.suppress(ValueError):
                        self._starts.remove(start)
                raise

    @contextlib.asynccontextmanager
    async def _slot(self, deadline: float | None) -> AsyncIterator[None]:
        """Wait for a free place, up to the deadline: how long the other calls take is unknown."""
        if self._slots is None:
            yield
            return
        slots = self._slots.get()
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - self._clock())):
                await slots.acquire()
        except TimeoutError:
            raise self._too_late(f"{self._concurrency} calls at a time", "concurrency") from None
        try:
            yield
        finally:
            slots.release()

    async def _start(self, deadline: float | None) -> float | None:
        """Wait for this call's turn and return its start time. The holder of the lock is the next call to start."""
        if self._per_minute is None:
            return None
        if deadline is not None and self._clock() + self._wait_s(ahead=self._waiting) >= deadline:
            raise self._too_late(f"{self._per_minute} requests a minute", "requests_per_minute")
        self._waiting += 1
        try:
            async with self._turn.get():
                while (wait_s := self._wait_s()) > 0:
                    await self._sleep(wait_s)
                self._starts.append(self._clock())
                return self._starts[-1]
        finally:
            self._waiting -= 1

    def _wait_s(self, *, ahead: int = 0) -> float:
        """Return the seconds until a call may start that has this many others ahead of it."""
        assert self._per_minute is not None
        now = self._clock()
        with self._guard:
            while self._starts and self._starts[0] <= now - MINUTE_S:
                self._starts.popleft()
            late = ahead - (self._per_minute - len(self._starts))
            if late < 0:
                return 0.0
            minutes, place = divmod(late, self._per_minute)
            oldest = self._starts[place] if place < len(self._starts) else now
        return oldest + MINUTE_S * (minutes + 1) - now

    def _too_late(self, limit: str, setting: str) -> WorkerError:
        return WorkerError(
            f"{self.info.name} is limited to {limit}, and this call's turn comes after its deadline; raise {setting}",
            worker=self.info.name,
            fault="rate_limited",
            retry_after_s=MINUTE_S,
        )
