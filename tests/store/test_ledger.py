"""The ledger: written before the call, never overspent however many ask at once, and honest about lost calls."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from sqlalchemy import delete, select, text

from dirigent.conduct import Conductor
from dirigent.errors import CostError, StoreError
from dirigent.limits import Budget, Hold, Limits, Quote
from dirigent.messages import Message, Request
from dirigent.planners.fixed import Single
from dirigent.store import Store
from dirigent.store.audit import export
from dirigent.store.keys import Caller
from dirigent.store.ledger import StoreLedger, left, reconcile, to_nusd, usage
from dirigent.store.process_id import is_dead, own_name
from dirigent.store.tables import attempts, spending
from dirigent.workers.metering import Metered
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted
from dirigent.workers.worker import Price
from tests.facts import facts, says
from tests.store.samples import a_trace, busy_writer

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
CENT = Quote("w", input_usd=0.004, output_token_usd=0.00006, max_output_tokens=100)
"""Worst case: one cent."""


def ledger(store: Store, caller: Caller, at: datetime = NOON, *, run_id: str = "run") -> StoreLedger:
    return StoreLedger(store, caller=caller, run_id=run_id, clock=lambda: at)


async def settle(book: StoreLedger, hold: Hold, *, cost_usd: float, output_tokens: int) -> None:
    """Settle, and see it committed."""
    book.settle(hold, cost_usd=cost_usd, output_tokens=output_tokens)
    await book.settled()


async def rows(store: Store) -> list[tuple[str, float, float | None]]:
    """State, hold and cost in USD of every attempt, the oldest first."""
    query = select(attempts.c.state, attempts.c.hold_nusd, attempts.c.cost_nusd).order_by(attempts.c.id)
    found = await store.read(lambda connection: [tuple(row) for row in connection.execute(query)])
    return [(state, hold / 1e9, cost / 1e9 if cost is not None else None) for state, hold, cost in found]


# --- never overspent -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("period", ["day", "month", "total"])
async def test_200_clients_with_budget_for_100_calls_get_100(url: str, period: str):
    caller = Caller("k", **{f"budget_{period}_usd": 1.0})
    async with Store.open(url) as store:
        asked = [ledger(store, caller).reserve(CENT) for _ in range(200)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(outcome, Hold) for outcome in outcomes) == 100
        assert sum(isinstance(outcome, CostError) for outcome in outcomes) == 100
        assert (await usage(store, "k")).held_usd == 1.0


@pytest.mark.parametrize("seed", range(3))
async def test_spending_never_exceeds_the_budget_whatever_calls_turn_out_to_use(url: str, seed: int):
    """Each client reserves, uses a part, settles, and asks again, in any order."""
    rng = random.Random(seed)
    caller = Caller("k", budget_day_usd=0.5, budget_total_usd=0.7)

    async def client(store: Store) -> None:
        for _ in range(3):
            book = ledger(store, caller)
            quote = Quote("w", rng.uniform(0, 0.01), rng.uniform(0, 1e-4), rng.choice([20, 50, 400]))
            try:
                hold = await book.reserve(quote)
            except CostError:
                continue
            await asyncio.sleep(0)
            await settle(book, hold, cost_usd=rng.uniform(0, hold.cost_usd), output_tokens=rng.randrange(50))

    async with Store.open(url) as store:
        await asyncio.gather(*(client(store) for _ in range(200)))
        spent = await usage(store, "k")
        assert 0.15 < spent.cost_usd <= 0.5
        assert spent.held_usd == 0
        book = await store.read(lambda connection: connection.execute(select(spending)).one())
        assert (book.day_nusd / 1e9, book.total_nusd / 1e9) == (spent.cost_usd, spent.cost_usd)


def test_processes_that_share_a_store_share_the_budget(url: str):
    clients = [
        subprocess.Popen([sys.executable, "-c", CLIENTS, url], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    granted = [int(client.communicate(timeout=60)[0]) for client in clients]
    assert [client.returncode for client in clients] == [0, 0, 0, 0]
    assert sum(granted) == 100


CLIENTS = """
import asyncio, sys
from dirigent.limits import Hold
from dirigent.store import Store
from tests.store.test_ledger import CENT, Caller, ledger

async def client(store):
    book = ledger(store, Caller("k", budget_day_usd=1.0))
    outcomes = [await asyncio.gather(book.reserve(CENT), return_exceptions=True) for _ in range(2)]
    return sum(isinstance(outcome, Hold) for outcome, in outcomes)

