"""Commits on the spot: they are whole, and work that would have to wait is left to the thread."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text

from dirigent.store import Store, statement
from dirigent.store.engine import open_engine
from dirigent.store.statement import AtOnce, Piece
from dirigent.store.traces import INSERT_ROW, to_row
from tests.store.samples import a_trace, busy_writer


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[AtOnce, Store]]:
    async with Store.open(folder / "traces.db") as store:
        engine = open_engine(folder / "traces.db", wait_s=5.0)
        quick = AtOnce(engine)
        try:
            yield quick, store
        finally:
            quick.close()
            engine.dispose()


def kept(id: str) -> Piece:
    return INSERT_ROW, partial(to_row, a_trace(id))


async def ids(store: Store) -> list[str]:
    return sorted(row.id for row in await store.list(limit=None))


async def test_pieces_that_need_no_waiting_are_committed_together(tmp_path: Path):
    async with opened(tmp_path) as (quick, store):
        outcomes = quick.committed([kept("a"), kept("b")])
        assert outcomes is not None
        assert len(outcomes) == 2
        assert await ids(store) == ["a", "b"]


async def test_a_lock_of_another_process_is_not_waited_for(tmp_path: Path):
    async with opened(tmp_path) as (quick, store):
        assert quick.committed([kept("a")]) is not None
        with closing(sqlite3.connect(tmp_path / "traces.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert quick.committed([kept("b")]) is None
            other.execute("COMMIT")
        assert quick.committed([kept("c")]) is not None
        assert await ids(store) == ["a", "c"]


async def test_a_piece_that_fails_keeps_nothing_of_its_neighbours(tmp_path: Path):
    wrong: Piece = (INSERT_ROW, lambda: to_row(a_trace("b")) | {"body": None})
    async with opened(tmp_path) as (quick, store):
        assert quick.committed([kept("a"), wrong]) is None
        assert await ids(store) == []
        assert quick.committed([kept("c")]) is not None, "the next one finds a connection that works"
        assert await ids(store) == ["c"]


async def test_now_and_then_the_thread_gets_a_turn_to_carry_the_journal_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(statement, "PIECES", 3)
    async with opened(tmp_path) as (quick, _):
        done = [quick.committed([kept(str(n))]) is not None for n in range(8)]
        assert done == [True, True, True, False, True, True, True, False]


async def test_after_a_slow_commit_the_thread_does_the_next_ones_for_a_while(tmp_path: Path):
    now = 0.0

    def slow() -> dict[str, object]:
        nonlocal now
        now += 2 * statement.SLOW_S
        return to_row(a_trace("slow"))

    async with opened(tmp_path) as (quick, _):
        quick._clock = lambda: now
        assert quick.committed([(INSERT_ROW, slow)]) is not None
        assert quick.committed([kept("a")]) is None
        now += statement.REST_S
        assert quick.committed([kept("a")]) is not None


async def test_work_after_work_for_the_thread_keeps_its_order(tmp_path: Path):
    async with Store.open(tmp_path / "traces.db") as store:
        with busy_writer(store):
            first = store.write_soon(lambda c, _: c.execute(text("DELETE FROM traces")), prepare=lambda: None)
            second = store.write_soon(INSERT_ROW, prepare=partial(to_row, a_trace("a")))
        await second
        assert first.done()
        assert await ids(store) == ["a"]


async def test_the_journal_does_not_grow_without_end(tmp_path: Path):
    async with Store.open(tmp_path / "traces.db") as store:
        for n in range(900):
            await store.save(a_trace(f"{n:04}"))
        assert (tmp_path / "traces.db-wal").stat().st_size < 16 * 1024 * 1024
