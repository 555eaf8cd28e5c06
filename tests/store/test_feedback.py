"""Feedback and usage over both databases: one verdict a run and key, and sums that are the ledger's."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from dirigent.limits import Quote
from dirigent.store import PAGE, Store
from dirigent.store.feedback import Verdict, add_feedback, add_for_owner, export, feedback_of
from dirigent.store.keys import Caller
from dirigent.store.ledger import StoreLedger, usage
from dirigent.store.traces import run_keys
from dirigent.store.usage import GROUPS, usage_rows
from tests.store.samples import a_trace

A, B = Caller("a"), Caller("b")


async def pay(
    store: Store, caller: Caller, run_id: str, *, worker: str = "w", day: int = 15, settled: bool = True
) -> None:
    at = datetime(2026, 11, day, 12, tzinfo=UTC)
    ledger = StoreLedger(store, caller=caller, run_id=run_id, clock=lambda: at)
    hold = await ledger.reserve(Quote(worker, 0.1, 0.0, 10))
    if settled:
        ledger.settle(hold, cost_usd=0.0123456789, output_tokens=7)


async def test_of_many_verdicts_at_once_one_is_kept(url: str) -> None:
    async with Store.open(url) as store:
        await pay(store, A, "run")
        outcomes = await asyncio.gather(*(add_feedback(store, Verdict("run", "a", i / 10)) for i in range(10)))
        assert sorted(outcomes) == ["again"] * 9 + ["kept"]
        assert len(await feedback_of(store, "run")) == 1


async def test_an_export_has_every_run_once_with_all_verdicts_on_it(url: str) -> None:
    count = 2 * PAGE + 1
    async with Store.open(url) as store:
        await asyncio.gather(*(store.save(a_trace(f"run-{i}"), key_id="a") for i in range(count)))
        await pay(store, B, "run-7")
        for run, key in (("run-7", "a"), ("run-7", "b"), (f"run-{count - 1}", "a")):
            assert await add_feedback(store, Verdict(run, key, 0.5)) == "kept"
        exported = [(trace.id, [verdict.key_id for verdict in verdicts]) async for trace, verdicts in export(store)]
        assert len(exported) == len(dict(exported)) == count
        assert {run: keys for run, keys in exported if keys} == {"run-7": ["a", "b"], f"run-{count - 1}": ["a"]}


async def test_an_operator_judges_in_the_name_of_the_key_that_asked(url: str) -> None:
    async with Store.open(url) as store:
        await store.save(a_trace("asked"), key_id="a")
        await store.save(a_trace("own"))
        for run, expected in (("asked", "kept"), ("own", "kept"), ("asked", "again"), ("gone", "unknown")):
            assert await add_for_owner(store, Verdict(run, "nobody", 1.0, label="4")) == expected
        assert [(v.key_id, v.label) for v in await feedback_of(store, "asked")] == [("a", "4")]
        assert [(v.key_id, v.label) for v in await feedback_of(store, "own")] == [("local", "4")]


async def test_only_on_a_run_of_ones_own(url: str) -> None:
    async with Store.open(url) as store:
        await pay(store, A, "run")
        assert await add_feedback(store, Verdict("run", "b", 1.0)) == "unknown"
        assert await add_feedback(store, Verdict("other", "a", 1.0)) == "unknown"
        assert await add_feedback(store, Verdict("run", "a", 1.0, "NUL \0 too")) == "kept"


async def test_a_run_without_a_call_is_its_keys_all_the_same(url: str) -> None:
    async with Store.open(url) as store:
        await store.save(a_trace("run", status="failed"), key_id="a")
        await store.save(a_trace("nobodys"))
        assert await run_keys(store, "run") == {"a"}
        assert await run_keys(store, "nobodys") == frozenset()
        assert await add_feedback(store, Verdict("run", "b", 0.0)) == "unknown"
        assert await add_feedback(store, Verdict("nobodys", "a", 0.0)) == "unknown"
        assert await add_feedback(store, Verdict("run", "a", 0.0)) == "kept"


async def test_usage_adds_up_to_the_ledger_whatever_it_is_grouped_by(url: str) -> None:
    async with Store.open(url) as store:
        for caller, run, worker, day in ((A, "1", "w", 14), (A, "1", "x", 15), (B, "2", "w", 15), (B, "3", "w", 15)):
            await pay(store, caller, run, worker=worker, day=day)
        await pay(store, B, "4", settled=False)
        await store.save(a_trace("1", profile="ultra"))
        spent = await usage(store)
        for groups in ((), *((group,) for group in GROUPS), GROUPS):
            rows = await usage_rows(store, group_by=groups)
            assert sum(row.calls for row in rows) == spent.calls == 5
            assert sum(row.cost_nusd for row in rows) == 4 * 12_345_679 == round(spent.cost_usd * 1e9)
            assert sum(row.held_nusd for row in rows) == 100_000_000
        assert [(row.model, row.calls) for row in await usage_rows(store, group_by=("model",))] == [
            ("", 3),
            ("ultra", 2),
        ]
        assert [(row.day, row.calls) for row in await usage_rows(store, group_by=("day",), key_id="a")] == [
            ("2026-11-14", 1),
            ("2026-11-15", 1),
        ]
        (row,) = await usage_rows(
            store, since=datetime(2026, 11, 15, tzinfo=UTC), until=datetime(2026, 11, 16, tzinfo=UTC)
        )
        assert row.calls == 4
