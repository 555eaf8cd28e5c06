"""Run Python's garbage collector less often, because it costs more than it finds.

Reference counting frees nearly all objects. The collector looks for unreachable cycles among all live objects, so the
objects made at start-up are kept out of its way. For the server this is worth 6% of the CPU of a request (a
`worker_ratio` of 2.73 instead of 2.91 at concurrency 16, `benchmarks/overhead.py`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seldom_collecting(*, after: int) -> Iterator[None]:
    """Inside the block, collect after so many new objects (Python's default is 700), never among those made before."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(after, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
