"""The gym as a task of `dirigent.learn.grpo`: draws questions, carries plans out and scores them.

A prompt is the text that a trained planner reads in serving. A plan is carried out with `Conductor.run`, so limits,
faults and traces are those of serving: a plan that does not parse earns the penalty, and a worker that fails drops its
rollout. The curriculum and the weight of cost follow the policy's accuracy; checkpoints hold both.

The two controls that imitate (`algorithm = "rft"` and `"online_rft"`) are here too: a right plan counts 1, any other 0.
"""

# ruff: noqa: N803, N806 -- suffixes name dimensions: prompts, rollouts of a group

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import msgspec

from dirigent.errors import LimitError
from dirigent.learn.grpo import Asked, Rollout
from dirigent.plan.plan import format_plan
from dirigent_gym.train.dataset import Row, RowState
from dirigent_gym.train.heldout import held_out
from dirigent_gym.train.metrics import Collapse, CollapseState, step_metrics
from dirigent_gym.train.recipe import Recipe
from dirigent_gym.train.reward import (
    Scored,
    ScoreSettings,
    advantages,
    controlled,
    lambda_at,
    lambda_start,
    rewards,
    score,
)
from dirigent_gym.train.rows import Rows, right_plan
from dirigent_gym.train.workers import Resources


class Collapsed(LimitError):
    """The policy collapsed: one worker, one step, or no valid plans."""


class TaskState(msgspec.Struct, frozen=True):
    """The state that the task keeps between steps and in checkpoints."""

    rows: RowState
    collapse: CollapseState = CollapseState()
    cost_from_step: int | None = None
    """The step from which cost counts."""
    steps: int = 0
    """The number of steps scored."""


