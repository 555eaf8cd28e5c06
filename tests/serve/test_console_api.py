"""The console's data beside runs: pool, comparisons, sets, spending by label, keys, audit log, its own files."""

from __future__ import annotations

import gzip
import re
from typing import Any

import pytest

from dirigent.learn.cards import Card, Share
from dirigent.serve.apis.traces import PARAMETERS
from dirigent.store import Store
from dirigent.store.keys import Caller, create_key
from dirigent.store.switches import switch_worker
from tests.serve.conftest import CONFIG, Server, Start
from tests.serve.test_runs_api import watched

ASK = {"messages": [{"role": "user", "content": "hi"}]}


async def key(server: Server, **bounds: Any) -> dict[str, str]:
    made = await create_key(server.service.store, Caller("", **bounds))
    return {"Authorization": f"Bearer {made.text}"}


# ---- finding runs -----------------------------------------------------------------------------------------


async def found(server: Server, query: str) -> list[str]:
    answer = await server.get(f"/v1/traces?{query}")
    assert answer.status == 200, answer.text
    return [row["id"] for row in answer.object["data"]]


async def test_every_filter_narrows_the_list(server: Server) -> None:
    alpha = (await server.chat("one", user="ann", metadata={"tag": "night", "conversation": "c1"})).object
    beta = (await server.chat("two", model="worker/beta", dirigent={"tag": "day", "conversation": "c2"})).object
    first, second = alpha["dirigent"]["trace_id"], beta["dirigent"]["trace_id"]
    await server.request("POST", "/v1/feedback", json={"trace_id": first, "thumb": "up"})
    assert await found(server, "") == [second, first]
    for query in (
        "worker=alpha", "profile=worker/alpha", "search=ONE", "feedback=up", "user=ann", "tag=night",
        "conversation=c1", f"before={second}", "key=local&worker=alpha",
    ):  # fmt: skip
        assert await found(server, query) == [first], query
    for query in ("worker=beta", "feedback=none", "tag=day", "conversation=c2", "least_usd=0.00008", "limit=1"):
        assert await found(server, query) == [second], query
    for query in ("feedback=down", "least_s=100", "until=2020-01-01", "since=2999-01-01", "status=failed", "key=no"):
        assert await found(server, query) == [], query
    for query in ("least_usd=-1", "least_s=much", "feedback=sideways", "until=never", "colour=red"):
        assert (await server.get(f"/v1/traces?{query}")).status == 400, query
    rows = (await server.get("/v1/traces")).object["data"]
    assert [(row["score"], row["key_id"]) for row in rows] == [(None, "local"), (1.0, "local")]


async def test_headers_can_carry_the_labels(server: Server) -> None:
    headers = {"X-Dirigent-Conversation": "c9", "X-Dirigent-Tag": "t"}
    id = (await server.chat(headers=headers)).object["dirigent"]["trace_id"]
    assert await found(server, "conversation=c9&tag=t") == [id]


def test_every_parameter_has_a_meaning_of_its_own() -> None:
    assert len(set(PARAMETERS)) == len(PARAMETERS)


# ---- spending by label, and its caps ----------------------------------------------------------------------


async def test_spending_is_added_up_by_user_tag_and_conversation(server: Server) -> None:
    for user in ("ann", "ann", "bob"):
        await server.chat(user=user, metadata={"tag": "t"})
    await server.chat()
    rows = (await server.get("/v1/usage?group_by=user")).object["data"]
    assert [(row["user"], row["calls"]) for row in rows] == [("", 1), ("ann", 2), ("bob", 1)]
    rows = (await server.get("/v1/usage?group_by=tag,user")).object["data"]
    assert {(row["tag"], row["user"]) for row in rows} == {("", ""), ("t", "ann"), ("t", "bob")}


