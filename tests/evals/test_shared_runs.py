"""Whole evaluations that share drafts, with a stub where the models' processes would be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import pytest_asyncio

from dirigent.cli.evaluating import carried_out
from dirigent.errors import ConfigError
from dirigent.evals.recipe import EvalRecipe
from dirigent.evals.record import Outcome, read_outcomes
from dirigent.evals.reply_cache import SHARED, Replies
from dirigent.messages import Message, Request
from dirigent.workers.local import LocalModel
from dirigent.workers.secret import Secret
from dirigent_gym.evals.workers import gym_workers
from dirigent_gym.questions import ROSTER
from tests.stub_provider import StubCall, StubProvider


@pytest_asyncio.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StubProvider]:
    """Plans one step for a new question, in other words each time, and accepts in a second round."""
    written = 0

    def answer(call: StubCall) -> str:
        nonlocal written
        if "grammar" not in call.body:
            return f"reply {len(stub.calls)}"
        if "accept" in call.body["messages"][-1]["content"]:
            return "accept"
        written += 1
        worker = call.body["messages"][0]["content"].splitlines()[1].rpartition("| ")[2]
        return f"Say {written}. | {worker} | -"

    async with StubProvider(answer) as stub:
        port = urlsplit(stub.url("openai")).port

        async def running(model: LocalModel, closings: int | None = None) -> Any:
            return SimpleNamespace(port=port, key=Secret("a-key-of-the-stub"))

        monkeypatch.setattr(LocalModel, "running", running)
        yield stub


@pytest.fixture
def adapters(tmp_path: Path) -> str:
    folder = tmp_path / "adapters"
    folder.mkdir()
    for name in ("conductor", *(specialist.name for specialist in ROSTER)):
        (folder / f"{name}.gguf").touch()
    return str(folder)


def recipe(adapters: str, *planners: str, workers: str = "exact") -> EvalRecipe:
    made = EvalRecipe(planners=planners, adapters=adapters, limit=6)
    return msgspec.structs.replace(made, workers=workers)


def by_planner(file: Path) -> dict[str, dict[str, Outcome]]:
    found: dict[str, dict[str, Outcome]] = {}
    for outcome in read_outcomes(file.with_suffix(".jsonl")):
        found.setdefault(outcome.planner, {})[outcome.task] = outcome
    return found


def drafts(server: StubProvider) -> int:
    return sum("grammar" in call.body for call in server.calls)


async def test_two_rounds_begin_with_the_very_plan_of_one(server: StubProvider, adapters: str, tmp_path: Path) -> None:
    file = tmp_path / "gym.json"
    server.delay_s = 0.02
    report = await carried_out(recipe(adapters, "conductor", "conductor:2"), file, resume=False, traces=False)
    assert report.recipe["shared"] == SHARED
    assert drafts(server) == 6 + 6  # the first plans once, and six second rounds
    one, two = by_planner(file)["conductor"], by_planner(file)["conductor:2"]
    for task, first in one.items():
        assert two[task].plan == first.plan  # its words are never the same twice
        assert two[task].answer == first.answer
        assert two[task].calls == first.calls + 1
        assert two[task].seconds >= 2 * 0.02  # both rounds, though only the second was waited for


async def test_a_resumed_evaluation_shares_replies_stored_before_the_cut(
    server: StubProvider, adapters: str, tmp_path: Path
) -> None:
    file = tmp_path / "gym.json"
    await carried_out(recipe(adapters, "conductor"), file, resume=False, traces=False)
    report = await carried_out(recipe(adapters, "conductor", "conductor:2"), file, resume=True, traces=False)
    assert drafts(server) == 6 + 6
    found = by_planner(file)
    assert all(found["conductor:2"][task].plan == first.plan for task, first in found["conductor"].items())
    assert report.complete


async def test_a_greedy_specialist_answers_once_and_the_noisy_one_every_time(
    server: StubProvider, adapters: str, tmp_path: Path
) -> None:
    file, outcomes = tmp_path / "gym.json", tmp_path / "gym.jsonl"

    async def calls_of(planner: str) -> int:
        """The calls for the same questions asked twice: the outcomes are lost, the stored replies are not."""
        before = len(server.calls)
        made = recipe(adapters, planner, workers="local")
        await carried_out(made, file, resume=False, traces=False)
        answers = [outcome.answer for outcome in read_outcomes(outcomes)]
        outcomes.unlink()
        await carried_out(made, file, resume=True, traces=False)
        again = [outcome.answer for outcome in read_outcomes(outcomes)]
        assert (sorted(again) == sorted(answers)) == (planner == "single:facts")
        return len(server.calls) - before

    noisy = next(specialist.name for specialist in ROSTER if specialist.noise)
    assert await calls_of("single:facts") == 6
    assert await calls_of(f"single:{noisy}") == 12


async def test_replies_belong_to_the_content_of_the_base_at_any_path(
    server: StubProvider, adapters: str, tmp_path: Path
) -> None:
    replies = Replies()
    request = Request((Message("user", "Plan this."),), temperature=0.0, max_output_tokens=64)
    facts = next(specialist for specialist in ROSTER if specialist.name == "facts")

    async def said_on(base: Path) -> str:
        async with gym_workers("local", [], [facts], adapters=Path(adapters), weights=base, replies=replies) as opened:
            return (await opened[0](facts, 0).ask(request)).text

    base, moved = tmp_path / "base.gguf", tmp_path / "elsewhere.gguf"
    base.write_bytes(b"a base")
    first = await said_on(base)
    moved.write_bytes(b"a base")
    assert await said_on(moved) == first
    base.write_bytes(b"another base")
    assert await said_on(base) != first
    with pytest.raises(ConfigError, match=r"nowhere\.gguf"):
        await said_on(tmp_path / "nowhere.gguf")


async def test_where_no_model_takes_part_nothing_is_said_to_be_shared(tmp_path: Path) -> None:
    made = EvalRecipe(planners=("right",), limit=3)
    report = await carried_out(made, tmp_path / "gym.json", resume=False, traces=False)
    assert "shared" not in report.recipe
