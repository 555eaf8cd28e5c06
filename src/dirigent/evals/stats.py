"""Statistics of a table: a share with its interval, a difference with its p, a percentile.

Pure functions of plain numbers, the standard library only. Wilson's interval is used for shares because it stays
inside 0 and 1 and is honest near them, where a conductor hopes to be. Differences are paired: both planners answered
the same questions, so what the questions have in common cancels out. A bootstrap draws from the questions it has. If
the planners differ on few of them it claims too much, so for answers that are right or wrong no p is below that of an
exact sign test over those few. Graded scores have the bootstrap alone: the number of gains says little there about
their size.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Sequence

import msgspec

from dirigent.errors import ConfigError
from dirigent.learn.intervals import wilson as wilson

RESAMPLES = 2000

P_BELOW = 0.05
"""Below it a difference is called significant."""

TOLERANCE = 1e-12
"""Differences below it count as zero: sums of fifths are not exact."""


class Difference(msgspec.Struct, frozen=True):
    """How much the first of two planners gains over the second, on the questions both answered."""

    mean: float
    interval: tuple[float, float]
    """95%, from the resamples."""
    p: float
    """Two-sided: twice the share of resamples without a gain, or without a loss, whichever is rarer. For answers that
    are right or wrong it is never below the exact sign test over the questions on which the two differ."""
    n: int

    @property
    def significant(self) -> bool:
        return self.p < P_BELOW


def paired_difference(
    first: Sequence[float],
    second: Sequence[float],
    *,
    seed: int,
    resamples: int = RESAMPLES,
    groups: Sequence[Hashable] | None = None,
) -> Difference:
    """Bootstrap over questions; both sequences are scores of the same questions in the same order. Questions of one
    group, such as a minimal pair, are resampled together. If all scores are 0 or 1, p is never below that of
    `sign_test`."""
    if len(first) != len(second):
        raise ConfigError(f"paired scores need the same questions: {len(first)} against {len(second)}")
    differences = [a - b for a, b in zip(first, second, strict=True)]
    n = len(differences)
    if n == 0:
        return Difference(0.0, (0.0, 0.0), 1.0, 0)
    rng = random.Random(f"bootstrap {seed}")
    if groups is None or len(set(groups)) == n:
        together = differences
        means = sorted(math.fsum(rng.choices(differences, k=n)) / n for _ in range(resamples))
    else:
        parts = grouped(differences, groups)
        together = [math.fsum(part) for part in parts]
        drawn = (rng.choices(parts, k=len(parts)) for _ in range(resamples))
        means = sorted(mean([x for part in parts_drawn for x in part]) for parts_drawn in drawn)
    p = max(_two_sided(means), sign_test(together)) if all_or_nothing(differences) else _two_sided(means)
    return Difference(math.fsum(differences) / n, (percentile(means, 0.025), percentile(means, 0.975)), p, n)


def grouped(values: Sequence[float], groups: Sequence[Hashable]) -> list[list[float]]:
    """The values of each group, in the order of the groups' first values."""
    found: dict[Hashable, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        found.setdefault(group, []).append(value)
    return list(found.values())


def share_interval(values: Sequence[float], groups: Sequence[Hashable]) -> tuple[float, float]:
    """Wilson's interval for the mean of these scores. Questions of one group that are answered alike count as fewer
    questions: as many as would have the variance that the groups have."""
    n, share = len(values), mean(values)
    parts = grouped(values, groups)
    apart = share * (1 - share) * n
    if len(parts) == n or not apart:
        return wilson(share * n, n)
    together = math.fsum((math.fsum(part) - share * len(part)) ** 2 for part in parts)
    counted = n / max(1.0, together / apart)
    return wilson(share * counted, counted)


def all_or_nothing(differences: Sequence[float]) -> bool:
    """Whether these are differences of answers that are right or wrong, without scores in between."""
    return all(abs(difference - round(difference)) < TOLERANCE for difference in differences)


def sign_test(differences: Sequence[float]) -> float:
    """Two-sided and exact: the chance that fair coins, one for each question (or group) with a difference, fall at
    least as unevenly as gains and losses did. For scores of 0 and 1 this is McNemar's exact test."""
    gains = sum(difference > TOLERANCE for difference in differences)
    losses = sum(difference < -TOLERANCE for difference in differences)
    n, ways, term = gains + losses, 0, 1
    for i in range(min(gains, losses) + 1):
        ways += term
        term = term * (n - i) // (i + 1)  # the next binomial coefficient, in whole numbers
    return min(1.0, 2 * ways / (1 << n))


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value below which this share lies, interpolated; 0 if there are no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def mean(values: Sequence[float]) -> float:
    """Returns 0 if there are no values: a table's empty cell, not an error."""
    return math.fsum(values) / len(values) if values else 0.0


def mean_or_none(values: Sequence[float | None]) -> float | None:
    """Returns None if one value is unknown: a mean of the others would be another figure."""
    total = sum_or_none(values)
    return None if total is None else total / max(len(values), 1)


def sum_or_none(values: Sequence[float | None]) -> float | None:
    """Returns None if one value is unknown."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


def _two_sided(means: Sequence[float]) -> float:
    """The two-sided p, never 0: n resamples cannot show less than 1 in n (Davison and Hinkley 1997, 4.2)."""
    at_most = sum(m <= TOLERANCE for m in means)
    at_least = sum(m >= -TOLERANCE for m in means)
    return min(1.0, 2 * (1 + min(at_most, at_least)) / (1 + len(means)))
