"""The workers of a recipe: by table, from a file, and the cost cap for those of a file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.facts import facts

from dirigent.errors import ConfigError, CostError
from dirigent.limits import Quote
from dirigent.messages import Message, Request
from dirigent.plan.plan import Plan, Step
from dirigent.run.execution import execute
from dirigent.tasks.code import CodeProblem, answer_of
from dirigent.tasks.task import Task
from dirigent.workers.worker import Worker
from dirigent_gym.questions import ROSTER, generate, plan_for
from dirigent_gym.train.recipe import Recipe, TaskSettings
from dirigent_gym.train.workers import SPENT_FILE, CapReached, Spending, exact_workers, open_resources


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


async def test_exact_workers_are_misled_only_by_needless_results_and_always_by_the_same() -> None:
    async def ends(workers: dict[str, Worker], step: Step) -> list[str]:
        """The replies of the step after another one, for many first steps."""
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


async def test_an_exact_workers_tokens_are_charged_at_its_price() -> None:
    plan = Plan((Step("numbers", "What is 3 plus 4?"),))
    done = await execute(plan, exact_workers(), "x", secret="gym")
    assert done.steps[0].cost_usd > 0


# ---- the cost of workers

QUOTE = Quote("dear", input_usd=0.0, output_token_usd=0.01, max_output_tokens=100)
"""A call that costs a dollar at most."""


async def call(spending: Spending, *, cost_usd: float) -> None:
    hold = await spending.reserve(QUOTE)
    assert hold.max_output_tokens == 100, "an answer cut short would be held against the plan"
    await asyncio.sleep(0)
    spending.settle(hold, cost_usd=cost_usd, output_tokens=1)


async def test_calls_wait_for_money_that_others_hold_and_will_not_use() -> None:
    spending = Spending(max_cost_usd=2.5)
    await asyncio.gather(*(call(spending, cost_usd=0.01) for _ in range(150)))
    assert spending.spent_usd == pytest.approx(1.5)
    assert not spending.refused


async def test_a_call_that_nothing_is_left_for_is_refused_and_so_is_every_one_after_it() -> None:
    spending = Spending(max_cost_usd=5.0)
    calls = [call(spending, cost_usd=1.0) for _ in range(20)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(outcome, CostError) for outcome in outcomes] == [False] * 5 + [True] * 15
    assert (spending.spent_usd, spending.refused) == (5.0, True)
    with pytest.raises(CostError):
        await spending.reserve(msgspec.structs.replace(QUOTE, output_token_usd=0.0))
    with pytest.raises(CapReached, match=facts("$5 --resume")):
        spending.require_open()


async def test_the_folder_remembers_payments_even_after_half_a_line(tmp_path: Path) -> None:
    before = Spending(tmp_path)
    for _ in range(3):
        await call(before, cost_usd=0.5)
    with (tmp_path / SPENT_FILE).open("a") as file:
        file.write("0.")
    assert Spending(tmp_path, max_cost_usd=2.0).spent_usd == pytest.approx(1.5)


async def test_a_task_that_cannot_be_judged_is_named_before_anything_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    task = Task(
        "one",
        "Write f.",
        answer_of(CodeProblem("assert f() == 1", ("f",), libraries=("nosuchlibrary",))),
        grader="code",
    )
    file.write_bytes(msgspec.json.encode(task))
    recipe = Recipe("own", tasks=TaskSettings(file=str(file), dev_file=str(file)))
    with pytest.raises(ConfigError, match=facts("tasks.jsonl nosuchlibrary")):
        async with open_resources(recipe):
            pass
