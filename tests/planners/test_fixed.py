"""Planners of one shape: each plan worked out by hand."""

from __future__ import annotations

import pytest
from tests.facts import facts

from dirigent import Conductor, Limits, Pool, Scripted
from dirigent.errors import ConfigError
from dirigent.messages import Message
from dirigent.plan.plan import Plan, Step
from dirigent.plan.planner import Brief, Planner, Previous, read_draft
from dirigent.planners.fixed import (
    Adapted,
    ByCard,
    FanOut,
    Fixed,
    Pipeline,
    RandomWorker,
    Reflect,
    SelfMoa,
    Single,
    Vote,
    Written,
)
from dirigent.planners.vote_counter import Counting
from dirigent.run.step_prompt import AGREE, ANSWER, CARRY_OUT, OUTLINE, REVIEW, SYNTHESISE
from dirigent.workers.worker import Price

POOL = Pool([Scripted(name, name=name) for name in "abc"])


async def plan_of(planner: Planner, *, pool: Pool = POOL, max_steps: int = 8, again: bool = False) -> Plan:
    previous = Previous("a draft", "an answer") if again else None
    limits = Limits(max_steps=max_steps, max_rounds=2)
    brief = Brief((Message("user", "Why?"),), pool, limits, previous=previous)
    return read_draft(await planner.draft(brief), brief)


async def test_one_worker_answers_alone() -> None:
    assert await plan_of(Single()) == Plan((Step("a", ANSWER),))
    assert await plan_of(Single("b")) == Plan((Step("b", ANSWER),))


async def test_of_several_names_the_first_that_the_pool_has_is_taken() -> None:
    assert await plan_of(Single(("z", "c", "b"))) == Plan((Step("c", ANSWER),))
    assert await plan_of(Single(("z", "c"))) == Plan((Step("c", ANSWER),))
    with pytest.raises(ConfigError, match=facts("z")):
        await plan_of(Single(("z",)))


async def test_a_worker_that_never_sees_the_question_is_given_it() -> None:
    pool = Pool([Scripted("x", name="a", subtask_only=True)])
    assert await plan_of(Single(), pool=pool) == Plan((Step("a", "Why?"),))
    reflected = await plan_of(Reflect(turns=2), pool=pool)
    assert reflected.steps[1].subtask == f"Why?\n{REVIEW}"


async def test_moa_of_eight_calls_asks_seven_and_brings_them_together() -> None:
    plan = await plan_of(FanOut("b", proposers=7))
    assert [step.worker for step in plan.steps] == ["a", "b", "c", "a", "b", "c", "a", "b"]
    assert plan.steps[-1] == Step("b", SYNTHESISE, (0, 1, 2, 3, 4, 5, 6))
    assert all(step == Step(step.worker, ANSWER) for step in plan.steps[:-1])


async def test_moa_of_three_by_two_reads_the_layer_before() -> None:
    plan = await plan_of(FanOut("c", proposers=3, layers=2))
    assert [step.access for step in plan.steps] == [(), (), (), (0, 1, 2), (0, 1, 2), (0, 1, 2), (3, 4, 5)]
    assert [step.worker for step in plan.steps] == ["a", "b", "c", "a", "b", "c", "c"]


async def test_moa_takes_fewer_proposers_under_a_low_limit_but_never_fewer_layers() -> None:
    assert len((await plan_of(FanOut(), max_steps=3)).steps) == 3
    with pytest.raises(ConfigError, match=facts("max_steps 7 5")):
        await plan_of(FanOut(proposers=3, layers=2), max_steps=5)
    with pytest.raises(ConfigError, match=facts("max_steps 2 1")):
        await plan_of(FanOut(), max_steps=1)
    with pytest.raises(ConfigError, match=facts("0")):
        FanOut(proposers=0)


async def test_a_local_worker_that_counts_is_never_asked_the_question() -> None:
    async def same(first: str, second: str) -> bool:
        return first == second

    pool = Pool([Counting(same), Scripted("x", name="a")])
    assert [step.worker for step in (await plan_of(FanOut(), pool=pool)).steps] == ["a", "a"]
    assert [step.worker for step in (await plan_of(RandomWorker(seed=3), pool=pool)).steps] == ["a"]


async def test_self_moa_asks_one_worker_and_lets_it_decide() -> None:
    plan = await plan_of(SelfMoa("b", samples=3))
    assert plan == Plan((*[Step("b", ANSWER)] * 3, Step("b", SYNTHESISE, (0, 1, 2))))
    with pytest.raises(ConfigError, match=facts("max_steps 2 1")):
        await plan_of(SelfMoa(), max_steps=1)
    with pytest.raises(ConfigError, match=facts("0")):
        SelfMoa(samples=0)


