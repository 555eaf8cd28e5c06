"""Wrappers: each is a Worker around a Worker and adds one habit to it.

`wrap` builds the stack that configured workers get. From the outside in:

    Cached        an answer that was given before is given again (cached.py; only where a cache is set)
    Masked        a live key that a reply quotes is replaced by `***` (masked.py)
    Retrying      a passing fault is tried again, within the deadline (retrying.py)
    RateLimited   each try waits its turn (ratelimited.py; only where a limit is set)
    Breaker       an endpoint that keeps failing is left alone for a while (breaker.py)
    Metered       each try is reserved in the ledger before it is made and settled after it (dirigent/metered.py)
    the wire      openai, anthropic, gemini, local, ...

So every try is metered and counted by the breaker, a queued try still meets a breaker that has opened
meanwhile, and an open breaker is never retried. None of them knows what a wire format or a plan is.
"""

from __future__ import annotations

import random
from collections.abc import MutableMapping
from pathlib import Path

from dirigent.workers.breaker import Breaker
from dirigent.workers.cached import Cached
from dirigent.workers.masked import Masked
from dirigent.workers.metering import Metered, most_input_tokens
from dirigent.workers.ratelimited import RateLimited
from dirigent.workers.retrying import RetryBudget, Retrying
from dirigent.workers.worker import Worker, layers

__all__ = [
    "Breaker",
    "Cached",
    "Masked",
    "Metered",
    "RateLimited",
    "RetryBudget",
    "Retrying",
    "layers",
    "most_input_tokens",
    "wrap",
]


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
    """The standard stack around a worker that only knows its wire."""
    wrapped: Worker = Breaker(Metered(worker), open_s=breaker_rest_s)
    if requests_per_minute is not None or concurrency is not None:
        wrapped = RateLimited(wrapped, requests_per_minute=requests_per_minute, concurrency=concurrency)
    wrapped = Masked(Retrying(wrapped, retries=retries, rng=rng))
    return wrapped if cache is None else Cached(wrapped, cache)
