"""Hops: how many servers of this kind a request has passed through, so that a loop ends by itself.

A worker's address may lead back here: through a proxy, by another name, or by way of a second server that has this
one in its pool. Neither end can see that, so every call carries the number of servers behind it, and the server that
would be one too many refuses it (`serve/http/loop_guard.py`). The number is not signed: a caller that claims too many
is refused for it, and a caller that claims too few could as well have sent none.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

HEADER = "Dirigent-Hops"
MAX_HOPS = 2
"""Servers that one request may pass through. A worker that leads back is called at most so often for each request."""

_passed: contextvars.ContextVar[int] = contextvars.ContextVar("dirigent_hops", default=0)


def hops_passed() -> int:
    """Servers that the request at hand had passed before it came here; 0 where it came from a client."""
    return _passed.get()


def hop_headers() -> dict[str, str]:
    """What a call to the next one says."""
    return {HEADER: str(_passed.get() + 1)}


@contextlib.contextmanager
def after_hops(count: int) -> Iterator[None]:
    """Everything asked within has this many servers behind it, tasks that are started there included."""
    token = _passed.set(count)
    try:
        yield
    finally:
        _passed.reset(token)
