"""MasRouter: teams as plans by hand, gradients against finite differences, a policy that learns from its rewards."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.facts import facts

from dirigent import Conductor, Pool, Scripted
from dirigent.errors import ConfigError
from dirigent.plan.plan import Plan, Step
from dirigent.planners.features import Array
from dirigent.planners.masrouter import MODES, Policy, Team, TeamSettings, fit_masrouter, plan_of, softmax
from dirigent.run.step_prompt import ANSWER, FINISH, REVIEW, ROLES

ROLE = tuple(ROLES.values())
QUICK = TeamSettings(max_agents=3, epochs=12, learning_rate=0.2, dim=4)


def team(mode: str, *roles: int, workers: tuple[int, ...]) -> Team:
    return Team(MODES.index(mode), roles, workers)


def test_a_lone_agent_answers_or_reasons() -> None:
    assert plan_of(team("direct", workers=(1,)), "ab") == Plan((Step("b", ANSWER),))
    assert plan_of(team("reason", workers=(0,)), "ab") == Plan((Step("a", f"{ROLE[0]} {FINISH}"),))


def test_a_chain_reads_the_one_before() -> None:
    assert plan_of(team("chain", 1, 2, 0, workers=(0, 1, 0)), "ab") == Plan(
        (Step("a", ROLE[1]), Step("b", ROLE[2], (0,)), Step("a", f"{ROLE[0]} {FINISH}", (1,)))
    )


@pytest.mark.parametrize(
    ("mode", "reads"),
    [("full", [(), (0,), (0, 1)]), ("debate", [(), (), (0, 1)]), ("reflect", [(), (0,), (1,)])],
)
def test_modes_differ_in_access(mode: str, reads: list[tuple[int, ...]]) -> None:
    plan = plan_of(team(mode, 0, 1, 4, workers=(0, 0, 1)), "ab")
    assert [step.access for step in plan.steps] == reads
    assert plan.steps[-1].subtask.endswith(REVIEW if mode == "reflect" else FINISH)


def log_probability(policy: Policy, x: Array, chosen: Team) -> float:
    """The same cascade, written out once more."""
    nobody = len(ROLES)
    total = math.log(softmax(policy.mode @ x)[chosen.mode])
    if chosen.roles:
        total += math.log(softmax(policy.count @ x + policy.count_by_mode[chosen.mode])[len(chosen.roles) - 2])
    last = nobody
    for role in chosen.roles:
        scores = policy.role @ x + policy.role_by_mode[chosen.mode] + policy.role_by_last[last]
        total, last = total + math.log(softmax(scores)[role]), role
    for role, worker in zip(chosen.roles or (nobody,), chosen.workers, strict=True):
        total += math.log(softmax(policy.worker @ x + policy.worker_by_role[role])[worker])
    return total


@pytest.mark.parametrize("chosen", [team("direct", workers=(1,)), team("debate", 3, 0, 3, workers=(2, 0, 1))])
def test_gradients_of_the_log_probability_agree_with_finite_differences(chosen: Team) -> None:
    rng = np.random.default_rng(0)
    fresh = Policy.fresh(3, workers=3, max_agents=4)
    policy, x = Policy(*(rng.normal(size=array.shape) for array in fresh.arrays)), rng.normal(size=3)
    for array, gradient in zip(policy.arrays, policy.log_gradients(x, chosen), strict=True):
        for place in np.ndindex(array.shape):
            nudged = []
            for step in (1e-6, -1e-6):
                array[place] += step
                nudged.append(log_probability(policy, x, chosen))
                array[place] -= step
            assert gradient[place] == pytest.approx((nudged[0] - nudged[1]) / 2e-6, abs=1e-6)


def test_a_fresh_policy_finds_everything_equally_likely() -> None:
    policy = Policy.fresh(2, workers=2, max_agents=3)
    assert math.exp(log_probability(policy, np.ones(2), team("direct", workers=(0,)))) == pytest.approx(1 / 6 / 2)
    with pytest.raises(ConfigError, match=facts("max_agents 2 1")):
        Policy.fresh(2, workers=2, max_agents=1)


def test_the_likeliest_team_has_no_worker_that_is_not_there() -> None:
    policy = Policy.fresh(1, workers=3, max_agents=3)
    policy.worker[2] += 5.0
    assert policy.likeliest(np.ones(1), workers=[0, 1, 2]).workers == (2,)
    assert policy.likeliest(np.ones(1), workers=[0, 1]).workers == (0,)


async def test_a_policy_learns_which_worker_suits_which_question() -> None:
    questions = [f"{('add', 'spell')[i % 2]} item {i}" for i in range(24)]

    async def rollout(question: str, plan: Plan) -> tuple[float, float] | None:
        wanted = "sums" if question.startswith("add") else "words"
        return float(plan.steps[-1].worker == wanted), 0.001 * len(plan.steps)

    router = await fit_masrouter(questions, ["sums", "words"], rollout, seed=3, settings=QUICK)
    again = await fit_masrouter(questions, ["sums", "words"], rollout, seed=3, settings=QUICK)
    teams = [router.team(question) for question in questions]
    right = [("sums", "words")[t.workers[-1]] == ("sums", "words")[i % 2] for i, t in enumerate(teams)]
    assert sum(right) >= 22
    assert teams == [again.team(question) for question in questions]
    trace = await Conductor(router, Pool([Scripted("s", name="sums"), Scripted("w", name="words")])).run("add item 2")
    assert trace.answer == "s"


async def test_cost_makes_teams_small() -> None:
    async def rollout(question: str, plan: Plan) -> tuple[float, float] | None:
        return 1.0, 0.02 * len(plan.steps)

    questions = [f"question {i}" for i in range(24)]
    router = await fit_masrouter(questions, ["a", "b"], rollout, seed=1, settings=QUICK)
    assert {len(router.team(question).workers) for question in questions} == {1}


async def test_a_plan_that_was_lost_teaches_nothing() -> None:
    async def rollout(question: str, plan: Plan) -> tuple[float, float] | None:
        return None

    router = await fit_masrouter(["one", "two"], ["a", "b"], rollout, settings=QUICK)
    assert router.team("one") == Team(0, (), (0,))


async def test_nothing_to_learn_from_is_refused() -> None:
    async def rollout(question: str, plan: Plan) -> tuple[float, float] | None:
        return 1.0, 0.0

    with pytest.raises(ConfigError, match=facts("0 1")):
        await fit_masrouter([], ["a"], rollout)
