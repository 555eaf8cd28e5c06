"""How good a warm start is, in figures.

A start must write valid plans (98% or more, greedy and sampled) and choose workers evenly (within 2 points), so that
whatever routing a trained conductor shows came from RL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from dirigent_gym.train.reward import Scored

LEAST_VALID = 0.98
MOST_UNEVEN = 0.02
SAMPLES = 4
"""Plans sampled for each row that a start is measured on."""


class WarmStart(msgspec.Struct, frozen=True):
    """How good a start is."""

    valid_greedy: float
    valid_sampled: float
    uneven: float
    """Largest distance of a worker's share of the steps from an even share, over workers and over positions."""
    accuracy_greedy: float
    accuracy_sampled: float

    @classmethod
    def of(cls, greedy: Sequence[Scored], sampled: Sequence[Scored], *, uneven: float) -> WarmStart:
        """The figures of plans that a start wrote greedily, and of plans that it sampled."""
        return cls(
            valid_greedy=_share(one.valid for one in greedy),
            valid_sampled=_share(one.valid for one in sampled),
            uneven=uneven,
            accuracy_greedy=_share(one.correct for one in greedy),
            accuracy_sampled=_share(one.correct for one in sampled),
        )

    @property
    def figures(self) -> str:
        valid = f"valid {self.valid_greedy:.1%} greedy, {self.valid_sampled:.1%} sampled"
        return f"{valid}; right {self.accuracy_greedy:.1%}; workers within {self.uneven:.1%} of even"

    @property
    def summary(self) -> str:
        return self.figures + (f"; {self.fault}" if self.fault else "")

    @property
    def fault(self) -> str:
        """Why it should not be trained on, or nothing."""
        if min(self.valid_greedy, self.valid_sampled) < LEAST_VALID:
            return (
                f"only {self.valid_greedy:.1%} of its greedy and {self.valid_sampled:.1%} of its sampled plans are "
                f"valid, {LEAST_VALID:.0%} are wanted; raise warm_start.steps"
            )
        if self.uneven > MOST_UNEVEN:
            return f"it chooses workers up to {self.uneven:.1%} away from evenly; raise warm_start.n"
        return ""


def _share(hits: Iterable[bool]) -> float:
    counted = list(hits)
    return sum(counted) / len(counted) if counted else 0.0
