"""Many callers, one writer: shared commits, separate failures, and the promise of a commit."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from dirigent.errors import StoreError
from dirigent.store import Store, writer
from dirigent.store.engine import open_engine, writing
from dirigent.store.traces import INSERT_ROW, to_row
from dirigent.store.writer import Writer
from tests.facts import facts, says
from tests.store.conftest import PostgreSQL
from tests.store.samples import a_trace, busy_writer


async def test_500_saves_at_once_share_a_few_commits(url: str):
    async with Store.open(url) as store:
        await asyncio.gather(*(store.save(a_trace(f"{n:03}")) for n in range(500)))
        assert len(await store.list(limit=None)) == 500
        assert store.commits <= 50


async def test_no_commit_holds_more_pieces_than_its_bound(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer, "MAX_BATCH", 10)
    sizes: list[int] = []
    commit = Writer._commit

    def noted(self: Writer, jobs: Sequence[Any]) -> None:
        sizes.append(len(jobs))
        commit(self, jobs)

    monkeypatch.setattr(Writer, "_commit", noted)
    async with Store.open(url) as store:
        write = store.write(lambda *_: None, prepare=lambda: None)
        await asyncio.gather(write, *(store.save(a_trace(f"{n:03}")) for n in range(34)))
        assert len(await store.list(limit=None)) == 34
    assert sizes == [10, 10, 10, 5]


async def test_a_piece_of_work_that_fails_takes_no_neighbour_with_it(url: str):
    def spoil(_connection: object, _prepared: None) -> None:
        raise ZeroDivisionError("mine alone")

    async with Store.open(url) as store:
        with busy_writer(store):
            pieces = [
                store.save(a_trace("a")),
                store.write(spoil, prepare=lambda: None),
                store.save(a_trace("b")),
            ]
            together = asyncio.gather(*pieces, return_exceptions=True)
            await asyncio.sleep(0)
        first, spoilt, last = await together
        assert (first, last) == (None, None)
        assert isinstance(spoilt, ZeroDivisionError)
        assert [row.id for row in await store.list()] == ["b", "a"]


async def test_a_statement_the_database_refuses_takes_no_neighbour_with_it(url: str):
    async with Store.open(url) as store:
        with busy_writer(store):
            wrong = store.write(
                lambda connection, _: connection.execute(text("INSERT INTO traces (id) VALUES ('x')")),
                prepare=lambda: None,
            )
            together = asyncio.gather(store.save(a_trace("a")), wrong, return_exceptions=True)
            await asyncio.sleep(0)
        kept, refused = await together
        assert kept is None
        assert isinstance(refused, StoreError)
        assert [row.id for row in await store.list()] == ["a"]


def insert_trace(id: str) -> dict[str, object]:
    return to_row(a_trace(id))


async def test_work_that_may_wait_shares_the_next_commit(url: str):
    async with Store.open(url) as store:
        before = store.commits
        early = store.write_soon(INSERT_ROW, prepare=lambda: insert_trace("early"))
        await asyncio.sleep(0)
        assert store.commits == before
        await store.save(a_trace("next"))
        assert early.done()
        assert store.commits == before + 1
        assert {row.id for row in await store.list()} == {"early", "next"}


async def test_work_that_may_wait_is_committed_within_its_bound(url: str):
    async with Store.open(url) as store:
        await asyncio.wait_for(store.write_soon(INSERT_ROW, prepare=lambda: insert_trace("alone")), 5)
        assert [row.id for row in await store.list()] == ["alone"]


async def test_work_of_an_ended_loop_delays_no_other(url: str):
    async def leave() -> None:
        store.write_soon(INSERT_ROW, prepare=lambda: insert_trace("left"))

    async with Store.open(url) as store:
        await asyncio.to_thread(asyncio.run, leave())
        await asyncio.wait_for(store.write_soon(INSERT_ROW, prepare=lambda: insert_trace("next")), 5)
        assert {row.id for row in await store.list()} == {"left", "next"}


async def test_waiting_work_is_committed_when_the_store_closes(url: str):
    async with Store.open(url) as store:
        waiting = store.write_soon(INSERT_ROW, prepare=lambda: insert_trace("last"))
    await waiting
    with pytest.raises(StoreError, match=facts("closed")):
        store.write_soon(INSERT_ROW, prepare=lambda: insert_trace("later"))
    async with Store.open(url) as store:
        assert [row.id for row in await store.list()] == ["last"]


async def test_a_statement_of_the_hot_path_that_is_refused_takes_no_neighbour_with_it(url: str):
    async with Store.open(url) as store:
        spoilt = store.write_soon(INSERT_ROW, prepare=lambda: insert_trace("spoilt") | {"planner": None})
        await store.save(a_trace("whole"))
        with pytest.raises(StoreError, match=r"NOT NULL|not-null"):
            await spoilt
        assert [row.id for row in await store.list()] == ["whole"]


async def test_a_save_is_carried_out_even_if_its_caller_is_cancelled(url: str):
    async with Store.open(url) as store:
        with busy_writer(store):
            saving = asyncio.ensure_future(store.save(a_trace()))
            await asyncio.sleep(0)
            saving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await saving
    async with Store.open(url) as store:
        assert await store.get("7f3a0000") == a_trace()


async def test_a_closed_store_has_committed_earlier_work_and_refuses_later(url: str):
    async with Store.open(url) as store:
        with busy_writer(store):
            saving = [asyncio.ensure_future(store.save(a_trace(f"{n}"))) for n in range(300)]
            await asyncio.sleep(0)
    await asyncio.gather(*saving)
    with pytest.raises(StoreError, match=facts("closed")):
        await store.save(a_trace("late"))
    async with Store.open(url) as store:
        assert len(await store.list(limit=None)) == 300


async def test_a_locked_store_gives_up_after_its_bound_and_never_holds_up_the_event_loop(url: str):
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async with Store.open(url, wait_s=0.3) as store:
        ticking = asyncio.ensure_future(tick())
        with lock(url):
            together = (store.save(a_trace("a")), store.save(a_trace("b")))
            outcomes = await asyncio.gather(*together, return_exceptions=True)
            assert await store.list() == []
        ticking.cancel()
        assert all(isinstance(outcome, StoreError) and "lock" in str(outcome) for outcome in outcomes), outcomes
        assert ticks >= 5
        await store.save(a_trace("after"))
        assert [row.id for row in await store.list()] == ["after"]


@pytest.mark.system
async def test_a_hanging_database_makes_no_caller_wait_and_work_not_begun_is_never_done(
    postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writer, "SILENT_S", 0.5)
    async with Store.open(postgresql.new_schema()) as store:
        await store.save(a_trace("before"))
        with postgresql.hanging():
            begun = asyncio.ensure_future(store.save(a_trace("begun")))
            await asyncio.sleep(0.1)
            left = asyncio.ensure_future(store.save(a_trace("left")))
            await asyncio.sleep(0.1)
            left.cancel()
            soon = store.write_soon(INSERT_ROW, prepare=partial(to_row, a_trace("soon")))
            waiting = [begun, asyncio.ensure_future(store.save(a_trace("queued"))), soon]
            outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
            at_once = await asyncio.gather(store.save(a_trace("later")), return_exceptions=True)
        assert [type(outcome) for outcome in (*outcomes, *at_once)] == [StoreError] * 4
        assert says(str(at_once[0]), "0.5")
        for _ in range(200):
            try:
                await store.save(a_trace("after"))
                break
            except StoreError:
                await asyncio.sleep(0.05)
        kept = {row.id for row in await store.list(limit=None)}
    assert kept - {"begun"} == {"before", "left", "after"}, "who left was told nothing, and is on the record"


async def test_a_lock_let_go_in_time_costs_only_the_wait(url: str):
    async with Store.open(url, wait_s=30) as store:
        with lock(url):
            saving = asyncio.ensure_future(store.save(a_trace()))
            done, _ = await asyncio.wait([saving], timeout=0.1)
            assert not done
        await saving


def test_acknowledged_work_survives_a_kill(url: str):
    """SIGKILL in the midst of saves: every id that was printed, and so committed, is there afterwards."""
    with subprocess.Popen([sys.executable, "-c", SAVER, url], stdout=subprocess.PIPE, text=True) as saver:
        assert saver.stdout is not None
        acknowledged = [saver.stdout.readline() for _ in range(200)]
        saver.kill()
        acknowledged += [line for line in saver.stdout if line.endswith("\n")]
    assert saver.returncode == -signal.SIGKILL

    async def saved() -> set[str]:
        async with Store.open(url) as store:
            return {trace.id async for trace in store.export()}

    assert {line.strip() for line in acknowledged} <= asyncio.run(saved())


SAVER = """
import asyncio, itertools, sys
from dirigent.store import Store, writer
from tests.store.samples import a_trace

async def save_for_ever(store, ids):
    for id in ids:
        await store.save(a_trace(id))
        print(id, flush=True)

async def main():
    async with Store.open(sys.argv[1]) as store:
        ids = (f"{n:06}" for n in itertools.count())
        await asyncio.gather(*(save_for_ever(store, ids) for _ in range(8)))

asyncio.run(main())
"""


@contextmanager
def lock(url: str) -> Iterator[None]:
    """Another program that writes and takes its time."""
    engine = open_engine(url, wait_s=5)
    with closing(writing(engine).connect()) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(text("LOCK TABLE traces IN EXCLUSIVE MODE"))
        yield
    engine.dispose()
