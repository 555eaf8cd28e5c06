"""Runs that have not ended, as rows: what they go on from, and who carries them out.

A row is `waiting` (its caller's tools come next), `running` (a process has it) or `cancelling` (its process is
to stop it). Whoever goes on with a run takes its row first, by an update that only one can win; from then on
only that process writes it. A process says that it is at a run by touching its row (`beat`). Rows of processes
that died, and rows that nobody has touched for too long, are `orphans`, which anybody may take.

What a body holds is not known here; every string in it passes through `redact`, as in `traces.py`.
A run's trace is written in the same commit as the change of its row, and so is, under an Idempotency-Key, that it
was begun: whoever sends the key again is to find the run, whenever its process dies.
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
from dirigent.store.tables import attempts, run_states, traces
from dirigent.store.timestamps import now, utc_text
from dirigent.store.traces import to_row
from dirigent.workers.secret import may_hold_key, redact

FORMAT = 2
"""2: steps are numbered through the whole run, and a background run has its request in core types."""
LEASE_S = 60.0
"""A run whose row nobody has touched for so long is taken to be left, wherever its process was."""

RowState = Literal["waiting", "running", "cancelling"]
Body = TypeVar("Body", bound=msgspec.Struct)


class RunRow(msgspec.Struct, frozen=True):
    """A run that has not ended."""

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
        """Whether this process carries it out."""
        return self.owner == own_name()

    def abandoned(self, at: datetime) -> bool:
        """Whether nobody carries it out, though somebody should."""
        silent_since = utc_text(at - timedelta(seconds=LEASE_S))
        return self.owner == NOBODY or self.updated_at < silent_since or is_dead(self.owner)


class Paid(msgspec.Struct, frozen=True):
    """A call of a run, as the ledger has it."""

    worker: str
    cost_nusd: int
    output_tokens: int


async def begin(store: Store, run_id: str, *, key_id: str, body: msgspec.Struct, begun: Begun | None = None) -> None:
    """Keep a run that this process starts to carry out. Under a claim that is lost it is not begun: `StoreError`."""
    await store.write(_begin, prepare=lambda: (_values(run_id, key_id, "running", own_name(), body), begun))


async def journal(store: Store, run_id: str, *, body: msgspec.Struct, begun: Begun | None = None) -> None:
    """Write down how far it got. `StoreError` where it is no longer this process's to carry out."""
    changes = await store.write(_journal, prepare=lambda: (run_id, _changes("running", own_name(), body), begun))
    if not changes:
        raise StoreError(f"run {run_id} was cancelled, or another process has taken it over")


async def pause(store: Store, trace: Trace, *, key_id: str, body: msgspec.Struct) -> None:
    """Keep a run that waits, and its trace so far."""
    await store.write(
        _replace, prepare=lambda: (to_row(trace, key_id), _values(trace.id, key_id, "waiting", NOBODY, body))
    )


async def hand_over(store: Store, run_id: str, *, body: msgspec.Struct) -> None:
    """Let another process carry the run on."""
    await store.write(_renew, prepare=lambda: (run_id, _changes("running", NOBODY, body)))


async def let_wait(store: Store, run_id: str, *, body: msgspec.Struct) -> None:
    """Let a run that this process carried out wait for its caller's tools."""
    await store.write(_renew, prepare=lambda: (run_id, _changes("waiting", NOBODY, body)))


async def end(store: Store, trace: Trace) -> None:
    """Keep the trace of a run that is over, and forget its state."""
    await store.write(_replace, prepare=lambda: (to_row(trace), None))


async def keep_trace(store: Store, trace: Trace) -> None:
    """Keep a trace in place of an earlier one of the same run; the run's state stays."""
    await store.write(_replace_trace, prepare=lambda: to_row(trace))


async def forget(store: Store, run_id: str) -> None:
    await store.write(_delete, prepare=lambda: run_id)


async def find(store: Store, run_id: str) -> RunRow | None:
    rows = await store.read(lambda connection: _rows(connection, run_states.c.run_id == run_id))
    return rows[0] if rows else None


async def take(store: Store, row: RunRow) -> bool:
    """Make the run this process's, unless the row has changed since it was read."""
    return bool(await store.write(_take, prepare=lambda: row))


async def give_back(store: Store, run_id: str) -> None:
    """Let a run wait again that this process had taken and not gone on with."""
    await store.write(_give_back, prepare=lambda: run_id)


async def orphans(store: Store) -> list[RunRow]:
    """Runs that nobody carries out any more."""
    rows = await store.read(lambda connection: _rows(connection, run_states.c.state != "waiting"))
    at = now()
    return [row for row in rows if row.abandoned(at)]


async def beat(store: Store, run_ids: Collection[str]) -> list[str]:
    """Say that this process is at these runs; gives those of them that are to be cancelled."""
    return await store.write(_beat, prepare=lambda: list(run_ids))


async def cancel(store: Store, run_id: str, *, key_id: str) -> bool:
    """Have a run cancelled, wherever it is carried out; whether there was such a run of this key."""
    return bool(await store.write(_cancel, prepare=lambda: (run_id, key_id)))


async def prune(store: Store, *, older_than_s: float) -> int:
    """Forget runs that have waited for longer than this; how many there were."""
    before = utc_text(now() - timedelta(seconds=older_than_s))
    return await store.write(_prune, prepare=lambda: before)


async def paid_calls(store: Store, run_id: str) -> list[Paid]:
    """What the ledger has of a run's calls, in their order; those still open are left out."""
    query = (
        select(attempts.c.worker, attempts.c.cost_nusd, attempts.c.output_tokens)
        .where(attempts.c.run_id == run_id, attempts.c.state != "open")
        .order_by(attempts.c.id)
    )
    return await store.read(lambda connection: [Paid(*row) for row in connection.execute(query)])


def drop(connection: Connection, run_id: str) -> int:
    """Delete a run's state within the caller's transaction; how many rows went. Refused while it is carried out."""
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
    packed = zlib.compress(_without_secrets(body), 1)
    return {"state": state, "owner": owner, "updated_at": utc_text(now()), "format": FORMAT, "body": packed}


def _without_secrets(body: msgspec.Struct) -> bytes:
    """As JSON. Nearly all hold nothing to hide, which one look tells."""
    try:
        encoded = msgspec.json.encode(body)
        if not may_hold_key(encoded.decode()):
            return encoded
    except UnicodeEncodeError:
        pass  # half a character, as some providers cut their streams: in no UTF-8
    return msgspec.json.encode(_scrub(msgspec.to_builtins(body)))


def _scrub(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    if isinstance(value, dict):
        return {name: _scrub(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_scrub(item) for item in value]
    return value


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
    """A trace is never rewritten once its run is over; until then, each end of it takes the last one's place.

    Whose run it is stands in its state, where the caller does not say.
    """
    if trace["key_id"] is None:
        whose = select(run_states.c.key_id).where(run_states.c.run_id == trace["id"])
        trace = trace | {"key_id": connection.scalar(whose)}
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
    """The row as it was read: who else changed it meanwhile has won."""
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
