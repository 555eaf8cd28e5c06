"""Equal cost: how many samples of one worker cost what the planner to be beaten cost. The arithmetic; nobody is asked.

The measure is whoever takes part first in `SIZED_BY`. The money is what it cost on the very questions evaluated, task
by task: its costs are looked at, its grades never, so nothing of the test reaches a vote but an amount. Samples are
whole numbers and a mean is not, so some questions, drawn by lot, get one sample more than the others.

What samples cost is a forecast: replies differ in length. So questions are asked in rounds, an eighth of them first,
then half of what is left each time. After each round the forecast is corrected, and the others get the money that is
left. Lots come from the seed and sizes from the costs of rounds before, which the record holds: an evaluation that is
resumed comes to the same sizes. `sized.py` does the asking.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from dirigent.planners.examples import MAX_SAMPLES, SampleCost

EQUAL_COST = "vote"
"""Self-consistency of the best worker: what a report compares others with at equal cost."""

SIZED_BY = ("conductor", "conductor:2", "language", "moa", "moa:8")

EQUAL_WITHIN = 0.05
"""Costs that differ by more than this share are not called equal."""

FIRST, LEAST = 8, 32
"""The first round has one in so many of the questions; no later one has fewer than one in so many, so that the end does
not wait for single questions."""


class Sizing(msgspec.Struct, frozen=True):
    """How a planner came to its samples, and what that cost; costs are a question's mean."""

    worker: str
    """Whose samples."""
    measure: str = ""
    """Who it was to cost as much as; nobody where no measure took part."""
    target_usd: float | None = None
    """The measure's cost on these questions."""
    cost_usd: float | None = None
    ratio: float | None = None
    """Cost over target, as it came out."""
    samples: float | None = None
    bound: Literal["", "least", "most"] = ""
    """Every question had the least number of samples and the cost is still above the target, or the most and below."""
    why_not: str = ""
    """Why it was not sized; empty where it was."""
    by_task: dict[str, Sizing] | msgspec.UnsetType = msgspec.UNSET
    """The same of each task alone; left out where all questions are one."""

    @property
    def note(self) -> str:
        """What stands beside the planner's name."""
        if self.samples is None:
            return self.worker
        times = "" if self.ratio is None else f", {self.ratio:.2f} x the cost of {self.measure}"
        return f"{self.worker}, {self.samples:.3g} samples{times}"


def equal(cost_usd: float | None, other_usd: float | None) -> bool:
    """Whether two costs may be called equal; unknown ones never, nor those of nothing."""
    if not cost_usd or not other_usd:
        return False
    return abs(cost_usd / other_usd - 1) <= EQUAL_WITHIN


def in_lots(ids: Sequence[str], seed: int) -> list[str]:
    """The questions in an order drawn by the seed and each question's own name."""

    def lot(id: str) -> bytes:
        return hashlib.blake2b(f"{seed} samples {id}".encode(), digest_size=8).digest()

    return sorted(ids, key=lot)


def rounds_of(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """An eighth, then half of what is left each time, the last few at once."""
    size, left = math.ceil(len(ids) / FIRST), ids
    while left:
        yield left[:size]
        left = left[size:]
        size = max(math.ceil(len(left) / 2), math.ceil(len(ids) / LEAST))


def sizes_for(
    ids: Sequence[str], cost: SampleCost, money_usd: float, *, weights: Mapping[str, float]
) -> dict[str, int]:
    """Samples for each question, so that together they cost this much: n for all, and one more for the first of them,
    as many as bring the sum closest. One is the least; a question's weight is its cost over an average one's."""
    whole = math.fsum(weights[id] for id in ids)
    fitting = [n for n in range(1, MAX_SAMPLES + 1) if cost.usd_of(n) * whole <= money_usd]
    n = max(fitting, default=1)
    sizes = dict.fromkeys(ids, n)
    left_usd = money_usd - cost.usd_of(n) * whole
    for id in ids if n < MAX_SAMPLES else ():
        more_usd = (cost.usd_of(n + 1) - cost.usd_of(n)) * weights[id]
        if more_usd / 2 > left_usd:
            break
        sizes[id] = n + 1
        left_usd -= more_usd
    return sizes
