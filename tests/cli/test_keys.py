"""`dirigent keys` and `dirigent audit`: keys are made, listed without their text and closed, and all is on record."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from sqlalchemy import text

from dirigent.store import Store
from dirigent.store.keys import authenticate
from tests.cli.conftest import Run
from tests.facts import says


@pytest.fixture(autouse=True)
def no_pepper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIRIGENT_PEPPER", raising=False)


def opens(place: Path, key: str) -> bool:
    async def ask() -> bool:
        async with Store.open(place / "home" / "dirigent.db") as store:
            return await authenticate(store, key) is not None

    return asyncio.run(ask())


def test_a_key_is_printed_alone_and_works(run: Run, own_place: Path) -> None:
    ran = run("keys", "create", "team a")
    key = ran.out.strip()
    assert ran.code == 0
    assert key.startswith("dg_")
    assert len(key.split()) == 1
    assert ran.err.strip()
    assert key not in ran.err
    assert opens(own_place, key)


def test_create_takes_every_bound(run: Run) -> None:
    made = run(
        *("keys", "create", "team a", "--role", "admin", "--budget-day", "1.5", "--budget-month", "20"),
        *("--budget-total", "100", "--requests-per-minute", "60", "--concurrency", "4", "--allow", "a", "--allow", "b"),
        *("--deny", "c", "--region", "eu", "--retention-days", "30", "--expires-days", "7", "--json"),
    ).object
    assert made.pop("key").startswith("dg_")
    expected = {
        "role": "admin",
        "label": "team a",
        "budget_day_usd": 1.5,
        "budget_month_usd": 20.0,
        "budget_total_usd": 100.0,
        "requests_per_minute": 60,
        "concurrency": 4,
        "allow": ["a", "b"],
        "deny": ["c"],
        "region": "eu",
        "retention_days": 30,
        "revoked_at": None,
        "status": "active",
    }
    assert {name: made[name] for name in expected} == expected
    assert made["expires_at"] > made["created_at"]


def test_a_list_shows_the_rights_of_keys_but_never_their_text(run: Run) -> None:
    key = run("keys", "create", "team\x1b[31m a", "--budget-day", "5").out.strip()
    ran = run("keys", "list")
    assert "$5.00/day" in ran.out
    assert f"…{key[-4:]}" in ran.out
    assert key[:-4] not in ran.out
    assert "\x1b" not in ran.out
    (output,) = run("keys", "list", "--json").object["keys"]
    assert (output["last4"], output["spent_usd"]) == (key[-4:], 0.0)
    assert key[3:-4] not in json.dumps(output)


def test_an_empty_list_names_the_next_command(run: Run) -> None:
    ran = run("keys", "list")
    assert (ran.code, ran.out) == (0, "")
    assert "dirigent keys create" in ran.err
    assert run("keys", "list", "--json").object == {"keys": []}


def test_a_revoked_key_opens_nothing(run: Run, own_place: Path) -> None:
    made = run("keys", "create", "team a", "--json").object
    ran = run("keys", "revoke", made["key_id"][:6])
    assert ran.code == 0
    assert f"revoked {made['key_id']} (team a, …{made['last4']})" in ran.err
    assert not opens(own_place, made["key"])
    assert run("keys", "list", "--json").object["keys"][0]["status"] == "revoked"


def test_revoking_an_unknown_key_is_exit_1_and_a_wrong_bound_exit_2(run: Run) -> None:
    ran = run("keys", "revoke", "zzzz")
    assert (ran.code, ran.out) == (1, "")
    assert says(ran.err, "zzzz")
    ran = run("keys", "create", "x", "--role", "boss")
    assert (ran.code, ran.out) == (2, "")
    assert says(ran.err, "boss")


def test_keys_of_another_pepper_are_pointed_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    id = run("keys", "create", "team a", "--json").object["key_id"]
    assert "pepper" not in run("keys", "list").err
    monkeypatch.setenv("DIRIGENT_PEPPER", "another pepper, long enough to serve as one")
    assert says(run("keys", "list").err, f"{id} DIRIGENT_PEPPER")


def test_the_audit_log_names_the_makers_and_closers_of_keys(run: Run, own_place: Path) -> None:
    made = run("keys", "create", "team a", "--json").object
    run("keys", "revoke", made["key_id"])
    ran = run("audit", "export")
    rows = [json.loads(line) for line in ran.out.splitlines()]
    assert [(row["action"], row["details"]["key_id"]) for row in rows] == [
        ("key.create", made["key_id"]),
        ("key.revoke", made["key_id"]),
    ]
    assert made["key"] not in ran.out
    assert run("audit", "export", "-o", "audit.jsonl").out == ""
    assert (own_place / "audit.jsonl").read_text() == ran.out


def test_verify_prints_the_head_and_later_compares_the_log_with_it(run: Run) -> None:
    run("keys", "create", "a")
    ran = run("audit", "verify")
    head = ran.out.strip()
    assert ran.code == 0
    assert head.startswith("1:")
    run("keys", "create", "b")
    assert run("audit", "verify", "--head", head).code == 0
    assert run("audit", "verify", "--json").object["rows"] == 2
    ran = run("audit", "verify", "--head", "1:" + "0" * 64)
    assert ran.code == 1
    assert says(ran.err, "row 1")
    assert run("audit", "verify", "--head", "nonsense").code == 2


def test_a_log_that_was_tampered_with_is_exit_1_and_names_the_row(run: Run, own_place: Path) -> None:
    run("keys", "create", "a")
    run("keys", "create", "b")

    async def tamper() -> None:
        async with Store.open(own_place / "home" / "dirigent.db") as store:
            for statement in ("DROP TRIGGER audit_no_update", "UPDATE audit SET actor = 'x' WHERE number = 2"):
                await store.write(lambda connection, sql: connection.execute(text(sql)), prepare=lambda s=statement: s)

    asyncio.run(tamper())
    ran = run("audit", "verify")
    assert (ran.code, ran.out) == (1, "")
    assert says(ran.err, "row 2")
    output = run("audit", "verify", "--json")
    assert output.code == 1
    assert (output.object["whole"], output.object["rows"]) == (False, 1)
