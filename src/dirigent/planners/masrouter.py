"""MasRouter: mode, roles and workers of a small team, drawn by a policy (Yue et al., ACL 2025, arXiv 2502.11133).

The policy decides in a cascade, each decision seeing the ones before: how the team collaborates, how many it has, which
role each plays, and which worker plays it. It is trained by policy gradient on the utility of its own plans on the
training split: score minus a weight times cost in USD. So fitting pays for calls; `rollout` carries out one plan for
one training question and returns the result.

Modes are the paper's six. Every decision is a softmax over linear scores of the question's features (`features.py`)
with biases for the decisions before it, in place of the paper's sentence encoder and learnt matching of descriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec
import numpy as np

from dirigent.concurrency import gather_or_cancel
from dirigent.errors import ConfigError
from dirigent.plan.plan import Plan, Step
from dirigent.plan.planner import Brief, Shape
from dirigent.planners.examples import Rollout
from dirigent.planners.features import Adam, Array, Embedding, fit_embedding, with_constant
from dirigent.planners.fixed import question_text, step
from dirigent.planners.knn import offered
from dirigent.run.step_prompt import ANSWER, FINISH, REVIEW, ROLES

MODES = ("direct", "reason", "chain", "full", "debate", "reflect")
"""The paper's IO, CoT, Chain, FullConnected, Debate and Reflection. The first two are one agent alone."""

ALONE = 2
"""So many modes, from the first, have one agent."""


class TeamSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings; where not said otherwise, those of the authors' released code."""

    max_agents: int = 5
    """Theirs is 6; five is the step limit that every planner here is held to by default."""
    cost_weight_per_usd: float = 10.0
    epochs: int = 5
    batch: int = 4
    learning_rate: float = 0.01
    dim: int = 32


class Team(msgspec.Struct, frozen=True):
    """A decision of the policy: indices into modes, roles and workers."""

    mode: int
    roles: tuple[int, ...] = ()
    """One for each agent; a single agent has no role."""
    workers: tuple[int, ...] = ()


async def fit_masrouter(
    questions: Sequence[str],
    workers: Sequence[str],
    rollout: Rollout,
    *,
    seed: int = 0,
    settings: TeamSettings = TeamSettings(),  # noqa: B008  # frozen
    name: str = "masrouter",
) -> MasRouter:
    """Train on these questions; `epochs` plans are paid for each of them."""
    if not questions or not workers:
        raise ConfigError(f"MasRouter needs questions and workers, not {len(questions)} and {len(workers)}")
    rng = np.random.default_rng(seed)
    embedding = fit_embedding(questions, dim=settings.dim, seed=seed)
    features = with_constant(embedding(questions))
    policy = Policy.fresh(features.shape[1], workers=len(workers), max_agents=settings.max_agents)
    adam = Adam(policy.arrays, learning_rate=settings.learning_rate)
    for _ in range(settings.epochs):
        order = rng.permutation(len(questions))
        for start in range(0, len(order), settings.batch):
            rows = order[start : start + settings.batch]
            teams = [policy.sample(features[row], rng) for row in rows]
            asked = [rollout(questions[row], plan_of(team, workers)) for row, team in zip(rows, teams, strict=True)]
            earned = await gather_or_cancel(asked)
            kept = [i for i, found in enumerate(earned) if found is not None]
            utility = np.array([found[0] - settings.cost_weight_per_usd * found[1] for found in earned if found])
            if kept:
                gradients = policy.loss_gradients(features[rows[kept]], [teams[i] for i in kept], utility)
                policy = Policy(*adam.step(gradients))
    return MasRouter(embedding, policy, tuple(workers), name=name)


class MasRouter(Shape):
    """The fitted policy; it takes its likeliest decisions, so that a question always gets the same plan."""

    def __init__(
        self, embedding: Embedding, policy: Policy, workers: tuple[str, ...], *, name: str = "masrouter"
    ) -> None:
        self.name = name
        self._embedding = embedding
        self._policy = policy
        self._workers = workers

    def team(self, question: str, *, among: Collection[str] | None = None) -> Team:
        there = offered(self._workers, among)
        features = with_constant(self._embedding([question]))[0]
        return self._policy.likeliest(features, workers=[self._workers.index(name) for name in there])

    def plan(self, brief: Brief) -> Plan:
        team = self.team(question_text(brief), among=brief.pool)
        plan = plan_of(team, self._workers)
        return Plan(tuple(step(brief, s.worker, s.subtask, s.access) for s in plan.steps))


