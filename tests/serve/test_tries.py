"""Wrong keys: how many an address may send, and that other callers do not suffer for it."""

from __future__ import annotations

import pytest

from dirigent.serve.http import auth
from dirigent.serve.http.auth import Tries
from dirigent.store.keys import Caller, create_key, revoke_key
from tests.serve.conftest import Start
from tests.workers.clock import Clock


def wrong(tries: Tries, address: str, key: str = "dg_guess") -> float:
    """Try a wrong key; the seconds to wait where it was not even looked at."""
    wait_s = tries.begin(address, key)
    if not wait_s:
        tries.end(address, key, right=False)
    return wait_s


def test_tries_run_out_and_come_back_with_time() -> None:
    clock = Clock()
    tries = Tries(most=3, clock=clock)
    assert [wrong(tries, "192.0.2.1") for _ in range(3)] == [0, 0, 0]
    assert wrong(tries, "192.0.2.1") == pytest.approx(20)
    clock.now_s += 20
    assert wrong(tries, "192.0.2.1") == 0
    assert wrong(tries, "192.0.2.1") > 0


def test_another_address_has_tries_of_its_own_but_not_another_of_the_same_network() -> None:
    tries = Tries(most=1)
    assert wrong(tries, "2001:db8::1") == 0
    assert wrong(tries, "2001:db8::2") > 0
    assert wrong(tries, "2001:db8:0:1::1") == 0
    assert wrong(tries, "192.0.2.1") == wrong(tries, "192.0.2.2") == 0


def test_many_tries_at_once_count_before_any_of_them_has_ended() -> None:
    tries = Tries(most=2)
    assert [tries.begin("a", f"dg_{n}") > 0 for n in range(4)] == [False, False, True, True]


def test_a_key_that_many_requests_bring_at_once_is_one_try_if_it_is_right_and_all_of_them_if_it_is_not() -> None:
    tries = Tries(most=3)
    assert [tries.begin("a", "dg_new") for _ in range(10)] == [0.0] * 10
    for _ in range(10):
        tries.end("a", "dg_new", right=True)
    assert [wrong(tries, "a", f"dg_{n}") > 0 for n in range(4)] == [False, False, False, True]
    assert [tries.begin("b", "dg_guess") for _ in range(10)] == [0.0] * 10
    for _ in range(10):
        tries.end("b", "dg_guess", right=False)
    assert tries.begin("b", "dg_other") > 0


def test_a_try_that_the_store_could_not_judge_counts_for_nothing() -> None:
    tries = Tries(most=2)
    for _ in range(10):
        assert [tries.begin("a", "dg_new"), tries.begin("a", "dg_new")] == [0.0, 0.0]
        for _ in range(2):
            tries.end("a", "dg_new", right=None)
    assert tries._trying == {}
    assert wrong(tries, "a") == 0


def test_right_keys_cost_no_try_and_stay_welcome_from_a_blocked_address() -> None:
    tries = Tries(most=2)
    for _ in range(10):
        assert tries.begin("a", "dg_right") == 0
        tries.end("a", "dg_right", right=True)
    while not wrong(tries, "a"):
        pass
    assert tries.begin("a", "dg_right") == 0
    tries.end("a", "dg_right", right=False)  # revoked meanwhile
    assert tries.begin("a", "dg_right") > 0


def test_the_memory_of_tries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "REMEMBERED", 5)
    bounded = Tries()
    for n in range(100):
        wrong(bounded, f"192.0.2.{n}")
        bounded.begin("a", f"dg_{n}")
        bounded.end("a", f"dg_{n}", right=True)
    assert len(bounded._wrong) <= 5
    assert len(bounded._right) <= 5


async def test_the_server_says_429_with_retry_after_and_lets_known_keys_in(
    start: Start,
) -> None:
    server = await start(keys_required=True, failed_tries_per_minute=3)
    made = await create_key(server.service.store, Caller(""))
    right = {"Authorization": f"Bearer {made.text}"}
    assert (await server.get("/v1/models", headers=right)).status == 200
    statuses = []
    for n in range(5):
        answer = await server.get("/v1/models", headers={"X-Api-Key": f"dg_guess{n}"})
        statuses.append(answer.status)
    assert statuses == [401, 401, 401, 429, 429]
    assert answer.error["code"] == "failed_tries"
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert (await server.get("/v1/models")).status == 401, "no key is no guess"
    assert (await server.get("/v1/models", headers=right)).status == 200
    await revoke_key(server.service.store, made.row.caller.key_id)
    assert (await server.get("/v1/models", headers=right)).status == 401
    assert (await server.get("/v1/models", headers=right)).status == 429