async def test_a_self_moa_of_one_sample_has_nothing_to_bring_together() -> None:
    assert await plan_of(SelfMoa("b", samples=1), max_steps=1) == Plan((Step("b", ANSWER),))


async def test_five_turns_each_look_at_the_one_before() -> None:
    plan = await plan_of(Reflect("a"))
    assert plan == Plan((Step("a", ANSWER), *(Step("a", REVIEW, (i,)) for i in range(4))))


async def test_a_vote_without_a_counter_asks_the_worker_itself() -> None:
    assert await plan_of(Vote("b", samples=2)) == Plan((*[Step("b", ANSWER)] * 2, Step("b", AGREE, (0, 1))))
    assert await plan_of(Vote("b", samples=1)) == Plan((Step("b", ANSWER),))
    assert (await plan_of(Vote("b", samples=2, counter="c"))).steps[-1] == Step("c", AGREE, (0, 1))
    with pytest.raises(ConfigError, match=facts("0")):
        Vote(samples=0)


async def test_a_pipeline_plans_carries_out_and_reviews() -> None:
    assert await plan_of(Pipeline("a", worker="b", reviewer="c")) == Plan(
        (Step("a", OUTLINE), Step("b", CARRY_OUT, (0,)), Step("c", REVIEW, (1,)))
    )
    assert {step.worker for step in (await plan_of(Pipeline("b"))).steps} == {"b"}
    with pytest.raises(ConfigError, match=facts("max_steps 3 2")):
        await plan_of(Pipeline(), max_steps=2)


async def test_asked_again_everybody_accepts() -> None:
    plan = Plan((Step("a", "Do it."),))
    planners: list[Planner] = [Single(), FanOut(), SelfMoa(), Reflect(), Vote(), Pipeline(), Fixed(plan)]
    planners += [RandomWorker(seed=1), Adapted(plan), Written("x", name="w")]
    for planner in planners:
        assert await plan_of(planner, again=True) == Plan()


async def test_a_lot_is_the_same_for_the_same_seed_and_reaches_everybody() -> None:
    drawn = [(await plan_of(RandomWorker(seed=seed))).steps[0].worker for seed in range(30)]
    assert drawn == [(await plan_of(RandomWorker(seed=seed))).steps[0].worker for seed in range(30)]
    assert set(drawn) == {"a", "b", "c"}


async def test_the_reviewer_is_shown_the_answer_and_not_the_plan() -> None:
    reviewer = Scripted("reviewed", name="c")
    pool = Pool([Scripted("1. think", name="a"), Scripted("42", name="b"), reviewer])
    trace = await Conductor(Pipeline("a", worker="b", reviewer="c"), pool).run("Why?")
    assert trace.answer == "reviewed"
    assert "42" in reviewer.seen_text
    assert "1. think" not in reviewer.seen_text


async def test_by_price_the_dearest_or_the_cheapest_answers_and_gives_the_reason() -> None:
    prices = {"mid": Price(1, 2), "dear": Price(5, 9), "cheap": Price(0.1, 0.2), "dear2": Price(5, 9)}
    pool = Pool(
        [*[Scripted("x", name=name, price=price) for name, price in prices.items()], Scripted("x", name="open")]
    )
    for planner, chosen in ((ByCard("best"), "dear"), (ByCard("cheapest"), "cheap")):
        trace = await Conductor(planner, pool).run("Why?")
        assert [step.worker for step in trace.steps] == [chosen]
        assert trace.reason is not None
        assert trace.reason.why.startswith(f"{chosen} alone: ")


async def test_a_worker_without_a_price_is_asked_only_if_none_has_one() -> None:
    unpriced = Pool([Scripted("x", name="a"), Scripted("x", name="b")])
    assert await plan_of(ByCard("best"), pool=unpriced) == Plan((Step("a", ANSWER),))
    assert await plan_of(ByCard("cheapest"), pool=unpriced) == Plan((Step("a", ANSWER),))


async def test_a_free_worker_is_cheapest_and_a_reader_of_results_is_never_asked_alone() -> None:
    pool = Pool(
        [
            Scripted("x", name="count", price=Price(), reads_results=True),
            Scripted("x", name="paid", price=Price(1, 1)),
            Scripted("x", name="own", price=Price()),
        ]
    )
    assert await plan_of(ByCard("cheapest"), pool=pool) == Plan((Step("own", ANSWER),))
