"""Responses that were kept: to be read again, to be gone on from, and, in the background, to be finished later.

A row holds a response's own items and the response itself, as JSON that the server wrote and reads; what came
before it is in the rows that `previous_id` leads back to. Rows belong to one key: to every other they do not
exist. Strings pass through `redact` here, the last door before the disk.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw
from sqlalchemy import Connection, Row, delete, insert, select, update

from dirigent.errors import StoreError
from dirigent.store import Store
from dirigent.store.tables import responses
from dirigent.store.timestamps import now, utc_text
from dirigent.workers.secret import may_hold_key, redact

UNFINISHED = ("queued", "in_progress")


class KeptResponse(msgspec.Struct, frozen=True):
    """A row."""

    id: str
    key_id: str
    run_id: str
    status: str
    items: bytes
    """JSON: what the request itself said, without what came before it."""
    response: bytes
    """JSON: the response as it stands."""
    previous_id: str | None = None


class Chain(msgspec.Struct, frozen=True):
    """A response and all it goes on from, the oldest first."""

    links: tuple[KeptResponse, ...]
    missing_id: str = ""
    """A link that is not there (any more): the chain cannot be gone on from."""
    too_long: bool = False
    """It holds more than was asked for; no link is given."""


async def keep_response(store: Store, kept: KeptResponse) -> None:
    """Keep a new response. Returns when it is committed."""
    await store.write(_insert, prepare=lambda: _row(kept))


async def finish_response(store: Store, kept: KeptResponse) -> bool:
    """Put the end in the place of an unfinished response. False: it had ended already, or is gone."""
    return await store.write(_finish, prepare=lambda: _row(kept))


async def find_response(store: Store, id: str, *, key_id: str) -> KeptResponse | None:
    """The response with this id, if it is this key's."""
    return await store.read(lambda connection: _find(connection, id, key_id))


async def find_chain(store: Store, id: str, *, key_id: str, most_bytes: int) -> Chain:
    """The response with this id, and what it goes on from."""
    return await store.read(lambda connection: _chain(connection, id, key_id, most_bytes))


async def delete_response(store: Store, id: str, *, key_id: str) -> bool:
    """Forget a response. False: there is none."""
    return await store.write(_delete, prepare=lambda: (id, key_id))


class _Body(msgspec.Struct, frozen=True):
    items: Raw
    response: Raw


_BODY = msgspec.json.Decoder(_Body)
"""Made here for the reason that is given in `traces.py`."""


def _row(kept: KeptResponse) -> dict[str, Any]:
    at = utc_text(now())
    return {
        "id": kept.id,
        "key_id": kept.key_id,
        "run_id": kept.run_id,
        "previous_id": kept.previous_id,
        "status": kept.status,
        "created_at": at,
        "updated_at": at,
        "body": _without_secrets(msgspec.json.encode(_Body(Raw(kept.items), Raw(kept.response)))),
    }


def _without_secrets(body: bytes) -> bytes:
    """Nearly all hold nothing to hide, which one look at the JSON tells."""
    return msgspec.json.encode(_scrubbed(msgspec.json.decode(body))) if may_hold_key(body.decode()) else body


def _scrubbed(value: Any) -> Any:
    """String by string rather than over the JSON: there, an escaped line break hides where a key begins."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {name: _scrubbed(item) for name, item in value.items()}
    return [_scrubbed(item) for item in value] if isinstance(value, list) else value


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
        raise StoreError(f"response {row.id} cannot be read back: {error}; delete it to be rid of it") from error
    return KeptResponse(
        id=row.id,
        key_id=row.key_id,
        run_id=row.run_id,
        status=row.status,
        items=bytes(body.items),
        response=bytes(body.response),
        previous_id=row.previous_id,
    )