async def main():
    async with Store.open(sys.argv[1], wait_s=30) as store:
        print(sum(await asyncio.gather(*(client(store) for _ in range(25)))))

asyncio.run(main())
"""


async def test_reservations_of_many_share_a_commit_and_a_refusal_spoils_none(url: str):
    rich, poor = Caller("rich", budget_day_usd=100.0), Caller("poor", budget_day_usd=0.001)
    async with Store.open(url) as store:
        with busy_writer(store):
            before = store.commits
            asked = [ledger(store, caller).reserve(CENT) for caller in (rich, poor, Caller("free")) for _ in range(40)]
            together = asyncio.gather(*asked, return_exceptions=True)
            await asyncio.sleep(0)
        outcomes = await together
        assert sum(isinstance(outcome, Hold) for outcome in outcomes) == 80
        assert store.commits - before <= 3  # the busy writer's own, and these


# --- what a reservation is -------------------------------------------------------------------------------------------


async def test_an_attempt_is_on_the_record_before_its_call_with_its_worst_case(url: str):
    async with Store.open(url) as store, Store.open(url) as elsewhere:
        hold = await ledger(store, Caller("k"), run_id="r1").reserve(CENT)
        assert (hold.cost_usd, hold.max_output_tokens) == (0.01, 100)
        assert await rows(elsewhere) == [("open", 0.01, None)]
        await settle(ledger(store, Caller("k"), run_id="r1"), hold, cost_usd=0.006, output_tokens=33)
        assert await rows(elsewhere) == [("settled", 0.01, 0.006)]
        spent = await usage(elsewhere, "k")
        assert (spent.calls, spent.cost_usd, spent.held_usd, spent.output_tokens) == (1, 0.006, 0.0, 33)


async def test_settling_twice_counts_once(url: str):
    caller = Caller("k", budget_day_usd=1.0)
    async with Store.open(url) as store:
        book = ledger(store, caller)
        hold = await book.reserve(CENT)
        await settle(book, hold, cost_usd=0.006, output_tokens=1)
        await settle(book, hold, cost_usd=0.5, output_tokens=1)
        assert (await usage(store, "k")).cost_usd == 0.006
        assert await left_usd(store, caller) == pytest.approx(0.994)


async def test_a_provider_that_charges_more_than_the_worst_case_is_on_the_book_as_it_is(url: str):
    caller = Caller("k", budget_day_usd=0.02)
    async with Store.open(url) as store:
        book = ledger(store, caller)
        await settle(book, await book.reserve(CENT), cost_usd=0.03, output_tokens=1)
        assert await left_usd(store, caller) == pytest.approx(-0.01)
        with pytest.raises(CostError, match=facts("k $0")):
            await book.reserve(CENT)


@pytest.mark.parametrize("seed", range(5))
async def test_a_key_grants_what_a_runs_budget_would(tmp_path, seed: int):
    rng = random.Random(seed)
    async with Store.open(tmp_path / "dirigent.db") as store:
        budget, book = Budget(max_cost_usd=1.0), ledger(store, Caller("k", budget_total_usd=1.0))
        for _ in range(30):
            quote = Quote("w", rng.choice([0, 0.05]), rng.choice([0, 1e-4, 1e-3]), rng.choice([None, 8, 100, 900]))
            assert await granted(book, quote) == await granted(budget, quote)


async def granted(book: Budget | StoreLedger, quote: Quote) -> int | str | None:
    try:
        hold = await book.reserve(quote)
    except CostError:
        return "refused"
    book.settle(hold, cost_usd=round(hold.cost_usd / 2, 9), output_tokens=0)
    return hold.max_output_tokens


async def test_the_tightest_budget_decides_how_much_may_be_written(url: str):
    caller = Caller("k", budget_day_usd=1.0, budget_month_usd=0.007, budget_total_usd=5.0)
    async with Store.open(url) as store:
        hold = await ledger(store, caller).reserve(CENT)
        assert hold.max_output_tokens == 50
        assert hold.cost_usd == pytest.approx(0.007)
        with pytest.raises(CostError, match=facts("k $0.007 $0 w")):
            await ledger(store, caller).reserve(CENT)
        assert len(await rows(store)) == 1


async def test_a_caller_without_budgets_is_only_written_down(url: str):
    async with Store.open(url) as store:
        hold = await ledger(store, Caller("k")).reserve(Quote("w", 100.0, 1.0, None))
        assert (hold.cost_usd, hold.max_output_tokens) == (100.0, None)
        assert await left(store, Caller("k")) is None


@pytest.mark.parametrize(("usd", "nusd"), [(0, 0), (0.07, 70_000_000), (1e-10, 1), (1.0000000001, 1_000_000_001)])
def test_money_is_counted_in_whole_billionths_rounded_up(usd: float, nusd: int):
    assert to_nusd(usd) == nusd


# --- days and months -------------------------------------------------------------------------------------------------


async def left_usd(store: Store, caller: Caller, at: datetime = NOON) -> float:
    found = await left(store, caller, at=at)
    assert found is not None
    return found.usd


async def test_a_day_and_a_month_renew_and_a_total_does_not(url: str):
    tomorrow, next_month = NOON + timedelta(days=1), NOON + timedelta(days=20)
    async with Store.open(url) as store:
        caller = Caller("k", budget_day_usd=0.01, budget_month_usd=0.02, budget_total_usd=0.03)
        await ledger(store, caller).reserve(CENT)
        with pytest.raises(CostError, match=facts("$0.01")):
            await ledger(store, caller).reserve(CENT)
        await ledger(store, caller, tomorrow).reserve(CENT)
        with pytest.raises(CostError, match=facts("$0.02")):
            await ledger(store, caller, tomorrow + timedelta(days=1)).reserve(CENT)
        await ledger(store, caller, next_month).reserve(CENT)
        with pytest.raises(CostError, match=facts("$0.03")):
            await ledger(store, caller, next_month + timedelta(days=1)).reserve(CENT)


async def test_the_day_that_reserved_a_call_pays_for_it(url: str):
    caller = Caller("k", budget_day_usd=0.05, budget_month_usd=0.5)
    tomorrow = NOON + timedelta(days=1)
    async with Store.open(url) as store:
        late = await ledger(store, caller).reserve(CENT)
        await ledger(store, caller, tomorrow).reserve(CENT)
        await settle(ledger(store, caller, tomorrow), late, cost_usd=0.001, output_tokens=1)
        assert await left_usd(store, caller, tomorrow) == pytest.approx(0.04)
        month = msgspec.structs.replace(caller, budget_day_usd=None)
        assert await left_usd(store, month, tomorrow) == pytest.approx(0.5 - 0.011)


async def test_a_call_of_last_month_gives_nothing_back_to_this_one(url: str):
    caller = Caller("k", budget_month_usd=0.5)
    next_month = NOON + timedelta(days=20)
    async with Store.open(url) as store:
        late = await ledger(store, caller).reserve(CENT)
        await ledger(store, caller, next_month).reserve(CENT)
        await settle(ledger(store, caller, next_month), late, cost_usd=0.001, output_tokens=1)
        assert await left_usd(store, caller, next_month) == pytest.approx(0.49)


async def test_a_clock_that_lags_behind_another_servers_renews_nothing(url: str):
    caller = Caller("k", budget_day_usd=0.01)
    async with Store.open(url) as store:
        await ledger(store, caller, NOON + timedelta(days=1)).reserve(CENT)
        with pytest.raises(CostError, match=facts("$0.01")):
            await ledger(store, caller, NOON).reserve(CENT)


async def test_what_is_left_names_the_budget_that_ends_first_and_when_it_renews(url: str):
    async with Store.open(url) as store:
        found = await left(store, Caller("k", budget_day_usd=1.0, budget_month_usd=2.0), at=NOON)
        assert found is not None
        assert (found.usd, found.period, found.renews_in_s) == (1.0, "day", 12 * 3600)
        found = await left(store, Caller("k", budget_day_usd=1.0, budget_month_usd=0.5), at=NOON)
        assert found is not None
        assert (found.usd, found.period) == (0.5, "month")
        found = await left(store, Caller("k", budget_month_usd=2.0), at=NOON)
        assert found is not None
        assert found.renews_in_s == 15.5 * 24 * 3600
        found = await left(store, Caller("k", budget_total_usd=2.0), at=NOON)
        assert found is not None
        assert found.renews_in_s is None


async def test_a_book_that_was_not_kept_is_added_up_from_the_attempts(url: str):
    caller = Caller("k", budget_day_usd=1.0, budget_month_usd=1.0, budget_total_usd=1.0)
    async with Store.open(url) as store:
        for at in (NOON - timedelta(days=40), NOON - timedelta(days=1), NOON):
            await ledger(store, caller, at).reserve(CENT)
        await store.write(lambda connection, _: connection.execute(delete(spending)), prepare=lambda: None)
        lefts = [
            await left_usd(store, Caller("k", **{f"budget_{period}_usd": 1.0})) for period in ("day", "month", "total")
        ]
        assert lefts == pytest.approx([0.99, 0.98, 0.97])


async def test_usage_is_summed_by_key_and_time(url: str):
    async with Store.open(url) as store:
        for key, hours in (("a", 0), ("a", 1), ("b", 1)):
            book = ledger(store, Caller(key), NOON + timedelta(hours=hours))
            await settle(book, await book.reserve(CENT), cost_usd=0.002, output_tokens=10)
        one = NOON + timedelta(hours=1)
        assert (await usage(store)).calls == 3
        assert (await usage(store, "a")).cost_usd == 0.004
        assert (await usage(store, "a", until=one)).calls == 1
        assert (await usage(store, since=one)).output_tokens == 20
        assert (await usage(store, "nobody")).calls == 0


# --- what dies in between --------------------------------------------------------------------------------------------


def test_reservations_of_a_killed_process_are_charged_at_their_worst_case(url: str):
    with subprocess.Popen([sys.executable, "-c", CALLER, url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline() for _ in range(60)]
        process.kill()
        acknowledged += [line for line in process.stdout if line.endswith("\n")]
    assert process.returncode == -signal.SIGKILL

    async def check() -> None:
        caller = Caller("k", budget_total_usd=100.0)
        async with Store.open(url) as store:
            own = await ledger(store, caller, datetime.now(UTC)).reserve(CENT)
            before = await rows(store)
            lost = await reconcile(store)
            after = await rows(store)
            assert await reconcile(store) == 0
            assert [row[0] for row in after].count("open") == 1  # ours: this process lives
            assert lost == [row[0] for row in before].count("open") - 1
            assert all(cost == hold for state, hold, cost in after if state == "lost")
            settled = [line.strip() for line in acknowledged if line.startswith("settled")]
            assert len(settled) <= [row[0] for row in after].count("settled")
            spent = await usage(store, "k")
            assert await left_usd(store, caller) == pytest.approx(100 - spent.cost_usd - spent.held_usd)
            await settle(ledger(store, caller), own, cost_usd=0, output_tokens=0)

    asyncio.run(check())


CALLER = """
import asyncio, sys
from dirigent.store import Store
from tests.store.test_ledger import CENT, Caller, ledger

