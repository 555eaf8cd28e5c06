"""States of runs that have not ended: what is needed to continue a run, and which process carries it out.

A row is `waiting` (for the results of its caller's tools), `running` (a process carries it out) or `cancelling` (its
process must stop it). A process takes a run's row before it continues the run, by an update that only one process
can win; from then on only that process writes the row. A process touches the rows of its runs (`beat`) to show that
it lives. `orphans` are the rows of dead processes and rows that no process has touched for too long; any process may
take them.

This module does not know what a body holds; it masks secrets in it (`tables.py`). A run's trace is written in the
same commit as the change of its row. The start of a run under an Idempotency-Key is noted in that commit too, so that
a caller who sends the key again finds the run, whenever its process dies.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from dirigent.errors import StoreError
from dirigent.run.trace import Trace
from dirigent.store import Store
from dirigent.store.idempotency import Begun, note_begun
from dirigent.store.process_id import NOBODY, is_dead, own_name
from dirigent.store.tables import attempts, clean_json, masked, now, run_states, traces, utc_text
from dirigent.store.traces import to_row

FORMAT = 2
"""2: steps are numbered through the whole run, and a background run has its request in core types."""
LEASE_S = 60.0
"""A run whose row no process has touched for this long is an orphan, wherever its process was."""

RowState = Literal["waiting", "running", "cancelling"]
Body = TypeVar("Body", bound=msgspec.Struct)


class RunRow(msgspec.Struct, frozen=True):
    """The state of a run that has not ended."""

    run_id: str
    key_id: str
    state: RowState
    owner: str
    created_at: str
    updated_at: str
    format: int
    body: bytes

    def read(self, type: type[Body]) -> Body:
        """Returns the stored state; raises `StoreError` if it has another format or is damaged."""
        if self.format != FORMAT:
            raise StoreError(
                f"run {self.run_id} is kept in format {self.format}, this Dirigent reads {FORMAT}: "
                "it cannot be continued, ask again"
            )
        try:
            return self._decoded(type)
        except (zlib.error, msgspec.MsgspecError) as error:
            raise StoreError(f"run {self.run_id} cannot be read back: {error}") from error

    def salvage(self, type: type[Body]) -> Body | None:
        """Returns the state of a row that `read` refused, so that its run can be ended; None if it is damaged."""
        try:
            return self._decoded(type)
        except (zlib.error, msgspec.MsgspecError):
            return None

    def _decoded(self, type: type[Body]) -> Body:
        return msgspec.json.decode(zlib.decompress(self.body), type=type)

    @property
    def mine(self) -> bool:
        """Whether this process carries the run out."""
        return self.owner == own_name()

    def abandoned(self, at: datetime) -> bool:
        """Whether no living process carries the run out."""
        silent_since = utc_text(at - timedelta(seconds=LEASE_S))
        return self.owner == NOBODY or self.updated_at < silent_since or is_dead(self.owner)


class Paid(msgspec.Struct, frozen=True):
    """A call of a run that the ledger has charged."""

    worker: str
    cost_nusd: int
    output_tokens: int


async def begin(store: Store, run_id: str, *, key_id: str, body: msgspec.Struct, begun: Begun | None = None) -> None:
    """Store a run that this process starts. Raises `StoreError` if the claim in `begun` was lost: do not start it."""
    await store.write(_begin, prepare=lambda: (_values(run_id, key_id, "running", own_name(), body), begun))


async def journal(store: Store, run_id: str, *, body: msgspec.Struct, begun: Begun | None = None) -> None:
    """Store how far a run got. Raises `StoreError` if this process no longer owns the run."""
    changes = await store.write(_journal, prepare=lambda: (run_id, _changes("running", own_name(), body), begun))
    if not changes:
        raise StoreError(f"run {run_id} was cancelled, or another process has taken it over")


async def pause(store: Store, trace: Trace, *, key_id: str, body: msgspec.Struct) -> None:
    """Store a run that waits for its caller's tools, and its trace so far."""
    await store.write(
        _replace, prepare=lambda: (to_row(trace, key_id), _values(trace.id, key_id, "waiting", NOBODY, body))
    )


