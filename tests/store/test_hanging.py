"""One connection hangs while the database works for all others: no caller waits for ever, and no money is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from sqlalchemy import Connection, event, select, text
from sqlalchemy.exc import OperationalError

from dirigent.errors import StoreError
from dirigent.limits import Quote
from dirigent.store import Store, writer
from dirigent.store import ledger as books
from dirigent.store import postgres_timeouts as hanging
from dirigent.store.engine import open_engine, writing
from dirigent.store.keys import Caller
from dirigent.store.ledger import StoreLedger, usage
from dirigent.store.postgres_timeouts import patiently
from dirigent.store.tables import attempts
from tests.facts import facts
from tests.store.conftest import PostgreSQL
from tests.store.samples import a_trace
from tests.torture.harness import eventually

pytestmark = pytest.mark.system

QUOTE = Quote("w", 0.5, 0.0, 10)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging, "HANGS_S", 0.5)
    monkeypatch.setattr(writer, "SILENT_S", 0.2)
    monkeypatch.setattr(books, "FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(books, "LONGEST_WAIT_S", 0.02)


@pytest.fixture
async def store(postgresql: PostgreSQL) -> AsyncIterator[Store]:
    async with Store.open(postgresql.new_schema()) as store:
        yield store


class Stopped:
    """The server's processes that were stopped, each behind one connection."""

    def __init__(self) -> None:
        self.processes: list[int] = []

    def stop(self, connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert driver is not None
        self.processes.append(driver.info.backend_pid)
        os.kill(self.processes[-1], signal.SIGSTOP)

    def go_on(self) -> None:
        while self.processes:
            os.kill(self.processes.pop(), signal.SIGCONT)


@pytest.fixture
def stopped() -> Iterator[Stopped]:
    stopped = Stopped()
    yield stopped
    stopped.go_on()


async def writes(store: Store) -> None:
    """Wait until the store writes again."""

    async def saved() -> bool:
        try:
            await store.save(a_trace("after"))
        except StoreError:
            return False
        return True

    assert await eventually(saved, within_s=10)


def at_next_commit(store: Store, act: Callable[[Connection], None]) -> None:
    """When everything of the next transaction that writes is done but its COMMIT, which is sent then."""
    event.listen(store._engine, "commit", act, once=True)


async def kept(store: Store) -> set[str]:
    return {row.id for row in await store.list(limit=None)}


async def test_a_writers_connection_that_hangs_for_good_is_given_up_and_others_write_on(
    store: Store, stopped: Stopped
) -> None:
    await store.save(a_trace("before"))
    at_next_commit(store, stopped.stop)
    with pytest.raises(StoreError, match=facts("0.2")):
        await store.save(a_trace("hung"))
    await writes(store)
    assert await kept(store) == {"before", "after"}
    stopped.go_on()

    async def committed() -> bool:
        return await kept(store) == {"before", "after", "hung"}

    assert await eventually(committed, within_s=10), "it had been told to commit: its caller was told nothing"


async def test_work_whose_connection_hung_before_its_commit_is_rolled_back(store: Store, stopped: Stopped) -> None:
    def insert_and_hang(connection: Connection, _: None) -> None:
        connection.execute(text("CREATE TABLE half (id INTEGER)"))
        stopped.stop(connection)
        connection.execute(text("INSERT INTO half VALUES (1)"))

    with pytest.raises(StoreError):
        await store.write(insert_and_hang, prepare=lambda: None)
    await writes(store)
    [hung] = stopped.processes
    stopped.go_on()
    alive = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")

    async def is_gone() -> bool:
        return await store.read(lambda connection: connection.scalar(alive, {"pid": hung})) == 0

    assert await eventually(is_gone, within_s=10)
    there = text("SELECT to_regclass('half')")
    assert await store.read(lambda connection: connection.scalar(there)) is None


@pytest.mark.parametrize("caller", [Caller("k"), Caller("k", budget_total_usd=100.0)], ids=["free", "budgeted"])
async def test_a_reservation_whose_commit_comes_after_all_is_withdrawn_then(
    store: Store, stopped: Stopped, caller: Caller
) -> None:
    ledger = StoreLedger(store, caller=caller, run_id="r")
    at_next_commit(store, stopped.stop)
    with pytest.raises(StoreError):
        await ledger.reserve(QUOTE)
    await writes(store)
    await asyncio.sleep(0.3)  # the withdrawal has been tried by now
    assert (await usage(store)).calls == 0
    stopped.go_on()
    states = select(attempts.c.state, attempts.c.cost_nusd)

    async def withdrawn() -> bool:
        return await store.read(lambda connection: connection.execute(states).all()) == [("settled", 0)]

    assert await eventually(withdrawn, within_s=10)
    await ledger.reserve(QUOTE)
    assert (await usage(store)).held_usd == 0.5


async def test_a_read_whose_connection_hangs_fails_and_the_next_one_gets_another(
    store: Store, stopped: Stopped
) -> None:
    def hang(connection: Connection) -> None:
        connection.execute(text("SELECT 1"))
        stopped.stop(connection)
        connection.execute(text("SELECT 1"))

    with pytest.raises(StoreError, match=facts("0.5")):
        await asyncio.wait_for(store.read(hang), 10)
    assert await store.list() == []


async def test_a_connection_that_hangs_in_the_pool_costs_a_wait_and_no_failure(store: Store, stopped: Stopped) -> None:
    await store.read(stopped.stop)
    assert await asyncio.wait_for(store.list(), 10) == []


async def test_reads_queued_behind_hanging_reads_fail_together(store: Store, postgresql: PostgreSQL) -> None:
    with postgresql.hanging():
        reads = [asyncio.ensure_future(store.list()) for _ in range(100)]
        outcomes = await asyncio.wait_for(asyncio.gather(*reads, return_exceptions=True), 60)
    assert {type(outcome) for outcome in outcomes} == {StoreError}


def test_a_migration_takes_as_long_as_it_takes(postgresql: PostgreSQL) -> None:
    engine = open_engine(postgresql.new_schema(), wait_s=5)
    slow = text("SELECT 'done' FROM pg_sleep(1)")
    with writing(engine).begin() as connection, patiently(connection):
        assert connection.scalar(slow) == "done"
    with pytest.raises(OperationalError, match=facts("0.5")), writing(engine).begin() as connection:
        connection.scalar(slow)
    engine.dispose()
