"""A draft is a text or a plan, and both obey the same rules."""

from __future__ import annotations

import pytest

from dirigent import (
    Brief,
    Conductor,
    Draft,
    LanguagePlanner,
    Limits,
    Message,
    Plan,
    PlanError,
    Pool,
    Scripted,
    Single,
    Step,
)
from dirigent.messages import Observe, ignore
from dirigent.plan.plan import MAX_SUBTASK_BYTES, format_plan
from dirigent.plan.planner import Previous, read_draft

POOL = Pool([Scripted("A", name="a"), Scripted("B", name="b")])


def brief(*, previous: Previous | None = None) -> Brief:
    return Brief((Message("user", "Why?"),), POOL, Limits(max_steps=2), previous=previous)


@pytest.mark.parametrize(
    ("plan", "facts"),
    [
        (Plan((Step("c", "go"),)), ("step 0", "'c'")),
        (Plan((Step("a", "go"),) * 3), ("3 steps", "at most 2")),
        (Plan((Step("a", "go"), Step("a", "go", access=(1,)))), ("step 1 reads step 1",)),
        (Plan((Step("a", "go", access=(-1,)),)), ("step 0 reads step -1",)),
        (Plan((Step("a", " \n"),)), ("step 0", "empty")),
        (Plan((Step("a", "x" * (MAX_SUBTASK_BYTES + 1)),)), ("step 0", "8,193 bytes")),
        (Plan((Step("a", "\ud800"),)), ("step 0", "surrogate")),
        (Plan(), ("empty",)),
    ],
)
def test_a_carried_plan_is_refused_for_the_same_faults_as_a_text(plan: Plan, facts: tuple[str, ...]) -> None:
    with pytest.raises(PlanError) as refused:
        read_draft(Draft(plan=plan), brief())
    assert all(fact in str(refused.value) for fact in facts)


def test_a_carried_plan_comes_out_as_its_text_would() -> None:
    carried = Plan((Step("a", "  go "), Step("b", "go on", access=(0, 0))))
    text = "go | a 0 | -\ngo on | b 1 | 0"
    assert read_draft(Draft(plan=carried), brief()) == read_draft(Draft(text, "lines"), brief())


def test_an_empty_carried_plan_accepts_an_answer() -> None:
    assert read_draft(Draft(plan=Plan()), brief(previous=Previous("", "4"))) == Plan()


async def test_a_faulty_carried_plan_is_on_the_trace_and_the_fallback_takes_over() -> None:
    class Careless:
        name = "careless"

        async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
            return Draft(plan=Plan((Step("nobody", "go"),)))

    trace = await Conductor(Careless(), POOL, fallback=Single("b"), repairs=0).run("Why?")
    assert trace.answer == "B"
    first, second = trace.rounds[0].drafts
    assert "'nobody'" in first.error
    assert not second.error
    assert second.text == ""


async def test_a_language_planner_reads_the_carried_plan_of_the_round_before_in_its_own_dialect() -> None:
    plan = Plan((Step("a", "One."), Step("b", "Two.", access=(0,))))
    planner = LanguagePlanner(Scripted("accept", name="planner"), dialect="lines")
    draft = await planner.draft(brief(previous=Previous("", "4", plan)))
    assert Message("assistant", format_plan(plan, POOL, dialect="lines")) in draft.messages


async def test_a_repair_of_a_greedy_planner_may_differ_from_the_draft_it_repairs() -> None:
    worker = Scripted("no plan", "model_id = [0]\nsubtasks = ['go']\naccess_list = [[]]", name="p")
    await Conductor(LanguagePlanner(worker), POOL, repairs=1).run("Why?")
    assert [request.temperature for request in worker.requests] == [0.0, pytest.approx(0.7)]
    warm = Scripted("no plan", name="p")
    await Conductor(LanguagePlanner(warm, temperature=0.3), POOL, repairs=1).run("Why?")
    assert [request.temperature for request in warm.requests] == [0.3, 0.3]


async def test_a_draft_that_was_cut_says_at_which_limit() -> None:
    worker = Scripted("model_id = [0, " + "0, " * 400, name="p")
    trace = await Conductor(LanguagePlanner(worker, max_output_tokens=64), POOL, repairs=0).run("Why?")
    assert "planner_output_tokens = 64" in trace.error
    assert worker.requests[0].drafts
