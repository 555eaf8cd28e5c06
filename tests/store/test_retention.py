"""Retention: old runs are deleted, by their key's days or the server's; the ledger and the audit log stay."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from sqlalchemy import func, insert, select, update

from dirigent.errors import ConfigError, StoreError
from dirigent.limits import Quote
from dirigent.store import Store, audit, retention
from dirigent.store.comparisons import Side, add_comparison, find_comparison
from dirigent.store.feedback import Verdict, add_feedback, feedback_of
from dirigent.store.keys import Caller, create_key
from dirigent.store.ledger import StoreLedger, usage
from dirigent.store.process_id import own_name
from dirigent.store.responses import KeptResponse, keep_response
from dirigent.store.retention import Pruned, forget, prune
from dirigent.store.run_states import pause
from dirigent.store.tables import feedback, idempotency, keys, now, responses, run_states, traces, utc_text
from tests.facts import facts, says
from tests.store.samples import a_trace

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIRIGENT_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.delenv("DIRIGENT_PEPPER", raising=False)


def ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


async def keep(store: Store, id: str, *, caller: Caller | None, days: float) -> None:
    """A run of this age, paid for by this key."""
    if caller is not None:
        ledger = StoreLedger(store, caller=caller, run_id=id, clock=lambda: ago(days))
        ledger.settle(await ledger.reserve(Quote("w", 0.01, 0.0, 10)), cost_usd=0.01, output_tokens=1)
    await store.save(a_trace(id, created_at=ago(days).isoformat()))


async def ids(store: Store) -> set[str]:
    return {row.id for row in await store.list(limit=None)}


async def test_runs_go_by_the_days_of_their_key_and_others_by_everybodys(url: str) -> None:
    async with Store.open(url) as store:
        short = (await create_key(store, Caller(label="short", retention_days=2))).row.caller
        long = (await create_key(store, Caller(label="long", retention_days=90))).row.caller
        plain = (await create_key(store, Caller(label="plain"))).row.caller
        for name, caller in (("short", short), ("long", long), ("plain", plain), ("nobody", None)):
            for days in (1, 10, 50, 100):
                await keep(store, f"{name}-{days}", caller=caller, days=days)
        pruned = await prune(store, days=30, at=NOW)
        assert pruned == Pruned(traces=3 + 1 + 2 + 2)
        left = {"short-1", "long-1", "long-10", "long-50", "plain-1", "plain-10", "nobody-1", "nobody-10"}
        assert await ids(store) == left
        assert await prune(store, days=30, at=NOW) == Pruned()


async def test_without_days_for_everybody_only_keys_with_their_own_lose_runs(url: str) -> None:
    async with Store.open(url) as store:
        short = (await create_key(store, Caller(label="short", retention_days=2))).row.caller
        await keep(store, "mine", caller=short, days=3)
        await keep(store, "others", caller=None, days=1000)
        assert (await prune(store, days=None, at=NOW)).traces == 1
        assert await ids(store) == {"others"}


async def test_a_run_without_calls_follows_the_retention_of_its_key(url: str) -> None:
    async with Store.open(url) as store:
        short = (await create_key(store, Caller(label="short", retention_days=2))).row.caller
        long = (await create_key(store, Caller(label="long", retention_days=90))).row.caller
        plain = (await create_key(store, Caller(label="plain"))).row.caller
        for name, caller in (("short", short), ("long", long), ("plain", plain)):
            for days in (1, 10, 50, 100):
                await store.save(a_trace(f"{name}-{days}", created_at=ago(days).isoformat()), key_id=caller.key_id)
        assert await prune(store, days=None, at=NOW) == Pruned(traces=3 + 1)
        assert await prune(store, days=30, at=NOW) == Pruned(traces=2)
        assert await ids(store) == {"short-1", "long-1", "long-10", "long-50", "plain-1", "plain-10"}


async def test_a_key_from_before_the_bound_on_days_keeps_no_runs_longer(url: str) -> None:
    async with Store.open(url) as store:
        key_id = (await create_key(store, Caller(label="for ever", retention_days=1))).row.caller.key_id
        caller = Caller(key_id, label="for ever", retention_days=1_000_000)
        kept = update(keys).values(caller=msgspec.json.encode(caller).decode())
        await store.write(lambda connection, _: connection.execute(kept).rowcount, prepare=lambda: None)
        await keep(store, "its own", caller=caller, days=1000)
        await keep(store, "others", caller=None, days=1000)
        assert (await prune(store, days=30, at=NOW)).traces == 1
        assert await ids(store) == {"its own"}


async def test_feedback_is_deleted_with_its_run_however_late_it_came(url: str) -> None:
    async with Store.open(url) as store:
        caller = (await create_key(store, Caller(label="a"))).row.caller
        for id, days in (("old", 50), ("young", 20)):
            await keep(store, id, caller=caller, days=days)
            assert await add_feedback(store, Verdict(id, caller.key_id, 1.0, "what I asked for")) == "kept"
        assert await prune(store, days=30, at=NOW) == Pruned(traces=1, feedback=1)
        assert await feedback_of(store, "old") == []
        assert len(await feedback_of(store, "young")) == 1


async def test_all_rows_of_a_run_are_deleted_with_it(url: str) -> None:
    old, young = utc_text(ago(40)), utc_text(ago(1))
    async with Store.open(url) as store:
        rows = []
        for at in (old, young):
            state = {"key_id": "k", "owner": "o", "created_at": at, "updated_at": at, "format": 1, "body": b""}
            response = {"key_id": "k", "status": "completed", "created_at": at, "updated_at": at, "body": b""}
            rows += [
                (run_states, state | {"run_id": f"w{at}", "state": "waiting"}),
                (run_states, state | {"run_id": f"r{at}", "state": "running"}),
                (responses, response | {"id": at, "run_id": at}),
                (feedback, {"run_id": at, "key_id": "k", "score": 1.0, "comment": "", "created_at": at}),
            ]
        for name, days in (("new", 0.5), ("old", 1.5)):
            claim = {"key_id": "k", "name": name, "digest": "d", "owner": "o", "created_at": utc_text(ago(days))}
            rows.append((idempotency, claim))
        for table, row in rows:
            await store.write(lambda c, work: c.execute(insert(work[0]), work[1]), prepare=lambda w=(table, row): w)
        pruned = await prune(store, days=30, at=NOW)
        assert pruned == Pruned(responses=1, feedback=1, run_states=1, idempotency=1)
        running = select(func.count()).select_from(run_states).where(run_states.c.state == "running")
        assert await store.read(lambda c: c.scalar(running)) == 2, "a running run is not deleted"


async def keep_reply(store: Store, name: str, *, run_id: str | None, days: float, key_id: str = "k") -> None:
    """A reply of this age under an Idempotency-Key."""
    at = utc_text(ago(days))
    row = {"key_id": key_id, "name": name, "digest": "d", "owner": "o", "created_at": at, "run_id": run_id}
    given = {"status": 200, "headers": "[]", "body": b"what I was told"}
    await store.write(lambda c, _: c.execute(insert(idempotency), row | given).rowcount, prepare=lambda: None)


async def replies(store: Store) -> set[str]:
    return set(await store.read(lambda connection: connection.scalars(select(idempotency.c.name)).all()))


async def test_a_stored_reply_is_deleted_with_its_run_however_late_it_came(url: str) -> None:
    async with Store.open(url) as store:
        short = (await create_key(store, Caller(label="short", retention_days=2))).row.caller
        for id, caller, days in (("old", None, 50), ("young", None, 20), ("short", short, 3)):
            await keep(store, id, caller=caller, days=days)
            for tool_results in (1, 2):  # of a run that waited for them for long
                await keep_reply(store, f"{id}-{tool_results}", run_id=id, days=0.1)
        assert await prune(store, days=30, at=NOW) == Pruned(traces=2, idempotency=4)
        assert await replies(store) == {"young-1", "young-2"}


async def test_replies_are_kept_no_longer_than_runs_of_less_than_a_day(url: str) -> None:
    async with Store.open(url) as store:
        long = (await create_key(store, Caller(label="long", retention_days=90))).row.caller
        for id, caller, days in (("old", None, 0.7), ("young", None, 0.3), ("long", long, 0.7)):
            await keep(store, id, caller=caller, days=days)
            key_id = caller.key_id if caller is not None else "k"
            await keep_reply(store, id, run_id=id, days=days, key_id=key_id)
            await keep_reply(store, f"dry run, {id}", run_id=None, days=days, key_id=key_id)
        at = utc_text(ago(0.7))
        claim = {"key_id": "k", "name": "under way", "digest": "d", "owner": "o", "created_at": at}
        await store.write(lambda c, _: c.execute(insert(idempotency), claim).rowcount, prepare=lambda: None)
        assert await prune(store, days=0.5, at=NOW) == Pruned(traces=1, idempotency=2)
        assert await replies(store) == {"young", "dry run, young", "long", "dry run, long", "under way"}


async def test_a_run_stays_if_its_stored_replies_cannot_be_deleted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise StoreError("the disk is full")

    monkeypatch.setattr(retention, "forget_replies", fail)
    async with Store.open(url) as store:
        await keep(store, "run", caller=None, days=50)
        for deleting in (prune(store, days=30, at=NOW), forget(store, "run", actor="cli")):
            with pytest.raises(StoreError, match="the disk is full"):
                await deleting
            assert await ids(store) == {"run"}


async def test_the_ledger_stays_and_the_audit_log_records_the_deletion(url: str) -> None:
    async with Store.open(url) as store:
        caller = (await create_key(store, Caller(label="a"))).row.caller
        await keep(store, "old", caller=caller, days=50)
        before = await usage(store)
        await prune(store, days=30, at=NOW)
        assert await usage(store) == before
        rows = [row async for row in audit.export(store)]
        assert [(row.actor, row.action) for row in rows[1:]] == [("retention", "retention.prune")]
        details = msgspec.json.decode(rows[1].details)
        assert (details["traces"], details["older_than_days"]) == (1, 30)
        assert not (await audit.verify(store)).problem
        await prune(store, days=30, at=NOW)
        assert len([row async for row in audit.export(store)]) == 2, "nothing deleted, nothing to tell"


async def test_many_runs_go_in_small_commits(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 3)
    async with Store.open(url) as store:
        for i in range(10):
            await keep(store, f"run-{i}", caller=None, days=50)
        commits = store.commits
        assert (await prune(store, days=30, at=NOW)).traces == 10
        assert store.commits - commits >= 4


@pytest.mark.parametrize("days", [0, -1, 1e9])
async def test_days_that_make_no_sense_delete_nothing(url: str, days: float) -> None:
    async with Store.open(url) as store:
        await keep(store, "run", caller=None, days=50)
        with pytest.raises(ConfigError, match=facts(f"36,500 {days:g}")):
            await prune(store, days=days)
        assert await ids(store) == {"run"}


async def test_forgetting_a_run_deletes_all_its_rows_in_one_commit_and_is_audited(url: str) -> None:
    async with Store.open(url) as store:
        caller = (await create_key(store, Caller(label="a"))).row.caller
        for id in ("mine", "other"):
            await keep_whole(store, id, caller)
        before, commits = await usage(store), store.commits
        sides = (Side("a", "mine"), Side("b", "another"))
        made = await add_comparison(store, key_id="mine", question="which?", runs=sides)
        commits = store.commits
        assert await forget(store, "mine", actor="cli") == Pruned(
            1, responses=2, feedback=1, run_states=1, idempotency=2, comparisons=1
        )
        assert await find_comparison(store, made.id, key_id=None) is None
        assert store.commits - commits == 1
        assert await left_of(store, "mine") == [0, 0, 0, 0, 0]
        assert await left_of(store, "other") == [1, 2, 1, 1, 2]
        assert await usage(store) == before, "money stays on record"
        *_, row = [row async for row in audit.export(store)]
        assert (row.actor, row.action) == ("cli", "trace.delete")
        told = {"run_id": "mine", "traces": 1, "responses": 2, "feedback": 1, "run_states": 1, "idempotency": 2}
        told |= {"comparisons": 1}
        assert msgspec.json.decode(row.details) == told, "and nothing of the request"
        assert not (await audit.verify(store)).problem


@pytest.mark.parametrize("state", ["running", "cancelling"])
async def test_a_run_that_is_being_carried_out_is_not_forgotten(url: str, state: str) -> None:
    async with Store.open(url) as store:
        caller = (await create_key(store, Caller(label="a"))).row.caller
        await keep_whole(store, "run", caller)
        held = update(run_states).values(state=state, owner=own_name(), updated_at=utc_text(now()))
        await store.write(lambda connection, _: connection.execute(held).rowcount, prepare=lambda: None)
        with pytest.raises(StoreError, match=facts("run POST /v1/responses/ID/cancel")):
            await forget(store, "run", actor="cli")
        assert await left_of(store, "run") == [1, 2, 1, 1, 2]
        assert [row.action async for row in audit.export(store)] == ["key.create"]
        left = update(run_states).values(owner=own_name().rsplit("/", 1)[0] + "/1")  # its process is dead
        await store.write(lambda connection, _: connection.execute(left).rowcount, prepare=lambda: None)
        await forget(store, "run", actor="cli")
        assert await left_of(store, "run") == [0, 0, 0, 0, 0]


async def test_a_run_that_is_not_there_is_not_forgotten_twice(url: str) -> None:
    async with Store.open(url) as store:
        await keep(store, "run", caller=None, days=1)
        outcomes = await asyncio.gather(*(forget(store, "run", actor="cli") for _ in range(3)), return_exceptions=True)
        assert sum(isinstance(outcome, Pruned) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, StoreError) and says(str(outcome), "run") for outcome in outcomes) == 2
        assert [row.action async for row in audit.export(store)] == ["trace.delete"]


async def keep_whole(store: Store, id: str, caller: Caller) -> None:
    """A run that waits, with its ledger, a trace, two responses, a verdict and two replies under Idempotency-Keys."""
    await keep(store, id, caller=caller, days=1)
    for number in (1, 2):
        await keep_response(store, KeptResponse(f"{id}-{number}", caller.key_id, id, "completed", b"[]", b"{}"))
        await keep_reply(store, f"{id}-{number}", run_id=id, days=0.1)
    await add_feedback(store, Verdict(id, caller.key_id, 1.0, "what I asked for"))
    await pause(store, a_trace(id, status="waiting"), key_id=caller.key_id, body=Pruned())


async def left_of(store: Store, id: str) -> list[int]:
    """How many traces, responses, verdicts, states and kept replies there are of a run."""
    columns = (traces.c.id, *(table.c.run_id for table in (responses, feedback, run_states, idempotency)))
    queries = [select(func.count()).where(column == id) for column in columns]
    return await store.read(lambda connection: [connection.execute(query).scalar_one() for query in queries])
