"""Traces as rows: what is written for a run, and how runs are found again.

A row holds a few columns to list and search by, and the whole trace as JSON, compressed where it is long. `format`
says how that body was written, so that a trace stays readable when the code moves on: a changed format gets a new
number and its own reader, and the old reader stays. Every string passes through `redact` here, the last door
before the disk.

Functions take a connection and know nothing of threads or transactions.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, select, tuple_
from sqlalchemy.dialects import postgresql

from dirigent.errors import StoreError
from dirigent.run.trace import RunStatus, Trace, total_usage
from dirigent.store.statement import Statement
from dirigent.store.tables import traces
from dirigent.store.timestamps import utc_text
from dirigent.workers.secret import SHORTEST_REDACTED, may_hold_key, redact

COMPRESSED, PLAIN = 1, 2
"""The formats: JSON through zlib, and JSON as it is."""
PLAIN_BYTES = 4096
"""Most that is kept as it is: compressing so little costs more CPU than all else that is done to a row."""
PREVIEW_CHARS = 240


class TraceRow(msgspec.Struct, frozen=True):
    """A run as a list shows it."""

    id: str
    created_at: str
    """UTC, ISO 8601, always with microseconds."""
    profile: str
    planner: str
    status: RunStatus
    question: str
    """The beginning of the last thing the user said."""
    answer: str
    """The beginning of the answer."""
    steps: int
    """Steps of all rounds."""
    calls: int
    tokens: int
    cost_usd: float
    seconds: float


class Wanted(msgspec.Struct, frozen=True):
    """Which traces a caller asks for. Empty fields ask for nothing."""

    status: RunStatus | None = None
    profile: str | None = None
    since: datetime | None = None
    """A time without a zone is taken as UTC."""
    search: str = ""
    """Part of the question, the answer or the error, in any case."""


def to_row(trace: Trace, key_id: str | None = None) -> dict[str, Any]:
    """Everything the table keeps of a trace, without secrets; `key_id` is whose run it was."""
    trace, encoded = _without_secrets(trace)
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


# SQLite took the clause over from PostgreSQL, and compiles it from there.
INSERT_ROW = Statement(postgresql.insert(traces).on_conflict_do_nothing(), names=traces.c.keys())
"""Keeps a trace. One that is already there stays as it was: a record is never rewritten."""


def get_trace(connection: Connection, id_or_prefix: str) -> Trace:
    """The trace with this id, or the only one whose id begins so."""
    id = whole_id(connection, id_or_prefix)
    body = connection.execute(select(traces.c.id, traces.c.format, traces.c.body).where(traces.c.id == id))
    return read_body(*body.one())


def whole_id(connection: Connection, id_or_prefix: str) -> str:
    """This id, or the only one that begins so."""
    if not id_or_prefix:
        raise StoreError("which trace? give its id or the beginning of it; `dirigent traces list` shows them")
    first, after = id_or_prefix, id_or_prefix + "\U0010ffff"
    query = select(traces.c.id).where(traces.c.id >= first, traces.c.id < after).order_by(traces.c.id).limit(6)
    found: list[str] = list(connection.scalars(query))
    if not found:
        raise StoreError(f"no trace begins with {id_or_prefix!r}; `dirigent traces list` shows what there is")
    if len(found) > 1 and found[0] != id_or_prefix:
        more = " and more" if len(found) == 6 else ""
        raise StoreError(f"{id_or_prefix!r} begins several traces: {', '.join(found[:5])}{more}; give more of the id")
    return found[0]


def list_rows(connection: Connection, wanted: Wanted, limit: int | None) -> list[TraceRow]:
    """The newest first."""
    columns = [traces.c[name] for name in TraceRow.__struct_fields__]
    newest_first = (traces.c.created_at.desc(), traces.c.id.desc())
    query = select(*columns).where(*_conditions(wanted)).order_by(*newest_first).limit(limit)
    return [TraceRow(*row) for row in connection.execute(query)]


def page_of_bodies(
    connection: Connection, wanted: Wanted, *, after: tuple[str, str] | None, size: int
) -> Sequence[tuple[str, str, int, bytes]]:
    """The next traces in order of time, as (created_at, id, format, body); `after` is the last key seen."""
    key = (traces.c.created_at, traces.c.id)
    query = select(*key, traces.c.format, traces.c.body).where(*_conditions(wanted)).order_by(*key).limit(size)
    if after is not None:
        query = query.where(tuple_(*key) > tuple_(*after))
    return [(row[0], row[1], row[2], row[3]) for row in connection.execute(query)]


def read_body(id: str, format: int, body: bytes) -> Trace:
    """A trace as it was saved."""
    reader = READERS.get(format)
    if reader is None:
        raise StoreError(
            f"trace {id} is written in format {format}, this Dirigent reads up to {max(READERS)}; "
            "pip install --upgrade dirigent"
        )
    try:
        return reader(body)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise StoreError(f"trace {id} cannot be read back: {error}; delete it to be rid of it") from error


def _read_compressed(body: bytes) -> Trace:
    return _read_plain(zlib.decompress(body))


def _read_plain(body: bytes) -> Trace:
    return _TRACE.decode(body)


_TRACE = msgspec.json.Decoder(Trace)
"""Made here, before there are threads: two that come first to a type at once crash msgspec, and queries run in them."""

READERS: Mapping[int, Callable[[bytes], Trace]] = {COMPRESSED: _read_compressed, PLAIN: _read_plain}


def _without_secrets(trace: Trace) -> tuple[Trace, bytes]:
    """The trace as it may be kept, and its JSON. Nearly all hold nothing to hide, which one look at the JSON tells."""
    try:
        encoded = msgspec.json.encode(trace)
        if not may_hold_key(encoded.decode()):
            return trace, encoded
    except UnicodeEncodeError:
        pass  # half a character, which no UTF-8 holds: mended below
    trace = _scrubbed(trace)
    return trace, msgspec.json.encode(trace)


def _scrubbed(trace: Trace) -> Trace:
    """The trace without secrets, in text that every database and JSON can hold."""
    return msgspec.convert(_scrub(msgspec.to_builtins(trace)), Trace)


def _scrub(value: Any) -> Any:
    """String by string rather than over the JSON: there, an escaped line break hides where a key begins."""
    if isinstance(value, str):
        return _scrub_text(value)
    if isinstance(value, dict):
        return {name: _scrub(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_scrub(item) for item in value]
    return value


def _scrub_text(text: str) -> str:
    if len(text) < SHORTEST_REDACTED and text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character, as some providers cut their streams: no UTF-8 holds it
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return redact(text)


def _text(text: str) -> str:
    """PostgreSQL's text holds no NUL; the body keeps it."""
    return text.replace("\0", "\ufffd")


def _stamp(trace: Trace) -> str:
    try:
        return utc_text(datetime.fromisoformat(trace.created_at))
    except ValueError:
        raise StoreError(f"trace {trace.id} was created at {trace.created_at!r}, which is no ISO 8601 time") from None


def _conditions(wanted: Wanted) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.status is not None:
        conditions.append(traces.c.status == wanted.status)
    if wanted.profile is not None:
        conditions.append(traces.c.profile == wanted.profile)
    if wanted.since is not None:
        conditions.append(traces.c.created_at >= utc_text(wanted.since))
    if wanted.search:
        conditions.append(traces.c.searchable.contains(_text(wanted.search).casefold(), autoescape=True))
    return conditions
