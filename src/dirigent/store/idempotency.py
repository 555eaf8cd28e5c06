"""Replies that are sent again: the caller's Idempotency-Key, its request, and the reply. A name belongs to one API key:
two API keys that choose the same name are independent. A row is claimed
before any work for it begins and finished with the reply, each in one commit, so that of many requests at once
exactly one is carried out, whichever process they reach. A claim whose process is dead, or that is older than any
run can be, may be claimed anew, by one and once: a request that ends its server twice is not tried a third time. Rows
live for a day, and a reply no longer than its run: code that deletes runs calls `forget_replies` in the same commit. A
run that outlives its process must not begin twice. Code that begins one calls `note_begun` in the same commit; every
later claim of the name then gets that run. This module knows nothing of HTTP except that replies have a status.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, delete, select, update

from dirigent.errors import StoreError
from dirigent.store import Store
from dirigent.store.engine import insert_if_new
from dirigent.store.process_id import NOBODY, is_dead, own_name
from dirigent.store.tables import idempotency, now, run_states, traces, utc_text

KEPT_S = 24 * 3600.0
TAKEN_OVER = "[]"
"""The headers of a reply that is not there yet, if the claim is the second one."""


class Kept(msgspec.Struct, frozen=True):
    """A reply as it was sent."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    """None: it was not kept, since it was too long, held a secret, or was not sent to its end."""
    run_id: str = ""


class Claimed(msgspec.Struct, frozen=True):
    """It is the caller's to carry out, and then to `finish`, to `leave` or to `release`."""

    key_id: str
    name: str
    created_at: str
    owner: str
    again: bool = False
    """Another process had begun, and died."""
    begun: str = ""
    """The work that outlives that process, as noted when it began: it must not begin again."""


class Begun(msgspec.Struct, frozen=True):
    """A run that outlives its process, and the claim that it is begun for."""

    claimed: Claimed
    run_id: str
    said: str
    """Its reference: `Claimed.begun` of the next claim of the name."""


class Running(msgspec.Struct, frozen=True):
    """Somebody else is carrying it out."""


class GivenUp(msgspec.Struct, frozen=True):
    """Two processes began it, and both died."""


class Differs(msgspec.Struct, frozen=True):
    """The name was used for another request."""


Outcome = Claimed | Kept | Running | GivenUp | Differs


async def claim(store: Store, *, key_id: str, name: str, digest: str, longest_s: float) -> Outcome:
    """Claim a name for the request with this digest, or learn what became of it."""
    at = now()
    wanted = _Wanted(
        Claimed(key_id, name, utc_text(at), own_name()),
        digest,
        expired=utc_text(at - timedelta(seconds=KEPT_S)),
        abandoned=utc_text(at - timedelta(seconds=longest_s)),
    )
    return await store.write(_claim, prepare=lambda: wanted)


async def finish(store: Store, claimed: Claimed, kept: Kept) -> None:
    """Keep the reply, unless its run has been deleted meanwhile. Returns when it is committed."""
    await store.write(_finish, prepare=lambda: (claimed, kept))


async def leave(store: Store, claimed: Claimed) -> None:
    """Lets other requests claim the name at once. Work begun for it continues and belongs to them; otherwise nothing
    remains."""
    await store.write(_leave, prepare=lambda: claimed)


async def release(store: Store, claimed: Claimed) -> None:
    """Deletes the claim and the note of its work: there is no reply worth sending again."""
    await store.write(_release, prepare=lambda: claimed)


def note_begun(connection: Connection, begun: Begun) -> None:
    """Notes the begun work, within the caller's transaction. Raises `StoreError` if another process has the claim by
    now."""
    values = {"run_id": begun.run_id, "body": begun.said.encode()}
    if not connection.execute(update(idempotency).where(*_of(begun.claimed)).values(values)).rowcount:
        raise StoreError(f"run {begun.run_id} was not begun: its Idempotency-Key was claimed anew meanwhile; ask again")