def plan_of(team: Team, workers: Sequence[str]) -> Plan:
    """The team as a plan. The last agent's reply is the answer, and its prompt says so."""
    mode, names, last = MODES[team.mode], [workers[i] for i in team.workers], len(team.workers) - 1
    if mode == "direct":
        return Plan((Step(names[0], ANSWER),))
    if mode == "reason":
        return Plan((Step(names[0], f"{ROLES['solver']} {FINISH}"),))
    roles = [ROLES[tuple(ROLES)[role]] for role in team.roles]
    steps = []
    for i, (worker, words) in enumerate(zip(names, roles, strict=True)):
        if mode == "reflect" and i:
            words = f"{words} {REVIEW}"
        elif i == last:
            words = f"{words} {FINISH}"
        steps.append(Step(worker, words, _reads(mode, i, last)))
    return Plan(tuple(steps))


def _reads(mode: str, index: int, last: int) -> tuple[int, ...]:
    """Whose results an agent sees: in a chain the one before, in a debate no one's until the last."""
    if index == 0 or (mode == "debate" and index < last):
        return ()
    return (index - 1,) if mode in ("chain", "reflect") else tuple(range(index))


class Policy:
    """Linear scores and biases of every decision."""

    def __init__(self, *arrays: Array) -> None:
        self.arrays = arrays
        (self.mode, self.count, self.count_by_mode, self.role, self.role_by_mode, self.role_by_last) = arrays[:6]
        (self.worker, self.worker_by_role) = arrays[6:]

    @staticmethod
    def fresh(dim: int, *, workers: int, max_agents: int) -> Policy:
        """Every decision equally likely. A role before the first and a lone agent's role are one more row."""
        if max_agents < 2:
            raise ConfigError(f"a team needs max_agents of at least 2, not {max_agents}")
        modes, counts, roles = len(MODES), max_agents - 1, len(ROLES)
        shapes = ((modes, dim), (counts, dim), (modes, counts), (roles, dim), (modes, roles), (roles + 1, roles))
        return Policy(*(np.zeros(shape) for shape in (*shapes, (workers, dim), (roles + 1, workers))))

    def sample(self, features: Array, rng: np.random.Generator) -> Team:
        return self._decide(features, lambda scores: int(rng.choice(len(scores), p=softmax(scores))))

    def likeliest(self, features: Array, *, workers: Sequence[int]) -> Team:
        """Only these workers can be chosen."""
        missing = np.full(len(self.worker), -np.inf)
        missing[list(workers)] = 0.0
        return self._decide(features, lambda scores: int(scores.argmax()), mask=missing)

    def _decide(self, features: Array, pick: Callable[[Array], int], *, mask: Array | None = None) -> Team:
        open_to = np.zeros(len(self.worker)) if mask is None else mask
        mode = pick(self.mode @ features)
        nobody = len(self.role)
        if mode < ALONE:
            return Team(mode, (), (pick(self.worker @ features + self.worker_by_role[nobody] + open_to),))
        agents = 2 + pick(self.count @ features + self.count_by_mode[mode])
        roles: list[int] = []
        for _ in range(agents):
            last = roles[-1] if roles else nobody
            roles.append(pick(self.role @ features + self.role_by_mode[mode] + self.role_by_last[last]))
        chosen = [pick(self.worker @ features + self.worker_by_role[role] + open_to) for role in roles]
        return Team(mode, tuple(roles), tuple(chosen))

    def loss_gradients(self, features: Array, teams: Sequence[Team], utility: Array) -> list[Array]:
        """Of minus the expected utility, by REINFORCE; the batch's mean is subtracted, which the paper does not do."""
        found = [np.zeros_like(array) for array in self.arrays]
        for x, team, gain in zip(features, teams, utility - utility.mean(), strict=True):
            for total, gradient in zip(found, self.log_gradients(x, team), strict=True):
                total -= gain * gradient / len(teams)
        return found

    def log_gradients(self, x: Array, team: Team) -> list[Array]:
        """Of the log-probability of these decisions."""
        found = [np.zeros_like(array) for array in self.arrays]
        mode, count, count_by_mode, role, role_by_mode, role_by_last, worker, worker_by_role = found
        nobody = len(self.role)
        mode += np.outer(_surprise(self.mode @ x, team.mode), x)
        if team.roles:
            pull = _surprise(self.count @ x + self.count_by_mode[team.mode], len(team.roles) - 2)
            count += np.outer(pull, x)
            count_by_mode[team.mode] += pull
        for last, now in zip((nobody, *team.roles), team.roles, strict=False):
            pull = _surprise(self.role @ x + self.role_by_mode[team.mode] + self.role_by_last[last], now)
            role += np.outer(pull, x)
            role_by_mode[team.mode] += pull
            role_by_last[last] += pull
        for played, chosen in zip(team.roles or (nobody,), team.workers, strict=True):
            pull = _surprise(self.worker @ x + self.worker_by_role[played], chosen)
            worker += np.outer(pull, x)
            worker_by_role[played] += pull
        return found


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max())
    shares: Array = weights / weights.sum()
    return shares


def _surprise(scores: Array, chosen: int) -> Array:
    """The gradient of log softmax at the one chosen: one minus its share, and minus the share of each other one."""
    pull = -softmax(scores)
    pull[chosen] += 1
    return pull
