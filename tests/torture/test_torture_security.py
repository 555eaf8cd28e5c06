"""A handful of cases of each row about hostile input; and that their checks can fail."""

from __future__ import annotations

import json
import random
from typing import Any

import aiohttp
import pytest

from dirigent.plan.plan import Plan, Step
from dirigent.serve.http.app import ENDPOINTS
from dirigent.serve.http.openapi import openapi
from tests.torture.access import _Case
from tests.torture.fuzz import Case, draw_cases, judge
from tests.torture.injections import GOALS, HONEST, WORDINGS, Injection, _changed, injections
from tests.torture.names import can_mislead
from tests.torture.rows_security import b1, s1, s2, s3, s4, s5, s7
from tests.torture.ssrf import PLACES, REBINDING, SPELLINGS, _drawn
from tests.torture.tenants import Tenant, crossings
from tests.torture.traps import trap

DESCRIPTION: dict[str, Any] = openapi(ENDPOINTS)


async def test_b1_every_reply_fits_the_description() -> None:
    result = await b1(300, seed=11)
    assert result.reached, result


async def test_s1_no_step_sees_results_outside_its_access_list() -> None:
    result = await s1(200, seed=1)
    assert result.reached, result


async def test_s2_nothing_of_one_key_is_there_for_another() -> None:
    result = await s2(150, seed=2)
    assert result.reached, result


async def test_s3_words_change_nothing_that_is_fixed() -> None:
    result = await s3(40, seed=1)
    assert result.reached, result


@pytest.mark.system
async def test_s4_the_server_fetches_no_address_for_a_caller() -> None:
    if not can_mislead():
        pytest.skip("a name server needs root, for port 53")
    result = await s4(100, seed=1)
    assert result.reached, result


async def test_s5_no_secret_is_kept_or_passed_on() -> None:
    result = await s5(12, seed=1)
    assert result.reached, result


async def test_s7_a_loop_ends_by_itself() -> None:
    result = await s7(4, seed=1)
    assert result.reached, result
    assert result.figures["calls"] == 8


# ---- the cases themselves ----------------------------------------------------------------------------------


def drawn(seed: int, count: int = 400) -> list[Case]:
    return list(draw_cases(DESCRIPTION, random.Random(seed), count, models=["worker/a"], ids=["resp_1"]))


def test_the_same_seed_draws_the_same_cases_of_every_kind_and_route() -> None:
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert {case.kind for case in drawn(1)} == {"fitting", "bent", "raw", "astray"}
    described = {(path, method.upper()) for path, methods in DESCRIPTION["paths"].items() for method in methods}
    assert described <= {(case.template, case.method) for case in drawn(1, 3000)}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b'{"error": {"message": "x", "type": "server_error"}}'),
        (599, b""),
        (418, b'{"error": {"message": "x", "type": "y"}}'),
        (400, b'{"detail": "x"}'),
        (400, b"<html>"),
        (400, b'{"error": {"message": "Traceback (most recent call last)", "type": "y"}}'),
        (200, b'{"id": 5}'),
    ],
)
def test_a_reply_that_is_not_as_described_is_noticed(status: int, body: bytes) -> None:
    case = Case("fitting", "POST", "/v1/chat/completions", "/v1/chat/completions", b"{}")
    headers = {"Content-Type": "application/json"}
    assert judge(case, status, headers, body, DESCRIPTION)
    assert not judge(case, 400, headers, b'{"error": {"message": "no", "type": "t"}}', DESCRIPTION)


def test_a_canary_outside_the_access_list_is_noticed() -> None:
    case = _Case(random.Random(1), 7)
    case.plan = Plan((Step("alpha", "one"), Step("beta", "two", (0,)), Step("gamma", "three", (1,))))
    case.canaries, case.end = ["canary-a", "canary-b", "canary-c"], "done"
    case.seen, case.planner_saw = {0: set(), 1: {"canary-a"}, 2: {"canary-b"}}, {"canary-c"}
    assert list(case.faults()) == []
    case.seen[2].add("canary-a")
    assert "step 2" in next(case.faults())
    case.seen[2].remove("canary-a")
    case.planner_saw.add("canary-of-another-run")
    assert "the planner" in next(case.faults())
    case.end = "failed"
    assert "failed" in next(case.faults())


def test_there_are_enough_injections_and_all_of_them_differ() -> None:
    cases = list(injections("http://127.0.0.1:1"))
    assert len({case.words for case in cases}) >= 300
    assert len(cases) == 2 * len(GOALS) * len(WORDINGS)
    assert {case.way for case in cases} == {"request", "worker"}


def test_a_plan_that_words_have_changed_is_noticed() -> None:
    case = Injection(0, "worker", "words", HONEST)
    good = [{"worker": "alpha", "subtask": "find it"}, {"worker": "beta", "subtask": "say it", "access": [0]}]
    assert list(_changed(case, {"rounds": [{"plan": {"steps": good}}]})) == []
    for bad in ([{"worker": "gamma", "subtask": "x"}], good * 3, [{**good[0], "access": [1]}, good[1]], good[::-1]):
        assert list(_changed(case, {"rounds": [{"plan": {"steps": bad}}]})), bad
    dear = {"plan": {"steps": good}, "steps": [{"attempts": [{"cost_usd": 9.0}]}]}
    assert list(_changed(case, {"rounds": [dear]}))


def test_there_are_enough_pairs_of_a_place_and_an_address() -> None:
    assert len(PLACES) * len(SPELLINGS) >= 200
    assert len(PLACES) * len(REBINDING) >= 200
    drawn = _drawn(440, random.Random(1))
    assert sum(spelling in REBINDING for _, spelling in drawn) == 220
    assert len(set(drawn)) >= 420  # a pair comes again only when all have come
    aims = {json.dumps([a.method, a.path, a.body, dict(a.headers)]) for p in PLACES for a in [p(SPELLINGS[0], "m")]}
    assert len(aims) == len(PLACES)
    assert all("127.0.0.1" in aim or "data:" in aim for aim in aims)


async def test_the_trap_catches_every_connection() -> None:
    async with trap() as snare, aiohttp.ClientSession() as session:
        assert snare.reached == 0
        with pytest.raises(aiohttp.ClientError):
            await session.get(snare.url)
        assert snare.reached >= 1  # the client tries again without an answer


def test_every_route_is_tried_with_every_id() -> None:
    owner = Tenant("dg_x", "canary", ids={"name": "n", "trace": "t1", "tool call": "c1", "response": "r1", "set": "s1"})
    tried = list(crossings(owner, DESCRIPTION, random.Random(1)))
    for endpoint in ENDPOINTS:
        if "{" in endpoint.path or endpoint.takes is not None:
            start = endpoint.path.partition("{")[0]
            kinds = {c.kind for c in tried if c.method == endpoint.method and c.path.startswith(start)}
            assert kinds == set(owner.ids), endpoint.path
    assert not any("canary" in json.dumps(c.body) for c in tried)
