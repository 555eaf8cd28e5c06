"""Second rounds to train on: a question, a plan that the policy wrote for it, and the answer that plan got.

The policy may accept the answer with an empty plan or write another. That can only be learned where answers can be
checked, so only checkable kinds are asked; and only from both cases, so as many wrong answers as right ones stand among
the rows, however good the policy is by then. They are ordinary rows: the same groups, rewards and optimiser.

They come last in the curriculum, and are written anew every few steps by the policy as it is then, since what it should
learn to mend is its own mistakes. What is in stock is kept in checkpoints. Knows nothing of optimisers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from dirigent.tasks.task import grade
from dirigent_gym.questions.compose import Shape
from dirigent_gym.questions.specialists import RL_ROSTER
from dirigent_gym.questions.split import generate
from dirigent_gym.train.dataset import Row, RowSettings, make_row, second_round
from dirigent_gym.train.recipe import SecondRoundSettings
from dirigent_gym.train.reward import Scored

CHECKABLE: tuple[Shape, ...] = ("check",)
"""Shapes of question whose answer a worker can verify."""


class Stock(msgspec.Struct, frozen=True):
    """Second rounds to draw from. Kept in checkpoints."""

    right: tuple[Row, ...] = ()
    wrong: tuple[Row, ...] = ()
    written_at: int | None = None
    """The step whose policy wrote them."""


TryOut = Callable[[Sequence[Row]], tuple[list[str], list[Scored]]]
"""One sampled plan for each row, and what became of it."""


class SecondRounds:
    """Keeps a stock fresh, and deals rows from it."""

    def __init__(self, settings: SecondRoundSettings, rows: RowSettings, *, seed: int) -> None:
        self.settings = settings
        self.rows = rows
        self.seed = seed
        self.stock = Stock()

    def wanted(self, n: int, *, stage: int) -> int:
        """How many of `n` rows are to be second rounds at this stage."""
        return round(n * self.settings.share) if stage >= self.settings.from_stage else 0

    def draw(self, n: int, *, step: int, try_out: TryOut) -> list[Row]:
        """Up to `n` rows, right and wrong answers in equal number; fewer where there are too few of either."""
        written_at = self.stock.written_at
        if written_at is None or step - written_at >= self.settings.every_steps:
            self.stock = self._written_anew(step, try_out)
        rng = random.Random(f"second rounds {self.seed} {step}")
        half = min(n // 2, len(self.stock.right), len(self.stock.wrong))
        chosen = rng.sample(self.stock.right, half) + rng.sample(self.stock.wrong, half)
        rng.shuffle(chosen)
        return chosen

    def _written_anew(self, step: int, try_out: TryOut) -> Stock:
        rng = random.Random(f"first rounds {self.seed} {step}")
        rows = first_rounds(rng, self.settings.tries, settings=self.rows)
        texts, scored = try_out(rows)
        seconds = [
            (one.correct, second_round(row, text, one.steps))
            for row, text, one in zip(rows, texts, scored, strict=True)
            if one.valid and not one.dropped
        ]
        return Stock(
            right=tuple(row for correct, row in seconds if correct),
            wrong=tuple(row for correct, row in seconds if not correct),
            written_at=step,
        )


def first_rounds(rng: random.Random, n: int, *, settings: RowSettings) -> list[Row]:
    """`n` rows of checkable questions over pools of every size."""
    tasks = generate("train", n, seed=rng.getrandbits(48), shapes=CHECKABLE, everyday=settings.everyday)
    return [
        make_row(task, rng, size=rng.randint(*settings.large_pool), max_steps=settings.max_steps, roster=RL_ROSTER)
        for task in tasks
    ]


def second_metrics(rollouts: Sequence[tuple[Row, Scored]]) -> dict[str, float]:
    """What second rounds did to the answers they began with; nothing where there were none."""
    kept = [(row, one) for row, one in rollouts if not one.dropped and row.earlier_answer is not None]
    was_right = [(one, grade(row.task, row.earlier_answer or "").correct) for row, one in kept]
    spoilt = [not one.correct for one, right in was_right if right]
    mended = [one.correct for one, right in was_right if not right]
    figures = {
        "second_spoilt": spoilt,
        "second_mended": mended,
        "second_accepted": [one.plan is not None and not one.plan.steps for one, _ in was_right],
    }
    return {name: sum(hits) / len(hits) for name, hits in figures.items() if hits}
