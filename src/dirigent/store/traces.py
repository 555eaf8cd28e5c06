"""Traces as rows: how a trace is written, found, listed and read back, and which keys own a run.

A row holds a few columns to list and search by, and the whole trace as JSON, compressed if it is long. `format`
names the way the body was written, so that old traces stay readable: a changed format gets a new number and its own
reader, and the old reader stays. Secrets are masked before anything is written (`tables.py`).

A run belongs to the key that asked for it (the trace's row) and to the keys that paid for its calls (the ledger). The
ledger is needed because a run under way has no trace yet, and rows older than migration 0004 name no key; the row is
needed because a run that was refused before its first call is not in the ledger. A trace's body names no key.

Functions that take a connection know nothing of threads or transactions.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, exists, func, or_, select, tuple_, union
from sqlalchemy.dialects import postgresql

from dirigent.errors import StoreError
from dirigent.run.trace import RunStatus, Trace, total_usage
from dirigent.store.statement import Statement
from dirigent.store.tables import attempts, clean_json, feedback, masked, traces, utc_text

if TYPE_CHECKING:
    from dirigent.store import Store

COMPRESSED, PLAIN = 1, 2
"""Values of `format`: zlib-compressed JSON, and plain JSON."""
PLAIN_BYTES = 4096
"""The longest body stored as plain JSON. Compressing less costs more CPU than all other work on a row."""
PREVIEW_CHARS = 240


class TraceRow(msgspec.Struct, frozen=True):
    """A run as one line of a list."""

    id: str
    created_at: str
    """UTC, ISO 8601, always with microseconds."""
    profile: str
    planner: str
    status: RunStatus
    question: str
    """The beginning of the last user message."""
    answer: str
    """The beginning of the answer."""
    steps: int
    """Steps of all rounds."""
    calls: int
    tokens: int
    cost_usd: float
    seconds: float
    key_id: str | None = None
    """The key that asked for it."""
    score: float | None = None
    """The mean of its feedback, 0 to 1; None without any."""


class TraceFilter(msgspec.Struct, frozen=True):
    """Which traces to return. An empty field does not filter."""

    status: RunStatus | None = None
    profile: str | None = None
    since: datetime | None = None
    """A time without a zone means UTC."""
    search: str = ""
    """A part of the question, the answer or the error; upper and lower case are equal."""
    until: datetime | None = None
    key_id: str | None = None
    """Only runs that this key asked for."""
    worker: str | None = None
    """Only runs with a call to this worker."""
    end_user: str | None = None
    """Only runs with a call for this user of the caller's; likewise for the tag and the conversation."""
    tag: str | None = None
    conversation: str | None = None
    least_usd: float | None = None
    least_s: float | None = None
    feedback: Literal["up", "down", "none"] | None = None
    """Judged good (a mean score above 0.5), judged bad, or not judged."""
    before: str = ""
    """Only runs older than the run with this id: the next page of a list."""


def to_row(trace: Trace, key_id: str | None = None) -> dict[str, Any]:
    """Returns the row of a trace, with secrets masked; `key_id` is the key that asked for the run."""
    encoded = clean_json(trace)
    if encoded is None:
        trace = msgspec.convert(masked(msgspec.to_builtins(trace)), Trace)
        encoded = msgspec.json.encode(trace)
    format, body = (PLAIN, encoded) if len(encoded) <= PLAIN_BYTES else (COMPRESSED, zlib.compress(encoded, 1))
    attempts = trace.attempts
    usage = total_usage(attempts)
    asked = [message for message in trace.question if message.role == "user"]
    question = asked[-1].text if asked else ""
    return {
        "id": trace.id,
        "created_at": _stamp(trace),
        "profile": _text(trace.profile),
        "planner": _text(trace.planner),
        "status": trace.status,
        "question": _text(question[:PREVIEW_CHARS]),
        "answer": _text(trace.answer[:PREVIEW_CHARS]),
        "steps": sum([len(r.steps) for r in trace.rounds]),
        "calls": len(attempts),
        "tokens": usage.input_tokens + usage.output_tokens,
        "cost_usd": sum([attempt.cost_usd for attempt in attempts]),
        "seconds": trace.seconds,
        "searchable": _text("\n".join((question, trace.answer, trace.error)).casefold()),
        "format": format,
        "body": body,
        "key_id": key_id,
    }


# SQLite adopted PostgreSQL's ON CONFLICT clause, so the same construct compiles for both.
INSERT_ROW = Statement(postgresql.insert(traces).on_conflict_do_nothing(), names=traces.c.keys())
"""Stores a trace, unless a trace with its id is stored already: a record is never rewritten."""


def get_trace(connection: Connection, id_or_prefix: str) -> Trace:
    """Returns the trace with this id, or the only trace whose id begins with it."""
    id = whole_id(connection, id_or_prefix)
    body = connection.execute(select(traces.c.id, traces.c.format, traces.c.body).where(traces.c.id == id))
    return read_body(*body.one())