@pytest.mark.parametrize(
    ("bound", "label"),
    [("user_day_usd", lambda name: {"user": name}), ("tag_day_usd", lambda name: {"metadata": {"tag": name}})],
)
async def test_one_user_or_tag_cannot_spend_more_than_its_cap(start: Start, bound: str, label: Any) -> None:
    server = await start(keys_required=True)
    headers = await key(server, **{bound: 0.0001})
    statuses = []
    for _ in range(40):
        statuses.append((await server.chat("x" * 40, max_tokens=8, headers=headers, **label("ann"))).status)
        if statuses[-1] != 200:
            break
    assert statuses[-1] == 402
    assert 1 < len(statuses) < 40
    assert (await server.chat("x" * 40, max_tokens=8, headers=headers, **label("bob"))).status == 200
    for _ in range(40):  # leaving the label out is no way around it
        if (status := (await server.chat("x" * 40, max_tokens=8, headers=headers)).status) != 200:
            break
    assert status == 402
    spent = (await server.get("/v1/usage?group_by=user,tag", headers=headers)).object["data"]
    assert all(row["cost_usd"] <= 0.0001 for row in spent)


# ---- the pool ---------------------------------------------------------------------------------------------


async def test_the_pool_shows_cards_and_figures(server: Server) -> None:
    await server.chat()
    server.stub.faults = ["500"]
    await server.chat()
    workers = {worker["name"]: worker for worker in (await server.get("/v1/pool")).object["data"]}
    assert list(workers) == ["alpha", "beta", "boss"]
    alpha = workers["alpha"]
    assert (alpha["calls"], alpha["failed"], alpha["breaker"], alpha["on"]) == (2, 1, "closed", True)
    assert alpha["p50_s"] > 0
    assert alpha["price"]["output"] == 2.0
    assert workers["beta"]["p50_s"] is None


async def test_a_key_sees_its_own_workers_only(start: Start) -> None:
    server = await start(keys_required=True)
    headers = await key(server, allow=("alpha",))
    assert [worker["name"] for worker in (await server.get("/v1/pool", headers=headers)).object["data"]] == ["alpha"]
    refused = await server.request("POST", "/v1/pool/alpha", json={"on": False}, headers=headers)
    assert refused.status == 403


async def test_a_worker_that_is_off_is_not_asked(server: Server) -> None:
    assert (await server.chat(model="ultra")).status == 200
    off = await server.request("POST", "/v1/pool/beta", json={"on": False})
    assert (off.status, off.object["on"]) == (200, False)
    assert (await server.chat(model="worker/beta")).status == 404
    calls = len(server.stub.calls)
    answer = await server.chat(model="ultra", dirigent={"trace": True})
    assert answer.status == 200  # the planner still names beta; its repair and the fallback do without
    assert "beta" not in {call.model for call in server.stub.calls[calls:]}
    listed = (await server.get("/v1/models/ultra")).object["workers"]
    assert "beta" not in listed
    await server.request("POST", "/v1/pool/beta", json={"on": True})
    assert (await server.chat(model="worker/beta")).status == 200
    actions = [row["action"] for row in (await server.get("/v1/audit")).object["data"]]
    assert actions.count("worker.switch") == 2
    assert (await server.request("POST", "/v1/pool/nobody", json={"on": True})).status == 404


async def test_a_worker_stays_off_when_the_server_starts_again_and_at_other_servers(start: Start) -> None:
    first, second = await start(), await start()
    await first.request("POST", "/v1/pool/beta", json={"on": False})
    third = await start()
    assert (await third.chat(model="worker/beta")).status == 404
    await second.service.read_switches()  # as it does every few seconds
    assert (await second.chat(model="worker/beta")).status == 404
    await second.request("POST", "/v1/pool/beta", json={"on": True})
    await first.service.read_switches()
    assert (await first.chat(model="worker/beta")).status == 200


async def test_a_switch_of_a_worker_that_left_the_pool_harms_nothing(start: Start) -> None:
    server = await start()
    await switch_worker(server.service.store, "gone", on=False, actor="somebody")
    await server.service.read_switches()
    assert (await server.chat(model="ultra")).status == 200


