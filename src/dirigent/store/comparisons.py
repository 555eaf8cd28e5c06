"""Comparisons: one question to several models, side by side, with a vote that is kept as feedback on each run."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial

import msgspec
from sqlalchemy import Connection, insert, select, update

from dirigent.store import Store
from dirigent.store.engine import insert_if_new
from dirigent.store.tables import comparisons, feedback, now, utc_text

PREVIEW_CHARS = 240


class Side(msgspec.Struct, frozen=True):
    """One run of a comparison."""

    model: str
    run_id: str


class Comparison(msgspec.Struct, frozen=True):
    id: str
    created_at: str
    question: str
    """Its beginning."""
    runs: tuple[Side, ...]
    vote: str | None = None
    """The id of the better run, `tie` (all are good) or `none` (none is); None without a vote."""


async def add_comparison(store: Store, *, key_id: str, question: str, runs: Sequence[Side]) -> Comparison:
    """Keep a comparison under a new id."""
    question = question[:PREVIEW_CHARS].replace("\0", "\ufffd")
    made = Comparison(secrets.token_hex(8), utc_text(now()), question, tuple(runs))
    row = msgspec.structs.asdict(made) | {"key_id": key_id, "runs": msgspec.json.encode(made.runs).decode()}

    def work(connection: Connection, row: dict[str, object]) -> None:
        connection.execute(insert(comparisons), row)

    await store.write(work, prepare=lambda: row)
    return made


async def list_comparisons(store: Store, *, key_id: str | None, limit: int) -> list[Comparison]:
    """The newest comparisons of a key; of all keys with None."""
    query = select(comparisons).order_by(comparisons.c.created_at.desc(), comparisons.c.id).limit(limit)
    if key_id is not None:
        query = query.where(comparisons.c.key_id == key_id)
    return await store.read(lambda connection: [_row(row) for row in connection.execute(query)])


async def find_comparison(store: Store, id: str, *, key_id: str | None) -> Comparison | None:
    """A comparison of this key; of any key with None."""
    return await store.read(partial(_find, id=id, key_id=key_id))


async def vote(store: Store, id: str, choice: str, *, key_id: str) -> Comparison | None:
    """Stores the vote, and its verdict on each run as feedback. Returns None if this key has no such comparison.

    A vote may be changed; feedback that was given stays.
    """
    return await store.write(_vote, prepare=lambda: (id, choice, key_id))


def _vote(connection: Connection, wanted: tuple[str, str, str]) -> Comparison | None:
    id, choice, key_id = wanted
    found = _find(connection, id, key_id)
    if found is None:
        return None
    connection.execute(update(comparisons).where(comparisons.c.id == id).values(vote=choice))
    for side in found.runs:
        verdict = {
            "run_id": side.run_id,
            "key_id": key_id,
            "score": float(choice in ("tie", side.run_id)),
            "comment": f"comparison {id}",
            "created_at": utc_text(now()),
        }
        insert_if_new(connection, feedback, verdict)
    return msgspec.structs.replace(found, vote=choice)


def _find(connection: Connection, id: str, key_id: str | None) -> Comparison | None:
    query = select(comparisons).where(comparisons.c.id == id)
    if key_id is not None:
        query = query.where(comparisons.c.key_id == key_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else _row(row)


def _row(row: object) -> Comparison:
    values = {name: getattr(row, name) for name in Comparison.__struct_fields__}
    return Comparison(**values | {"runs": _RUNS.decode(values["runs"])})


_RUNS = msgspec.json.Decoder(tuple[Side, ...])
