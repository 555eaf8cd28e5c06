"""Writes that a failing store refused are made when it answers again; nothing stays reserved for ever."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dirigent.errors import StoreError
from dirigent.limits import Quote
from dirigent.store import Store
from dirigent.store import ledger as books
from dirigent.store.keys import Caller
from dirigent.store.ledger import StoreLedger, usage
from tests.torture.harness import eventually

QUOTE = Quote("w", 0.5, 0.0, 10)
CALLERS = [Caller("k"), Caller("k", budget_total_usd=100.0)]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(books, "LONGEST_WAIT_S", 0.02)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another program holds the store."""
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        holder.execute("ROLLBACK")
        holder.close()


async def holds(store: Store, usd: float) -> bool:
    return (await usage(store)).held_usd == usd


@pytest.mark.parametrize("caller", CALLERS, ids=["free", "budgeted"])
async def test_a_settlement_that_the_store_failed_is_made_when_it_answers_again(tmp_path: Path, caller: Caller) -> None:
    async with Store.open(tmp_path / "x.db", wait_s=0.05) as store:
        ledger = StoreLedger(store, caller=caller, run_id="r")
        hold = await ledger.reserve(QUOTE)
        with locked(tmp_path / "x.db"):
            ledger.settle(hold, cost_usd=0.25, output_tokens=3)
            with pytest.raises(StoreError, match="locked"):
                await ledger.settled()
            assert (await usage(store)).held_usd == 0.5
        assert await eventually(lambda: holds(store, 0.0), within_s=20)
        spent = await usage(store)
        assert (spent.calls, spent.cost_usd, spent.output_tokens, spent.lost_calls) == (1, 0.25, 3, 0)


@pytest.mark.parametrize("caller", CALLERS, ids=["free", "budgeted"])
async def test_a_reservation_that_was_kept_and_yet_failed_is_withdrawn(
    tmp_path: Path, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Store.open(tmp_path / "x.db") as store:
        ledger = StoreLedger(store, caller=caller, run_id="r")
        other = await ledger.reserve(QUOTE)
        write = store.write

        async def cut_off(*arguments: Any, **more: Any) -> Any:
            await write(*arguments, **more)
            raise StoreError("the connection ended after the commit")

        with monkeypatch.context() as patch:
            patch.setattr(store, "write", cut_off)
            with pytest.raises(StoreError, match="ended after"):
                await ledger.reserve(QUOTE)
        assert await eventually(lambda: holds(store, 0.5), within_s=20)
        ledger.settle(other, cost_usd=0.1, output_tokens=1)
        await ledger.settled()
        spent = await usage(store)
        assert (spent.calls, spent.cost_usd, spent.held_usd) == (2, 0.1, 0.0)


async def test_a_store_that_is_closed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    with ExitStack() as lock:
        async with Store.open(tmp_path / "x.db", wait_s=0.05) as store:
            ledger = StoreLedger(store, caller=Caller("k"), run_id="r")
            hold = await ledger.reserve(QUOTE)
            lock.enter_context(locked(tmp_path / "x.db"))
            ledger.settle(hold, cost_usd=0.25, output_tokens=3)
            with pytest.raises(StoreError):
                await ledger.settled()
            with pytest.raises(StoreError):
                await ledger.reserve(QUOTE)
        await asyncio.sleep(0.1)  # work for a retry finds the store closed, and does not raise
    async with Store.open(tmp_path / "x.db") as store:
        assert await holds(store, 0.5), "the next start closes it: `reconcile`"
