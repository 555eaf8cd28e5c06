"""Orders over recorded answers: the plans that need no conductor, chosen by replay on training questions.

An order asks workers one after another until the selector is sure enough. For a price of cost and a group of questions,
the best order is searched on several deals of their recorded samples. These are the rivals of a conductor, and what
goes first where a conductor plans second. Nothing is chosen by other questions than those that are given.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from dirigent.learn.deals import Ints
from dirigent.learn.orders import NEVER, Order, Searchable, best_order, clusters
from dirigent.learn.selector import Floats, hashed_words
from dirigent.learn.table_plans import RecordedQuestions, TablePlan

PRICES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2)
"""What 1,000 cost units are worth in right answers. More prices than a conductor knows words for: a finer front."""
THRESHOLDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, NEVER)
DEALS = 4


class Searched(msgspec.Struct, frozen=True, eq=False):
    """Training questions, dealt: columns of `space` are questions times deals."""

    space: Searchable
    questions: Ints
    workers: tuple[str, ...]


def searched(recorded: RecordedQuestions, questions: Sequence[int], weights: Floats, *, seed: int = 1) -> Searched:
    """The questions as `best_plan` reads them, with these weights."""
    workers = recorded.pool.workers
    states = list(itertools.product(*(range(worker.samples + 1) for worker in workers)))
    place = {state: i for i, state in enumerate(states)}
    after = [
        [place.get((*state[:w], state[w] + 1, *state[w + 1 :]), -1) for w in range(len(workers))] for state in states
    ]
    rng = np.random.default_rng(seed)
    dealt = [[rng.permutation(recorded.pool.bits(worker.name)) for worker in workers] for _ in range(DEALS)]
    sets = np.array(
        [
            [sum(1 << int(bit) for own, k in zip(deal, state, strict=True) for bit in own[:k]) for state in states]
            for deal in dealt
        ]
    )
    rows = np.array(questions)

    def flat(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """[questions, sets] as [states, questions x deals]"""
        return np.ascontiguousarray(np.moveaxis(values[rows][:, sets], 2, 0).reshape(len(states), -1))

    calls = max(worker.samples for worker in workers)
    cost = np.zeros((len(workers), calls, len(rows), DEALS), dtype=np.float32)
    paid = recorded.cost.cpu().numpy()
    for d, deal in enumerate(dealt):
        for w, own in enumerate(deal):
            for k, bit in enumerate(own):
                cost[w, k, :, d] = paid[rows, bit]
    right = flat(recorded.right.cpu().numpy())
    space = Searchable(
        confidence=flat(recorded.confidence.cpu().numpy()),
        right=right,
        cost=cost.reshape(len(workers), calls, -1),
        weight=np.repeat(weights / weights.sum() / DEALS, DEALS).astype(np.float32),
        within_reach=right.max(0),
        after=after,
    )
    return Searched(space, rows, tuple(worker.name for worker in workers))


def weighted(found: Searched, weights: Floats) -> Searched:
    """The same questions with other weights; those that weigh nothing are left out of the search."""
    kept = np.repeat(weights > 0, DEALS)
    space = Searchable(
        confidence=np.ascontiguousarray(found.space.confidence[:, kept]),
        right=np.ascontiguousarray(found.space.right[:, kept]),
        cost=np.ascontiguousarray(found.space.cost[:, :, kept]),
        weight=np.repeat(weights / weights.sum() / DEALS, DEALS)[kept].astype(np.float32),
        within_reach=np.ascontiguousarray(found.space.within_reach[kept]),
        after=found.space.after,
    )
    return Searched(space, found.questions[weights > 0], found.workers)


def best_plan(found: Searched, price: float, *, most_calls: int = 10) -> TablePlan:
    """The order and threshold of the greatest utility on these questions, at a price of 1,000 units."""
    best, until = max(
        (
            (best_order(found.space, price=price / 1000, threshold=threshold, most_calls=most_calls), threshold)
            for threshold in THRESHOLDS
        ),
        key=lambda one: one[0].utility,
    )
    return plan_of(best.order, until, found.workers)


def plan_of(order: Order, until: float, workers: Sequence[str]) -> TablePlan:
    asks = tuple(workers[w] for w in order)
    if len(asks) == 1:
        return TablePlan(asks)
    return TablePlan(asks, "select", None if until >= 1 else until)


def utilities(found: Searched, plan: TablePlan, price: float) -> Floats:
    """What the plan is worth on each question at a price of 1,000 units, over the deals."""
    space = found.space
    alive = np.ones(space.confidence.shape[1], dtype=np.float32)
    utility = np.zeros_like(alive)
    state, asked = 0, dict.fromkeys(found.workers, 0)
    threshold = NEVER if plan.until is None else plan.until
    for name in plan.asks:
        w = found.workers.index(name)
        utility -= alive * space.cost[w, asked[name]] * np.float32(price / 1000)
        asked[name] += 1
        state = space.after[state][w]
        stops = alive * (space.confidence[state] >= threshold)
        utility += stops * space.right[state]
        alive = alive - stops
    utility += alive * space.right[state]
    return np.asarray(utility.reshape(-1, DEALS).mean(1), dtype=np.float64)


class Grouping(msgspec.Struct, frozen=True, eq=False):
    """Clusters of question texts by their words."""

    centres: npt.NDArray[np.float32]

    @classmethod
    def fitted(cls, texts: Sequence[str], count: int, *, seed: int = 1) -> Grouping:
        return cls(clusters(_words(texts), count, seed=seed))

    def of(self, texts: Sequence[str]) -> Ints:
        points = _words(texts)
        distances = (self.centres**2).sum(1) - 2 * points @ self.centres.T
        return np.asarray(distances.argmin(1), dtype=np.int64)


def _words(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    return np.stack([hashed_words(text) for text in texts]).astype(np.float32)
