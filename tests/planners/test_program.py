"""A question for a value goes to the worker that runs programs; a failed program sends it to the plain one."""

from __future__ import annotations

import pytest
from tests.facts import says

from dirigent import Conductor, Limits, Pool, Scripted
from dirigent.messages import Ran, Reply, conversation
from dirigent.plan.plan import EarlierStep
from dirigent.plan.planner import Brief, Previous
from dirigent.planners.program import Program, asks_for_a_value
from dirigent.planners.vote_counter import Counting
from dirigent.run.trace import Trace
from dirigent.tasks.answer_forms import same_free_answer

PRINTED = Ran("print(391)", 0, "391")
SUM = "What is 17 times 23?"


async def asked(question: str, printed: Ran = PRINTED, **limits: int) -> Trace:
    pool = Pool(
        [
            Scripted("plainly", name="plain"),
            Scripted(
                Reply("391" if printed.printed else "The program failed.", ran=printed),
                name="coder",
                runs_programs=True,
            ),
        ]
    )
    return await Conductor(Program("plain"), pool, limits=Limits(**limits)).run(question)


@pytest.mark.parametrize(
    "question",
    [
        SUM,
        "How many days are there between 3 March 2024 and 9 May 2024?",
        "How many letters has the capital of Norway?",
        "A shirt costs 40 euros and is reduced by 15 percent. What does it cost now?",
        "If a train leaves at 14:35 and takes 2 hours 50 minutes, when does it arrive?",
        "Sort these words alphabetically: pear, apple, fig",
        "Is 97 a prime number?",
        "What date is 45 days after 10 November 2025?",
        "How many grams are 3.5 ounces?",
        "Write 1994 as a Roman numeral.",
        'Spell the word "necessary" backwards.',
        "Split a bill of 134.70 euros equally among 6 people.",
    ],
)
async def test_a_value_is_computed(question: str) -> None:
    trace = await asked(question)
    assert [step.worker for step in trace.steps] == ["coder"]
    reason = trace.rounds[0].drafts[0].reason
    assert reason is not None
    assert says(reason.why, "program compute")


@pytest.mark.parametrize(
    "question",
    [
        "What is the capital of Australia?",
        "Who was president between 1960 and 1970?",
        "Write a haiku about 3 cats and 2 dogs.",
        "Why is the sky blue?",
        "What happened in 1914 and in 1918?",
        "Name three animals that live in the sea.",
        "How many legs does a spider have?",
        "In which year did the Berlin Wall fall?",
    ],
)
async def test_anything_else_is_one_plain_call(question: str) -> None:
    assert not asks_for_a_value(question)
    assert [step.worker for step in (await asked(question)).steps] == ["plain"]


@pytest.mark.parametrize("ran", [Ran("1/0", 1, "", "ZeroDivisionError"), Ran("x = 1", 0, "")])
async def test_a_program_without_an_answer_leaves_the_question_to_the_plain_worker(ran: Ran) -> None:
    trace = await asked(SUM, ran, max_rounds=2)
    assert (trace.answer, [step.worker for step in trace.steps]) == ("plainly", ["coder", "plain"])
    assert (await asked(SUM, ran, max_rounds=1)).answer == "The program failed."


async def test_a_selector_over_failed_programs_gives_no_answer_either() -> None:
    failed, printed = (Reply(ran.output or "The program failed.", ran=ran) for ran in (Ran("1/0", 1, ""), PRINTED))
    for second, workers in ((failed, ["plain"]), (printed, [])):
        pool = Pool(
            [
                Scripted("plainly", name="plain"),
                Scripted(failed, name="coder", runs_programs=True),
                Scripted(second, name="other", runs_programs=True),
                Counting(same_free_answer),
            ]
        )
        asked = (EarlierStep("coder", SUM, ran=failed.ran), EarlierStep("other", SUM, ran=second.ran))
        steps = (*asked, EarlierStep("count", "Count.", (0, 1), reply="The program failed."))
        brief = Brief(conversation(SUM), pool, Limits(max_rounds=2), previous=Previous("", "x", steps=steps))
        plan = (await Program("plain").draft(brief)).plan
        assert plan is not None
        assert [step.worker for step in plan.steps] == workers


async def test_an_answer_that_was_printed_is_accepted_without_another_call() -> None:
    trace = await asked(SUM, max_rounds=2)
    assert (trace.answer, trace.usage.calls) == ("391", 1)


async def test_a_pool_without_programs_is_asked_plainly() -> None:
    trace = await Conductor(Program(), Pool([Scripted("391", name="a")])).run(SUM)
    assert [step.worker for step in trace.steps] == ["a"]
