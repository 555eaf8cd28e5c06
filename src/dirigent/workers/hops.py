"""Hops: how many servers of this kind a request has passed through, so that a loop ends by itself.

A worker's address may lead back here: through a proxy, by another name, or by way of a second server that has this
one in its pool. Nobody can see that from one end, so every call says how many servers it has behind it, and a server
that would be one too many refuses (`serve/http/loop_guard.py`). The number is not signed: who claims more than is true is
refused for it, and who claims less could as well have left it out.
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
