"""Orders: whom to ask after whom, found by replaying a dealt table.

A plan asks the workers of an order until the selector's confidence reaches a threshold, and answers with what the
selector picks. Orders are searched for a group of questions at a time, by beam, for a given price of cost. Groups are
clusters of questions.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from dirigent.learn.deals import DealtTable, Ints, Judged, Priced
from dirigent.learn.selector import Floats

Order = tuple[int, ...]
"""Places of workers in `DealtTable.workers`, in the order in which they are asked."""

BEAM, HOPEFUL = 2, 4
NEVER = 1.01
"""A threshold that no confidence reaches: every worker of the order is asked."""


class Replayed(msgspec.Struct, frozen=True, eq=False):
    """What plans are worth on each question: means over the deals."""

    right: Floats
    cost: Floats
    calls: Floats
    stopped: Floats
    """The share of deals in which the confidence reached the threshold."""


class Found(msgspec.Struct, frozen=True):
    order: Order
    utility: float


def replay(
    table: DealtTable | Priced, judged: Judged, orders: Sequence[Order], group: Ints, thresholds: Sequence[float]
) -> Replayed:
    """Every question with the order and the threshold of its group."""
    right, cost, calls, stopped = np.zeros((4, len(group)))
    for g, (order, threshold) in enumerate(zip(orders, thresholds, strict=True)):
        own = np.flatnonzero(group == g)
        if not len(own):
            continue
        alive = np.ones((len(own), table.cost.shape[1]))
        state, asked = 0, [0] * table.after.shape[1]
        for worker in order:
            cost[own] += (alive * table.cost[own, :, worker, asked[worker]]).mean(1)
            calls[own] += alive.mean(1)
            asked[worker] += 1
            state = int(table.after[state, worker])
            stops = alive * (judged.confidence[own, :, state] >= threshold)
            right[own] += (stops * judged.right[own, :, state]).mean(1)
            stopped[own] += stops.mean(1)
            alive = alive - stops
        right[own] += (alive * judged.right[own, :, state]).mean(1)
    return Replayed(right, cost, calls, stopped)


class Searchable(msgspec.Struct, frozen=True, eq=False):
    """A group's questions, laid out for many replays. Every deal of a question is a column."""

    confidence: npt.NDArray[np.float32]
    """[states, columns]"""
    right: npt.NDArray[np.float32]
    cost: npt.NDArray[np.float32]
    """[workers, calls, columns]"""
    weight: npt.NDArray[np.float32]
    """[columns], of sum 1."""
    within_reach: npt.NDArray[np.float32]
    """[columns]: the most that any state gets right."""
    after: list[list[int]]


def searchable(table: DealtTable, judged: Judged, questions: Ints, weight: Floats) -> Searchable:
    """The questions with their weights, as `best_order` reads them."""
    columns = np.repeat(weight / weight.sum() / table.deals, table.deals)

    def flat(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.ascontiguousarray(values[questions].reshape(len(columns), -1).T)

    cost = table.cost[questions].reshape(len(columns), *table.cost.shape[2:])
    right = flat(judged.right)
    return Searchable(
        confidence=flat(judged.confidence),
        right=right,
        cost=np.ascontiguousarray(np.moveaxis(cost, 0, -1)).astype(np.float32),
        weight=columns.astype(np.float32),
        within_reach=right.max(0),
        after=table.after.tolist(),
    )


def best_order(group: Searchable, *, price: float, threshold: float, most_calls: int) -> Found:
    """The order of the greatest utility: the share of right answers less `price` times the cost.

    After each call the search goes on from the orders that are best as they are, and from those that could become best
    if every answer that is still open were picked well. Two cheap workers that must agree are of the second kind.
    """
    best = Found((), -np.inf)
    beam: list[_Begun] = [_Begun(0.0, 0.0, (), 0, group.weight, 0.0, 0.0)]
    for _ in range(most_calls):
        grown: dict[int, _Begun] = {}
        for begun in beam:
            able = [worker for worker, then in enumerate(group.after[begun.state]) if then >= 0]
            if not able:
                continue
            then = [group.after[begun.state][worker] for worker in able]
            paid = begun.spent + group.cost[able, [begun.order.count(worker) for worker in able]] @ begun.alive
            stops = begun.alive * (group.confidence[then] >= threshold)
            right = group.right[then]
            known = begun.settled + (stops * right).sum(1)
            left = begun.alive - stops
            utility = known + (left * right).sum(1) - price * paid
            hope = np.maximum(known + left @ group.within_reach - price * paid, utility)
            for i, worker in enumerate(able):
                if hope[i] <= best.utility:
                    continue  # nothing that begins so can be better
                if then[i] not in grown or utility[i] > grown[then[i]].utility:
                    order = (*begun.order, worker)
                    grown[then[i]] = _Begun(
                        float(utility[i]), float(hope[i]), order, then[i], left[i], float(known[i]), float(paid[i])
                    )
        if not grown:
            break
        ranked = sorted(grown.values(), key=lambda one: -one.utility)
        if ranked[0].utility > best.utility + 1e-9:
            best = Found(ranked[0].order, ranked[0].utility)
        beam = ranked[:BEAM] + sorted(ranked[BEAM:], key=lambda one: -one.hope)[:HOPEFUL]
        if not any(one.alive.any() for one in beam):
            break
    return best


class _Begun(msgspec.Struct, frozen=True, eq=False):
    """An order that a search may go on with."""

    utility: float
    hope: float
    """The utility if each open question got the best answer that any state picks."""
    order: Order
    state: int
    alive: npt.NDArray[np.float32]
    """The weight of each column that has not stopped."""
    settled: float
    spent: float


def clusters(points: npt.NDArray[np.float32], count: int, *, seed: int, rounds: int = 25) -> npt.NDArray[np.float32]:
    """The centres of so many clusters, by k-means with centres drawn far apart at first; the best of three starts."""
    rng = np.random.default_rng(seed)
    best = (np.inf, points[:1])
    for _ in range(3 if count > 1 else 1):
        centres = points[rng.integers(len(points), size=1)]
        distance = np.full(len(points), np.inf)
        for _ in range(count - 1):
            distance = np.minimum(distance, _distances(points, centres[-1:])[:, 0])
            total = distance.sum()
            drawn = int(rng.choice(len(points), p=distance / total)) if total > 0 else 0
            centres = np.concatenate([centres, points[drawn : drawn + 1]])
        for _ in range(rounds):
            closest = _distances(points, centres).argmin(1)
            moved = np.stack(
                [points[closest == c].mean(0) if (closest == c).any() else centres[c] for c in range(count)]
            )
            if np.allclose(moved, centres):
                break
            centres = moved
        spread = float(_distances(points, centres).min(1).sum())
        if spread < best[0]:
            best = (spread, centres)
    return best[1].astype(np.float32)


def _distances(points: npt.NDArray[np.float32], centres: npt.NDArray[np.float32]) -> Floats:
    squares = (points**2).sum(1)[:, None] - 2 * points @ centres.T + (centres**2).sum(1)
    return np.asarray(np.maximum(squares, 0.0), dtype=np.float64)