async def hand_over(store: Store, run_id: str, *, body: msgspec.Struct) -> None:
    """Give a running run up, so that another process takes it."""
    await store.write(_renew, prepare=lambda: (run_id, _changes("running", NOBODY, body)))


async def let_wait(store: Store, run_id: str, *, body: msgspec.Struct) -> None:
    """Store that a run of this process now waits for its caller's tools."""
    await store.write(_renew, prepare=lambda: (run_id, _changes("waiting", NOBODY, body)))


async def end(store: Store, trace: Trace) -> None:
    """Store the trace of a run that has ended, and delete its state."""
    await store.write(_replace, prepare=lambda: (to_row(trace), None))


async def keep_trace(store: Store, trace: Trace) -> None:
    """Replace the trace of a run by a newer one; the run's state stays."""
    await store.write(_replace_trace, prepare=lambda: to_row(trace))


async def forget(store: Store, run_id: str) -> None:
    """Delete the state of a run."""
    await store.write(_delete, prepare=lambda: run_id)


async def find(store: Store, run_id: str) -> RunRow | None:
    """Returns the state of a run, or None if it has none."""
    rows = await store.read(lambda connection: _rows(connection, run_states.c.run_id == run_id))
    return rows[0] if rows else None


async def take(store: Store, row: RunRow) -> bool:
    """Make this process the owner of a run. Returns False if the row has changed since it was read."""
    return bool(await store.write(_take, prepare=lambda: row))


async def give_back(store: Store, run_id: str) -> None:
    """Let a run wait again that this process has taken but not continued."""
    await store.write(_give_back, prepare=lambda: run_id)


async def orphans(store: Store) -> list[RunRow]:
    """Returns the runs that no living process carries out."""
    rows = await store.read(lambda connection: _rows(connection, run_states.c.state != "waiting"))
    at = now()
    return [row for row in rows if row.abandoned(at)]


async def beat(store: Store, run_ids: Collection[str]) -> list[str]:
    """Show that this process still carries out these runs; returns those that it must cancel."""
    return await store.write(_beat, prepare=lambda: list(run_ids))


async def cancel(store: Store, run_id: str, *, key_id: str) -> bool:
    """Ask the process that carries out a run to cancel it. Returns False if this key has no such running run."""
    return bool(await store.write(_cancel, prepare=lambda: (run_id, key_id)))


async def prune(store: Store, *, older_than_s: float) -> int:
    """Delete the states of runs that have waited longer than this; returns their number."""
    before = utc_text(now() - timedelta(seconds=older_than_s))
    return await store.write(_prune, prepare=lambda: before)


async def paid_calls(store: Store, run_id: str) -> list[Paid]:
    """Returns a run's calls from the ledger, in order, without those still open."""
    query = (
        select(attempts.c.worker, attempts.c.cost_nusd, attempts.c.output_tokens)
        .where(attempts.c.run_id == run_id, attempts.c.state != "open")
        .order_by(attempts.c.id)
    )
    return await store.read(lambda connection: [Paid(*row) for row in connection.execute(query)])


def drop(connection: Connection, run_id: str) -> int:
    """Delete a run's state within the caller's transaction; returns the number of deleted rows (0 or 1).

    Raises `StoreError` while a process carries the run out.
    """
    rows = _rows(connection, run_states.c.run_id == run_id)
    if not rows:
        return 0
    under_way = rows[0].state != "waiting" and not rows[0].abandoned(now())
    if under_way or not connection.execute(delete(run_states).where(*_unchanged(rows[0]))).rowcount:
        raise StoreError(
            f"run {run_id} is being carried out; wait until it has ended, or cancel its response "
            "(POST /v1/responses/ID/cancel), then try again"
        )
    return 1


def _values(run_id: str, key_id: str, state: RowState, owner: str, body: msgspec.Struct) -> dict[str, Any]:
    changes = _changes(state, owner, body)
    return changes | {"run_id": run_id, "key_id": key_id, "created_at": changes["updated_at"]}


