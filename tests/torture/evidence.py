"""The files that rows leave behind, kept until S5 has searched every byte of them.

    with keeping("F1"):                 # everything a server leaves in here is handed over
        ...
    for left in LEFT: ...               # folders, each with the secrets that must not be in it

A server hands over its folder when it ends: the database file, the log, every reply that a client got. Values of
the database are written out beside it once more, since traces are kept compressed there, where a search for bytes
would find nothing; and since a PostgreSQL store has no file here. Rows may run side by side: each keeps its own.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import mmap
import shutil
import tempfile
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import select

from dirigent.store import Store
from dirigent.store.tables import metadata

VALUES = "values"
"""The file with every value of every table."""


class Left(msgspec.Struct, frozen=True):
    """What one server of a row has left."""

    row: str
    folder: Path
    secrets: tuple[str, ...]


LEFT: list[Left] = []
KEPT: set[str] = set()
"""Rows that were to leave something."""

_row: contextvars.ContextVar[str] = contextvars.ContextVar("row", default="")


@contextlib.contextmanager
def keeping(row: str) -> Iterator[None]:
    """Keep what servers leave within, tasks that are started there included."""
    KEPT.add(row)
    token = _row.set(row)
    try:
        yield
    finally:
        _row.reset(token)


async def hand_over(folder: Path, *, store_url: str, secrets: tuple[str, ...]) -> None:
    """Keep a copy of a folder whose server has ended, if a row wants it."""
    if not _row.get():
        return
    kept = Path(tempfile.mkdtemp(prefix="dirigent-left-"))
    atexit.register(shutil.rmtree, kept, ignore_errors=True)
    shutil.copytree(folder, kept, dirs_exist_ok=True)
    with (kept / VALUES).open("wb") as values:
        async for of_table in values_of(store_url):
            values.write(of_table)
    LEFT.append(Left(_row.get(), kept, secrets))


async def values_of(store_url: str) -> AsyncIterator[bytes]:
    """Every value of each table, a line each, without compressed content."""
    async with Store.open(store_url) as store:
        for table in metadata.sorted_tables:
            rows = await store.read(lambda connection, table=table: connection.execute(select(table)).all())
            yield b"\n".join([_plain(value) for row in rows for value in row])


def _plain(value: Any) -> bytes:
    if not isinstance(value, bytes):
        return str(value).encode()
    with contextlib.suppress(zlib.error):
        return zlib.decompress(value)
    return value


def found_in(folder: Path, secrets: Iterable[str]) -> Iterator[str]:
    """The files of a folder that hold one of these, each once."""
    wanted = [secret.encode() for secret in secrets]
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or not path.stat().st_size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if any(content.find(secret) >= 0 for secret in wanted):
                yield str(path.relative_to(folder))


def size_of(folder: Path) -> int:
    """Bytes in it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
