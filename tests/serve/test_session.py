"""Signing in to the console: a cookie in place of the key, for as long as the key opens anything."""

from __future__ import annotations

import pytest

from dirigent.serve.apis import session as session_api
from dirigent.serve.http.auth import COOKIE
from dirigent.store.keys import Caller, create_key, revoke_key, rotate_key
from dirigent.store.sessions import begin_session
from tests.serve.conftest import Answer, Server, Start


async def signed_in(server: Server, **bounds: object) -> tuple[Answer, dict[str, str], str]:
    """A new key's session: the reply, its cookie as a header, and the key's id."""
    made = await create_key(server.service.store, Caller("", label="team", **bounds))  # type: ignore[arg-type]
    answer = await server.request("POST", "/v1/session", headers={"Authorization": f"Bearer {made.text}"})
    server.session.cookie_jar.clear()  # each test sends its own cookies
    value = answer.headers["Set-Cookie"].split(";")[0]
    return answer, {"Cookie": value}, made.row.caller.key_id


@pytest.fixture
async def server(start: Start) -> Server:
    return await start(keys_required=True)


async def test_a_key_buys_a_cookie_that_scripts_and_other_sites_do_not_get(server: Server) -> None:
    answer, cookie, _ = await signed_in(server, budget_day_usd=2.0)
    said = answer.headers["Set-Cookie"].lower()
    assert answer.status == 200
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip() for part in said.split(";")}
    assert answer.headers["Cache-Control"] == "no-store"
    shown = await server.get("/v1/session", headers=cookie)
    assert (shown.object["label"], shown.object["role"], shown.object["open"]) == ("team", "inference", False)
    assert shown.object["budget_left_usd"] == 2.0
    assert shown.object["csrf_token"] == answer.object["csrf_token"] != ""
    assert "Access-Control-Allow-Origin" not in shown.headers


async def test_a_change_needs_the_sessions_token_beside_the_cookie(server: Server) -> None:
    answer, cookie, _ = await signed_in(server)
    token = answer.object["csrf_token"]
    for headers in (cookie, cookie | {"X-CSRF-Token": "0" * 64}, cookie | {"X-CSRF-Token": ""}):
        refused = await server.chat(headers=headers)
        assert (refused.status, refused.error["code"]) == (403, "csrf")
    assert (await server.chat(headers=cookie | {"X-CSRF-Token": token})).status == 200
    assert (await server.get("/v1/models", headers=cookie)).status == 200


async def test_signing_out_ends_the_session(server: Server) -> None:
    answer, cookie, _ = await signed_in(server)
    token = {"X-CSRF-Token": answer.object["csrf_token"]}
    ended = await server.request("DELETE", "/v1/session", headers=cookie | token)
    assert ended.status == 200
    assert "max-age=0" in ended.headers["Set-Cookie"].lower()
    assert (await server.get("/v1/session", headers=cookie)).status == 401


@pytest.mark.parametrize("end", [revoke_key, rotate_key])
async def test_a_session_ends_with_its_key(server: Server, end: object) -> None:
    _, cookie, key_id = await signed_in(server)
    assert (await server.get("/v1/session", headers=cookie)).status == 200
    await end(server.service.store, key_id)  # type: ignore[operator]
    assert (await server.get("/v1/session", headers=cookie)).status == 401


async def test_a_session_ends_when_its_time_is_over(server: Server) -> None:
    _, _, key_id = await signed_in(server)
    over = await begin_session(server.service.store, key_id, hours=0.0)
    assert (await server.get("/v1/session", headers={"Cookie": f"{COOKIE}={over.cookie}"})).status == 401


async def test_a_guessed_cookie_opens_nothing_and_guessing_is_bounded(start: Start) -> None:
    server = await start(keys_required=True, failed_tries_per_minute=5)
    answers = [await server.get("/v1/session", headers={"Cookie": f"{COOKIE}=guess{i}"}) for i in range(8)]
    assert [answer.status for answer in answers[:5]] == [401] * 5
    assert answers[-1].status == 429


async def test_behind_https_the_cookie_is_for_https_alone(server: Server) -> None:
    made = await create_key(server.service.store, Caller(""))
    headers = {"Authorization": f"Bearer {made.text}", "X-Forwarded-Proto": "https"}
    answer = await server.request("POST", "/v1/session", headers=headers)
    assert "secure" in answer.headers["Set-Cookie"].lower()


async def test_without_keys_everybody_on_this_machine_is_signed_in(start: Start) -> None:
    server = await start()
    shown = await server.get("/v1/session")
    assert (shown.object["open"], shown.object["role"]) == (True, "admin")
    again = await server.request("POST", "/v1/session")
    assert (again.status, "Set-Cookie" in again.headers) == (200, False)


def test_the_session_ends_within_a_day() -> None:
    assert 0 < session_api.SESSION_HOURS <= 24
