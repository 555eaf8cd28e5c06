"""Stored responses of the Responses API: to read again, to continue, and to finish later in the background.

A row holds a response's own input items and the response itself, as JSON that the server wrote and reads; earlier
turns are in the rows that `previous_id` leads back to. A row belongs to one key; for every other key it does not
exist. Secrets are masked before anything is written (`tables.py`).
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw
from sqlalchemy import Connection, Row, delete, insert, select, update

from dirigent.errors import StoreError
from dirigent.store import Store
from dirigent.store.tables import clean_json, masked, now, responses, utc_text

UNFINISHED = ("queued", "in_progress")


class KeptResponse(msgspec.Struct, frozen=True):
    """A stored response."""

    id: str
    key_id: str
    run_id: str
    status: str
    items: bytes
    """JSON: the input items of this request, without those of earlier turns."""
    response: bytes
    """JSON: the response, finished or not."""
    previous_id: str | None = None


class Chain(msgspec.Struct, frozen=True):
    """A response and all responses it continues, the oldest first."""

    links: tuple[KeptResponse, ...]
    missing_id: str = ""
    """A response that is missing or was deleted: the chain cannot be continued."""
    too_long: bool = False
    """The chain is larger than the caller's bound; `links` is empty."""


async def keep_response(store: Store, kept: KeptResponse) -> None:
    """Store a new response. Returns once it is committed."""
    await store.write(_insert, prepare=lambda: _row(kept))


async def finish_response(store: Store, kept: KeptResponse) -> bool:
    """Replace an unfinished response by its finished form. Returns False if it had ended already or was deleted."""
    return await store.write(_finish, prepare=lambda: _row(kept))


async def find_response(store: Store, id: str, *, key_id: str) -> KeptResponse | None:
    """Returns the response with this id, or None if this key has none."""
    return await store.read(lambda connection: _find(connection, id, key_id))


async def find_chain(store: Store, id: str, *, key_id: str, most_bytes: int) -> Chain:
    """Returns the response with this id and the responses it continues, of at most `most_bytes` together."""
    return await store.read(lambda connection: _chain(connection, id, key_id, most_bytes))


async def delete_response(store: Store, id: str, *, key_id: str) -> bool:
    """Delete a response. Returns False if this key has none with this id."""
    return await store.write(_delete, prepare=lambda: (id, key_id))


class _Body(msgspec.Struct, frozen=True):
    items: Raw
    response: Raw


_BODY = msgspec.json.Decoder(_Body)
"""Built at import, for the reason given in `traces.py`."""


def _row(kept: KeptResponse) -> dict[str, Any]:
    at = utc_text(now())
    body = msgspec.json.encode(_Body(Raw(kept.items), Raw(kept.response)))
    clean = clean_json(Raw(body))
    return {
        "id": kept.id,
        "key_id": kept.key_id,
        "run_id": kept.run_id,
        "previous_id": kept.previous_id,
        "status": kept.status,
        "created_at": at,
        "updated_at": at,
        "body": clean if clean is not None else msgspec.json.encode(masked(msgspec.json.decode(body))),
    }


def _insert(connection: Connection, row: dict[str, Any]) -> None:
    connection.execute(insert(responses), row)


def _finish(connection: Connection, row: dict[str, Any]) -> bool:
    still_open = (responses.c.id == row["id"]) & responses.c.status.in_(UNFINISHED)
    changes = {name: row[name] for name in ("status", "updated_at", "body", "run_id")}
    return bool(connection.execute(update(responses).where(still_open).values(changes)).rowcount)


def _find(connection: Connection, id: str, key_id: str) -> KeptResponse | None:
    row = connection.execute(select(responses).where(responses.c.id == id, responses.c.key_id == key_id)).first()
    return None if row is None else _kept(row)


def _chain(connection: Connection, id: str, key_id: str, most_bytes: int) -> Chain:
    links: list[KeptResponse] = []
    size = 0
    wanted: str | None = id
    while wanted is not None:
        found = _find(connection, wanted, key_id)
        if found is None:
            return Chain(tuple(reversed(links)), wanted)
        size += len(found.items) + len(found.response)
        if size > most_bytes:
            return Chain((), too_long=True)
        links.append(found)
        wanted = found.previous_id
    return Chain(tuple(reversed(links)))


def _delete(connection: Connection, which: tuple[str, str]) -> bool:
    id, key_id = which
    condition = (responses.c.id == id) & (responses.c.key_id == key_id)
    return bool(connection.execute(delete(responses).where(condition)).rowcount)


def _kept(row: Row[Any]) -> KeptResponse:
    try:
        body = _BODY.decode(row.body)
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"response {row.id} cannot be read: {error}; delete it (DELETE /v1/responses/{row.id})"
        ) from error
    return KeptResponse(
        id=row.id,
        key_id=row.key_id,
        run_id=row.run_id,
        status=row.status,
        items=bytes(body.items),
        response=bytes(body.response),
        previous_id=row.previous_id,
    )
