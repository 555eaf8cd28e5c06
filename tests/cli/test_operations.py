"""`dirigent keys rotate`, `dirigent traces prune`, and `[serve]` under `dirigent serve`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest

from dirigent.store import Store
from dirigent.store.keys import authenticate
from dirigent.store.tables import now
from tests.cli.conftest import POOL, Run
from tests.facts import says
from tests.store.samples import a_trace


@pytest.fixture(autouse=True)
def no_pepper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIRIGENT_PEPPER", raising=False)


def whose(place: Path, key: str) -> str | None:
    async def ask() -> str | None:
        async with Store.open(place / "home" / "dirigent.db") as store:
            caller = await authenticate(store, key)
            return None if caller is None else caller.key_id

    return asyncio.run(ask())


def test_a_rotated_key_keeps_its_id_and_bounds_and_its_old_text_opens_nothing(run: Run, own_place: Path) -> None:
    bounds = ("--budget-day", "5", "--concurrency", "3", "--allow", "a", "--region", "eu")
    made = run("keys", "create", "team a", *bounds, "--json").object
    ran = run("keys", "rotate", made["key_id"][:6])
    fresh = ran.out.strip()
    assert ran.code == 0
    assert fresh.startswith("dg_")
    assert fresh != made["key"]
    assert ran.err.strip()
    assert fresh not in ran.err
    assert whose(own_place, fresh) == made["key_id"]
    assert whose(own_place, made["key"]) is None
    (row,) = run("keys", "list", "--json").object["keys"]
    same = ("key_id", "label", "budget_day_usd", "concurrency", "allow", "region", "created_at", "expires_at")
    assert {name: row[name] for name in same} == {name: made[name] for name in same}
    assert row["last4"] == fresh[-4:]
    actions = [json.loads(line)["action"] for line in run("audit", "export").out.splitlines()]
    assert actions == ["key.create", "key.rotate"]


def test_rotation_can_set_a_new_end_and_keeps_the_old_one_otherwise(run: Run) -> None:
    made = run("keys", "create", "a", "--expires-days", "7", "--json").object
    assert run("keys", "rotate", made["key_id"], "--json").object["expires_at"] == made["expires_at"]
    later = run("keys", "rotate", made["key_id"], "--expires-days", "30", "--json").object
    assert later["expires_at"] > made["expires_at"]
    assert run("keys", "rotate", made["key_id"], "--expires-days", "-1").code == 2
    assert run("keys", "create", "b", "--expires-days", "1e9").code == 2


def test_a_revoked_or_unknown_key_is_not_rotated(run: Run) -> None:
    made = run("keys", "create", "a", "--json").object
    run("keys", "revoke", made["key_id"])
    ran = run("keys", "rotate", made["key_id"])
    assert (ran.code, ran.out) == (1, "")
    assert says(ran.err, made["key_id"])
    assert says(run("keys", "rotate", "zzzz").err, "zzzz")


def test_the_list_shows_every_bound(run: Run) -> None:
    run(
        *("keys", "create", "a", "--requests-per-minute", "60", "--concurrency", "4", "--allow", "x", "--deny", "y"),
        *("--region", "eu", "--retention-days", "30", "--expires-days", "9"),
    )
    out = run("keys", "list").out
    assert says(out, "60/min 4 x y eu 30")


def keep(place: Path, *ages_days: float) -> None:
    async def work() -> None:
        async with Store.open(place / "home" / "dirigent.db") as store:
            for days in ages_days:
                await store.save(a_trace(f"age-{days:g}", created_at=(now() - timedelta(days=days)).isoformat()))

    asyncio.run(work())


def left(run: Run) -> set[str]:
    return {row["id"] for row in run("traces", "list", "--json").object["traces"]}


def test_prune_deletes_runs_older_than_the_given_age(run: Run, own_place: Path) -> None:
    keep(own_place, 0.1, 2, 40)
    assert says(run("traces", "prune", "--older-than", "30d").err, "1")
    assert left(run) == {"age-0.1", "age-2"}
    assert run("traces", "prune", "--older-than", "12h", "--json").object["traces"] == 1
    rows = [json.loads(line) for line in run("audit", "export").out.splitlines()]
    assert [(row["actor"], row["action"]) for row in rows] == [("cli", "retention.prune")] * 2


def test_prune_without_an_age_uses_the_configuration(run: Run, own_place: Path) -> None:
    keep(own_place, 2, 40)
    assert run("traces", "prune", "--json").object["traces"] == 0
    (own_place / "dirigent.toml").write_text(POOL + "\n[serve]\nretention_days = 30\n")
    assert run("traces", "prune", "--json").object["traces"] == 1
    assert left(run) == {"age-2"}


@pytest.mark.parametrize("age", ["30", "d", "-3d", "0d", "3y", "1000000000d"])
def test_an_invalid_age_is_exit_2_and_deletes_nothing(run: Run, own_place: Path, age: str) -> None:
    keep(own_place, 40)
    assert run("traces", "prune", f"--older-than={age}").code == 2
    assert left(run) == {"age-40"}


async def test_serve_listens_at_the_configured_address_and_the_command_line_wins(own_place: Path) -> None:
    config = own_place / "dirigent.toml"
    config.write_text(POOL + '\n[serve]\nhost = "127.0.0.1"\nport = 1\nkeys_required = true\n')
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dirigent", "serve", "--port", "0", "--config", str(config)),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"DIRIGENT_HOME": str(own_place / "home")},
    )
    try:
        assert running.stderr is not None
        line = (await running.stderr.readline()).decode()
        assert line.startswith("serving http://127.0.0.1:"), line
        base = line.split()[1]
        assert not base.endswith(":1/v1")
        async with aiohttp.ClientSession() as session, session.get(f"{base}/models") as response:
            assert response.status == 401
        running.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(running.wait(), 20) == 0
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


def test_a_wrong_setting_keeps_the_server_from_starting(run: Run, own_place: Path) -> None:
    (own_place / "dirigent.toml").write_text(POOL + "\n[serve]\nprot = 80\n")
    ran = run("serve")
    assert ran.code == 2
    assert says(ran.err, "prot port")


def test_a_wrong_flag_keeps_the_server_from_starting(run: Run, own_place: Path) -> None:
    (own_place / "dirigent.toml").write_text(POOL)
    ran = run("serve", "--port", "0", "--grace", "100000")
    assert ran.code == 2
    assert says(ran.err, "grace_s 0")
