# ruff: noqa: N803
"""The training loop: its arithmetic against numbers worked by hand, and that it learns, resumes and drops faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import torch

from dirigent.errors import ConfigError
from dirigent.learn.decoder import Adapter
from dirigent.learn.grpo import (
    Asked,
    GrpoSettings,
    Rollout,
    advantages,
    group_advantages,
    policy_loss,
    rate_factor,
    train,
)
from dirigent.learn.sampler import BatchedSampler
from dirigent.messages import Message
from tests.learn.tiny_base import CHARACTERS, tiny_base

SMALL = GrpoSettings(
    steps=6, questions=3, rollouts=4, learning_rate=2e-2, measure_every=3, save_every=2, rows_at_once=8
)


class WantsLetter:
    """A task whose good plans begin with one of these letters; the measure is how often the greedy plan does."""

    def __init__(self, letters: str, *, faults: bool = False) -> None:
        self.letters = letters
        self.faults = faults

    def draw(self, count: int, *, step: int, rng: random.Random) -> list[Asked]:
        return [Asked(str(i), (Message("user", f"q{rng.randrange(9)}"),)) for i in range(count)]

    async def score(
        self, asked: Sequence[Asked], plans_PG: Sequence[Sequence[str]], *, step: int
    ) -> list[list[Rollout]]:
        return [[self._scored(plan) for plan in group] for group in plans_PG]

    def measure(self, write: Callable[[Sequence[Asked]], list[str]]) -> dict[str, float]:
        plans = write(self.draw(4, step=0, rng=random.Random(0)))
        return {"right": sum(plan[:1] in set(self.letters) for plan in plans) / len(plans)}

    def _scored(self, plan: str) -> Rollout:
        right = float(plan[:1] in set(self.letters))
        return Rollout(None if self.faults else right, {"right": right})


def start_of(seed: int = 1) -> Adapter:
    base = tiny_base()
    return Adapter.fresh(base.weights, base.shape, rank=4, alpha=8, seed=seed)


def test_advantages_are_differences_from_the_mean_of_the_group() -> None:
    assert advantages([1.0, 0.0, 0.5, 0.5]) == [0.5, -0.5, 0.0, 0.0]


def test_a_dropped_rollout_neither_counts_in_the_mean_nor_teaches() -> None:
    assert advantages([1.0, None, 0.0]) == [0.5, 0.0, -0.5]
    assert advantages([None, None]) == [0.0, 0.0]


def test_the_loss_is_the_mean_over_tokens_of_advantage_and_distance() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    start = torch.tensor([-1.0, -1.0])
    loss = policy_loss(logprobs, torch.tensor([0.5, -0.25]), start, beta=0.1, tokens=4)
    # -(0.5 * -1 + -0.25 * -2) = 0; the distance is 0 for the first token and e - 1 - 1 for the second.
    assert loss.item() == pytest.approx(0.1 * (2.718281828 - 2) / 4)
    loss.backward()
    assert logprobs.grad is not None
    # The distance of the second token grows as it falls: d/dx (exp(s - x) - (s - x)) = 1 - e.
    assert logprobs.grad.tolist() == pytest.approx([-0.5 / 4, (0.25 + 0.1 * (1 - 2.718281828)) / 4])


def test_the_rate_rises_then_falls_to_a_tenth() -> None:
    settings = GrpoSettings(steps=100, warmup=0.1)
    assert rate_factor(0, settings) == pytest.approx(0.1)
    assert rate_factor(9, settings) == pytest.approx(1.0)
    assert rate_factor(99, settings) == pytest.approx(0.1, abs=0.01)


def test_training_makes_the_rewarded_plan_likely(tmp_path: Path) -> None:
    base = tiny_base()
    letters = CHARACTERS[:9]
    seen: list[float] = []
    settings = msgspec.structs.replace(SMALL, steps=25, questions=4, rollouts=16, beta=0.0, measure_every=25)
    sampler = BatchedSampler(end=base.end, max_tokens=2)

    def keep(facts: dict[str, float]) -> None:
        seen.append(facts["right"])

    train(base, start_of(), WantsLetter(letters), sampler, settings, tmp_path, observe=keep)
    assert sum(seen[:3]) / 3 < 0.5
    assert sum(seen[-3:]) / 3 > 0.8


def test_a_run_that_is_cut_and_resumed_ends_where_the_unbroken_one_does(tmp_path: Path) -> None:
    base = tiny_base()
    sampler = BatchedSampler(end=base.end, max_tokens=3)
    task = WantsLetter("a")
    whole = train(base, start_of(), task, sampler, SMALL, tmp_path / "whole")
    cut = tmp_path / "cut"
    steps: list[float] = []

    class Cut(Exception):
        pass

    def stop(facts: dict[str, float]) -> None:
        steps.append(facts["step"])
        if len(steps) == 5:  # the last checkpoint holds four steps
            raise Cut

    with pytest.raises(Cut):
        train(base, start_of(), task, sampler, SMALL, cut, observe=stop)
    resumed = train(base, start_of(), task, sampler, SMALL, cut, observe=stop_after(steps))
    assert steps == [0, 1, 2, 3, 4, 4, 5]
    for name, matrix in whole.b.items():
        torch.testing.assert_close(resumed.b[name], matrix)


def stop_after(steps: list[float]) -> Callable[[dict[str, float]], None]:
    return lambda facts: steps.append(facts["step"])


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    base = tiny_base()
    sampler = BatchedSampler(end=base.end, max_tokens=2)
    train(base, start_of(), WantsLetter("a"), sampler, SMALL, tmp_path)
    with pytest.raises(ConfigError, match="checkpoint"):
        train(base, start_of(), WantsLetter("a"), sampler, msgspec.structs.replace(SMALL, beta=0.5), tmp_path)


def test_a_step_in_which_every_rollout_was_dropped_changes_nothing(tmp_path: Path) -> None:
    base = tiny_base()
    start = start_of()
    trained = train(
        base,
        start,
        WantsLetter("a", faults=True),
        BatchedSampler(end=base.end, max_tokens=2),
        msgspec.structs.replace(SMALL, steps=2, beta=0.5),
        tmp_path,
    )
    assert all(torch.equal(trained.a[name], matrix) for name, matrix in start.a.items())


class Counting(WantsLetter):
    """Remembers how many steps it scored, and gives advantages of its own."""

    def __init__(self) -> None:
        super().__init__("a")
        self.scored = 0

    async def score(
        self, asked: Sequence[Asked], plans_PG: Sequence[Sequence[str]], *, step: int
    ) -> list[list[Rollout]]:
        self.scored += 1
        groups = await super().score(asked, plans_PG, step=step)
        return [[msgspec.structs.replace(one, advantage=1.0) for one in group] for group in groups]

    def remembered(self) -> str:
        return str(self.scored)

    def recall(self, state: str) -> None:
        self.scored = int(state)


def test_a_task_that_remembers_is_given_its_state_back(tmp_path: Path) -> None:
    base = tiny_base()
    sampler = BatchedSampler(end=base.end, max_tokens=2)
    first = Counting()
    train(base, start_of(), first, sampler, SMALL, tmp_path, stop=lambda: first.scored >= 3)
    assert first.scored == 3
    second = Counting()
    train(base, start_of(), second, sampler, SMALL, tmp_path)
    assert second.scored == SMALL.steps


def test_a_task_may_give_advantages_of_its_own() -> None:
    given = [Rollout(1.0, advantage=2.0), Rollout(0.0, advantage=0.5), Rollout(None, advantage=3.0)]
    assert group_advantages(given) == [2.0, 0.5, 0.0]
    assert group_advantages([Rollout(1.0), Rollout(0.0)]) == [0.5, -0.5]