async def test_the_pool_shows_what_calibration_measured(server: Server) -> None:
    kind = Share("dates", 0.9, 0.8, 0.95, 40)
    right = Share("", 0.7, 0.6, 0.8, 100)
    server.service.runtime.cards = {"alpha": Card("alpha", "", "", right, (kind,))}
    alpha, beta, _ = (await server.get("/v1/pool")).object["data"]
    assert alpha["right"]["right"] == 0.7
    assert [(share["kind"], share["right"]) for share in alpha["kinds"]] == [("dates", 0.9)]
    assert (beta["right"], beta["kinds"]) == (None, [])


# ---- comparisons and sets ---------------------------------------------------------------------------------


async def test_models_are_compared_and_the_vote_is_kept_as_feedback(server: Server) -> None:
    models = ["worker/alpha", "worker/beta"]
    made = await server.request("POST", "/v1/comparisons", json={"models": models, "request": ASK})
    assert made.status == 202
    id, sides = made.object["id"], made.object["runs"]
    assert [side["model"] for side in sides] == models
    answers = [(await watched(server, side["run_id"]))[-1][1]["answer"] for side in sides]
    assert answers == ["alpha says hello there", "beta says hello there"]
    voted = await server.request("POST", f"/v1/comparisons/{id}/vote", json={"better": sides[1]["run_id"]})
    assert voted.object["vote"] == sides[1]["run_id"]
    assert (await server.get(f"/v1/comparisons/{id}")).object == voted.object
    assert (await server.get("/v1/comparisons")).object["data"] == [voted.object]
    assert await found(server, "feedback=up") == [sides[1]["run_id"]]
    assert await found(server, "feedback=down") == [sides[0]["run_id"]]


async def test_the_error_for_an_impossible_comparison_names_the_reason(server: Server) -> None:
    for body, status, said in (
        ({"models": ["worker/alpha"], "request": ASK}, 400, "length"),
        ({"models": ["worker/alpha", "worker/alpha"], "request": ASK}, 400, "same model"),
        ({"models": ["worker/alpha", "nobody"], "request": ASK}, 404, "nobody"),
        ({"models": ["worker/alpha", "worker/beta"], "request": ASK | {"model": "x"}}, 400, "beside"),
        ({"models": ["worker/alpha", "worker/beta"], "request": []}, 400, "object"),
        ({"models": ["worker/alpha", "worker/beta"], "request": {"messages": []}}, 400, "length"),
    ):
        answer = await server.request("POST", "/v1/comparisons", json=body)
        assert (answer.status, said in answer.error["message"]) == (status, True), answer.error
    assert server.stub.calls == []
    assert (await server.get("/v1/comparisons/ffff")).status == 404


async def test_a_comparison_and_a_set_are_their_keys_own(start: Start) -> None:
    server = await start(keys_required=True)
    mine, other = await key(server), await key(server)
    body = {"models": ["worker/alpha", "worker/beta"], "request": ASK}
    id = (await server.request("POST", "/v1/comparisons", json=body, headers=mine)).object["id"]
    assert (await server.get(f"/v1/comparisons/{id}", headers=other)).status == 404
    vote = {"better": "tie"}
    assert (await server.request("POST", f"/v1/comparisons/{id}/vote", json=vote, headers=other)).status == 404
    wrong = await server.request("POST", f"/v1/comparisons/{id}/vote", json={"better": "both"}, headers=mine)
    assert (wrong.status, wrong.error["param"]) == (400, "better")
    await server.request("POST", "/v1/sets/maths", json={"question": "1+1?"}, headers=mine)
    assert (await server.get("/v1/sets", headers=other)).object["data"] == []
    assert (await server.get("/v1/sets/maths", headers=other)).object["data"] == []