def whole_id(connection: Connection, id_or_prefix: str) -> str:
    """Returns this id if a trace has it, or the only id that begins with it; raises `StoreError` otherwise."""
    if not id_or_prefix:
        raise StoreError("no trace id was given; give an id or its beginning, `dirigent traces list` shows them")
    first, after = id_or_prefix, id_or_prefix + "\U0010ffff"
    query = select(traces.c.id).where(traces.c.id >= first, traces.c.id < after).order_by(traces.c.id).limit(6)
    found: list[str] = list(connection.scalars(query))
    if not found:
        raise StoreError(f"no trace has an id that begins with {id_or_prefix!r}; `dirigent traces list` shows the ids")
    if len(found) > 1 and found[0] != id_or_prefix:
        more = " and more" if len(found) == 6 else ""
        raise StoreError(
            f"several traces have an id that begins with {id_or_prefix!r}: {', '.join(found[:5])}{more}; "
            "give more of the id"
        )
    return found[0]


async def run_keys(store: Store, run_id: str) -> frozenset[str]:
    """Returns the ids of the keys that own a run; empty if no key asked for it, or if there is no such run."""
    return await store.read(lambda connection: keys_of(connection, run_id))


def keys_of(connection: Connection, run_id: str) -> frozenset[str]:
    """Does the same as `run_keys`, within the caller's transaction."""
    paid = select(attempts.c.key_id).where(attempts.c.run_id == run_id)
    asked = select(traces.c.key_id).where(traces.c.id == run_id, traces.c.key_id.is_not(None))
    return frozenset(connection.scalars(union(paid, asked)))


def list_rows(connection: Connection, filter: TraceFilter, limit: int | None) -> list[TraceRow]:
    """Returns the newest traces first; `limit=None` returns all."""
    columns = [traces.c.get(name, _SCORE) for name in TraceRow.__struct_fields__]
    newest_first = (traces.c.created_at.desc(), traces.c.id.desc())
    query = select(*columns).where(*_conditions(filter)).order_by(*newest_first).limit(limit)
    return [TraceRow(*row) for row in connection.execute(query)]


def page_of_bodies(
    connection: Connection, filter: TraceFilter, *, after: tuple[str, str] | None, size: int
) -> Sequence[tuple[str, str, int, bytes]]:
    """Returns the oldest traces after `after` as (created_at, id, format, body); `after` is (created_at, id)."""
    key = (traces.c.created_at, traces.c.id)
    query = select(*key, traces.c.format, traces.c.body).where(*_conditions(filter)).order_by(*key).limit(size)
    if after is not None:
        query = query.where(tuple_(*key) > tuple_(*after))
    return [(row[0], row[1], row[2], row[3]) for row in connection.execute(query)]


def read_body(id: str, format: int, body: bytes) -> Trace:
    """Returns the trace that was saved; raises `StoreError` if this Dirigent cannot read it."""
    reader = READERS.get(format)
    if reader is None:
        raise StoreError(
            f"trace {id} has format {format}, and this Dirigent reads formats up to {max(READERS)}; "
            "pip install --upgrade dirigent"
        )
    try:
        return reader(body)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise StoreError(f"trace {id} cannot be read: {error}; delete it with `dirigent traces delete {id}`") from error


def _read_compressed(body: bytes) -> Trace:
    return _read_plain(zlib.decompress(body))


def _read_plain(body: bytes) -> Trace:
    return _TRACE.decode(body)


_TRACE = msgspec.json.Decoder(Trace)
"""Built at import, before threads start: msgspec crashes when two threads are the first to use a type."""

READERS: Mapping[int, Callable[[bytes], Trace]] = {COMPRESSED: _read_compressed, PLAIN: _read_plain}


_SCORE = select(func.avg(feedback.c.score)).where(feedback.c.run_id == traces.c.id).scalar_subquery()


def _text(text: str) -> str:
    """Returns the text without NUL, which PostgreSQL's text cannot hold. The body keeps it."""
    return text.replace("\0", "\ufffd")


def _stamp(trace: Trace) -> str:
    try:
        return utc_text(datetime.fromisoformat(trace.created_at))
    except ValueError:
        raise StoreError(
            f"trace {trace.id} was created at {trace.created_at!r}, which is not an ISO 8601 time"
        ) from None


def _conditions(filter: TraceFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if filter.status is not None:
        conditions.append(traces.c.status == filter.status)
    if filter.profile is not None:
        conditions.append(traces.c.profile == filter.profile)
    if filter.since is not None:
        conditions.append(traces.c.created_at >= utc_text(filter.since))
    if filter.search:
        conditions.append(traces.c.searchable.contains(_text(filter.search).casefold(), autoescape=True))
    if filter.until is not None:
        conditions.append(traces.c.created_at < utc_text(filter.until))
    if filter.key_id is not None:
        conditions.append(traces.c.key_id == filter.key_id)
    for name in ("worker", "end_user", "tag", "conversation"):
        if (wanted := getattr(filter, name)) is not None:
            conditions.append(exists().where(attempts.c.run_id == traces.c.id, attempts.c[name] == wanted))
    if filter.least_usd is not None:
        conditions.append(traces.c.cost_usd >= filter.least_usd)
    if filter.least_s is not None:
        conditions.append(traces.c.seconds >= filter.least_s)
    if filter.feedback == "none":
        conditions.append(~exists().where(feedback.c.run_id == traces.c.id))
    elif filter.feedback is not None:
        conditions.append(_SCORE > 0.5 if filter.feedback == "up" else _SCORE <= 0.5)
    if filter.before:
        # Rows of one moment are told apart by their ids. The moment is looked up once, not joined.
        other = traces.alias("other")
        moment = select(other.c.created_at).where(other.c.id == filter.before).scalar_subquery()
        same = and_(traces.c.created_at == moment, traces.c.id < filter.before)
        conditions.append(or_(traces.c.created_at < moment, same))
    return conditions
