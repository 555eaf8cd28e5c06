"""Every page as a picture, at two widths and in both themes. SCREENS=FOLDER keeps them; docs/console holds a choice.

SCREENS=docs/console python -m pytest tests/console/test_screens.py
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dirigent.config.runtime import Runtime
from dirigent.learn.cards import Card, Share
from tests.console.conftest import Browser, Open, orchestra
from tests.console.long_runs import many_steps
from tests.serve.conftest import CONFIG, Server, Start
from tests.serve.test_learning import RESULTS, a_policy, a_selector
from tests.serve.test_runs_api import watched
from tests.stub_wires import StubCall, StubReply

pytestmark = pytest.mark.system

SIZES = {"desktop": {"width": 1360, "height": 860}, "phone": {"width": 390, "height": 844}}
QUESTIONS = (
    "Why does this test fail? ConnectionResetError in test_upload, only on Tuesdays",
    "How many days are there between 3 March and 19 May?",
    "Summarise the incident report in three sentences",
    "ما هي عاصمة النرويج؟ وكم عدد حروفها؟",
    "Averyveryverylongwordthatneverendsandneverbreaks" * 4,
)


ROLES = {"alpha": "reader", "beta": "coder", "boss": "chief"}
ABOUT = {"finds": "reads logs and reports, quick and cheap"}
SETTINGS = CONFIG
for old, new in (ROLES | ABOUT).items():
    SETTINGS = SETTINGS.replace(f'"{old}"', f'"{new}"')
SETTINGS += """
[[override]]
name = "invoices stay with the reader"
matches = "invoice"
pin = "reader"
"""
SAID = {
    "reader": "Three causes fit the log:\n\n1. The **nightly rotation** runs at 02:00 and closes the socket.\n"
    "2. A client keeps its connection for longer than the proxy allows.\n3. The disk is full for a minute.",
    "coder": "`test_upload` opens one connection and keeps it:\n\n```python\n"
    "session = Session(keep_alive=True)\n```\n\n"
    "The rotation on Tuesdays takes **40 s**, longer than the proxy's 30 s, so the first request after it fails. "
    "Retry once on `ConnectionResetError`, or open the session inside the test.",
}


def in_roles(call: StubCall) -> str | StubReply:
    """What the workers say in pictures: the same plan, and a few lines of their own."""
    if call.model == "chief":
        text = str(orchestra(StubCall(call.wire, call.path, {}, call.body | {"model": "boss"}, False, 0.0)))
        for old, new in ROLES.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        return text
    return SAID[call.model]


async def furnish(server: Server) -> list[str]:
    """Some runs, with feedback, labels, a set, a comparison and a key's audit rows; the runs' ids."""
    ids = []
    for i, question in enumerate(QUESTIONS):
        first, second = [name for name in server.service.runtime.pool.names if name not in ("boss", "chief")]
        model = ("ultra", f"worker/{first}", "ultra", "twice", f"worker/{second}")[i]
        labels = {"tag": ("incident", "chat")[i % 2], "conversation": f"c{i // 2}"}
        body = {"model": model, "messages": [{"role": "user", "content": question}], "metadata": labels}
        id = (await server.request("POST", "/v1/runs", json=body | {"user": f"user{i % 3}"})).object["id"]
        await watched(server, id)
        ids.append(id)
    await server.request("POST", "/v1/feedback", json={"trace_id": ids[0], "thumb": "up"})
    await server.request("POST", "/v1/feedback", json={"trace_id": ids[1], "thumb": "down"})
    server.stub.faults = ["400"]
    await server.chat("This one is refused", model=f"worker/{server.service.runtime.pool.names[0]}")
    server.stub.faults = []
    for question, answer in (("How many days are there between 3 March and 19 May?", "77"), ("2+2?", "4")):
        await server.request("POST", "/v1/sets/dates", json={"question": question, "answer": answer})
    return ids


async def learned(start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch, config: str = CONFIG) -> Server:
    """A server whose profile `mini` has a policy, with cards, an evaluation and a training run."""
    monkeypatch.setattr(Runtime, "policy", lambda *_: None, raising=False)  # no run here asks the policy
    config = config.replace("[profile.mini]\n", f'[profile.mini]\npolicy = "{folder}/policy"\n')
    server = await start(config=config, reports=str(folder / "reports"))
    names = server.service.runtime.pool.names
    policy = msgspec.structs.replace(a_policy(), workers=names[:2], baseline=names[1])
    policy.save(folder / "policy", a_selector())
    reports = folder / "reports" / "first training"
    reports.mkdir(parents=True)
    shutil.copy(RESULTS / "gym.json", folder / "reports" / "gym.json")
    lines = [
        json.dumps({"step": i, "reward": 1 - 0.9 ** (i / 9), "dev/accuracy": 0.86 - 0.6 * 0.95**i, "valid": 0.99})
        for i in range(120)
    ]
    (reports / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    cards = {}
    for name, right, cost in ((names[0], 0.71, 0.0003), (names[1], 0.8, 0.001)):
        kinds = [Share(kind, right + more, right + more - 0.05, right + more + 0.03, 60) for kind, more in KINDS]
        share = Share("", right, right - 0.04, right + 0.04, 300)
        cards[name] = Card(name, "", f"measured: {right:.0%} right", share, tuple(kinds), cost=cost, seconds=1.2)
    server.service.runtime.cards = cards
    return server


KINDS = (("dates", 0.17), ("logic", -0.2), ("prose", 0.02))


async def compared(server: Server) -> str:
    body: dict[str, Any] = {"models": ["ultra", f"worker/{server.service.runtime.pool.names[0]}"]}
    body["request"] = {"messages": [{"role": "user", "content": "Which cause is the likeliest?"}]}
    made = (await server.request("POST", "/v1/comparisons", json=body)).object
    for side in made["runs"]:
        await watched(server, side["run_id"])
    return str(made["id"])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
async def test_every_page_is_drawn_without_a_fault_and_within_its_width(
    start: Start, browse: Open, size: str, theme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await learned(start, tmp_path, monkeypatch, SETTINGS)
    browser = await browse(server, viewport=SIZES[size], color_scheme=theme)
    server.stub.answer = in_roles
    folder = Path(os.environ.get("SCREENS", str(tmp_path)))
    if "SCREENS" in os.environ:  # times as people know them
        server.stub.delay_s, server.stub.chunk_delay_s = 0.6, 0.02
    page = browser.page

    async def shoot(name: str) -> None:
        await page.wait_for_timeout(350)
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{name}: {wide} pixels too wide"
        await page.screenshot(path=folder / f"{name}-{size}-{theme}.png")

    for name, waits in (("play", "Ask something, and see"), ("runs", "No runs yet"), ("spend", "Nothing was spent")):
        await browser.open(f"/{name}")
        await page.get_by_text(waits).wait_for()
        await shoot(f"{name}-empty")
    ids = await furnish(server)
    comparison = await compared(server)
    forty = many_steps(28, 12)
    await server.service.store.save(forty, key_id="local")
    await browser.open("/play")
    await page.get_by_label("Question", exact=True).fill(QUESTIONS[0])
    await page.get_by_label("Plan first").check()
    await page.get_by_role("button", name="Plan", exact=True).click()
    await page.get_by_text("Plan, not paid yet").wait_for()
    await page.locator(".svelte-flow__node").nth(2).click(force=True)
    await shoot("play-plan")
    await page.get_by_role("button", name="Approve and run").click()
    await page.get_by_text("3 steps").wait_for()
    await page.locator(".svelte-flow__node").nth(1).click(force=True)
    await shoot("play-answer")
    for name, path, waits in (
        ("runs", "/runs", "Summarise the incident"),
        ("run", f"/run/{ids[0]}", "Conversation"),
        ("fork", f"/run/{ids[0]}?fork=2", "Fork from step 2"),
        ("run-rounds", f"/run/{ids[3]}", "Conversation"),
        ("forty-steps", f"/run/{forty.id}", "Conversation"),
        ("compare", f"/compare/{comparison}", "is better"),
        ("compare-new", "/compare", "Hide the names"),
        ("pool", "/pool", "Models you can ask"),
        ("spend", "/spend", "Spent"),
        ("learning", "/learning", "Sets of questions"),
        ("keys", "/keys", "Audit log"),
    ):
        await browser.open(path)
        await page.get_by_text(waits).first.wait_for()
        await shoot(name)
    assert browser.faults == []
    assert browser.elsewhere == []


async def test_a_wide_plan_a_long_word_and_right_to_left_text_stay_in_place(start: Start, browse: Open) -> None:
    server = await start()
    browser: Browser = await browse(server, viewport=SIZES["phone"])
    steps = [
        {"worker": "alpha", "subtask": f"{'Longword' * 30} {i} مرحبا", "access": list(range(max(0, i - 3), i))}
        for i in range(4)
    ]
    body = {
        "model": "ultra",
        "messages": [{"role": "user", "content": QUESTIONS[4]}],
        "dirigent": {"plan": {"steps": steps}},
    }
    id = (await server.request("POST", "/v1/runs", json=body)).object["id"]
    await watched(server, id)
    await browser.open(f"/run/{id}")
    await browser.page.get_by_text("Conversation").wait_for()
    assert await browser.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert await browser.page.locator(".svelte-flow__node").count() == 4
    assert browser.faults == []
