"""Connections to a PostgreSQL that hangs: each wait has a bound, and an abandoned commit may still take effect.

The server's process behind one connection can hang while all others work: stopped, or at a disk that does not answer.
No timeout of PostgreSQL ends that, and its machine answers TCP's keepalives. So every wait ends on this side: after
`HANGS_S` without a byte the connection is closed, and the caller gets a `StoreError`.

An abandoned transaction may resume. If the database had not received its commit, it is rolled back then; otherwise it
is committed, however late. Its rows are locked until then, so a transaction that touches the same rows waits
for it. Only code that concludes from a *missing* row must know that no writer can still insert it: `none_to_come`. For
that, all transactions of one writer share a lock that no other code uses, and the transaction that asks must hold it
alone.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, Engine, event, text

from dirigent.errors import StoreError

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn

HANGS_S = 60.0
"""No statement of the store's takes so long; migrations may."""

FENCE = "dirigent_fence"
_HAVE_FENCE_ALONE = text("SELECT pg_try_advisory_xact_lock(:fence)")

T = TypeVar("T")


def bound_waits(engine: Engine) -> None:
    """Have every connection that this engine makes from now on end its waits."""
    import psycopg

    class Bounded(psycopg.Connection[Any]):
        patient = False

        def wait(self, gen: PQGen[T], *more: Any, **named: Any) -> T:
            return super().wait(gen if self.patient else _ending(gen, self.pgconn), *more, **named)

    def connect(_dialect: object, _record: object, more: Any, named: Any) -> Bounded:
        return Bounded.connect(*more, **named)

    event.listen(engine, "do_connect", connect)


@contextmanager
def patiently(connection: Connection) -> Iterator[None]:
    """Within this, statements take as long as they take."""
    if connection.dialect.name != "postgresql":
        yield
        return
    driver: Any = connection.connection.driver_connection
    driver.patient = True
    try:
        yield
    finally:
        driver.patient = False


def a_fence() -> int:
    """The number of a writer's own lock."""
    return secrets.randbits(62)


def begin_writing(connection: Connection, *, wait_s: float) -> None:
    """The first words of a transaction that writes: how long it waits for a lock, and its part in the fence."""
    fence = connection.get_execution_options()[FENCE]
    said = f"SELECT set_config('lock_timeout', '{int(wait_s * 1000)}', true), pg_advisory_xact_lock_shared({fence})"
    connection.exec_driver_sql(said).close()


def none_to_come(connection: Connection) -> None:
    """Return if every earlier transaction of this writer has ended: their rows cannot appear any more. Raise
    `StoreError` if one has not; the ledger then tries again (`mend`)."""
    if connection.dialect.name != "postgresql":
        return
    if not connection.scalar(_HAVE_FENCE_ALONE, {"fence": connection.get_execution_options()[FENCE]}):
        raise StoreError("a commit to the store was abandoned and may still take effect: check its server")


def _ending(gen: PQGen[T], connection: PGconn) -> PQGen[T]:
    """The same wait, until nothing has come for too long. The driver looks in every tenth of a second."""
    from psycopg.errors import ConnectionFailure

    heard_at = time.monotonic()
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > HANGS_S:
                connection.finish()
                raise ConnectionFailure(f"its server has not answered for {HANGS_S:g} s")
            wanted = gen.send(ready)
    except StopIteration as ended:
        result: T = ended.value
        return result
