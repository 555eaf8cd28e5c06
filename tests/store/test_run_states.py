"""Unfinished runs: one process has each, and the next process resumes from its last state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from sqlalchemy import update

from dirigent.errors import StoreError
from dirigent.limits import Quote
from dirigent.store import Store, run_states
from dirigent.store.keys import LOCAL_ADMIN
from dirigent.store.ledger import StoreLedger
from dirigent.store.process_id import own_name
from dirigent.store.run_states import FORMAT, RunRow
from dirigent.store.tables import run_states as rows
from dirigent.store.traces import run_keys
from tests.facts import facts
from tests.store.samples import a_trace

LONG_AGO = "2020-01-01T00:00:00.000000Z"
NOT_HERE = "elsewhere/1/1"


class Body(msgspec.Struct, frozen=True):
    text: str


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    async with Store.open(url) as opened:
        yield opened


async def change(store: Store, **values: Any) -> None:
    await store.write(
        lambda connection, _: connection.execute(update(rows).values(**values)).rowcount, prepare=lambda: None
    )


async def found(store: Store, run_id: str = "r") -> RunRow:
    row = await run_states.find(store, run_id)
    assert row is not None
    return row


async def test_the_last_written_state_is_found(store: Store) -> None:
    await run_states.begin(store, "r", key_id="k", body=Body("one"))
    await run_states.journal(store, "r", body=Body("two"))
    row = await found(store)
    assert (row.key_id, row.state, row.owner, row.read(Body)) == ("k", "running", own_name(), Body("two"))
    assert row.created_at < row.updated_at
    assert await run_states.find(store, "other") is None


async def test_a_process_cannot_write_anothers_run(store: Store) -> None:
    await run_states.begin(store, "r", key_id="k", body=Body("one"))
    await change(store, owner=NOT_HERE)
    with pytest.raises(StoreError, match=facts("r")):
        await run_states.journal(store, "r", body=Body("two"))
    await run_states.hand_over(store, "r", body=Body("three"))
    assert (await found(store)).read(Body) == Body("one")


async def test_a_pause_keeps_trace_and_state_together_and_an_end_takes_the_states_place(store: Store) -> None:
    waiting = a_trace("r", status="waiting")
    await run_states.pause(store, waiting, key_id="k", body=Body("one"))
    assert ((await found(store)).state, (await store.get("r")).status) == ("waiting", "waiting")
    await run_states.end(store, a_trace("r", status="done"))
    assert (await store.get("r")).status == "done"
    assert await run_states.find(store, "r") is None


async def test_the_owner_of_a_run_stays_with_its_trace_in_every_ending(store: Store) -> None:
    await run_states.pause(store, a_trace("r", status="waiting"), key_id="k", body=Body("one"))
    assert await run_keys(store, "r") == {"k"}
    await run_states.keep_trace(store, a_trace("r", status="failed"))
    assert await run_keys(store, "r") == {"k"}
    await run_states.end(store, a_trace("r", status="done"))
    assert await run_keys(store, "r") == {"k"}
    assert await run_keys(store, "other") == frozenset()


async def test_only_one_of_many_processes_takes_a_waiting_run(store: Store) -> None:
    await run_states.pause(store, a_trace("r", status="waiting"), key_id="k", body=Body("one"))
    row = await found(store)
    won = await asyncio.gather(*(run_states.take(store, row) for _ in range(20)))
    assert sum(won) == 1
    assert ((await found(store)).state, (await found(store)).owner) == ("running", own_name())
    await run_states.give_back(store, "r")
    assert (await found(store)).state == "waiting"


async def test_a_state_taken_by_another_process_since_the_read_is_not_dropped(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run_states.pause(store, a_trace("r", status="waiting"), key_id="k", body=Body("one"))
    read = await found(store)
    assert await run_states.take(store, read)
    with monkeypatch.context() as patch:
        patch.setattr(run_states, "_rows", lambda _connection, _condition: [read])
        with pytest.raises(StoreError, match=facts("r")):
            await store.write(run_states.drop, prepare=lambda: "r")
    assert (await found(store)).mine


async def test_runs_of_dead_silent_and_leaving_processes_are_orphans(store: Store) -> None:
    await run_states.begin(store, "r", key_id="k", body=Body("one"))
    assert await run_states.orphans(store) == []
    dead = own_name().rsplit("/", 1)[0] + "/1"
    for values in ({"owner": dead}, {"owner": ""}, {"owner": NOT_HERE, "updated_at": LONG_AGO}):
        await change(store, **values)
        assert [row.run_id for row in await run_states.orphans(store)] == ["r"], values
    await change(store, state="waiting")
    assert await run_states.orphans(store) == []


async def test_a_beat_touches_its_runs_and_returns_those_to_stop(store: Store) -> None:
    for run_id in ("a", "b", "c"):
        await run_states.begin(store, run_id, key_id="k", body=Body(run_id))
    await change(store, updated_at=LONG_AGO)
    assert await run_states.cancel(store, "a", key_id="k")
    assert not await run_states.cancel(store, "b", key_id="other")
    assert await run_states.beat(store, {"a", "b"}) == ["a"]
    touched = {id for id in ("a", "b", "c") if (await found(store, id)).updated_at > LONG_AGO}
    assert touched == {"a", "b"}
    with pytest.raises(StoreError):
        await run_states.journal(store, "a", body=Body("more"))


async def test_runs_that_waited_too_long_are_forgotten_and_running_ones_are_not(store: Store) -> None:
    await run_states.pause(store, a_trace("w", status="waiting"), key_id="k", body=Body("one"))
    await run_states.begin(store, "r", key_id="k", body=Body("two"))
    assert await run_states.prune(store, older_than_s=3600) == 0
    await change(store, updated_at=LONG_AGO)
    assert await run_states.prune(store, older_than_s=3600) == 1
    assert await run_states.find(store, "w") is None
    assert await run_states.find(store, "r") is not None


async def test_a_body_of_another_version_or_a_damaged_one_is_an_error_that_names_the_run(store: Store) -> None:
    await run_states.begin(store, "r", key_id="k", body=Body("one"))
    await change(store, format=99)
    with pytest.raises(StoreError, match=facts("r 99")):
        (await found(store)).read(Body)
    await change(store, format=1)
    with pytest.raises(StoreError, match=facts("r 1")):
        (await found(store)).read(Body)
    assert (await found(store)).salvage(Body) == Body("one")
    await change(store, format=FORMAT, body=b"nonsense")
    with pytest.raises(StoreError, match=facts("r")):
        (await found(store)).read(Body)


async def test_text_that_no_database_holds_is_mended_and_keys_are_masked(store: Store) -> None:
    await run_states.begin(store, "r", key_id="k", body=Body("half \ud83d and sk-" + "a1b2c3d4" * 4))
    text = (await found(store)).read(Body).text
    assert text.startswith("half ")
    assert "a1b2c3d4" not in text


async def test_the_ledger_lists_the_calls_of_a_run(store: Store) -> None:
    ledger = StoreLedger(store, caller=LOCAL_ADMIN, run_id="r")
    quote = Quote("alpha", 0.5, 0.0, 100)
    hold = await ledger.reserve(quote)
    ledger.settle(hold, cost_usd=0.25, output_tokens=7)
    await ledger.reserve(quote)
    calls = await run_states.paid_calls(store, "r")
    assert [(call.worker, call.cost_nusd, call.output_tokens) for call in calls] == [("alpha", 250_000_000, 7)]