async def test_questions_are_put_into_sets_and_taken_out(server: Server) -> None:
    run = (await server.chat("1+1?")).object["dirigent"]["trace_id"]
    add = "/v1/sets/my%20maths"
    first = await server.request("POST", add, json={"question": "1+1?", "answer": "2", "run_id": run})
    assert first.status == 200
    await server.request("POST", add, json={"question": "2+2?"})
    assert (await server.get("/v1/sets")).object["data"] == [{"name": "my maths", "questions": 2, "with_answer": 1}]
    await server.request("POST", add, json={"question": "2+2?", "answer": "4"})  # the same question stands once
    lines = (await server.get(f"{add}?format=jsonl")).text.splitlines()
    assert [re.findall(r'"(?:question|answer)":"([^"]*)"', line) for line in lines] == [["1+1?", "2"], ["2+2?", "4"]]
    assert (await server.request("DELETE", f"{add}/{first.object['id']}")).status == 200
    assert (await server.request("DELETE", f"{add}/{first.object['id']}")).status == 404
    assert len((await server.get(add)).object["data"]) == 1
    stray = await server.request("POST", add, json={"question": "x", "run_id": "ffff"})
    assert (stray.status, stray.error["param"]) == (404, "run_id")


# ---- keys, audit, policy ----------------------------------------------------------------------------------


async def test_an_admin_makes_rotates_and_revokes_keys(start: Start) -> None:
    server = await start(keys_required=True)
    admin = await key(server, role="admin")
    body = {"label": "team", "budget_day_usd": 2.5, "allow": ["alpha"], "expires_days": 3}
    made = await server.request("POST", "/v1/keys", json=body, headers=admin)
    assert made.object["key"].startswith("dg_")
    own = {"Authorization": f"Bearer {made.object['key']}"}
    assert (await server.chat(headers=own)).status == 200
    listed = {row["label"]: row for row in (await server.get("/v1/keys", headers=admin)).object["data"]}
    assert (listed["team"]["status"], listed["team"]["caller"]["budget_day_usd"]) == ("active", 2.5)
    assert listed["team"]["spent_usd"] > 0
    assert listed["team"]["left_usd"] == {"day": pytest.approx(2.5 - listed["team"]["spent_usd"])}
    assert listed[""]["left_usd"] == {}
    assert made.object["key"] not in (await server.get("/v1/keys", headers=admin)).text
    id = made.object["id"]
    rotated = await server.request("POST", f"/v1/keys/{id}/rotate", headers=admin)
    assert (await server.get("/v1/models", headers=own)).status == 401
    own = {"Authorization": f"Bearer {rotated.object['key']}"}
    assert (await server.get("/v1/models", headers=own)).status == 200
    revoked = await server.request("POST", f"/v1/keys/{id}/revoke", headers=admin)
    assert revoked.object["status"] == "revoked"
    assert (await server.get("/v1/models", headers=own)).status == 401
    audit = (await server.get("/v1/audit", headers=admin)).object
    assert audit["whole"] is True
    assert [row["action"] for row in audit["data"]][:3] == ["key.revoke", "key.rotate", "key.create"]
    older = (await server.get(f"/v1/audit?before={audit['data'][0]['number']}", headers=admin)).object["data"]
    assert older == audit["data"][1:]
    for path in (f"/v1/keys/{id[:4]}/revoke", "/v1/keys/0123456789abcdef/rotate"):
        assert (await server.request("POST", path, headers=admin)).status == 404


async def test_routes_for_admins_are_closed_to_others(start: Start) -> None:
    server = await start(keys_required=True)
    user = await key(server)
    for method, path in (
        ("GET", "/v1/keys"), ("POST", "/v1/keys"), ("POST", "/v1/keys/0123456789abcdef/revoke"),
        ("POST", "/v1/keys/0123456789abcdef/rotate"), ("GET", "/v1/audit"), ("GET", "/v1/policy"),
    ):  # fmt: skip
        assert (await server.request(method, path, headers=user)).status == 403, path


RULE = """
[[override]]
name = "quick"
model = "ultra"
pin = "alpha"
"""


