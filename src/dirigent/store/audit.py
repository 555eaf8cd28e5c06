"""The audit log: who did what and when, in rows that cannot be changed unnoticed.

Every row carries the hash of the row before it, so a change, a deletion or a new order breaks the chain at a place
that `verify` names. The newest row's hash is kept a second time (`audit_head`), so that a missing end shows too.
A person with write access to the whole database could still forge all of it: note the head that `verify` prints in
another place, and give it to the next `verify`. The database itself refuses to update or delete rows.

Text from outside is written with its control characters escaped, and without secrets.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection, insert, select, update

from dirigent.errors import ConfigError
from dirigent.store import Store
from dirigent.store.engine import as_of_now, one_at_a_time
from dirigent.store.tables import audit, audit_head, now, utc_text
from dirigent.workers.secret import redact

PAGE = 500
"""Rows held in memory at a time."""

NOTHING_BEFORE = "0" * 64


class Entry(msgspec.Struct, frozen=True):
    """An entry of the log."""

    actor: str
    """A key's id, `cli`, or the part of the server that acted by itself."""
    action: str
    """The action, as `thing.verb`."""
    details: Mapping[str, Any] = {}


class AuditRow(msgspec.Struct, frozen=True):
    """An entry in its place in the chain."""

    number: int
    at: str
    actor: str
    action: str
    details: str
    """A JSON object, as text: the very bytes that were hashed."""
    previous: str
    hash: str


class Head(msgspec.Struct, frozen=True):
    """Where the chain ends. Written as `NUMBER:HASH`."""

    number: int = 0
    hash: str = NOTHING_BEFORE

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"


class Verdict(msgspec.Struct, frozen=True):
    """What `verify` found."""

    head: Head
    """The last row that is in order."""
    problem: str = ""
    """Empty: the chain is whole. Else the first thing that is wrong, and where."""


async def record(store: Store, entry: Entry) -> None:
    """Write an entry down. Returns when it is committed."""
    await store.write(append, prepare=lambda: entry)


async def verify(store: Store, *, head: Head | None = None) -> Verdict:
    """Checks the chain from its beginning. `head` is the result of an earlier check: it must still be there."""
    return await store.read(partial(_verify, noted=head))


async def export(store: Store) -> AsyncIterator[AuditRow]:
    """Every row, the oldest first, a page in memory at a time."""
    after = 0
    while True:
        page = await store.read(partial(_page, after=after))
        for row in page:
            yield row
            after = row.number
        if len(page) < PAGE:
            return


def jsonl_of(row: AuditRow) -> bytes:
    """Returns one line of ASCII for any row, with its details as an object if they are one."""
    told = msgspec.structs.asdict(row)
    with contextlib.suppress(ValueError):  # tampered with: told as it is
        told["details"] = json.loads(row.details)
    return _ascii_json(told).encode() + b"\n"


def parse_head(text: str) -> Head:
    """Reads `NUMBER:HASH`, as `verify` prints it."""
    number, _, hash = text.partition(":")
    if not number.isdecimal() or len(hash) != 64:
        raise ConfigError(
            f"{text!r} is not a head of an audit log; a head looks like 12:9f86d0…, as `audit verify` prints it"
        )
    return Head(int(number), hash)


def append(connection: Connection, entry: Entry) -> None:
    """Add a row to the chain, within the caller's transaction."""
    one_at_a_time(connection)
    head = _head(connection)
    at, actor, action = utc_text(now()), _one_line(entry.actor), _one_line(entry.action)
    details = redact(_ascii_json(msgspec.to_builtins(entry.details)))
    number = head.number + 1
    hash = _hash(number, at, actor, action, details, head.hash)
    row = AuditRow(number, at, actor, action, details, head.hash, hash)
    connection.execute(insert(audit), msgspec.structs.asdict(row))
    newest = {"number": number, "hash": hash}
    if head.number == 0:
        connection.execute(insert(audit_head), newest | {"id": 1})
    else:
        connection.execute(update(audit_head).values(newest))


def _verify(connection: Connection, *, noted: Head | None) -> Verdict:
    as_of_now(connection)  # rows that come while we walk would look as if they had no head
    last = Head()
    for row in _rows(connection):
        problem = _broken(row, last)
        if not problem and noted is not None and row.number == noted.number and row.hash != noted.hash:
            problem = f"row {row.number} is not the one that was noted: the log was written anew up to there or before"
        if problem:
            return Verdict(last, problem)
        last = Head(row.number, row.hash)
    kept = _head(connection)
    if kept != last:
        return Verdict(last, f"the log ends with row {last.number}, but row {kept.number} was its last: rows are gone")
    if noted is not None and noted.number > last.number:
        return Verdict(last, f"the log ends with row {last.number}, but row {noted.number} was noted: rows are gone")
    return Verdict(last)


def _broken(row: AuditRow, last: Head) -> str:
    """Returns the fault of a row behind this one; empty if it has none."""
    if row.number != last.number + 1:
        return f"row {last.number + 1} is gone: row {row.number} comes after row {last.number}"
    if row.hash != _hash(row.number, row.at, row.actor, row.action, row.details, row.previous):
        return f"row {row.number} was changed: it does not have the hash that it was written with"
    if row.previous != last.hash:
        return f"row {row.number} does not follow row {last.number}: one of the two was put in another's place"
    return ""


def _rows(connection: Connection) -> Iterable[AuditRow]:
    after = 0
    while page := _page(connection, after=after):
        yield from page
        after = page[-1].number


def _page(connection: Connection, *, after: int) -> list[AuditRow]:
    columns = [audit.c[name] for name in AuditRow.__struct_fields__]
    query = select(*columns).where(audit.c.number > after).order_by(audit.c.number).limit(PAGE)
    return [AuditRow(*row) for row in connection.execute(query)]


def _head(connection: Connection) -> Head:
    query = select(audit_head.c.number, audit_head.c.hash).where(audit_head.c.id == 1)
    found = connection.execute(query).one_or_none()
    return Head(found.number, found.hash) if found is not None else Head()


def _hash(number: int, at: str, actor: str, action: str, details: str, previous: str) -> str:
    # A JSON list, so that no two different rows run together into the same bytes.
    return hashlib.sha256(_ascii_json([number, at, actor, action, details, previous]).encode()).hexdigest()


def _ascii_json(value: Any) -> str:
    """JSON in one order and in ASCII: every control character is escaped, also those beyond ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).replace("\x7f", "\\u007f")


def _one_line(text: str) -> str:
    """The text with nothing in it that a terminal or a log reader would take for more than text."""
    return redact("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))
