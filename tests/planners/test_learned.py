"""The planner that a fitted policy decides for: its plans, its reasons, and the workers it leaves out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec
import pytest

from dirigent.conduct import Conductor
from dirigent.errors import ConfigError
from dirigent.limits import Limits
from dirigent.messages import Message, Ran, Result, Usage, conversation
from dirigent.plan.plan import EarlierStep, Plan, Step
from dirigent.plan.planner import Brief, Draft, Previous
from dirigent.planners import planner
from dirigent.planners.fixed import Single
from dirigent.planners.learned import CHOOSE, Learned, Prefer, left_out, measured
from dirigent.planners.program import Program
from dirigent.planners.spec import Setup
from dirigent.run.step_prompt import ANSWER
from dirigent.run.trace import saved_usd_estimate
from dirigent.serve.runs.report import report_of
from dirigent.show.drawing import draw_trace
from dirigent.workers.pool import Pool
from dirigent.workers.reader import Select
from dirigent.workers.scripted import Scripted
from dirigent.workers.worker import Ability, Price


class Selected(msgspec.Struct):
    place: int
    chance: float | None
    votes: int = 1
    of: int = 1


class Sure:
    """Takes the newest result; its confidence depends on the number of results."""

    def __init__(self, *chances: float) -> None:
        self._chances = chances
        self.questions: list[str] = []

    def choose(self, question: str, results: Sequence[Result]) -> Selected:
        self.questions.append(question)
        return Selected(len(results) - 1, self._chances[len(results) - 1])


class Decided(msgspec.Struct):
    order: tuple[str, ...]
    end: Literal["last", "vote", "select"] = "select"
    until: float | None = 0.7
    why: str = "sums are best asked of quick"
    baseline: str = "strong"
    novel: bool = False


class Policy:
    """A policy that decides the same for every question."""

    def __init__(
        self,
        *order: str,
        end: Literal["last", "vote", "select"] = "select",
        selector: Sure | None = None,
        novel: bool = False,
    ) -> None:
        self.fingerprints = {"quick": "q1", "strong": "s1"}
        self.selector = selector or Sure(0.9, 0.9)
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.told: list[tuple[str, int | None, str]] = []
        self._order = order or ("quick", "strong")
        self._end = end
        self._novel = novel

    def plan_for(
        self, question: str, workers: Collection[str], *, prefer: Prefer, most_calls: int | None, at: str
    ) -> Decided:
        self.asked.append((question, tuple(workers)))
        self.told.append((prefer, most_calls, at))
        until = 0.7 if prefer == "cost" else None
        return Decided(self._order[:most_calls], end=self._end, until=until, novel=self._novel)


def pool_of(policy: Policy, *, quick: str = "q1", strong: str = "s1", new: bool = False) -> Pool:
    workers = [
        Scripted("4", name="quick", fingerprint=quick, price=Price(1, 1), usage=Usage(100, 10)),
        Scripted("four", name="strong", fingerprint=strong, price=Price(10, 10), usage=Usage(100, 10)),
    ]
    if new:
        workers.append(Scripted("x", name="new", fingerprint="n1"))
    return Pool([*workers, Select(policy.selector), Scripted("counted", name="vote", reads_results=True)])


async def drafted(policy: Policy, pool: Pool, *, max_steps: int = 5, prefer: Prefer = "cost", at: str = "") -> Draft:
    brief = Brief(conversation("2+2?"), pool, Limits(max_steps=max_steps))
    return await Learned(policy, prefer=prefer, at=at).draft(brief)


async def test_the_plan_asks_in_order_and_ends_in_the_selector() -> None:
    policy = Policy()
    draft = await drafted(policy, pool_of(policy))
    assert draft.plan == Plan(
        (Step("quick", ANSWER), Step("strong", ANSWER), Step("select", CHOOSE, (0, 1))), until=0.7
    )
    assert draft.reason is not None
    assert (draft.reason.chosen, draft.reason.baseline) == (("quick", "strong"), "strong")
    assert policy.asked == [("2+2?", ("quick", "strong"))]
    assert policy.told == [("cost", 4, "")]


async def test_speed_asks_all_at_once() -> None:
    policy = Policy()
    draft = await drafted(policy, pool_of(policy), prefer="speed")
    assert draft.plan is not None
    assert draft.plan.until is None


async def test_one_worker_is_asked_without_a_selector() -> None:
    policy = Policy("quick", end="last")
    assert (await drafted(policy, pool_of(policy))).plan == Plan((Step("quick", ANSWER),))


async def test_a_vote_ends_in_the_worker_that_counts_and_never_stops_early() -> None:
    policy = Policy("quick", "strong", "quick", end="vote")
    plan = (await drafted(policy, pool_of(policy))).plan
    assert plan is not None
    assert (plan.steps[-1], plan.until) == (Step("vote", CHOOSE, (0, 1, 2)), None)


async def test_the_policy_gets_the_number_of_calls_and_the_operating_point() -> None:
    policy = Policy("quick", "quick", "strong")
    draft = await drafted(policy, pool_of(policy), max_steps=3, at="best")
    assert policy.told == [("cost", 2, "best")]
    assert draft.plan is not None
    assert [step.worker for step in draft.plan.steps] == ["quick", "quick", "select"]


async def test_a_worker_that_changed_or_is_new_takes_no_part_and_is_named() -> None:
    policy = Policy("quick", end="last")
    pool = pool_of(policy, strong="s2", new=True)
    draft = await drafted(policy, pool)
    assert policy.asked == [("2+2?", ("quick",))]
    assert draft.reason is not None
    assert draft.reason.left_out == (
        "strong has changed since it was measured; `dirigent calibrate` measures it again",
        "new was not measured; `dirigent calibrate` measures it",
    )
    assert measured(policy, pool.infos) == ("quick",)
    assert list(left_out(policy, pool.infos)) == ["strong", "new"]


async def test_without_any_measured_worker_the_dearest_of_the_pool_answers_alone() -> None:
    policy = Policy()
    draft = await drafted(policy, pool_of(policy, quick="q2", strong="s2"))
    assert draft.plan == Plan((Step("strong", ANSWER),))
    assert draft.reason is not None
    assert "fitted on none of the workers" in draft.reason.why
    assert policy.asked == []


async def test_a_second_round_accepts() -> None:
    policy = Policy()
    pool = pool_of(policy)
    brief = Brief(conversation("2+2?"), pool, Limits(max_rounds=2), previous=Previous("", "4"))
    assert (await Learned(policy).draft(brief)).plan == Plan()


async def test_a_question_unlike_all_that_was_measured_is_planned_by_another_planner() -> None:
    for novel, worker in ((True, "new"), (False, "quick")):
        policy = Policy("quick", end="last", novel=novel)
        pool = pool_of(policy, new=True)
        draft = await Learned(policy, unlike=Single("new")).draft(Brief(conversation("2+2?"), pool, Limits()))
        assert draft.plan == Plan((Step(worker, ANSWER),))
        assert draft.reason is None or draft.reason.left_out == ()  # the other planner may ask the new worker


async def test_a_second_round_is_the_other_planners() -> None:
    policy = Policy()
    pool = pool_of(policy, new=True)
    failed = EarlierStep("quick", ANSWER, reply="The program failed.", ran=Ran("1/0", 1, ""))
    brief = Brief(conversation("2+2?"), pool, Limits(max_rounds=2), previous=Previous("", "x", steps=(failed,)))
    assert (await Learned(policy, unlike=Program("new")).draft(brief)).plan == Plan((Step("new", ANSWER),))


def test_the_error_for_a_profile_without_a_policy_names_the_key() -> None:
    policy = Policy()
    spec = planner("learned")
    assert spec.make is not None
    with pytest.raises(ConfigError, match="policy = "):
        spec.make(Setup(pool=pool_of(policy)))
    assert spec.make(Setup(pool=pool_of(policy), policy=policy, selector="select")).name == "learned"


async def test_a_run_notes_the_choice_its_reason_and_the_saving() -> None:
    policy = Policy(selector=Sure(0.8))
    trace = await Conductor(Learned(policy), pool_of(policy)).run("2+2?")
    assert (trace.status, trace.answer, trace.answered_by) == ("done", "4", "quick")
    report = report_of(trace, seconds=1, whole=False)
    assert report.why == "sums are best asked of quick"
    assert (report.chosen, report.answered_by, report.confidence) == (("quick", "strong"), "quick", 0.8)
    assert report.saved_usd_estimate == pytest.approx((1100 - 110) / 1e6)
    assert policy.selector.questions == ["2+2?"], "the selector reads the caller's question itself"
    drawn = draw_trace(trace).plain
    assert "why    sums are best asked of quick" in drawn
    assert "less than strong alone" in drawn


async def test_a_run_that_asked_the_best_single_worker_too_saved_nothing() -> None:
    policy = Policy(selector=Sure(0.1, 0.9))
    trace = await Conductor(Learned(policy), pool_of(policy)).run("2+2?")
    assert saved_usd_estimate(trace) == pytest.approx(-110 / 1e6)
    assert "more than strong alone" in draw_trace(trace).plain


async def test_without_a_reason_or_a_price_nothing_is_said_to_be_saved() -> None:
    policy = Policy(selector=Sure(0.9))
    unpriced = Pool([Scripted("4", name="quick", fingerprint="q1"), Scripted("x", name="strong", fingerprint="s1")])
    trace = await Conductor(Learned(policy), Pool([*unpriced.values(), Select(policy.selector)])).run("2+2?")
    assert saved_usd_estimate(trace) is None
    assert report_of(trace, seconds=1, whole=False).saved_usd_estimate is None


def able_pool(policy: Policy, *, quick: set[Ability], strong: set[Ability]) -> Pool:
    workers = [
        Scripted("4", name="quick", fingerprint="q1", price=Price(1, 1), abilities=frozenset(quick)),
        Scripted("four", name="strong", fingerprint="s1", price=Price(10, 10), abilities=frozenset(strong)),
    ]
    return Pool([*workers, Select(policy.selector)])


@pytest.mark.parametrize("need", ["tools", "images"])
async def test_an_unmeasured_kind_of_request_gets_the_best_able_worker(need: Ability) -> None:
    policy = Policy()
    for quick, strong, chosen in (({need}, {need}, "strong"), ({need}, set(), "quick")):
        pool = able_pool(policy, quick=quick, strong=strong)
        brief = Brief(conversation("2+2?"), pool, Limits(), needs=frozenset({need}))
        draft = await Learned(policy).draft(brief)
        assert draft.plan == Plan((Step(chosen, ANSWER),))
        assert draft.reason is not None
        assert f"{need} was not measured" in draft.reason.why


async def test_a_schema_goes_to_workers_that_keep_to_one() -> None:
    policy = Policy("quick", end="last")
    pool = able_pool(policy, quick=set(), strong={"schema"})
    brief = Brief(conversation("2+2?"), pool, Limits(), needs=frozenset({"schema"}))
    await Learned(policy).draft(brief)
    assert policy.asked == [("2+2?", ("strong",))]


async def test_if_no_measured_worker_is_able_another_answers() -> None:
    policy = Policy()
    able = Scripted("x", name="able", fingerprint="new", abilities=frozenset({"images"}), price=Price(1, 1))
    pool = Pool([*able_pool(policy, quick=set(), strong=set()).values(), able])
    brief = Brief(conversation("2+2?"), pool, Limits(), needs=frozenset({"images"}))
    assert (await Learned(policy).draft(brief)).plan == Plan((Step("able", ANSWER),))


async def test_the_policy_reads_a_conversations_last_question() -> None:
    policy = Policy()
    said = (Message("system", "Be kind."), *conversation("first"), Message("assistant", "so"), *conversation("2+2?"))
    await Learned(policy).draft(Brief(said, pool_of(policy), Limits()))
    assert policy.asked[0][0] == "2+2?"