async def test_the_operators_rules_are_shown(start: Start) -> None:
    server = await start(config=CONFIG + RULE)
    shown = (await server.get("/v1/policy")).object
    assert [rule["name"] for rule in shown["overrides"]] == ["quick"]
    assert shown["guardrails"]["redact"] == "off"


# ---- the files --------------------------------------------------------------------------------------------


async def test_the_page_is_open_and_its_policy_allows_nothing_from_elsewhere(start: Start) -> None:
    server = await start(keys_required=True)
    page = await server.get("/")
    assert page.status == 200
    policy = page.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["X-Frame-Options"] == "DENY"
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert not re.search(r"<script(?![^>]*src=)|style=|onload=", page.text)
    again = await server.get("/", headers={"If-None-Match": page.headers["ETag"]})
    assert again.status == 304
    assert (await server.get("/assets/../../etc/passwd")).status in (401, 404)
    assert (await server.get("/assets/nothing.js")).status == 404


async def test_files_are_compressed_hashed_and_kept_for_ever(server: Server) -> None:
    page = await server.get("/")
    names = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page.text)
    assert len(names) >= 3
    total = 0
    for name in names:
        assert re.search(r"-[\w-]{8}\.(js|css|svg)$", name)
        async with server.session.get(server.url + name, auto_decompress=False) as response:
            body = await response.read()
            assert "immutable" in response.headers["Cache-Control"]
            if not name.endswith(".svg"):
                assert response.headers["Content-Encoding"] == "gzip"
                total += len(body)
                assert gzip.decompress(body)
        plain = await server.get(name, headers={"Accept-Encoding": "identity"})
        assert "Content-Encoding" not in plain.headers
    assert total <= 250_000, f"{total:,} bytes compressed"


async def test_a_search_over_ten_thousand_runs_finds_the_ten_that_match(server: Server) -> None:
    await fill(server.service.store, 10_000)
    assert await found(server, "limit=50&search=needle") == [f"run{i:06}" for i in range(9007, 0, -1000)]
    assert await found(server, "limit=50&search=nowhere+to+be+found") == []
    assert await found(server, "limit=2&before=run005000") == ["run004999", "run004998"]


async def fill(store: Store, count: int) -> None:
    """Write this many runs straight into the store, with their calls."""
    from sqlalchemy import Connection, insert

    from dirigent.store.tables import attempts, feedback, traces

    rows, calls, verdicts = [], [], []
    for i in range(count):
        at = f"2026-01-{1 + i // 1440 % 28:02}T{i // 60 % 24:02}:{i % 60:02}:00.{i:06}Z"
        text = f"question {i} " + ("needle " if i % 1000 == 7 else "hay ") + "about this and that " * 20
        rows.append({
            "id": f"run{i:06}", "created_at": at, "profile": "ultra", "planner": "language:boss", "status": "done",
            "question": text[:240], "answer": "It is so.", "steps": 2, "calls": 2, "tokens": 900, "cost_usd": i / count,
            "seconds": 1.5, "searchable": text * 4, "format": 2, "body": b"{}", "key_id": "local",
        })  # fmt: skip
        calls.append({
            "run_id": f"run{i:06}", "key_id": "local", "worker": "beta" if i % 50 == 0 else "alpha", "owner": "x",
            "state": "settled", "reserved_at": at, "charged_day": at[:10], "hold_nusd": 1, "cost_nusd": 1,
            "settled_at": at, "output_tokens": 3, "conversation": f"c{i // 100}",
        })  # fmt: skip
        if i % 200 == 0:
            verdict = {"run_id": f"run{i:06}", "key_id": "local", "score": 1.0, "comment": "", "created_at": at}
            verdicts.append(verdict)

    def work(connection: Connection, _: None) -> None:
        for table, values in ((traces, rows), (attempts, calls), (feedback, verdicts)):
            connection.execute(insert(table), values)

    await store.write(work, prepare=lambda: None)