def forget_replies(connection: Connection, run_ids: Collection[str]) -> int:
    """Deletes the replies of these runs within the caller's transaction, after their traces; returns the number of
    rows."""
    return connection.execute(delete(idempotency).where(idempotency.c.run_id.in_(run_ids))).rowcount


class _Wanted(msgspec.Struct, frozen=True):
    claim: Claimed
    digest: str
    expired: str
    abandoned: str


def _claim(connection: Connection, wanted: _Wanted) -> Outcome:
    claimed = wanted.claim
    row = {
        "key_id": claimed.key_id,
        "name": claimed.name,
        "digest": wanted.digest,
        "owner": claimed.owner,
        "created_at": claimed.created_at,
    }
    this = (idempotency.c.key_id == claimed.key_id, idempotency.c.name == claimed.name)
    connection.execute(delete(idempotency).where(*this, idempotency.c.created_at < wanted.expired))
    if insert_if_new(connection, idempotency, row):
        return claimed
    found = connection.execute(select(idempotency).where(*this)).one_or_none()
    if found is None:
        return Running()  # released by another process this very moment: the caller comes again
    if found.digest != wanted.digest:
        return Differs()
    if found.status is not None:
        headers = msgspec.json.decode(found.headers, type=tuple[tuple[str, str], ...])
        return Kept(found.status, headers, found.body, found.run_id or "")
    if found.owner != NOBODY and not is_dead(found.owner) and found.created_at >= wanted.abandoned:
        return Running()
    if found.headers == TAKEN_OVER and found.run_id is None:
        return GivenUp()
    values = {"owner": claimed.owner, "created_at": claimed.created_at, "headers": TAKEN_OVER}
    won = connection.execute(update(idempotency).where(*this, *_unchanged(found)).values(values)).rowcount
    said = (found.body or b"").decode()
    return msgspec.structs.replace(claimed, again=True, begun=said) if won else Running()


def _unchanged(found: Row[Any]) -> tuple[ColumnElement[bool], ...]:
    """The claim as it was read: who else took it, finished it or began a run for it meanwhile has won."""
    return (
        idempotency.c.owner == found.owner,
        idempotency.c.created_at == found.created_at,
        idempotency.c.run_id.is_not_distinct_from(found.run_id),
        idempotency.c.status.is_(None),
    )


def _finish(connection: Connection, work: tuple[Claimed, Kept]) -> None:
    claimed, kept = work
    if kept.run_id and not _is_there(connection, kept.run_id):
        _release(connection, claimed)
        return
    values = {
        "status": kept.status,
        "headers": msgspec.json.encode(kept.headers).decode(),
        "body": kept.body,
        "run_id": kept.run_id or None,
    }
    connection.execute(update(idempotency).where(*_of(claimed)).values(values))


def _is_there(connection: Connection, run_id: str) -> bool:
    """Returns whether a run has a trace, or a state while it has no trace yet. On PostgreSQL this waits for a
    transaction that deletes the run, and a later one waits for this and finds the reply."""
    trace = select(traces.c.id).where(traces.c.id == run_id).with_for_update(read=True, key_share=True)
    if connection.execute(trace).first() is not None:
        return True
    state = select(run_states.c.run_id).where(run_states.c.run_id == run_id)
    return connection.execute(state).first() is not None


def _leave(connection: Connection, claimed: Claimed) -> None:
    connection.execute(delete(idempotency).where(*_of(claimed), idempotency.c.run_id.is_(None)))
    connection.execute(update(idempotency).where(*_of(claimed)).values(owner=NOBODY))


def _release(connection: Connection, claimed: Claimed) -> None:
    connection.execute(delete(idempotency).where(*_of(claimed)))


def _of(claimed: Claimed) -> tuple[Any, ...]:
    """Returns the row if it is still this claim's; None if another claim took it over."""
    return (
        idempotency.c.key_id == claimed.key_id,
        idempotency.c.name == claimed.name,
        idempotency.c.owner == claimed.owner,
        idempotency.c.created_at == claimed.created_at,
        idempotency.c.status.is_(None),
    )