def _changes(state: RowState, owner: str, body: msgspec.Struct) -> dict[str, Any]:
    encoded = clean_json(body)
    if encoded is None:
        encoded = msgspec.json.encode(masked(msgspec.to_builtins(body)))
    packed = zlib.compress(encoded, 1)
    return {"state": state, "owner": owner, "updated_at": utc_text(now()), "format": FORMAT, "body": packed}


def _insert(connection: Connection, values: dict[str, Any]) -> None:
    connection.execute(insert(run_states), values)


def _begin(connection: Connection, wanted: tuple[dict[str, Any], Begun | None]) -> None:
    values, begun = wanted
    _insert(connection, values)
    if begun is not None:
        note_begun(connection, begun)


def _journal(connection: Connection, wanted: tuple[str, dict[str, Any], Begun | None]) -> int:
    run_id, changes, begun = wanted
    count = _renew(connection, (run_id, changes))
    if count and begun is not None:
        note_begun(connection, begun)
    return count


def _renew(connection: Connection, wanted: tuple[str, dict[str, Any]]) -> int:
    run_id, changes = wanted
    mine = (run_states.c.run_id == run_id, run_states.c.owner == own_name(), run_states.c.state == "running")
    return connection.execute(update(run_states).where(*mine).values(**changes)).rowcount


def _replace(connection: Connection, wanted: tuple[dict[str, Any], dict[str, Any] | None]) -> None:
    trace, values = wanted
    _replace_trace(connection, trace)
    _delete(connection, trace["id"])
    if values is not None:
        _insert(connection, values)


def _replace_trace(connection: Connection, trace: dict[str, Any]) -> None:
    """Write a trace in place of an earlier one, which is allowed only until its run has ended.

    If the row names no key, the run's state does.
    """
    if trace["key_id"] is None:
        owner = select(run_states.c.key_id).where(run_states.c.run_id == trace["id"])
        trace = trace | {"key_id": connection.scalar(owner)}
    connection.execute(delete(traces).where(traces.c.id == trace["id"]))
    connection.execute(insert(traces), trace)


def _delete(connection: Connection, run_id: str) -> None:
    connection.execute(delete(run_states).where(run_states.c.run_id == run_id))


def _rows(connection: Connection, condition: Any) -> Sequence[RunRow]:
    columns = [run_states.c[name] for name in RunRow.__struct_fields__]
    query = select(*columns).where(condition).order_by(run_states.c.created_at, run_states.c.run_id)
    return [RunRow(*row) for row in connection.execute(query)]


def _take(connection: Connection, row: RunRow) -> int:
    state = "running" if row.state == "waiting" else row.state
    changes = {"state": state, "owner": own_name(), "updated_at": utc_text(now())}
    return connection.execute(update(run_states).where(*_unchanged(row)).values(**changes)).rowcount


def _unchanged(row: RunRow) -> tuple[ColumnElement[bool], ...]:
    """Conditions that match the row only if no other process has changed it since it was read."""
    return (
        run_states.c.run_id == row.run_id,
        run_states.c.state == row.state,
        run_states.c.owner == row.owner,
        run_states.c.updated_at == row.updated_at,
    )


def _give_back(connection: Connection, run_id: str) -> None:
    mine = (run_states.c.run_id == run_id, run_states.c.owner == own_name())
    connection.execute(update(run_states).where(*mine).values(state="waiting", owner=NOBODY))


def _beat(connection: Connection, run_ids: Sequence[str]) -> list[str]:
    mine = (run_states.c.run_id.in_(run_ids), run_states.c.owner == own_name())
    connection.execute(update(run_states).where(*mine).values(updated_at=utc_text(now())))
    return list(connection.scalars(select(run_states.c.run_id).where(*mine, run_states.c.state == "cancelling")))


def _cancel(connection: Connection, wanted: tuple[str, str]) -> int:
    run_id, key_id = wanted
    its = (run_states.c.run_id == run_id, run_states.c.key_id == key_id, run_states.c.state == "running")
    return connection.execute(update(run_states).where(*its).values(state="cancelling")).rowcount


def _prune(connection: Connection, before: str) -> int:
    stale = (run_states.c.state == "waiting", run_states.c.updated_at < before)
    return connection.execute(delete(run_states).where(*stale)).rowcount
