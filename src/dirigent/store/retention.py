"""Retention: old runs are deleted, and the audit log notes it. A run is deleted with everything that belongs to it: its
trace, the response made of them, feedback, the state of a run that waits,
replies kept for Idempotency-Keys. A key may have days of its own, more or fewer; a run belongs to the key that asked
for it (`owners.py`). The ledger and the audit log are never touched. Stored replies are deleted after a day in any
case. `prune` works in small commits, so that no writer waits long for the lock; a trace and its replies are in the same
commit. `forget` deletes one run at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Table,
    and_,
    delete,
    exists,
    false,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.elements import False_

from dirigent.errors import ConfigError, StoreError
from dirigent.store import Store
from dirigent.store.audit import Entry, append, record
from dirigent.store.idempotency import KEPT_S, forget_replies
from dirigent.store.keys import MAX_RETENTION_DAYS, list_keys
from dirigent.store.run_states import drop
from dirigent.store.tables import (
    attempts,
    comparisons,
    feedback,
    idempotency,
    now,
    responses,
    run_states,
    set_questions,
    traces,
    utc_text,
)

BATCH = 200
"""Rows deleted in one commit."""


class Pruned(msgspec.Struct, frozen=True):
    """How many rows were deleted."""

    traces: int = 0
    responses: int = 0
    feedback: int = 0
    run_states: int = 0
    idempotency: int = 0
    comparisons: int = 0

    @property
    def any_run(self) -> bool:
        """Whether anything of a run was deleted: a kept reply that has had its day is no news."""
        return bool(self.traces or self.responses or self.feedback or self.run_states or self.comparisons)


async def prune(store: Store, *, days: float | None, at: datetime | None = None, actor: str = "retention") -> Pruned:
    """Deletes runs older than `days` (None: only by the keys' own days) and notes it in the audit log."""
    if days is not None and not 0 < days <= MAX_RETENTION_DAYS:
        raise ConfigError(f"runs can be kept for more than 0 and up to {MAX_RETENTION_DAYS:,} days, not {days:g}")
    moment = at or now()
    own = {row.caller.key_id: row.caller.retention_days for row in await list_keys(store)}
    cuts = _Cuts(
        _before(moment, days) if days is not None else None,
        {key_id: _before(moment, min(kept, MAX_RETENTION_DAYS)) for key_id, kept in own.items() if kept is not None},
    )
    waiting = run_states.c.state == "waiting"
    with_its_run = exists().where(traces.c.id == feedback.c.run_id, cuts.of_traces())
    had_its_day = idempotency.c.created_at < _before(moment, KEPT_S / 86_400)
    given = idempotency.c.status.is_not(None)
    verdicts = await _delete(store, feedback, or_(cuts.of(feedback), with_its_run) if cuts.any else false())
    runs, replies = await _delete_traces(store, cuts.of_traces())
    pruned = Pruned(
        traces=runs,
        responses=await _delete(store, responses, cuts.of(responses)),
        feedback=verdicts,
        run_states=await _delete(store, run_states, and_(waiting, cuts.of(run_states)) if cuts.any else false()),
        idempotency=replies + await _delete(store, idempotency, or_(had_its_day, and_(given, cuts.of(idempotency)))),
        comparisons=await _delete(store, comparisons, cuts.of(comparisons)),
    )
    if pruned.any_run:
        details = msgspec.structs.asdict(pruned) | {"older_than_days": days, "keys_with_their_own": len(cuts.own)}
        await record(store, Entry(actor, "retention.prune", details))
    return pruned


async def forget(store: Store, run_id: str, *, actor: str) -> Pruned:
    """Delete one run, by its whole id, with what belongs to it, and note it in the audit log: all in one commit."""
    return await store.write(_forget, prepare=lambda: (run_id, actor))


def _forget(connection: Connection, wanted: tuple[str, str]) -> Pruned:
    run_id, actor = wanted
    if not connection.execute(delete(traces).where(traces.c.id == run_id)).rowcount:
        raise StoreError(f"no trace has the id {run_id!r}; nothing was deleted")
    gone = {
        "traces": 1,
        "responses": connection.execute(delete(responses).where(responses.c.run_id == run_id)).rowcount,
        "feedback": connection.execute(delete(feedback).where(feedback.c.run_id == run_id)).rowcount,
        "run_states": drop(connection, run_id),
        "idempotency": forget_replies(connection, (run_id,)),
        "comparisons": connection.execute(delete(comparisons).where(comparisons.c.runs.contains(run_id))).rowcount,
    }
    connection.execute(update(set_questions).where(set_questions.c.run_id == run_id).values(run_id=None))
    append(connection, Entry(actor, "trace.delete", {"run_id": run_id, **gone}))
    return Pruned(**gone)


class _Cuts(msgspec.Struct, frozen=True):
    """Rows that were made before these moments go."""

    others: str | None
    """For runs of keys without days of their own; None keeps them."""
    own: Mapping[str, str]

    @property
    def any(self) -> bool:
        return self.others is not None or bool(self.own)

    def of(self, table: Table) -> ColumnElement[bool]:
        """Which rows go of a table that names its key."""
        rows = [and_(table.c.key_id == key, table.c.created_at < cut) for key, cut in self.own.items()]
        if self.others is not None:
            rows.append(and_(table.c.created_at < self.others, table.c.key_id.not_in(self.own)))
        return or_(*rows) if rows else false()

    def of_traces(self) -> ColumnElement[bool]:
        """For a row without a key the ledger decides: older rows did not name their key."""
        unnamed = traces.c.key_id.is_(None)
        rows = []
        for key, cut in self.own.items():
            rows.append(and_(traces.c.key_id == key, traces.c.created_at < cut))
            rows.append(and_(unnamed, traces.c.created_at < cut, _paid_by((key,))))
        if self.others is not None:
            keys = tuple(self.own)
            nobodys = or_(traces.c.key_id.not_in(keys), and_(unnamed, ~_paid_by(keys)))
            rows.append(and_(traces.c.created_at < self.others, nobodys))
        return or_(*rows) if rows else false()


def _paid_by(keys: Sequence[str]) -> ColumnElement[bool]:
    return exists().where(attempts.c.run_id == traces.c.id, attempts.c.key_id.in_(keys))


async def _delete(store: Store, table: Table, condition: ColumnElement[bool]) -> int:
    """Deletes batch by batch and returns the number of rows. If nothing is to be deleted, it takes no lock."""
    if isinstance(condition, False_):
        return 0
    statement = _next_of(table, condition)

    def batch(connection: Connection, _: None) -> int:
        return connection.execute(statement).rowcount

    total = 0
    while count := await store.write(batch, prepare=lambda: None):
        total += count
    return total


async def _delete_traces(store: Store, condition: ColumnElement[bool]) -> tuple[int, int]:
    """The same of traces, each batch with the replies that were kept of its runs; how many of either went."""
    if isinstance(condition, False_):
        return 0, 0
    statement = _next_of(traces, condition).returning(traces.c.id)

    def batch(connection: Connection, _: None) -> tuple[int, int]:
        run_ids = connection.scalars(statement).all()
        return len(run_ids), forget_replies(connection, run_ids)

    runs = replies = 0
    while (count := await store.write(batch, prepare=lambda: None))[0]:
        runs, replies = runs + count[0], replies + count[1]
    return runs, replies


def _next_of(table: Table, condition: ColumnElement[bool]) -> Delete:
    """Deletes the next batch."""
    columns = list(table.primary_key.columns)
    key: ColumnElement[Any] = tuple_(*columns) if len(columns) > 1 else columns[0]
    return delete(table).where(key.in_(select(*columns).where(condition).limit(BATCH)))


def _before(moment: datetime, days: float) -> str:
    return utc_text(moment - timedelta(days=days))