class GymTask:
    """The questions of a recipe with its workers. `dev` drives the curriculum and the weight of cost.

    `runner` runs coroutines for code that is not async, on the workers' event loop.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        rows: Rows,
        dev: Sequence[Row],
        resources: Resources,
        runner: asyncio.Runner,
    ) -> None:
        self.recipe = recipe
        self.rows = rows
        self.dev = list(dev)
        self.resources = resources
        self.ceiling = 1.0
        """The accuracy of the right plans on the development questions; 1 if the right plans are unknown."""
        self._runner = runner
        self._scoring = ScoreSettings(recipe.reward, seed=recipe.seed, max_steps=recipe.rows.max_steps)
        self._collapse = Collapse()
        self._cost_from_step: int | None = None
        self._steps = 0
        # Tasks from a file have a test set of their own.
        self._held_out = None if recipe.tasks.file else held_out()

    # ---- the methods that dirigent.learn.grpo calls

    def draw(self, count: int, *, step: int, rng: random.Random) -> list[Asked]:
        """New rows of the present stage. After the first stage more rows than asked for are drawn, because about half
        of the groups then score all alike and teach nothing."""
        begun = self.rows.state.stage > 0 or bool(self.recipe.tasks.file)
        rows = self.rows.draw(round(count * self.recipe.grpo.oversample) if begun else count)
        if self._held_out is not None:
            self._held_out.check(row.task.question for row in rows)
        return [Asked(row.id, row.messages, row) for row in rows]

    async def score(
        self, asked: Sequence[Asked], plans_PG: Sequence[Sequence[str]], *, step: int
    ) -> list[list[Rollout]]:
        flat_rows = [one.extra for one, plans in zip(asked, plans_PG, strict=True) for _ in plans]
        scored = await self.outcomes(flat_rows, [text for plans in plans_PG for text in plans])
        self.rows.update(flat_rows, scored)
        figures = step_metrics(flat_rows, scored) | self._spent()
        self._steps = step + 1
        if (collapsed := self._collapse.update(figures)) is not None:
            raise Collapsed(collapsed)
        found = iter(scored)
        scored_PG = [[next(found) for _ in plans] for plans in plans_PG]
        lambda_ = lambda_at(step, self._cost_from_step, self.recipe.cost)
        figures |= {"lambda": lambda_, "stage": float(self.rows.state.stage)}
        rollouts_PG = self._rollouts(scored_PG, lambda_, seed=self.recipe.seed * 1_000_003 + step)
        # The first rollout carries the figures of the whole step: the mean over one value is that value.
        first = rollouts_PG[0][0]
        rollouts_PG[0][0] = msgspec.structs.replace(first, facts=figures)
        return rollouts_PG

    def measure(self, write: Callable[[Sequence[Asked]], list[str]]) -> dict[str, float]:
        """Carry out greedy plans for the development questions. The figures open stages and start the cost."""
        plans = write([Asked(row.id, row.messages, row) for row in self.dev])
        figures = step_metrics(self.dev, self.carried_out(self.dev, plans))
        depths = {row.task.depth: f"accuracy_depth_{row.task.depth}" for row in self.dev}
        self.rows.note_dev({depth: figures[name] for depth, name in depths.items() if name in figures})
        self._cost_from_step = lambda_start(
            self._cost_from_step,
            step=self._steps,
            accuracy=figures.get("accuracy", 0.0),
            ceiling=self.ceiling,
            settings=self.recipe.cost,
        )
        return figures | self._spent() | {"stage": float(self.rows.state.stage), "ceiling": self.ceiling}

    def remembered(self) -> str:
        state = TaskState(self.rows.state, self._collapse.state, self._cost_from_step, self._steps)
        return msgspec.json.encode(state).decode()

    def recall(self, state: str) -> None:
        known = msgspec.json.decode(state, type=TaskState)
        self.rows.state = known.rows
        self._collapse = Collapse(state=known.collapse)
        self._cost_from_step = known.cost_from_step
        self._steps = known.steps

    # ---- helpers

    async def outcomes(self, rows: Sequence[Row], texts: Sequence[str]) -> list[Scored]:
        """The score of each text as a plan for its row. A plan is dropped if the cost cap refuses one of its calls."""
        resources = self.resources
        return await score(
            rows, texts, resources.workers, self._scoring, sandbox=resources.sandbox, ledger=resources.spending
        )

    def carried_out(self, rows: Sequence[Row], texts: Sequence[str]) -> list[Scored]:
        """The same for code that is not async. Raises `CapReached` if the cost cap refused a call."""
        scored = self._runner.run(self.outcomes(rows, texts))
        if self.resources.spending is not None:
            self.resources.spending.require_open()
        return scored

    def measure_ceiling(self) -> None:
        """Carry out the right plans of the development questions. A row that its pool cannot solve counts as wrong."""
        if any(row.task.sketch is None for row in self.dev):
            return
        known = [(row, plan) for row in self.dev if (plan := right_plan(row)) is not None]
        texts = [format_plan(row.with_shown_names(plan), row.shown, dialect="lines") for row, plan in known]
        scored = self.carried_out([row for row, _ in known], texts)
        self.ceiling = sum(one.correct for one in scored) / len(self.dev)

    def _spent(self) -> dict[str, float]:
        return {} if self.resources.spending is None else {"spent_usd": self.resources.spending.spent_usd}

    def _rollouts(self, scored_PG: list[list[Scored]], lambda_: float, *, seed: int) -> list[list[Rollout]]:
        recipe = self.recipe
        rewards_PG = controlled(rewards(scored_PG, lambda_, recipe.reward), scored_PG, recipe.reward, seed=seed)
        # In a group that the cost cap cut, only the cheap plans were scored, and the policy would learn from those.
        cut = [any(one.unpaid for one in scored_G) for scored_G in scored_PG]
        rewards_PG = [[None] * len(group) if out else group for group, out in zip(rewards_PG, cut, strict=True)]
        by_spread = recipe.grpo.scale == "with_cost" and lambda_ > 0
        advantages_PG = advantages(rewards_PG, scale="floored_std" if by_spread else "none")
        if recipe.algorithm != "grpo":
            advantages_PG = [[float(one.correct) for one in group] for group in scored_PG]
        return [
            [Rollout(reward, advantage=advantage) for reward, advantage in zip(rewards_G, advantages_G, strict=True)]
            for rewards_G, advantages_G in zip(rewards_PG, advantages_PG, strict=True)
        ]
