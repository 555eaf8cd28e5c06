"""Mending: what a failing store kept from being written is written as soon as it answers again.

For the few writes that must not be given up while their process lives, such as the settlement of a call that was
paid: nobody waits for them here, and trying them twice does no harm. What is still missing when the process ends is
found at the next start (`ledger.reconcile`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from dirigent.errors import StoreError
from dirigent.store import Store
from dirigent.store.statement import Statement

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 10.0

Work = Callable[[Any, Any], Any] | Statement


def mended(write: asyncio.Future[Any], store: Store, work: Work, *, prepare: Callable[[], Any]) -> None:
    """Watch a write that was handed in; where the store fails it, hand it in again until it is kept."""
    write.add_done_callback(partial(_look, store, work, prepare, FIRST_WAIT_S))


def mend(store: Store, work: Work, *, prepare: Callable[[], Any]) -> None:
    """Hand in a write that nobody waits for, and see that it is kept."""
    try:
        mended(store.write_soon(work, prepare=prepare), store, work, prepare=prepare)
    except StoreError:  # closed
        return


def _look(store: Store, work: Work, prepare: Callable[[], Any], wait_s: float, done: asyncio.Future[Any]) -> None:
    if not done.cancelled() and isinstance(done.exception(), StoreError):
        asyncio.get_running_loop().call_later(wait_s, _again, store, work, prepare, min(2 * wait_s, LONGEST_WAIT_S))


def _again(store: Store, work: Work, prepare: Callable[[], Any], wait_s: float) -> None:
    try:
        done = store.write_soon(work, prepare=prepare)
    except StoreError:  # it was closed: the next start sees to it
        return
    done.add_done_callback(partial(_look, store, work, prepare, wait_s))
