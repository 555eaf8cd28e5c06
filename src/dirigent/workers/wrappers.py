"""The stack of wrappers around a configured worker. Each wrapper adds one behaviour.

`wrap` builds the stack. From the outside in:

    Cached        repeats an earlier answer to the same request (cached.py; only if a cache is set)
    Masked        replaces a live key in a reply by `***` (masked.py)
    Retrying      retries faults that may pass, within the deadline (retrying.py)
    RateLimited   makes each try wait for its turn (ratelimited.py; only if a limit is set)
    Breaker       stops asking an endpoint that keeps failing, for a while (breaker.py)
    Metered       reserves each try in the ledger before the call and settles it after (metering.py)
    the wire      openai, anthropic, gemini, local, ...

So every try is metered and counted by the breaker, a try that has waited for its turn still meets a breaker that
opened meanwhile, and a call that an open breaker refused is never retried. `Defaults` goes around the whole stack.
No wrapper knows about wire formats or plans.
"""

from __future__ import annotations

import random
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import msgspec

from dirigent.messages import Effort, Message, Observe, Reply, Request, ignore
from dirigent.workers.breaker import Breaker
from dirigent.workers.cached import Cached
from dirigent.workers.masked import Masked
from dirigent.workers.metering import Metered
from dirigent.workers.ratelimited import RateLimited
from dirigent.workers.retrying import Retrying
from dirigent.workers.worker import Worker, Wrapper


def wrap(
    worker: Worker,
    *,
    retries: int = 2,
    breaker_rest_s: float = 30.0,
    requests_per_minute: int | None = None,
    concurrency: int | None = None,
    cache: Path | str | MutableMapping[str, bytes] | None = None,
    rng: random.Random | None = None,
) -> Worker:
    """Return the worker inside the standard stack."""
    wrapped: Worker = Breaker(Metered(worker), open_s=breaker_rest_s)
    if requests_per_minute is not None or concurrency is not None:
        wrapped = RateLimited(wrapped, requests_per_minute=requests_per_minute, concurrency=concurrency)
    wrapped = Masked(Retrying(wrapped, retries=retries, rng=rng))
    return wrapped if cache is None else Cached(wrapped, cache)


class Defaults(Wrapper):
    """Completes requests with a configured worker's settings: system line, temperature, effort, output limit.

    A value in the request wins, with two exceptions: the smaller output limit counts, and sampling settings that the
    model refuses are left out.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        system: str = "",
        temperature: float | None = None,
        effort: Effort | None = None,
        max_output_tokens: int | None = None,
        sampling: bool = True,
    ) -> None:
        super().__init__(worker)
        self._system = system
        self._temperature = temperature
        self._effort: Effort | None = effort
        self._max_output_tokens = max_output_tokens
        self._sampling = sampling
        """False: the model refuses temperature and top_p."""

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        changes: dict[str, Any] = {}
        if self._system and not request.grammar:  # a line about style could contradict a grammar
            changes["messages"] = (Message("system", self._system), *request.messages)
        if not self._sampling:
            changes |= {"temperature": None, "top_p": None}
        elif request.temperature is None and self._temperature is not None:
            changes["temperature"] = self._temperature
        if request.effort is None and self._effort is not None:
            changes["effort"] = self._effort
        asked, most = request.max_output_tokens, self._max_output_tokens
        if most is not None and (asked is None or asked > most):
            changes["max_output_tokens"] = most
        if changes:
            request = msgspec.structs.replace(request, **changes)
        return await self.worker.ask(request, observe=observe)
