"""Rollouts: rows drawn, a group of plans sampled for each, carried out, scored; groups that teach nothing replaced.

What training learns from: it compares the rollouts of a group or, as a control, imitates those that were right.
Every draw has a seed of its own, so a step can be drawn again exactly. Knows nothing of optimisers.
"""

# ruff: noqa: N803, N806 -- suffixes name dimensions: prompts, rollouts of a group

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from dirigent_gym.train.dataset import Row, RowState, sift
from dirigent_gym.train.decode import Sample
from dirigent_gym.train.heldout import held_out
from dirigent_gym.train.memory import within_memory
from dirigent_gym.train.metrics import step_metrics
from dirigent_gym.train.policy import Policy, Written
from dirigent_gym.train.processes import own_seed
from dirigent_gym.train.recipe import GrpoSettings, Recipe, Scale
from dirigent_gym.train.reward import Scored, advantages, controlled, lambda_at, rewards
from dirigent_gym.train.rows import Rows
from dirigent_gym.train.scorer import Scorer
from dirigent_gym.train.secondround import SecondRounds, Stock, second_metrics


class Rollouts:
    """Draws rows, samples a group of plans for each, scores them, and keeps the groups that teach something."""

    def __init__(self, recipe: Recipe, policy: Policy, scorer: Scorer, *, rows: Rows, process: int = 0) -> None:
        self.recipe = recipe
        self.policy = policy
        self.scorer = scorer
        self.rows = rows
        self.process = process
        self.cost_from_step: int | None = None
        self.second = SecondRounds(recipe.second_round, recipe.rows, seed=own_seed(recipe.seed, process))
        # Tasks from a file have a test of their own.
        self._held_out = None if recipe.tasks.file else held_out()
        self.right: list[float] = []
        """1 for each rollout that was handed over last and was right, 0 for any other."""
        self.metrics: dict[str, float] = {}
        """Of the present step, over the rows drawn first: those drawn to replace others are not typical."""

    def restore(self, rows: RowState, *, cost_from_step: int | None, stock: Stock) -> None:
        """Go on from what a checkpoint says."""
        self.rows.state = rows
        self.cost_from_step = cost_from_step
        self.second.stock = stock

    def sample(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """TRL's `rollout_func`: as many rows as it asks for, and their rewards as one more column."""
        step = int(trainer.state.global_step) // self.recipe.grpo.updates
        chosen = self.groups(len(prompts) // self.recipe.grpo.rollouts, step=step, trainer=trainer)
        self.right = [float(one.correct) for group in chosen for one in group.scored]
        self.metrics["right_kept"] = sum(self.right) / len(self.right)
        scale = scale_at(self.recipe.grpo.scale, self.lambda_(step))
        return {
            "prompt_ids": [group.prompt for group in chosen for _ in group.samples],
            "completion_ids": [sample.ids for group in chosen for sample in group.samples],
            "logprobs": [sample.logprobs for group in chosen for sample in group.samples],
            "reward": [reward for group in chosen for reward in _scaled(group.rewards, scale)],
        }

    def groups(self, wanted: int, *, step: int, trainer: Any = None) -> list[Group]:
        """As many groups as wanted, those that teach something first."""
        settings = self.recipe.grpo
        kept: list[Group] = []
        spare: list[Group] = []
        drawn = 0
        ask_for, seconds = self._at_first(wanted), {"sample_seconds": 0.0, "score_seconds": 0.0}
        for turn in range(1 + settings.refills):
            with within_memory("while plans were sampled and carried out", advice=smaller_batches(settings)):
                groups = self._groups(ask_for, step=step, turn=turn, trainer=trainer, seconds=seconds)
            drawn += sum(len(group.samples) for group in groups)
            sifted = sift([group.rewards for group in groups], wanted=wanted - len(kept))
            kept += [groups[i] for i in sifted.keep]
            spare += [groups[i] for i in sifted.dropped]
            ask_for = min(sifted.refill, wanted)
            unpaid = any(one.unpaid for group in groups for one in group.scored)
            if not ask_for or len(kept) >= settings.refill_below * wanted or unpaid:
                break
        self.metrics |= {**seconds, "groups_kept": len(kept) / wanted, "lambda": self.lambda_(step)}
        self.metrics["plans_drawn"] = float(drawn)
        # Too few even so: groups without variance fill the batch, and move nothing.
        return (kept + spare)[:wanted]

    async def plan_reward(self, *, reward: list[float | None], log_metric: Any, **_: Any) -> list[float | None]:
        """TRL's reward function."""
        for name, value in self.metrics.items():
            log_metric(name, value)
        return reward

    def lambda_(self, step: int) -> float:
        """The weight of cost at a step."""
        return lambda_at(step, self.cost_from_step, self.recipe.cost)

    def _at_first(self, wanted: int) -> int:
        """How many groups to sample so that about as many as wanted teach something."""
        begun = self.rows.state.stage > 0 or self.recipe.tasks.file  # which has no stages
        return round(wanted * self.recipe.grpo.oversample) if begun else wanted

    def _groups(self, n: int, *, step: int, turn: int, trainer: Any, seconds: dict[str, float]) -> list[Group]:
        began = time.monotonic()
        rows = self._drawn(n, step=step, turn=turn)
        written = self._write(rows, step=step, turn=turn, trainer=trainer)
        sampled = time.monotonic()
        flat_rows = [row for row, group in zip(rows, written.texts_PG, strict=True) for _ in group]
        scored = self.scorer.score(
            flat_rows,
            [text for group in written.texts_PG for text in group],
            tokens=[len(sample.ids) for group in written.samples_PG for sample in group],
        )
        self._update(flat_rows, scored)
        size = self.recipe.grpo.rollouts
        scored_PG = [scored[i : i + size] for i in range(0, len(scored), size)]
        # Of a group that the cost cap cut, the cheaper plans would be left: none of it counts.
        scored_PG = [_whole_or_dropped(group) for group in scored_PG]
        rewards_PG = rewards(scored_PG, self.lambda_(step), self.recipe.reward)
        seed = step_seed(self.recipe.seed, step=step, turn=turn, process=self.process)
        rewards_PG = controlled(rewards_PG, scored_PG, self.recipe.reward, seed=seed)
        if turn == 0:
            given = [reward for group in rewards_PG for reward in group if reward is not None]
            self.metrics = _figures(flat_rows, scored) | {"reward": sum(given) / max(1, len(given))}
        seconds["sample_seconds"] += sampled - began
        seconds["score_seconds"] += time.monotonic() - sampled
        columns = (written.prompts_P, written.samples_PG, rewards_PG, scored_PG)
        return [Group(*parts) for parts in zip(*columns, strict=True)]

    def _drawn(self, n: int, *, step: int, turn: int) -> list[Row]:
        """New rows, second rounds scattered among those drawn first in a step: where more groups teach something than
        are wanted, it is the last ones that go."""
        seconds: list[Row] = []
        wanted = self.second.wanted(n, stage=self.rows.state.stage) if turn == 0 else 0
        if wanted:
            seconds = self.second.draw(wanted, step=step, try_out=lambda rows: self._tried(rows, step=step))
        rows = self.rows.draw(n - len(seconds)) + seconds
        if self._held_out is not None:
            self._held_out.check(row.task.question for row in rows)
        if seconds:
            random.Random(f"order {self.recipe.seed} {step}").shuffle(rows)
        return rows

    def _tried(self, rows: Sequence[Row], *, step: int) -> tuple[list[str], list[Scored]]:
        """One sampled plan for each row, and what became of it."""
        seed = step_seed(self.recipe.seed, step=step, turn=FIRST_ROUNDS_TURN, process=self.process)
        written = self.policy.write(rows, group=1, seed=seed)
        texts = [text for (text,) in written.texts_PG]
        return texts, self.scorer.score(rows, texts)

    def _update(self, rows: Sequence[Row], scored: Sequence[Scored]) -> None:
        """Second rounds teach, but say nothing of how far the curriculum is."""
        first = [(row, one) for row, one in zip(rows, scored, strict=True) if row.earlier_answer is None]
        self.rows.update([row for row, _ in first], [one for _, one in first])

    def _write(self, rows: Sequence[Row], *, step: int, turn: int, trainer: Any) -> Written:
        settings = self.recipe.grpo
        if settings.sampler == "vllm":
            return _write_with_vllm(self.policy, rows, settings, trainer)
        seed = step_seed(self.recipe.seed, step=step, turn=turn, process=self.process)
        return self.policy.write(rows, group=settings.rollouts, seed=seed, temperature=settings.temperature)


def _whole_or_dropped(group: list[Scored]) -> list[Scored]:
    if not any(one.unpaid for one in group):
        return group
    return [msgspec.structs.replace(one, correct=False, reward_base=None) for one in group]


class Group(msgspec.Struct, frozen=True):
    prompt: list[int]
    samples: list[Sample]
    rewards: list[float | None]
    scored: list[Scored]


FIRST_ROUNDS_TURN = 29
"""The draw of a step that writes first rounds; refills are fewer."""


def step_seed(seed: int, *, step: int, turn: int, process: int) -> int:
    """A seed of its own for every draw of a run."""
    return ((seed * 1_000_003 + step) * 31 + turn) * 1009 + process


def smaller_batches(settings: GrpoSettings) -> str:
    if settings.oversample > 1:
        return f"lower grpo.oversample, which is {settings.oversample:g}"
    plans = f"{settings.prompts} x {settings.rollouts}"
    return f"grpo.oversample is 1 already; a run of its own with fewer grpo.prompts x rollouts than {plans} needs less"


def _figures(rows: Sequence[Row], scored: Sequence[Scored]) -> dict[str, float]:
    """The metrics of first rounds, and those of second rounds beside them."""
    both = list(zip(rows, scored, strict=True))
    first = [(row, one) for row, one in both if row.earlier_answer is None]
    second = [(row, one) for row, one in both if row.earlier_answer is not None]
    return step_metrics([row for row, _ in first], [one for _, one in first]) | second_metrics(second)


def scale_at(scale: Scale, lambda_: float) -> Scale:
    """What advantages are divided by while cost has this weight."""
    if scale == "with_cost":
        return "floored_std" if lambda_ > 0 else "none"
    return scale


def _scaled(rewards_G: list[float | None], scale: Scale) -> list[float | None]:
    """TRL subtracts the mean; a floor under the spread it does not know, so that is applied here."""
    if scale == "floored_std":
        return advantages([rewards_G], scale="floored_std")[0]
    return rewards_G


def _write_with_vllm(policy: Policy, rows: Sequence[Row], settings: GrpoSettings, trainer: Any) -> Written:
    """The same through TRL's vLLM, whose weights TRL has brought up to date before it asked for rollouts."""
    prompts = policy.prompts(rows)
    repeated = [prompt for prompt in prompts for _ in range(settings.rollouts)]
    _, ids, logprobs, _ = trainer.vllm_generation.generate(
        prompts=repeated, images=None, num_generations=settings.rollouts
    )
    samples = [Sample(list(i), [token[0] for token in lp]) for i, lp in zip(ids, logprobs, strict=True)]
    size = settings.rollouts
    return policy.decoded(prompts, [samples[i : i + size] for i in range(0, len(samples), size)])
