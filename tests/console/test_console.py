"""The console in a real browser: each page's main task, the moves that only a conductor has, speed, attacks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dirigent.learn.cards import Card, Share
from dirigent.learn.policy import FixedPlan, Policy
from dirigent.limits import Limits
from dirigent.messages import Attempt, Message, Reply, ToolCall, Usage
from dirigent.plan.plan import Plan, Step
from dirigent.run.trace import DraftRecord, Round, StepRecord, Trace
from dirigent.store.keys import Caller, create_key, revoke_key
from tests.console.conftest import Browser, Line, Open
from tests.console.long_runs import long_conversation, many_steps
from tests.console.test_screens import compared, furnish, learned
from tests.serve.conftest import Server, Start
from tests.serve.test_learning import a_selector
from tests.serve.test_runs_api import watched

pytestmark = pytest.mark.system

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
PAGES = ("play", "runs", "compare", "pool", "spend", "learning", "keys")


async def ask(browser: Browser, question: str, *, button: str = "Ask") -> None:
    await browser.page.get_by_label("Question", exact=True).fill(question)
    await browser.page.get_by_role("button", name=button, exact=True).click()


# ---- signing in -------------------------------------------------------------------------------------------


async def test_a_key_signs_in_is_kept_by_no_script_and_a_401_leads_back(start: Start, browse: Open) -> None:
    server = await start(keys_required=True)
    made = await create_key(server.service.store, Caller("", label="team", role="admin"))
    browser = await browse(server)
    page = browser.page
    await browser.open("/runs")
    await page.get_by_label("API key").fill("dg_wrong")
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_text("opens nothing here").wait_for()
    await page.get_by_label("API key").fill(made.text)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_text("No runs yet").wait_for()  # the page that was asked for
    kept = await page.evaluate("JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])")
    assert made.text not in kept
    assert "dirigent_session" not in kept
    await page.reload()
    await page.get_by_text("No runs yet").wait_for()
    await revoke_key(server.service.store, made.row.caller.key_id)
    await page.get_by_text("Your session is over").wait_for()  # by the list's own next look
    await page.get_by_label("API key").wait_for()


async def test_signing_out_leaves_nothing_behind(start: Start, browse: Open) -> None:
    server = await start(keys_required=True)
    made = await create_key(server.service.store, Caller("", label="team"))
    browser = await browse(server)
    await browser.open("/pool")
    await browser.page.get_by_label("API key").fill(made.text)
    await browser.page.get_by_role("button", name="Sign in").click()
    await browser.page.get_by_role("button", name="Sign out").click()
    await browser.page.get_by_text("You are signed out").wait_for()
    assert await browser.page.context.cookies() == []


async def test_pages_for_admins_are_not_in_a_callers_menu(start: Start, browse: Open) -> None:
    server = await start(keys_required=True)
    made = await create_key(server.service.store, Caller("", label="team"))
    browser = await browse(server)
    await browser.open("/keys")
    await browser.page.get_by_label("API key").fill(made.text)
    await browser.page.get_by_role("button", name="Sign in").click()
    await browser.page.get_by_text("needs a key with the role admin").wait_for()
    assert await browser.page.get_by_role("link", name="Keys").count() == 0


# ---- the moves --------------------------------------------------------------------------------------------


async def test_a_plan_is_edited_before_it_is_paid_and_lights_up(server: Server, browse: Open) -> None:
    browser = await browse(server)
    page = browser.page
    await browser.open("/play")
    await page.get_by_label("Plan first").check()
    await ask(browser, "Why does it fail?", button="Plan")
    await page.get_by_text("Plan, not paid yet").wait_for()
    assert [call.model for call in server.stub.calls] == ["boss"]  # only the planner was asked
    nodes = page.locator(".svelte-flow__node")
    assert await nodes.count() == 3
    await page.get_by_role("log").click()
    await page.keyboard.press("e")
    await page.get_by_label("Worker of step 0").select_option("beta")
    await page.get_by_label("Subtask").fill("look at the clock")
    await nodes.nth(1).click()
    await page.get_by_role("button", name="Drop step 1").click()
    await page.get_by_text("boss · ", exact=False).first.is_visible()
    server.stub.delay_s = 2.0
    await page.get_by_role("button", name="Approve and run").click()
    await page.locator(".step.running").first.wait_for()  # it lights up
    await page.get_by_text("2 steps").wait_for()
    assert [call.model for call in server.stub.calls[1:]] == ["beta", "beta"]
    trace = (await server.get("/v1/traces?limit=1")).object["data"][0]
    steps = (await server.get(f"/v1/traces/{trace['id']}")).object["rounds"][0]["plan"]["steps"]
    assert [(step["worker"], step["subtask"]) for step in steps] == [
        ("beta", "look at the clock"),
        ("beta", "decide between the causes"),
    ]
    spent = await page.get_by_test_id("spent").inner_text()
    assert "2 calls" in spent
    assert "$0 " not in spent
    assert browser.faults == []


async def test_an_arrow_is_drawn_by_dragging_and_taken_away_with_delete(server: Server, browse: Open) -> None:
    browser = await browse(server)
    page = browser.page
    await browser.open("/play")
    await page.get_by_label("Plan first").check()
    await ask(browser, "Why?", button="Plan")
    await page.locator(".svelte-flow__edge").nth(1).wait_for(state="attached")
    out = page.locator('.svelte-flow__node[data-id="0"] .svelte-flow__handle.source')
    into = page.locator('.svelte-flow__node[data-id="1"] .svelte-flow__handle.target')
    await page.wait_for_timeout(400)
    await out.hover()
    await page.mouse.down()
    await into.hover()
    await page.mouse.up()
    await page.locator('[data-id="0-1"]').wait_for(state="attached")
    await page.locator('.svelte-flow__edge[data-id="0-2"]').focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Delete")
    await page.locator('.svelte-flow__edge[data-id="0-2"]').wait_for(state="detached")
    await page.locator('.svelte-flow__node[data-id="2"]').click()
    assert await page.get_by_role("checkbox", name="step 0").is_checked() is False
    assert await page.get_by_role("checkbox", name="step 1").is_checked() is True


async def test_graph_and_waterfall_share_one_selection(server: Server, browse: Open) -> None:
    ids = await furnish(server)
    browser = await browse(server)
    page = browser.page
    await browser.open(f"/run/{ids[0]}")
    await page.get_by_role("button", name="step 0 alpha").click()
    await page.locator('.svelte-flow__node[data-id="0"] .selected').wait_for()
    await page.locator('.svelte-flow__node[data-id="1"]').click()
    row = page.get_by_role("button", name="step 1 beta")
    assert await row.get_attribute("aria-pressed") == "true"
    await page.keyboard.press("j")
    await page.locator('.svelte-flow__node[data-id="2"] .selected').wait_for()
    assert await page.locator(".bar.critical").count() == 2
    await page.get_by_role("tab", name="Messages").click()
    await page.get_by_text("decide between the causes").nth(1).wait_for()
    await page.get_by_role("tab", name="Attempts").click()
    await page.get_by_role("cell", name="answered").wait_for()
    await browser.open(f"/run/{ids[3]}")  # two rounds in one picture
    await page.get_by_text("round 1").first.wait_for(state="attached")
    assert browser.faults == []


async def test_a_fork_pays_only_later_steps_and_is_shown_beside_the_run(server: Server, browse: Open) -> None:
    id = (await furnish(server))[0]
    calls = len(server.stub.calls)
    browser = await browse(server)
    page = browser.page
    await browser.open(f"/run/{id}")
    await page.locator('.svelte-flow__node[data-id="2"]').click()
    await page.keyboard.press("f")
    await page.get_by_text("Asked and paid again: step 2. Kept: step 0, step 1.").wait_for()
    await page.get_by_label("Worker").select_option("alpha")
    await page.get_by_role("button", name="Fork and run").click()
    await page.get_by_role("heading", name="Before").wait_for()
    await page.get_by_role("heading", name="After").wait_for()
    await page.get_by_text("kept, not paid again").first.wait_for()
    assert await page.locator(".step.kept").count() == 2
    assert [call.model for call in server.stub.calls[calls:]] == ["alpha"]


async def test_two_models_answer_side_by_side_and_the_vote_is_kept(server: Server, browse: Open) -> None:
    browser = await browse(server)
    page = browser.page
    await browser.open("/compare")
    await page.get_by_label("Question").fill("Which is it?")
    await page.get_by_label("Side A").select_option("worker/alpha")
    await page.get_by_label("Side B").select_option("worker/beta")
    await page.get_by_label("Hide the names").check()
    await page.get_by_role("button", name="Compare", exact=True).click()
    await page.get_by_text("beta looked into it").wait_for()
    assert await page.get_by_text("worker/alpha").count() == 0  # hidden until the vote
    await page.get_by_role("button", name="B is better").click()
    await page.get_by_text("Voted: worker/beta").wait_for()
    await page.get_by_role("button", name="Add to set").click()
    await page.get_by_label("Set", exact=True).fill("which")
    await page.get_by_label("What is right").fill("beta")
    await page.get_by_role("button", name="Add", exact=True).click()
    await page.get_by_role("button", name="In which").wait_for()
    link = page.url
    await page.goto("about:blank")
    await page.goto(link)  # a link opens the comparison
    await page.get_by_text("Voted: worker/beta").wait_for()
    assert (await server.get("/v1/sets/which")).object["data"][0]["answer"] == "beta"
    rows = (await server.get("/v1/traces")).object["data"]
    assert {row["profile"]: row["score"] for row in rows} == {"worker/alpha": 0.0, "worker/beta": 1.0}


async def test_the_operating_point_is_dragged_along_the_front_and_switched(
    start: Start, browse: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await learned(start, tmp_path, monkeypatch)
    await server.chat(model="mini")
    browser = await browse(server)
    page = browser.page
    await browser.open("/learning")
    front = page.get_by_role("slider", name="Operating point")
    assert "81.0% right" in str(await front.get_attribute("aria-valuetext"))
    await page.get_by_text("1 run cost").wait_for()  # what last week's runs would have cost
    box = await front.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + box["height"] / 2)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + box["height"] / 2, steps=5)
    await page.mouse.up()
    assert "86.0% right" in str(await front.get_attribute("aria-valuetext"))
    await page.get_by_role("button", name="Use this point").click()
    await page.get_by_text("in use: best").wait_for()
    await page.get_by_role("button", name="Roll back").click()
    await page.get_by_text("in use: same").wait_for()
    await front.focus()
    await page.keyboard.press("ArrowRight")
    assert "83.0% right" in str(await front.get_attribute("aria-valuetext"))
    await page.get_by_text("All figures").click()
    for name in ("alpha", "beta ×3", "vote of the best 2", "conductor (gym.json)"):
        await page.get_by_role("row", name=name).first.wait_for()
    await page.get_by_text("gym.json", exact=True).click()
    await page.get_by_role("row", name="conductor-language").wait_for()
    await page.get_by_text("dev/accuracy").wait_for()
    assert browser.faults == []


# ---- the pages' tasks -------------------------------------------------------------------------------------


async def test_runs_are_searched_filtered_walked_with_keys_and_judged(server: Server, browse: Open) -> None:
    await furnish(server)
    browser = await browse(server)
    page = browser.page
    await browser.open("/runs")
    rows = page.get_by_test_id("runs").locator("a.row")
    await rows.nth(5).wait_for()
    await page.keyboard.press("/")
    await page.keyboard.type("incident report")
    await counted(rows, 1)
    assert "search=incident" in page.url
    await page.get_by_role("button", name="Clear").click()
    await page.get_by_label("Status").select_option("failed")
    await counted(rows, 1)
    await page.get_by_label("Status").select_option("")
    await page.get_by_role("button", name="More filters").click()
    await page.get_by_label("Worker").select_option("beta")
    await counted(rows, 4)
    await page.get_by_role("button", name="Clear").click()
    await counted(rows, 6)
    await page.locator("h1").click()
    for key in ("j", "j", "k", "Enter"):
        await page.keyboard.press(key)
    await page.get_by_role("heading", name="Conversation").wait_for()
    await page.get_by_role("button", name="Good answer").click()
    assert (await server.get("/v1/traces?feedback=up")).object["data"] != []


async def counted(rows: Any, count: int) -> None:
    """Wait until there are so many rows."""
    for _ in range(100):
        if await rows.count() == count:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{await rows.count()} rows, not {count}")


async def test_a_conversation_continues_and_shows_its_cost(server: Server, browse: Open) -> None:
    browser = await browse(server)
    page = browser.page
    await browser.open("/play")
    await page.get_by_label("Model").select_option("worker/alpha")
    await ask(browser, "First?")
    await page.get_by_text("1 step").first.wait_for()
    await ask(browser, "Second?")
    await page.get_by_text("2 calls").wait_for()
    said = [message["role"] for message in server.stub.calls[-1].body["messages"]]
    assert said == ["user", "assistant", "user"]
    conversations = (await server.get("/v1/usage?group_by=conversation")).object["data"]
    assert [row["calls"] for row in conversations] == [2]
    await page.reload()  # the conversation is still there
    await page.get_by_text("2 calls").wait_for()
    await page.get_by_role("button", name="New").click()
    await page.get_by_text("Ask something, and see").wait_for()


async def test_files_and_images_are_attached(server: Server, browse: Open, tmp_path: Path) -> None:
    (tmp_path / "test.log").write_text("line <b>one</b>")
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    import base64

    (tmp_path / "dot.png").write_bytes(base64.b64decode(dot))
    browser = await browse(server)
    page = browser.page
    await browser.open("/play")
    await page.get_by_label("Model").select_option("worker/alpha")
    await page.set_input_files("input[type=file]", [tmp_path / "test.log", tmp_path / "dot.png"])
    await page.get_by_text("dot.png").wait_for()
    await ask(browser, "What is this?")
    await page.get_by_text("1 step").first.wait_for()
    sent = json.dumps(server.stub.calls[-1].body)
    assert "line <b>one</b>" in sent
    assert "image/png;base64" in sent


async def test_a_run_is_stopped_and_failures_are_shown(server: Server, browse: Open) -> None:
    browser = await browse(server)
    page = browser.page
    await browser.open("/play")
    server.stub.delay_s = 30
    await ask(browser, "Forever?")
    await page.get_by_role("button", name="Stop").click()
    await page.get_by_text("Stopped.").wait_for()
    server.stub.delay_s, server.stub.faults = 0, ["400"] * 5
    await page.get_by_label("Model").select_option("worker/alpha")
    await ask(browser, "Refused?")
    await page.get_by_role("alert").get_by_text("does not").wait_for()


async def test_a_reconnect_in_mid_stream_loses_nothing(server: Server, browse: Open, line: Line) -> None:
    browser = await browse(await line.to(server))
    page = browser.page
    server.stub.chunk_delay_s = 0.25
    await browser.open("/play")
    await page.get_by_label("Model").select_option("worker/alpha")
    await ask(browser, "Slowly?")
    await page.get_by_text("alpha looked").first.wait_for()
    line.cut()
    await page.get_by_text("the connection was lost").wait_for()
    await line.mend()
    await page.get_by_text("1 step").first.wait_for()
    assert "the second cause" in await page.get_by_role("log").inner_text()
    await page.reload()  # a new page goes on with the conversation too
    await page.get_by_text("1 step").first.wait_for()
    assert "the second cause" in await page.get_by_role("log").inner_text()
    assert len(server.stub.calls) == 1


async def test_the_pool_shows_right_answers_by_worker_and_kind(
    start: Start, browse: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = await browse(await learned(start, tmp_path, monkeypatch))
    await browser.open("/pool")
    await browser.page.get_by_role("heading", name="Right answers by kind").wait_for()
    cell = browser.page.get_by_role("cell", name="97%")
    assert "on 60 questions" in str(await cell.get_attribute("title"))
    assert browser.faults == []


async def test_runs_appear_while_they_work_and_the_list_comes_back_after_a_lost_connection(
    server: Server, browse: Open, line: Line
) -> None:
    browser = await browse(await line.to(server))
    page = browser.page
    await browser.open("/runs")
    await page.get_by_text("No runs yet").wait_for()
    server.stub.delay_s = 1.0
    waiting = asyncio.ensure_future(server.chat("Who is it?", model="worker/alpha"))
    await page.get_by_test_id("under-way").get_by_text("Who is it?").wait_for()
    await waiting
    await page.get_by_test_id("runs").get_by_text("Who is it?").wait_for()
    await page.get_by_test_id("under-way").wait_for(state="detached")
    server.stub.delay_s = 0
    line.cut()
    await page.get_by_text("The connection was lost").wait_for()
    await server.chat("Meanwhile?", model="worker/alpha")
    await line.mend()
    await page.get_by_test_id("runs").get_by_text("Meanwhile?").wait_for()
    assert await page.get_by_text("The connection was lost").count() == 0


async def test_a_run_is_shown_again_from_its_record(server: Server, browse: Open) -> None:
    id = (await furnish(server))[0]
    calls = len(server.stub.calls)
    browser = await browse(server)
    page = browser.page
    await browser.open(f"/run/{id}")
    await page.get_by_role("button", name="Replay").click()
    await page.locator(".step.running").first.wait_for()
    await page.get_by_text("gives the same answer").wait_for()
    assert await page.locator(".step.done").count() == 3
    assert len(server.stub.calls) == calls


async def test_a_worker_is_switched_off_and_on(server: Server, browse: Open) -> None:
    browser = await browse(server)
    page = browser.page
    await browser.open("/pool")
    beta = page.get_by_role("region", name="beta")
    await beta.get_by_role("button", name="Switch off").click()
    await beta.get_by_role("button", name="Switch on").wait_for()
    assert (await server.chat(model="worker/beta")).status == 404
    await beta.get_by_role("button", name="Switch on").click()
    await beta.get_by_role("button", name="Switch off").wait_for()
    assert (await server.chat(model="worker/beta")).status == 200


async def test_spending_is_shown_by_the_chosen_group(server: Server, browse: Open) -> None:
    await furnish(server)
    browser = await browse(server)
    page = browser.page
    await browser.open("/spend")
    await page.get_by_role("cell", name="alpha").first.wait_for()
    await page.locator("header select").first.select_option("user")
    await page.get_by_role("cell", name="user1").wait_for()
    await page.get_by_label("Against asking one worker").select_option("alpha")
    await page.get_by_text("conducted runs cost").wait_for()
    assert browser.faults == []


async def test_an_admin_sees_what_is_left_of_each_budget(start: Start, browse: Open) -> None:
    server = await start(keys_required=True)
    made = await create_key(server.service.store, Caller("", role="admin", label="boss"))
    bounds = Caller("", label="team b", budget_day_usd=0.5, budget_total_usd=20.0)
    team = await create_key(server.service.store, bounds)
    assert (await server.chat(headers={"Authorization": f"Bearer {team.text}"})).status == 200
    browser = await browse(server)
    page = browser.page
    await browser.open("/spend")
    await page.get_by_label("API key").fill(made.text)
    await page.get_by_role("button", name="Sign in").click()
    day = page.get_by_role("row", name="$0.5000 a day")
    await day.get_by_role("cell", name="team b").wait_for()
    left = await day.get_by_role("cell").nth(3).inner_text()
    assert 0.49 < float(left.removeprefix("$")) <= 0.5
    total = page.get_by_role("row", name="$20.00 in all")
    assert (await total.get_by_role("cell").nth(3).inner_text()).startswith(("$19.9", "$20.00"))
    await page.get_by_label("Against asking one worker").select_option("beta")
    await page.get_by_text("asked beta straight, and calibration has no cost").wait_for()


async def test_an_admin_makes_and_revokes_a_key(start: Start, browse: Open) -> None:
    server = await start(keys_required=True)
    made = await create_key(server.service.store, Caller("", label="boss", role="admin"))
    browser = await browse(server)
    page = browser.page
    await browser.open("/keys")
    await page.get_by_label("API key").fill(made.text)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("button", name="New key").click()
    await page.get_by_label("Label").fill("team b")
    await page.get_by_label("Budget a day").fill("2")
    await page.get_by_role("button", name="Make the key").click()
    text = await page.locator(".made code").inner_text()
    headers = {"Authorization": f"Bearer {text}"}
    assert (await server.get("/v1/models", headers=headers)).status == 200
    await page.get_by_role("button", name="I have saved it").click()
    assert await page.get_by_text(text).count() == 0
    row = page.get_by_role("row", name="team b")
    await row.get_by_role("button", name="Revoke").click()
    await page.get_by_role("button", name="Revoke it").click()
    await row.get_by_text("revoked").wait_for()
    assert (await server.get("/v1/models", headers=headers)).status == 401
    await page.get_by_text("the chain is whole").wait_for()


async def test_keys_of_the_keyboard_open_help_and_pages(server: Server, browse: Open) -> None:
    browser = await browse(server)
    page = browser.page
    await browser.open("/runs")
    await page.get_by_text("No runs yet").wait_for()
    await page.keyboard.press("?")
    await page.get_by_role("dialog").get_by_text("fork from the chosen step").wait_for()
    await page.keyboard.press("Escape")
    await page.get_by_role("dialog").wait_for(state="detached")
    await page.keyboard.press("4")
    await page.get_by_role("heading", name="Pool").wait_for()


# ---- large runs -------------------------------------------------------------------------------------------


async def test_a_run_with_long_replies_is_drawn(server: Server, browse: Open) -> None:
    server.stub.answer = lambda call: ("word " * 20 + "\n\n") * 1000  # 100 KB
    steps = [{"worker": "alpha", "subtask": f"part {i}", "access": list(range(i))} for i in range(4)]
    body = {
        "model": "ultra",
        "messages": [{"role": "user", "content": "long?"}],
        "dirigent": {"plan": {"steps": steps}},
    }
    id = (await server.request("POST", "/v1/runs", json=body)).object["id"]
    await watched(server, id)
    browser = await browse(server)
    await browser.open("/pool")
    await browser.page.get_by_text("Models you can ask").wait_for()
    await browser.page.goto(f"{server.url}/#/run/{id}")
    await browser.page.locator(".svelte-flow__node").nth(3).wait_for()
    await browser.page.get_by_role("heading", name="Answer").wait_for()


async def test_forty_steps_in_two_rounds_are_one_picture_within_the_page(server: Server, browse: Open) -> None:
    trace = many_steps(28, 12)
    await server.service.store.save(trace, key_id="local")
    browser = await browse(server, viewport={"width": 390, "height": 844})
    page = browser.page
    await browser.open(f"/run/{trace.id}")
    await page.locator(".svelte-flow__node").nth(39).wait_for()
    assert await page.get_by_role("group", name="Steps over time").get_by_role("button").count() == 40
    boxes = await page.evaluate(
        "[...document.querySelectorAll('.svelte-flow__node')].map((node) => { const b = node.getBoundingClientRect();"
        " return [b.left, b.top, b.right, b.bottom]; })"
    )
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            assert one[0] >= other[2] or other[0] >= one[2] or one[1] >= other[3] or other[1] >= one[3]
    await page.get_by_role("button", name="step 33 ").click()
    await page.locator('.svelte-flow__node[data-id="33"] .selected').wait_for()
    assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert browser.faults == []


async def test_a_conversation_of_2000_messages_scrolls_to_its_end(server: Server, browse: Open) -> None:
    trace = long_conversation(1_999)
    await server.service.store.save(trace, key_id="local")
    browser = await browse(server)
    await browser.open(f"/run/{trace.id}")
    box = browser.page.get_by_role("group", name="Conversation")
    await box.get_by_text("message 0:").wait_for()
    assert await box.locator("article").count() < 60  # the others are not in the page
    await box.focus()
    for _ in range(30):  # heights are known when rows are drawn, so the end moves a few times
        await browser.page.keyboard.press("End")
        await browser.page.wait_for_timeout(200)
        if await box.get_by_text("So it is.").count():
            break
    await box.get_by_text("message 1998:").wait_for()
    await box.get_by_text("So it is.").wait_for()  # the answer is the last message
    assert await box.locator("article").count() < 60
    await browser.page.keyboard.press("End")
    await browser.page.wait_for_timeout(300)
    answer = await box.get_by_text("So it is.").bounding_box()
    frame = await box.bounding_box()
    assert answer is not None
    assert frame is not None
    assert frame["y"] <= answer["y"] < frame["y"] + frame["height"]
    assert browser.faults == []


# ---- attacks ----------------------------------------------------------------------------------------------

# Each line is a head with SAY where the script goes; "\\n" in a line is a line break.
HEADS = (Path(__file__).parent / "payloads.txt").read_text(encoding="utf-8").replace("\\n", "\0").splitlines()
TAILS = (
    "alert(1)",
    "window.pwned=1",
    "fetch('http://evil.invalid')",
    "parent.pwned=1",
    "document.location='http://evil.invalid'",
)
PAYLOADS = [head.replace("\0", "\n").replace("SAY", tail) for head in HEADS for tail in TAILS]


async def test_200_payloads_in_every_field_do_nothing(server: Server, browse: Open) -> None:
    assert len(PAYLOADS) >= 200
    server.stub.answer = lambda call: "\n\n".join(PAYLOADS)
    ids = []
    for i in range(0, len(PAYLOADS), 50):
        group = PAYLOADS[i : i + 50]
        steps = [{"worker": "alpha", "subtask": "\n".join(group), "access": []}]
        steps.append({"worker": "beta", "subtask": group[0], "access": [0]})
        labels = {"tag": group[i % 7][:190], "conversation": group[1][:190]}
        body = {"model": "ultra", "messages": [{"role": "user", "content": "\n\n".join(group)}], "metadata": labels}
        body |= {"user": group[2][:190], "dirigent": {"plan": {"steps": steps}}}
        id = (await server.request("POST", "/v1/runs", json=body)).object["id"]
        await watched(server, id)
        ids.append(id)
    name = PAYLOADS[1].replace("/", "")
    await server.request("POST", f"/v1/sets/{name}", json={"question": "\n".join(PAYLOADS), "answer": PAYLOADS[0]})
    server.stub.faults = ["400"]
    failed = await server.chat(PAYLOADS[2])
    assert failed.status != 200
    both: dict[str, Any] = {"models": ["worker/alpha", "worker/beta"]}
    both |= {"request": {"messages": [{"role": "user", "content": PAYLOADS[1]}]}}
    made = await server.request("POST", "/v1/comparisons", json=both)
    await server.request("POST", "/v1/pool/alpha", json={"on": True})
    browser = await browse(server)
    page = browser.page
    page.on("dialog", lambda dialog: browser.faults.append(f"dialog {dialog.message}"))
    paths = [*(f"/{name}" for name in PAGES), *(f"/run/{id}" for id in ids), f"/compare/{made.object['id']}"]
    paths += ["/spend?by=user", "/spend?by=tag", "/spend?by=conversation", f"/play?q={PAYLOADS[0]}"]
    for path in paths:
        await page.goto("about:blank")
        await browser.open(path)
        await page.wait_for_timeout(300)
        for tab in ("Messages", "Attempts"):
            if await page.get_by_role("tab", name=tab).count():
                await page.get_by_role("tab", name=tab).click()
    await browser.open("/play")
    (file := Path(str(server.service.store.where)).parent / "x <img src=x onerror=alert(1)>.txt").write_text(
        PAYLOADS[0]
    )
    await page.set_input_files("input[type=file]", [file])
    await ask(browser, "\n".join(PAYLOADS[:60]))
    await page.get_by_text("step").first.wait_for()
    await page.wait_for_timeout(500)
    assert await page.evaluate("window.pwned") is None
    assert browser.faults == []
    assert browser.elsewhere == []


async def test_200_payloads_in_names_errors_labels_and_reports_do_nothing(
    start: Start, browse: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await learned(start, tmp_path, monkeypatch)
    store = server.service.store
    every = "\n\n".join(PAYLOADS)
    groups = [PAYLOADS[i : i + 20] for i in range(0, len(PAYLOADS), 20)]
    for number, group in enumerate(groups):
        await store.save(poisoned(group, id=f"poison{number}"), key_id="local")
    policy = Policy.load(tmp_path / "policy")
    fixed = tuple(FixedPlan(payload, 0.7, 0.001 + i / 1e6, 2, 0, 0, 0) for i, payload in enumerate(PAYLOADS))
    msgspec.structs.replace(policy, why=every, fixed=fixed).save(tmp_path / "policy", a_selector())
    share = Share("", 0.5, 0.4, 0.6, 10)
    kinds = tuple(msgspec.structs.replace(share, kind=payload) for payload in PAYLOADS)
    server.service.runtime.cards = {"alpha": Card("alpha", "", "", share, kinds)}
    row = {"n": 1, "accuracy": 1, "interval": [0, 1], "calls": 1, "cost_usd": 1, "seconds_p50": 1, "failed": 0}
    report = {"date": PAYLOADS[0], "commit": PAYLOADS[1], "complete": True, "verdict": every}
    report |= {"planners": dict.fromkeys(PAYLOADS, row)}
    (tmp_path / "reports" / "<img src=x onerror=alert(1)>.json").write_text(json.dumps(report))
    training = tmp_path / "reports" / "<img src=x onerror=parent.pwned=1>"
    training.mkdir()
    (training / "metrics.jsonl").write_text(json.dumps({f"{PAYLOADS[1].replace('/', '')}/reward": 1}))
    for payload in PAYLOADS:
        made = await create_key(store, Caller("", label=payload, role="admin", region=payload, budget_day_usd=1.0))
    browser = await browse(server)
    page = browser.page
    page.on("dialog", lambda dialog: browser.faults.append(f"dialog {dialog.message}"))
    await browser.open("/runs")
    await page.get_by_label("API key").fill(made.text)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_test_id("runs").wait_for()
    browser.faults.clear()  # the 401 before the sign-in
    for path in (*(f"/{name}" for name in PAGES), "/spend?by=key"):
        await browser.open(path)
        await page.wait_for_timeout(400)
        for closed in await page.locator("summary").all():
            await closed.click()
    for number, group in enumerate(groups):
        await browser.open(f"/run/poison{number}")
        await page.get_by_role("heading", name="Conversation").wait_for()
        await page.locator("summary").first.click()
        for _ in group:
            await page.keyboard.press("k")
            for tab in ("Messages", "Attempts", "Reply"):
                await page.get_by_role("tab", name=tab).click()
    assert await page.evaluate("window.pwned") is None
    assert browser.faults == []
    assert browser.elsewhere == []


def poisoned(payloads: list[str], *, id: str) -> Trace:
    """A run whose every text is a payload: names of workers, subtasks, replies, messages, errors, notes."""
    every = "\n\n".join(payloads)
    records, steps = [], []
    for i, payload in enumerate(payloads):
        access = (i - 1,) if i else ()
        call = ToolCall(payload, payload, payload)
        message = Message("user", payload, name=payload)
        records.append(
            StepRecord(
                i, payload, payload, access, messages=(message,), error=payload, planned_worker=payload,
                reply=Reply(payload, reasoning=payload, model=payload, tool_calls=(call,)),
                ended_s=i + 1.0, started_s=i,
                attempts=(Attempt(payload, 1.0, Usage(1, 1), error=payload),), tool_traffic=(message,),
            )
        )  # fmt: skip
        steps.append(Step(payload, payload, access))
    attempt = Attempt(payloads[0], 1.0, error=payloads[1])
    draft = DraftRecord(every, every, "json", messages=(Message("user", every),), attempts=(attempt,), error=every)
    return Trace(
        id, "2026-11-19T10:00:00.000000Z", (Message("user", every, name=payloads[2]), Message("assistant", every)), (),
        Limits(), payloads[3], payloads[4], (Round((draft,), Plan(tuple(steps)), tuple(records)),), "failed", every,
        error=every, conversation=payloads[5], notes=tuple(payloads), seconds=20.0,
    )  # fmt: skip


async def test_another_origin_gets_no_cookie_no_answer_and_no_frame(start: Start, browse: Open) -> None:
    from aiohttp import web

    server = await start(keys_required=True)
    made = await create_key(server.service.store, Caller("", role="admin", label="boss"))
    browser = await browse(server)
    page = browser.page
    await browser.open("/pool")
    await page.get_by_label("API key").fill(made.text)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("heading", name="Pool").wait_for()
    field = "<input name='{\"on\":false}'>"
    form = f"<form id=f method=post action='{server.url}/v1/pool/alpha' enctype=text/plain>{field}</form>"
    frame = f"<iframe id=i src='{server.url}/'></iframe>"

    async def evil(_: web.Request) -> web.Response:
        return web.Response(text=f"<!doctype html><title>evil</title>{form}{frame}", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", evil)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "localhost", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        other = await page.context.new_page()
        await other.goto(f"http://localhost:{port}/")  # another site than 127.0.0.1
        read = await other.evaluate(
            f"""async () => {{
            const out = [];
            for (const [method, headers] of [['GET', {{}}], ['POST', {{'content-type': 'application/json'}}]]) {{
              try {{
                const r = await fetch('{server.url}/v1/session', {{method, headers, credentials: 'include'}});
                out.push(r.status);
              }} catch (e) {{ out.push('blocked'); }}
            }}
            return out;
          }}"""
        )
        assert read == ["blocked", "blocked"]
        framed = await other.evaluate("document.getElementById('i').contentDocument === null")
        await other.wait_for_timeout(300)
        inside = [one.url for one in other.frames if one.url.startswith(server.url)]
        text = [await one.content() for one in other.frames[1:]]
        assert framed
        assert not any("Pool" in one for one in text), inside
        await other.evaluate("document.getElementById('f').submit()")
        await other.wait_for_load_state()
        assert server.service.models.is_on("alpha")
    finally:
        await runner.cleanup()


# ---- for everybody ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing_serious_on_any_page(
    start: Start, browse: Open, theme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not AXE.exists():
        pytest.skip("needs axe-core: npm ci --prefix web")
    server = await learned(start, tmp_path, monkeypatch)
    ids = await furnish(server)
    comparison = await compared(server)
    forty = many_steps(28, 12)
    await server.service.store.save(forty, key_id="local")
    browser = await browse(server, color_scheme=theme, bypass_csp=True)
    serious = []
    runs = (f"/run/{ids[0]}", f"/run/{ids[0]}?fork=2", f"/run/{forty.id}", "/learning/set/dates")
    for path in (*(f"/{name}" for name in PAGES), *runs, f"/compare/{comparison}"):
        await browser.page.goto("about:blank")
        await browser.open(path)
        await browser.page.wait_for_timeout(500)
        await browser.page.add_script_tag(path=str(AXE))
        found: Any = await browser.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        for violation in found["violations"]:
            if violation["impact"] in ("serious", "critical"):
                places = [node["html"][:160] for node in violation["nodes"][:3]]
                serious.append(f"{path} {violation['id']}: {places}")
    assert serious == []


async def test_nothing_jumps_while_an_answer_streams(server: Server, browse: Open) -> None:
    """The plan's panel and the composer stay where they are."""
    browser = await browse(server)
    page = browser.page
    await browser.open("/play")
    server.stub.chunk_delay_s = 0.03
    await ask(browser, "Why?")
    await page.locator(".svelte-flow__node").nth(2).wait_for()
    places = set()
    for _ in range(12):
        places.add(
            await page.evaluate(
                "JSON.stringify(['.composer', 'aside .graph', 'aside .below'].map((q) => {"
                "const b = document.querySelector(q).getBoundingClientRect();"
                "return [b.x, b.y, b.width, b.height].map(Math.round)}))"
            )
        )
        await asyncio.sleep(0.05)
    assert len(places) == 1