async def call_for_ever(book):
    while True:
        hold = await book.reserve(CENT)
        print("reserved", hold.id, flush=True)
        book.settle(hold, cost_usd=0.001, output_tokens=5)
        await book.settled()
        print("settled", hold.id, flush=True)

async def main():
    async with Store.open(sys.argv[1]) as store:
        books = [ledger(store, Caller("k", budget_total_usd=100.0)) for _ in range(8)]
        await asyncio.gather(*map(call_for_ever, books))

asyncio.run(main())
"""


async def own(store: Store, owner: str) -> None:
    statement = text("UPDATE attempts SET owner = :owner")
    await store.write(lambda connection, _: connection.execute(statement, {"owner": owner}), prepare=lambda: None)


async def test_reservations_of_another_machine_stay_open_for_a_day(url: str):
    async with Store.open(url) as store:
        await ledger(store, Caller("k")).reserve(CENT)
        await own(store, "another-place/1/1")
        assert await reconcile(store, at=NOON + timedelta(hours=23)) == 0
        assert await reconcile(store, at=NOON + timedelta(hours=25)) == 1
        assert (await usage(store)).lost_calls == 1
        trail = [(row.action, row.details) async for row in export(store)]
        assert trail == [("ledger.reconcile", '{"lost_attempts":1}')]


async def test_a_call_that_is_given_up_is_charged_at_its_worst_case(url: str):
    async with Store.open(url) as store:
        await ledger(store, Caller("k")).reserve(CENT)
        await own(store, "another-place/1/1")
        await reconcile(store, at=NOON + timedelta(hours=25))
        spent = await usage(store, "k")
        assert (spent.cost_usd, spent.held_usd, spent.lost_calls) == (0.01, 0.0, 1)


async def test_a_settlement_that_comes_after_all_replaces_the_worst_case(url: str):
    caller = Caller("k", budget_day_usd=1.0)
    async with Store.open(url) as store:
        hold = await ledger(store, caller).reserve(CENT)
        await own(store, own_name().rpartition("/")[0] + "/1")  # this process's number, when another had it
        assert await reconcile(store) == 1
        assert await left_usd(store, caller) == pytest.approx(0.99)
        await settle(ledger(store, caller), hold, cost_usd=0.002, output_tokens=7)
        assert await rows(store) == [("settled", 0.01, 0.002)]
        assert await left_usd(store, caller) == pytest.approx(0.998)


def test_a_process_counts_as_dead_only_after_its_end():
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from dirigent.store.process_id import own_name; print(own_name(), flush=True); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert not is_dead(name)
        assert not is_dead(own_name())
        process.kill()
    assert is_dead(name)
    assert not is_dead("elsewhere/" + name.partition("/")[2])
    assert not is_dead("nonsense")


# --- in its place ----------------------------------------------------------------------------------------------------


async def test_a_run_enters_every_call_under_its_id_and_the_sums_agree(url: str):
    worker = Scripted("four words of answer", name="w", price=Price(1, 2))
    conductor = Conductor(Single("w"), Pool([worker]), limits=Limits(max_cost_usd=1.0))
    async with Store.open(url) as store:
        book = StoreLedger(store, caller=Caller("k", budget_day_usd=1.0), run_id="r7")
        trace = await conductor.run("what?", options=Request((), ledger=book))
        assert trace.status == "done", trace.error
        await book.settled()
        spent = await usage(store, "k")
        assert (spent.calls, spent.held_usd) == (1, 0.0)
        assert spent.cost_usd == pytest.approx(trace.cost_usd, abs=1e-9)
        query = select(attempts.c.run_id, attempts.c.worker)
        assert await store.read(lambda connection: [tuple(row) for row in connection.execute(query)]) == [("r7", "w")]


async def test_a_key_without_money_fails_the_run_before_any_worker_is_asked(url: str):
    worker = Scripted("never", name="w", price=Price(1, 2))
    conductor = Conductor(Single("w"), Pool([worker]))
    async with Store.open(url) as store:
        book = StoreLedger(store, caller=Caller("k", label="team a", budget_day_usd=0.0), run_id="r7")
        trace = await conductor.run("what?", options=Request((), ledger=book))
        assert trace.status == "failed"
        assert says(trace.error, "team a $0")
        assert (await usage(store)).calls == 0


async def test_a_worker_without_a_price_is_refused_to_a_key_with_a_budget(url: str):
    request = Request((Message("user", "hm"),))
    worker = Metered(Scripted("an answer", name="w"))
    async with Store.open(url) as store:
        bounded = StoreLedger(store, caller=Caller("k", label="team a", budget_total_usd=9.0), run_id="r7")
        with pytest.raises(CostError, match=facts("team a price w")):
            await worker.ask(msgspec.structs.replace(request, ledger=bounded))
        free = StoreLedger(store, caller=Caller("k2"), run_id="r8")
        assert (await worker.ask(msgspec.structs.replace(request, ledger=free))).text == "an answer"
        await free.settled()
        assert [row[0] for row in await rows(store)] == ["settled"]


@pytest.mark.parametrize("budget", [None, 1.0])
async def test_a_settlement_and_the_trace_after_it_are_one_commit(url: str, budget: float | None):
    async with Store.open(url) as store:
        book = ledger(store, Caller("k", budget_day_usd=budget))
        hold = await book.reserve(CENT)
        before = store.commits
        book.settle(hold, cost_usd=0.002, output_tokens=7)
        await store.save(a_trace())
        assert store.commits == before + 1
        await book.settled()
        assert await rows(store) == [("settled", 0.01, 0.002)]


async def test_a_failed_settlement_raises_for_its_waiting_caller(url: str) -> None:
    async with Store.open(url) as store:
        book = ledger(store, Caller("k"))
        hold = await book.reserve(CENT)
        for output_tokens in (7, 10**30, 8):  # no column holds the second
            book.settle(hold, cost_usd=0.002, output_tokens=output_tokens)
        await store.save(a_trace())
        with pytest.raises((StoreError, OverflowError)):
            await book.settled()
        await book.settled()


async def test_a_call_cancelled_while_it_is_reserved_leaves_nothing_open(url: str):
    async with Store.open(url) as store:
        book = StoreLedger(store, caller=Caller("k", budget_day_usd=1.0), run_id="r7")
        worker = Metered(Scripted("never", name="w", price=Price(1, 2)))
        with busy_writer(store):
            asking = asyncio.ensure_future(worker.ask(Request((Message("user", "hm"),), ledger=book)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await book.settled()
        ((state, _hold, cost),) = await rows(store)
        assert (state, cost) == ("settled", 0.0)
