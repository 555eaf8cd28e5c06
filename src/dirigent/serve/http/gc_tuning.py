"""Python's search for unreachable cycles, less often where it costs more than it finds.

What is left behind is mostly freed by counting references. The search goes through everything that is alive, so what
start-up made is kept out of it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seldom_collecting(*, after: int) -> Iterator[None]:
    """Inside, Python looks for cycles once so many objects are new (by default 700), never among those made before."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(after, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
