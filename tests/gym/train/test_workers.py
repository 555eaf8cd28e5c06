"""The workers of a recipe: by table, from a file, and what those of a file may cost."""

from __future__ import annotations

import asyncio

import pytest

from dirigent.messages import Message, Request
from dirigent.plan.plan import Plan, Step
from dirigent.run.execution import execute
from dirigent.workers.worker import Worker
from dirigent_gym.questions import ROSTER, generate, plan_for
from dirigent_gym.train.workers import exact_workers


def said(text: str, *, seed: int | None = None) -> Request:
    return Request((Message("user", text),), seed=seed)


async def test_exact_workers_answer_their_own_skill_and_leave_the_rest_alone() -> None:
    workers = exact_workers()
    assert (await workers["facts"].ask(said("What is the capital of Norway?"))).text == "Oslo"
    assert (await workers["letters"].ask(said("What is the capital of Norway?"))).text == "unknown"


async def test_exact_workers_carry_out_the_right_plan_of_every_reliable_question() -> None:
    workers = exact_workers()
    for task in generate("dev", 40, seed=3):
        if task.tags["shape"] != "check":
            done = await execute(plan_for(task, ROSTER), workers, task.question, secret="gym")
            assert done.reply is not None
            assert done.reply.text.casefold() == task.answer.casefold()


async def test_exact_workers_are_misled_only_by_what_they_need_not_read_and_always_by_the_same() -> None:
    async def ends(workers: dict[str, Worker], step: Step) -> list[str]:
        """What the step says after another one, for many first steps."""
        replies = []
        for n in range(1, 60):
            plan = Plan((Step("roman", f"the Roman numeral for {n}"), step))
            done = await execute(plan, workers, "a question", secret="gym")
            assert done.reply is not None
            replies.append(done.reply.text)
        return replies

    mild, harsh = exact_workers(), exact_workers(misled=0.3)
    for step in (Step("numbers", "the sum of 4 and 6"), Step("roman", "Read that Roman numeral as a number.", (0,))):
        assert await ends(harsh, step) == await ends(mild, step)
    reads_too_much = Step("numbers", "the sum of 4 and 6", (0,))
    replies = await ends(harsh, reads_too_much)
    assert set(await ends(mild, reads_too_much)) == {"10"}
    assert sum(reply != "10" for reply in replies) / len(replies) == pytest.approx(0.3, abs=0.2)
    assert await ends(harsh, reads_too_much) == replies


async def test_the_unreliable_worker_depends_on_the_seed_alone() -> None:
    workers = exact_workers()

    async def guesses(seeds: range) -> list[str]:
        asked = [workers["guesser"].ask(said("What is the square root of 144?", seed=seed)) for seed in seeds]
        return [reply.text for reply in await asyncio.gather(*asked)]

    first = await guesses(range(300))
    assert first == await guesses(range(300))
    assert sum(text == "12" for text in first) / 300 == pytest.approx(0.7, abs=0.08)


async def test_a_price_is_charged_for_what_an_exact_worker_reads_and_writes() -> None:
    plan = Plan((Step("numbers", "What is 3 plus 4?"),))
    done = await execute(plan, exact_workers(), "x", secret="gym")
    assert done.steps[0].cost_usd > 0
