"""The whole way of a new user without a network: init, calibrate, learn, prove, serve, feedback, and back.

Every step is the real command in a process of its own. A provider on this machine answers as three models: one that is
always right and slow, one that is right on sums below 200, one that is always wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dirigent.learn.cards import read_cards
from tests.cli.conftest import Ran
from tests.facts import says
from tests.stub_provider import StubCall, StubProvider, StubReply

PROGRAM = """\
import sys
from dirigent.config import discovery
discovery.USUAL_PORTS = {"stub": %d}
from dirigent.cli import main
main()
"""
"""The command, which finds our provider in place of the model servers that usually run on a machine."""


def sums(first: int, count: int) -> str:
    """Questions that no other part of the way asks."""
    rows = [(i, 7 * i + 11) for i in range(first, first + count)]
    return "".join(json.dumps({"question": f"What is {a} + {b}?", "answer": a + b}) + "\n" for a, b in rows)


async def answer(call: StubCall) -> StubReply | str:
    found = re.search(r"What is (\d+) \+ (\d+)", call.text)
    assert found is not None, call.text
    if "response_format" in call.body:  # it is asked to plan
        return json.dumps(
            {"steps": [{"id": "0", "models": ["slow-but-right"], "prompt": call.text, "access_list": []}]}
        )
    total = int(found[1]) + int(found[2])
    model = call.body["model"]
    if model == "slow-but-right":
        await asyncio.sleep(0.03)
    wrong = model == "never-right" or (model == "quick" and total >= 200)
    return f"The answer is {total + 1 if wrong else total}."


class Way:
    """The commands, in one folder with one provider."""

    def __init__(self, folder: Path, stub: StubProvider) -> None:
        self.folder, self.stub = folder, stub
        self.program = PROGRAM % int(stub.url("openai").split(":")[2].removesuffix("/v1"))

    async def started(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", self.program, *arguments,
            cwd=self.folder, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def ran(self, *arguments: str, code: int = 0) -> Ran:
        process = await self.started(*arguments)
        out, err = await process.communicate()
        assert process.returncode == code, err.decode()
        return Ran(process.returncode, out.decode(), err.decode())

    @contextlib.asynccontextmanager
    async def server(self) -> AsyncIterator[str]:
        """The address of `dirigent serve` while it runs."""
        process = await self.started("serve", "--port", "0", "--grace", "1")
        assert process.stderr is not None
        try:
            line = (await asyncio.wait_for(process.stderr.readline(), 60)).decode()
            assert line.startswith("serving "), line + (await process.stderr.read()).decode()
            yield line.split()[1]
        finally:
            process.kill()
            await process.communicate()


@pytest.fixture
async def way(own_place: Path) -> AsyncIterator[Way]:
    async with StubProvider(answer) as stub:
        stub.models = ("slow-but-right", "quick", "never-right")
        (own_place / "mine.jsonl").write_text(sums(10, 40))
        (own_place / "others.jsonl").write_text(sums(60, 20))
        yield Way(own_place, stub)


async def ask(base_url: str, question: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session:
        body = {"model": "mini", "messages": [{"role": "user", "content": question}]}
        async with session.post(f"{base_url}/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            reply: dict[str, Any] = await response.json()
            return reply


async def judge(base_url: str, **body: Any) -> None:
    async with aiohttp.ClientSession() as session, session.post(f"{base_url}/feedback", json=body) as response:
        assert response.status == 200, await response.text()


@pytest.mark.timeout(300)
async def test_the_whole_way_of_a_new_user(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    assert os.environ["DIRIGENT_HOME"].startswith(str(way.folder))
    written = (await way.ran("init", "--json")).object
    assert written["workers"] == ["slow-but-right", "quick", "never-right"]

    calibrated = (await way.ran("calibrate", "--questions", "mine.jsonl", "--samples", "2", "--yes", "--json")).object
    right = {worker["worker"]: worker["right"]["right"] for worker in calibrated["workers"]}
    assert right["slow-but-right"] == 1.0
    assert 0.0 < right["quick"] < 1.0
    assert right["never-right"] == 0.0
    assert (calibrated["answers"], calibrated["labelled"]) == (240, 40)

    learned = (await way.ran("learn", "table", "--out", "policy", "--json")).object
    assert learned["best_single"]["name"] == "slow-but-right"
    assert (learned["questions"], learned["labels"], learned["version"]) == (40, 40, 1)

    await way.ran("calibrate", "--questions", "others.jsonl", "--samples", "2", "--yes", "--out", "others")
    proof = (await way.ran("prove", "policy", "--on", "others", "--json")).object
    assert proof["best_single"]["name"] == "slow-but-right"
    assert proof["best_single"]["accuracy"] == 1.0
    assert proof["oracle"]["accuracy"] == 1.0
    unseen = await way.ran("prove", "policy", "--on", "table", code=2)
    assert says(unseen.err, "error:")  # nothing is proved on questions that it learned from

    config = way.folder / "dirigent.toml"
    text = config.read_text()
    begins = text.index("[profile.mini]")
    ends = text.find("\n[", begins + 1)
    mini = '[profile.mini]\nplanner = "learned"\npolicy = "policy"\nmax_steps = 11\ndeadline_s = 60\n'
    config.write_text(text[:begins] + mini + (text[ends:] if ends > 0 else ""))
    async with way.server() as base_url:
        replies = [await ask(base_url, f"What is {a} + {b}?") for a, b in ((200, 5), (300, 400), (41, 1))]
        for reply, total in zip(replies, (205, 700, 42), strict=True):
            assert reply["choices"][0]["message"]["content"] == f"The answer is {total}."
        ids = [reply["dirigent"]["trace_id"] for reply in replies]
        await judge(base_url, trace_id=ids[0], thumb="up")
        await judge(base_url, trace_id=ids[1], label="700")

    traffic = (await way.ran("table", "from-traffic", "--out", "traffic", "--json")).object
    assert (traffic["questions"], traffic["graded"]) == (2, 2)
    relearned = await way.ran("learn", "table", "--from-traffic", "--out", "policy", "--json")
    assert relearned.object["version"] == 2
    assert says(relearned.err, "2 judged questions cards no order")  # only the best single worker was asked
    (measured,) = [card for card in read_cards(way.folder / "policy").values() if card.worker == "slow-but-right"]
    assert measured.right is not None
    assert measured.right.questions == 42
    back = (await way.ran("learn", "rollback", "policy", "--json")).object
    assert back["version"] == 1


@pytest.mark.timeout(300)
async def test_a_policy_is_proved_live_and_a_cut_proof_goes_on_without_paying_twice(way: Way) -> None:
    pytest.importorskip("numpy")
    await way.ran("init")
    await way.ran("calibrate", "--questions", "mine.jsonl", "--samples", "2", "--yes")
    await way.ran("learn", "table", "--out", "policy")
    live = ("prove", "policy", "--live", "--questions", "others.jsonl", "--yes", "--json")
    first = await way.ran(*live)
    proof = first.object
    assert says(first.err, "20 questions × 3 workers 120 calls free")
    assert proof["best_single"]["accuracy"] == 1.0
    rows = {row["planner"]: row for row in proof["front"]}
    assert {"learned", "fixed", "learned, live", "language, live"} == rows.keys()
    assert rows["language, live"]["accuracy"] == 1.0
    assert rows["language, live"]["calls"] == 2.0  # the plan, and its step
    assert rows["learned, live"]["accuracy"] == 1.0
    assert rows["learned, live"]["seconds"] > 0

    calls = len(way.stub.calls)
    again = await way.ran(*live)
    assert len(way.stub.calls) == calls
    assert again.object["front"] == proof["front"]

    runs = way.folder / "proof" / "runs.jsonl"
    lines = runs.read_text().splitlines(keepends=True)
    runs.write_text("".join(lines[:-5]))  # as if the proof had been killed
    await way.ran(*live)
    assert len(way.stub.calls) == calls + 5 * 2  # each of the five is a plan and its step


async def test_a_live_proof_says_what_it_needs(way: Way) -> None:
    await way.ran("init")
    live = ("prove", "--live", "--yes", "--questions")
    assert says((await way.ran("prove", "policy", code=2)).err, "--on TABLE --live --questions FILE")
    assert says((await way.ran(*live, "others.jsonl", code=2)).err, "no profile uses a policy")
    await way.ran("calibrate", "--questions", "mine.jsonl", "--samples", "2", "--yes")
    await way.ran("learn", "table", "--out", "policy")
    named = ("prove", "policy", *live[1:])
    assert says((await way.ran(*named, "mine.jsonl", code=2)).err, "learned from every question")
    unknown = await way.ran(*named, "others.jsonl", "--planners", "learnt", code=2)
    assert says(unknown.err, "learnt learned")
    (way.folder / "open.jsonl").write_text('{"question": "Why?"}\n')
    assert says((await way.ran(*named, "open.jsonl", code=2)).err, "1 of 1 questions no answer to grade by")


@pytest.mark.timeout(300)
async def test_init_leads_through_all_of_it_in_one_go(way: Way) -> None:
    pytest.importorskip("numpy")
    made = (
        await way.ran("init", "--calibrate", "--questions", "mine.jsonl", "--limit", "30", "--yes", "--json")
    ).object
    assert (made["answers"], made["labelled"], made["table"]) == (180, 30, "table")
    assert made["policy"]["best_single"]["name"] == "slow-but-right"
    assert made["policy"]["on"] == (made["mini"] == "learned")
    config = (way.folder / "dirigent.toml").read_text()
    assert '[cards]\ntable = "policy"' in config
    assert ('planner = "learned"' in config) == made["policy"]["on"]
    listed = (await way.ran("pool", "list")).out
    assert says(listed, "measured: 100% 0% right on 30 questions")


async def test_init_without_a_terminal_writes_the_file_and_names_the_next_command(way: Way) -> None:
    refused = await way.ran("init", "--calibrate", "--questions", "mine.jsonl", code=2)
    assert says(refused.err, "error: 240 calls --yes")
    assert (way.folder / "dirigent.toml").is_file()
