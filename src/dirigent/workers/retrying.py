"""Retrying: a fault that may pass is retried, within the deadline and a retry budget.

`errors.RETRYABLE` lists the faults that may pass. After the first text has reached an observer nothing is retried: a
second try would repeat the text.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from dirigent.errors import LimitError, WorkerError
from dirigent.messages import Attempt, Observe, Reply, Request, ignore
from dirigent.workers.metering import Watched, attempts_of, note_attempts
from dirigent.workers.worker import Worker, Wrapper

MAX_RETRY_AFTER_S = 30.0
"""If a provider asks for a longer wait, the call fails: a substitute answers sooner."""


class RetryBudget:
    """The retries that a worker has left: ten at the start, one more for every ten calls, and ten more a minute.

    When an endpoint is down, retries multiply its load at the worst moment. The budget bounds them.
    """

    def __init__(
        self,
        *,
        share: float = 0.1,
        floor: int = 10,
        most: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share = share
        self._per_s = floor / 60
        self._most = most
        self._clock = clock
        self._left = float(floor)
        self._since = clock()

    def earn(self) -> None:
        """Add the share of a retry that one call earns."""
        self._add(self._share)

    def take(self) -> bool:
        """Use one retry. Return False if none is left."""
        self._add(0.0)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def _add(self, share: float) -> None:
        now = self._clock()
        self._left = min(self._most, self._left + share + (now - self._since) * self._per_s)
        self._since = now


class Retrying(Wrapper):
    """Retries faults that may pass: at most `retries` times, and never past the deadline.

    The wait is drawn between 0 and a bound that doubles with each try (full jitter), or is the one that the provider
    asked for. The reply, or the final error, carries the attempts of all tries. A process has one such wrapper for each
    endpoint; several wrappers of one endpoint should share a `budget`.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        retries: int = 2,
        base_s: float = 0.5,
        max_s: float = 8.0,
        rng: random.Random | None = None,
        budget: RetryBudget | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
    ) -> None:
        super().__init__(worker)
        self.budget = budget or RetryBudget(clock=clock)
        self._retries = retries
        self._base_s = base_s
        self._max_s = max_s
        self._rng = rng or random.Random()
        self._clock = clock
        self._sleep = sleep

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        self.budget.earn()
        attempts: list[Attempt] = []
        """Of every try so far."""
        tries = 0
        failed: WorkerError | None = None
        try:
            while True:
                watched = Watched(observe)
                try:
                    reply = await self.worker.ask(request, observe=watched.observe)
                except WorkerError as error:
                    attempts.extend(error.attempts)
                    wait_s = self._wait_s(error, tries)
                    if watched.chars or not self._may_retry(error, tries, request.deadline, wait_s=wait_s):
                        raise
                    failed = error
                except BaseException as error:
                    attempts.extend(attempts_of(error))
                    if failed is not None and isinstance(error, LimitError):
                        # There is no money for another try. The caller can act on the fault before it.
                        raise failed from error
                    raise
                else:
                    return msgspec.structs.replace(reply, attempts=(*attempts, *reply.attempts)) if attempts else reply
                tries += 1
                await self._sleep(wait_s)
        except BaseException as error:  # the calls before a bug are billed too
            note_attempts(error, tuple(attempts))
            raise

    def _wait_s(self, error: WorkerError, tries: int) -> float:
        """Return the seconds until the next try."""
        if error.retry_after_s is not None:
            # Jitter here too: callers that were refused together would come back together.
            return max(0.0, error.retry_after_s) + self._rng.uniform(0.0, self._base_s)
        return self._rng.uniform(0.0, min(self._max_s, self._base_s * 2**tries))

    def _may_retry(self, error: WorkerError, tries: int, deadline: float | None, *, wait_s: float) -> bool:
        if not error.retryable or tries >= self._retries:
            return False
        if (error.retry_after_s or 0.0) > MAX_RETRY_AFTER_S:
            return False
        if deadline is not None and self._clock() + wait_s >= deadline:
            return False
        return self.budget.take()
