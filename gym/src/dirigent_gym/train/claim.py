"""One line of the table that a trained conductor has to show, and the table of them: for one training seed or several.

A verdict goes by the figure, over several seeds by their mean. A bound that the figure reaches and the interval does
not reads "met, not certain". A gain that must be certain is judged by its interval and its p, and a distance by the
seed that is farthest, since distances either way would cancel out. `claims.py` says what each line is about.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.stats import P_BELOW, wilson

Unit = Literal["share", "times", "points", "seconds"]
Verdict = Literal["goal", "goal, not certain", "met", "met, not certain", "MISSED", "reported", "not measured"]


class Claim(msgspec.Struct, frozen=True):
    """One line of the table."""

    name: str
    unit: Unit = "share"
    value: float | None = None
    interval: tuple[float, float] | None = None
    n: int = 0
    """Questions it was measured on."""
    must: float | None = None
    goal: float | None = None
    at_most: bool = False
    """Whether must and goal are upper bounds."""
    within: bool = False
    """Whether must and goal bound the distance from nothing, either way."""
    certain: bool = False
    """Whether the interval, and not the figure alone, must lie beyond, and p be below 0.05."""
    spread: tuple[float, float] | None = None
    """Over training seeds: the least and the most."""
    seeds: int = 1
    """Training seeds that the figure is the mean of."""
    p: float | None = None
    """Of a paired difference, as reports have it; over training seeds the largest."""
    note: str = ""
    """What the figure cannot be read without: where it comes from, or what it falls short of."""

    @property
    def verdict(self) -> Verdict:
        if self.value is None:
            return "not measured"
        if self.goal is not None and self._reaches(self.value, self.goal):
            return "goal" if self._surely(self.goal) else "goal, not certain"
        if self.must is None:
            return "reported"
        if not self._reaches(self.value, self.must):
            return "MISSED"
        return "met" if self._surely(self.must) else "met, not certain"

    def _surely(self, bound: float) -> bool:
        """Whether the whole interval reaches the bound, and not the figure alone."""
        return self.interval is None or all(self._within_reach(end, bound) for end in self.interval)

    @property
    def _significant(self) -> bool:
        """As in reports. The interval alone would claim too much where few questions differ."""
        return self.p is not None and self.p < P_BELOW

    def _reaches(self, value: float, bound: float) -> bool:
        if self.certain:
            return self.interval is not None and self.interval[0] > bound and self._significant
        if self.within and self.spread is not None:
            return all(self._within_reach(one, bound) for one in self.spread)
        return self._within_reach(value, bound)

    def _within_reach(self, value: float, bound: float) -> bool:
        slack = 1e-9  # sums of fifths are not exact
        if self.within:
            return abs(value) <= bound + slack
        return value <= bound + slack if self.at_most else value >= bound - slack


def over_seeds(tables: Sequence[Sequence[Claim]]) -> list[Claim]:
    """One table of several training seeds: the mean with its spread; the interval covers all of theirs.

    What no seed has a case of is told of all their answers together. They answer the same questions, so that interval
    takes for independent what is not quite.
    """
    names = [[claim.name for claim in table] for table in tables]
    if not tables or any(other != names[0] for other in names):
        raise ConfigError("tables of several seeds need the same lines in the same order")
    return [_joined(lines) for lines in zip(*tables, strict=True)]


def as_table(table: Sequence[Claim]) -> str:
    """The lines as Markdown. One that fewer training seeds were measured for than others says so."""
    most = max((claim.seeds for claim in table), default=1)
    lines = ["| | figure | 95% | n | must | goal | |", "|---|---|---|---|---|---|---|"]
    for claim in table:
        figure = "–" if claim.value is None else _figure(claim, claim.value)
        if claim.spread is not None and claim.value is not None:
            figure += f" ({_said(claim.spread[0], claim.unit)} to {_said(claim.spread[1], claim.unit)})"
        if claim.value is not None and claim.seeds < most:
            figure += f" ({claim.seeds} seed{'s' if claim.seeds > 1 else ''})"
        interval = "–" if claim.interval is None else " to ".join(_said(x, claim.unit) for x in claim.interval)
        if claim.certain and claim.p is not None:
            interval += f", p {claim.p:.2g}"
        bounds = [_bound(claim, bound) for bound in (claim.must, claim.goal)]
        n = f"{claim.n:,}" if claim.n else "–"
        name = f"{claim.name} ({claim.note})" if claim.note else claim.name
        lines.append(f"| {name} | {figure} | {interval} | {n} | {bounds[0]} | {bounds[1]} | {claim.verdict} |")
    return "\n".join(lines) + "\n"


def _figure(claim: Claim, value: float) -> str:
    """As all of them are written; a miss that would look like its bound, more exactly."""
    said = _said(value, claim.unit)
    close = claim.verdict == "MISSED" and claim.must is not None and said == _said(claim.must, claim.unit)
    return f"{value * 100:.2f}%" if close and claim.unit == "share" else said


def missed(table: Iterable[Claim]) -> list[str]:
    """Names of the lines that are not what they must be."""
    return [claim.name for claim in table if claim.verdict == "MISSED"]


def _joined(lines: Sequence[Claim]) -> Claim:
    measured = [line for line in lines if line.value is not None]
    values = [line.value for line in measured if line.value is not None]
    if not values:
        return lines[0]
    intervals = [line.interval for line in measured if line.interval is not None]
    known = [line.p for line in measured if line.p is not None]
    whole = (min(low for low, _ in intervals), max(high for _, high in intervals)) if intervals else None
    n, notes = min(line.n for line in measured), _notes(lines)
    if len(values) > 1 and measured[0].unit == "share" and intervals and not any(values):
        n = sum(line.n for line in measured)
        whole = wilson(0, n)
        notes.append("none in any seed; n is all seeds' answers")
    return msgspec.structs.replace(
        measured[0],
        value=math.fsum(values) / len(values),
        interval=whole,
        n=n,
        spread=(min(values), max(values)) if len(values) > 1 else None,
        seeds=len(values),
        p=max(known) if len(known) == len(values) else None,
        note="; ".join(notes),
    )


def _notes(lines: Sequence[Claim]) -> list[str]:
    """What is noted of those that were measured; what is not true of all of them says of which training seeds it is."""
    measured = {seed: line.note for seed, line in enumerate(lines, 1) if line.value is not None}
    found = []
    for note in dict.fromkeys(note for note in measured.values() if note):
        seeds = [str(seed) for seed, other in measured.items() if other == note]
        found.append(note if len(seeds) == len(measured) else f"seed {' and '.join(seeds)}: {note}")
    return found


def _said(value: float, unit: Unit) -> str:
    match unit:
        case "share":
            return f"{value * 100:.1f}%"
        case "times":
            return f"{value:.2f}x"
        case "points":
            return f"{value * 100:+.1f}"
        case "seconds":
            return f"{value:.2f} s"


def _bound(claim: Claim, bound: float | None) -> str:
    if bound is None:
        return ""
    sign = "within" if claim.within else ">" if claim.certain else "≤" if claim.at_most else "≥"
    return f"{sign} {_said(bound, claim.unit)}"
