"""Hops: how many Dirigent servers a request has passed through, so that a loop of servers ends.

A worker's address may lead back to this server: through a proxy, under another name, or through a second server that
has this one in its pool. Neither end can see that. So every call carries the number of servers that it has passed, and
the server that would exceed the limit refuses the call (`serve/http/loop_guard.py`). The number is not signed: a caller
that sends too large a number is refused, and a caller that sends too small a number could as well send none.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

HEADER = "Dirigent-Hops"
MAX_HOPS = 2
"""Servers that one request may pass through. A worker that leads back here is called at most this often a request."""

_passed: contextvars.ContextVar[int] = contextvars.ContextVar("dirigent_hops", default=0)
"""Servers that the present request passed before this one; 0 if it came from a client."""


def hop_headers() -> dict[str, str]:
    """Return the header that tells the next server the number."""
    return {HEADER: str(_passed.get() + 1)}


@contextlib.contextmanager
def after_hops(count: int) -> Iterator[None]:
    """Set the number for all calls made inside, including those of tasks that start inside."""
    token = _passed.set(count)
    try:
        yield
    finally:
        _passed.reset(token)
