"""Usage: the ledger's own sums, by day, model, worker and key; a key sees its own; CSV that no spreadsheet runs."""

from __future__ import annotations

import asyncio
import csv
import io
from datetime import UTC, datetime

import pytest

from dirigent.serve.apis.usage import csv_of
from dirigent.store.keys import Caller, create_key
from dirigent.store.ledger import usage
from dirigent.store.retention import forget
from dirigent.store.usage import UsageRow
from tests.serve.conftest import CONFIG, Server, Start

TODAY = datetime.now(UTC).date().isoformat()


async def test_sums_are_the_ledgers_exactly_however_they_are_grouped(server: Server) -> None:
    for model in ("worker/alpha", "worker/beta", "ultra", "ultra"):
        assert (await server.chat(model=model)).status == 200
    ledger = await usage(server.service.store)
    for group_by in ("", "day", "model", "worker", "key", "day,model,worker,key"):
        report = (await server.get(f"/v1/usage?group_by={group_by}")).object
        for name in ("calls", "output_tokens", "cost_nusd"):
            assert sum(row[name] for row in report["data"]) == report["total"][name]
        assert report["total"]["calls"] == ledger.calls == 8
        assert report["total"]["cost_nusd"] == round(ledger.cost_usd * 1e9)
        assert report["total"]["output_tokens"] == ledger.output_tokens


async def test_rows_name_their_group_and_nothing_else(server: Server) -> None:
    await server.chat(model="worker/beta")
    await server.chat(model="ultra")
    rows = (await server.get("/v1/usage?group_by=model,worker")).object["data"]
    found = {(row["model"], row["worker"]): row["calls"] for row in rows}
    assert found == {("worker/beta", "beta"): 1, ("ultra", "alpha"): 1, ("ultra", "beta"): 1, ("ultra", "boss"): 1}
    assert "day" not in rows[0]
    (day,) = (await server.get("/v1/usage")).object["data"]
    assert (day["day"], day["calls"]) == (TODAY, 4)


async def test_models_are_named_as_they_ran(start: Start) -> None:
    dated = CONFIG.replace("[profile.ultra]", '[profile.ultra]\nversion = "2026-11-15"')
    server = await start(config=dated.replace("[profile.mini]", "[profile.small]"))
    asked = {
        "worker/beta": "worker/beta",
        "planner/single": "planner/single",
        "ultra": "ultra",
        "dirigent-ultra": "ultra",
        "ultra-2026-11-15": "ultra-2026-11-15",
        "dirigent-ultra-2026-11-15": "ultra-2026-11-15",
        "small": "small",
        "dirigent-mini": "dirigent-mini",
    }
    for model, counted_as in asked.items():
        answer = await server.chat(model=model, dirigent={"deadline_s": 20})  # narrowed models keep their names
        assert answer.status == 200, model
        trace = await server.service.store.get(answer.headers["X-Dirigent-Trace-Id"])
        assert trace.profile == counted_as, model
    rows = (await server.get("/v1/usage?group_by=model")).object["data"]
    assert [row["model"] for row in rows] == sorted(set(asked.values()))
    calls = {row["model"]: row["calls"] for row in rows}
    assert calls["ultra"] == calls["ultra-2026-11-15"] == 6, "two requests of three calls"


async def test_a_run_under_way_counts_without_a_name(server: Server) -> None:
    release = asyncio.Event()

    async def late(_call: object) -> str:
        await release.wait()
        return "done"

    server.stub.answer = late
    asking = asyncio.ensure_future(server.chat(model="worker/beta"))
    await server.stub.called()
    (row,) = (await server.get("/v1/usage?group_by=model")).object["data"]
    assert (row["model"], row["calls"], row["held_nusd"] > 0) == ("", 1, True)
    release.set()
    await asking
    (row,) = (await server.get("/v1/usage?group_by=model")).object["data"]
    assert (row["model"], row["calls"], row["held_nusd"]) == ("worker/beta", 1, 0)


async def test_a_run_whose_trace_is_gone_still_counts(server: Server) -> None:
    id = (await server.chat(model="worker/beta")).object["dirigent"]["trace_id"]
    await forget(server.service.store, id, actor="cli")
    (row,) = (await server.get("/v1/usage?group_by=model")).object["data"]
    assert (row["model"], row["calls"]) == ("", 1)


async def test_days_and_times_bound_it(server: Server) -> None:
    await server.chat()
    for query, calls in (
        (f"from={TODAY}", 1),
        (f"to={TODAY}", 1),
        (f"from={TODAY}&to={TODAY}", 1),
        ("to=2001-01-01", 0),
        ("from=2999-01-01", 0),
        (f"from={TODAY}T00:00:00Z&to=2999-01-01T00:00:00%2B02:00", 1),
    ):
        assert (await server.get(f"/v1/usage?{query}")).object["total"]["calls"] == calls, query


async def test_a_key_sees_its_own_calls_and_an_admin_everybodys(start: Start) -> None:
    server = await start(keys_required=True)
    made = {}
    for label, role in (("a", "inference"), ("b", "inference"), ("boss", "admin")):
        made[label] = await create_key(server.service.store, Caller("", label=label, role=role))  # type: ignore[arg-type]
    headers = {label: {"Authorization": f"Bearer {key.text}"} for label, key in made.items()}
    ids = {label: key.row.caller.key_id for label, key in made.items()}
    for label, count in (("a", 1), ("b", 2)):
        for _ in range(count):
            await server.chat(headers=headers[label])

    async def calls(who: str, query: str = "") -> int:
        return (await server.get(f"/v1/usage?{query}", headers=headers[who])).object["total"]["calls"]  # type: ignore[no-any-return]

    assert (await calls("a"), await calls("b"), await calls("boss")) == (1, 2, 3)
    assert (await calls("boss", f"key={ids['a']}"), await calls("a", f"key={ids['a']}")) == (1, 1)
    rows = (await server.get("/v1/usage?group_by=key", headers=headers["a"])).object["data"]
    assert [row["key"] for row in rows] == [ids["a"]]
    refused = await server.get(f"/v1/usage?key={ids['b']}", headers=headers["a"])
    assert (refused.status, refused.error["param"]) == (403, "key")


async def test_csv_has_the_same_rows(server: Server) -> None:
    await server.chat(model="ultra")
    answer = await server.get("/v1/usage?group_by=day,worker&format=csv")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    report = (await server.get("/v1/usage?group_by=day,worker")).object["data"]
    assert [(row["worker"], int(row["cost_nusd"])) for row in rows] == [
        (row["worker"], row["cost_nusd"]) for row in report
    ]
    beta = next(row for row in rows if row["worker"] == "beta")
    assert beta["cost_usd"] == f"{int(beta['cost_nusd']) / 1e9:.9f}"


@pytest.mark.parametrize("begins", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_cell_is_a_formula(begins: str) -> None:
    text = csv_of([UsageRow(1, 0, 2, 1_500_000_000, 0, 1.5, worker=f"{begins}1+1")], ("worker",))
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert row["worker"] == f"'{begins}1+1"
    assert row["cost_usd"] == "1.500000000"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("group_by=colour", "group_by"),
        ("from=yesterday", "from"),
        ("to=9999-12-31", "to"),
        ("format=xml", "format"),
        ("form=csv", "form"),
    ],
)
async def test_a_bad_parameter_is_a_400_that_names_it(server: Server, query: str, param: str) -> None:
    answer = await server.get(f"/v1/usage?{query}")
    assert (answer.status, answer.error["param"]) == (400, param)
