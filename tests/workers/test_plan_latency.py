"""The latency benchmark asks as the conductor is asked; the conductor's slot keeps its cards while others answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gym.benchmarks import plan_latency
from gym.benchmarks.claims_local import plan_seconds

from dirigent.errors import ConfigError
from dirigent.messages import Request, conversation
from dirigent.plan.prompt import trained_planner_messages
from dirigent.workers.adapters import packaged
from dirigent.workers.local import prompt_text
from dirigent.workers.local_child import SHARED_CHARS, Slots
from dirigent.workers.worker import WorkerInfo
from dirigent_gym.questions import ROSTER, generate, plan_for
from tests.facts import facts

CONDUCTOR, FACTS = 0, 1
INFOS = [WorkerInfo(s.name, about=s.about, price=s.price) for s in ROSTER]


def plan_prompt(question: str) -> str:
    return prompt_text(
        Request(trained_planner_messages(conversation(question), INFOS, limits=plan_latency.LIMITS)),
    )


def test_cards_come_before_the_question_so_that_two_questions_share_them() -> None:
    first, second = plan_prompt("How long is Oslo?"), plan_prompt("Which month has number 4?")
    shared = first[: next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)]
    assert all(info.about in shared for info in INFOS)
    assert len(shared) > 4 * SHARED_CHARS


async def test_specialists_that_answer_in_between_leave_the_conductors_slot_alone() -> None:
    slots = Slots(4)
    async with slots.lease(CONDUCTOR, plan_prompt("How long is Oslo?")) as own:
        pass
    for task in generate("test", 20, seed=1):
        for adapter, step in enumerate(plan_for(task, ROSTER).steps, FACTS):
            async with slots.lease(adapter, prompt_text(Request(conversation(step.subtask)))) as slot:
                assert slot != own
        async with slots.lease(CONDUCTOR, plan_prompt(task.question)) as slot:
            assert slot == own


def test_the_adapter_is_a_packaged_one_or_a_file(tmp_path: Path) -> None:
    there = {"facts": tmp_path / "facts.gguf", "conductor": tmp_path / "conductor.gguf"}
    assert plan_latency._chosen("", there)[0] == "conductor"
    assert plan_latency._chosen("", {"facts": there["facts"]})[0] == "facts"
    name, adapters = plan_latency._chosen("mine.gguf", there)
    assert (name, adapters["conductor"]) == ("conductor", Path("mine.gguf"))
    with pytest.raises(ConfigError, match=facts("fact facts conductor")):
        plan_latency._chosen("fact", there)


def test_questions_are_those_that_the_specialists_at_hand_can_answer() -> None:
    few = [s for s in ROSTER if s.name in ("facts", "letters", "numbers")]
    tasks = plan_latency._tasks(10, few, seed=1)
    assert tasks
    assert all(plan_for(task, few) for task in tasks)
    with pytest.raises(ConfigError, match=facts("0")):
        plan_latency._tasks(10, [], seed=1)


def test_a_process_has_used_some_processor_time() -> None:
    before = plan_latency._cpu_s(os.getpid())
    sum(range(3_000_000))
    assert plan_latency._cpu_s(os.getpid()) >= before >= 0.0


async def test_plans_of_the_conductor_that_ships_are_timed(weights_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_latency, "BASE", str(weights_path))
    cached_s, cold_s = await plan_seconds(packaged()["conductor"], questions=2)
    assert cached_s > 0.0
    assert cold_s > 0.0
