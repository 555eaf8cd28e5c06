"""Control rows, which could disprove the conductor's claims, and the measurements on them.

    swapped    two workers exchange the texts of their cards, names and ids stay: does the routing follow the card?
    reworded   the same questions and pools, every card in words that training never shows
    aliased    the same again, every worker under a name that says nothing: is there routing beyond names?
    novel      questions that need the skill and the worker that RL never met

Each is an ordinary row: a policy writes plans for it and `reward.score` carries them out. The measurements are pure
arithmetic over rows and scored rollouts, each figure a share with its 95% interval. The figures of a training step are
in `metrics.py`; the table of claims, with the bound of each, is in `claims.py`.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.stats import wilson
from dirigent.limits import Limits
from dirigent.messages import conversation
from dirigent.plan.plan import Plan
from dirigent.plan.prompt import trained_planner_messages
from dirigent.workers.worker import WorkerInfo
from dirigent_gym.questions.compare import compare
from dirigent_gym.questions.pools import renamed
from dirigent_gym.questions.recognition import recognise
from dirigent_gym.questions.skills import OPERATIONS
from dirigent_gym.questions.specialists import ROSTER, able, find_specialist
from dirigent_gym.questions.split import generate
from dirigent_gym.train.dataset import DEFAULT_ROWS, Row, RowSettings, make_row
from dirigent_gym.train.reward import Scored


class Share(msgspec.Struct, frozen=True):
    """A share, its 95% interval (Wilson's) and the number of cases."""

    value: float
    interval: tuple[float, float]
    n: int


def share(truths: Iterable[float]) -> Share | None:
    """The share of truths, or of numbers between 0 and 1; None if there are no cases."""
    counted = [float(truth) for truth in truths]
    if not counted:
        return None
    right, n = math.fsum(counted), len(counted)
    return Share(right / n, wilson(right, n), n)


class Swapped(msgspec.Struct, frozen=True):
    """A row in which two workers exchanged the texts of their cards."""

    row: Row
    first: str
    """A worker that the question needs."""
    second: str
    """A worker that the question does not need, or needs for something else."""


def swapped_rows(rows: Sequence[Row], *, seed: int, max_steps: int = 5) -> list[Swapped]:
    """The rows with two plain specialists that only their cards tell apart, with those cards swapped."""
    found: list[Swapped] = []
    for row in rows:
        rng = random.Random(f"swap {seed} {row.id}")
        pair = _pair_to_swap(row, rng)
        if pair is None:
            continue
        first, second = pair
        about = {info.name: info.about for info in row.infos}
        about |= {first: about[second], second: about[first]}
        infos = tuple(msgspec.structs.replace(info, about=about[info.name]) for info in row.infos)
        found.append(Swapped(_with_infos(row, infos, "swapped", max_steps=max_steps), first, second))
    return found


def reworded_rows(rows: Sequence[Row], *, seed: int, max_steps: int = 5) -> list[Row]:
    """The same rows, each card in one of its held-out wordings."""
    found = []
    for row in rows:
        rng = random.Random(f"reword {seed} {row.id}")
        infos = tuple(
            msgspec.structs.replace(info, about=rng.choice(find_specialist(info.name).held_out_abouts))
            for info in row.infos
        )
        found.append(_with_infos(row, infos, "reworded", max_steps=max_steps))
    return found


def aliased_rows(rows: Sequence[Row], *, seed: int, max_steps: int = 5) -> list[Row]:
    """The same rows, each worker under a name that says nothing."""
    found = []
    for row in rows:
        infos = renamed(row.infos, random.Random(f"alias {seed} {row.id}"))
        found.append(_with_infos(row, infos, "aliased", max_steps=max_steps))
    return found


def novel_rows(n: int, *, seed: int, settings: RowSettings = DEFAULT_ROWS) -> list[Row]:
    """Rows of the split `novel`, over pools that may hold the worker that RL never met."""
    rng = random.Random(f"novel rows {seed}")
    return [
        make_row(task, rng, size=rng.randint(*settings.large_pool), max_steps=settings.max_steps, roster=ROSTER)
        for task in generate("novel", n, seed=seed)
    ]


class Followed(msgspec.Struct, frozen=True):
    """The shares of swapped questions whose routing followed the card, the name, or neither."""

    card: Share | None
    name: Share | None
    """The routing followed the worker's name against its card."""
    other: Share | None
    """The routing followed neither: a third worker, or both in turn."""
    undecided: int
    """The number of questions whose plan has no recognisable step for either worker."""


def followed(swapped: Sequence[Swapped], scored: Sequence[Scored]) -> Followed:
    """Whether steps go to the worker whose card now names the skill. One greedy rollout a row, right or wrong."""
    verdicts = [
        _routing_basis(one, score.plan) for one, score in zip(swapped, scored, strict=True) if not score.dropped
    ]
    decided = [verdict for verdict in verdicts if verdict != "undecided"]
    by = {name: share(verdict == name for verdict in decided) for name in ("card", "name", "other")}
    return Followed(by["card"], by["name"], by["other"], len(verdicts) - len(decided))


class PlanShares(msgspec.Struct, frozen=True):
    """How often plans are right in each respect. Routing and access count only in a right decomposition."""

    decomposition: Share | None
    routing: Share | None
    access: Share | None
    answer: Share | None


def plan_shares(rows: Sequence[Row], scored: Sequence[Scored]) -> PlanShares:
    """The shares over rollouts, greedy or sampled; a row appears once for each of its rollouts.

    Rollouts of one row are not independent, so each row counts once, with the mean of its rollouts.
    """
    groups = _marks_by_row(rows, scored)
    return PlanShares(*(share(_mean(marks[i] for marks in group) for group in groups) for i in range(4)))


def valid_share(rows: Sequence[Row], scored: Sequence[Scored]) -> Share | None:
    """The share of valid plans. Here too each row counts once, with the mean of its rollouts."""
    groups: dict[str, list[bool]] = defaultdict(list)
    for row, one in zip(rows, scored, strict=True):
        if not one.dropped:
            groups[row.id].append(one.valid)
    return share(_mean(group) for group in groups.values())


def plan_pass_at(rows: Sequence[Row], scored: Sequence[Scored], *, k: int = 16) -> PlanShares:
    """How often at least one of `k` sampled plans is right: the best that a perfect choice among them could reach.

    A row that faults left with fewer than `k` plans does not count.
    """
    short = min(Counter(row.id for row in rows).values(), default=k)
    if short < k:
        raise ConfigError(f"pass@{k} needs {k} rollouts of each row; one has {short}")
    groups = [group for group in _marks_by_row(rows, scored) if len(group) >= k]
    hits = [[pass_at(len(group), sum(marks[i] for marks in group), k) for group in groups] for i in range(4)]
    return PlanShares(*(share(values) for values in hits))


def pass_at(n: int, right: int, k: int) -> float:
    """The chance that `k` of `n` rollouts hold a right one, if `right` of the `n` are (Chen et al. 2021, eq. 1)."""
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def pairs_right(rows: Sequence[Row], scored: Sequence[Scored]) -> dict[str, Share]:
    """The share of minimal pairs, by kind, of which both questions are answered rightly."""
    pairs: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for row, one in zip(rows, scored, strict=True):
        if (pair := row.task.tags.get("pair")) and not one.dropped:
            pairs[row.task.tags["pair_kind"], pair].append(one.correct)
    kinds: dict[str, list[bool]] = defaultdict(list)
    for (kind, _), hits in pairs.items():
        if len(hits) == 2:
            kinds[kind].append(all(hits))
    return {kind: found for kind, hits in sorted(kinds.items()) if (found := share(hits))}


def unevenness(rows: Sequence[Row], scored: Sequence[Scored]) -> float:
    """The largest distance of a worker's share of the steps from an even choice out of the same pools; a position in
    the pool counts like a worker. For sampled plans: the likeliest of nearly equal choices would show nothing."""
    chosen: Counter[str | int] = Counter()
    even: defaultdict[str | int, float] = defaultdict(float)
    total = 0
    for row, one in zip(rows, scored, strict=True):
        for step in one.plan.steps if one.plan is not None else ():
            total += 1
            chosen.update((step.worker, row.names.index(step.worker)))
            for position, name in enumerate(row.names):
                even[name] += 1 / len(row.names)
                even[position] += 1 / len(row.names)
    return max((abs(chosen[key] - expected) / total for key, expected in even.items()), default=0.0)


def _pair_to_swap(row: Row, rng: random.Random) -> tuple[str, str] | None:
    """A plain specialist that the question needs and another one. Neither shares a skill with a third in the pool."""
    pool = [find_specialist(name) for name in row.names]
    plain = [s for s in pool if s.role == "solver" and not s.noise and s.small_only is None]
    plain = [s for s in plain if sum(bool(set(s.skills) & set(other.skills)) for other in pool) == 1]
    steps = row.task.sketch.steps if row.task.sketch is not None else ()
    needed = [s for s in plain if any(able(s, step) for step in steps)]
    if not needed:
        return None
    first = rng.choice(needed)
    others = [s for s in plain if s != first]
    return (first.name, rng.choice(others).name) if others else None


def _with_infos(row: Row, infos: tuple[WorkerInfo, ...], mark: str, *, max_steps: int) -> Row:
    messages = trained_planner_messages(conversation(row.task.question), infos, limits=Limits(max_steps=max_steps))
    return msgspec.structs.replace(row, id=f"{row.id}/{mark}", infos=infos, messages=messages)


Basis = Literal["card", "name", "other", "undecided"]


def _routing_basis(swapped: Swapped, plan: Plan | None) -> Basis:
    """What the steps of the two workers' skills went by; "other" if they disagree."""
    went: set[Basis] = set()
    skills = {name: set(find_specialist(name).skills) for name in (swapped.first, swapped.second)}
    card_of = {swapped.first: swapped.second, swapped.second: swapped.first}
    for step in plan.steps if plan is not None else ():
        asked = {OPERATIONS[reading.operation].skill for reading in recognise(step.subtask)}
        for name, own in skills.items():
            if own & asked:
                went.add("card" if step.worker == card_of[name] else "name" if step.worker == name else "other")
    if not went:
        return "undecided"
    return went.pop() if len(went) == 1 else "other"


Marks = tuple[bool, bool, bool, bool]
"""Decomposition, routing, access, answer."""


def _marks_by_row(rows: Sequence[Row], scored: Sequence[Scored]) -> list[list[Marks]]:
    known: dict[tuple[str, Plan], tuple[bool, bool, bool]] = {}
    groups: dict[str, list[Marks]] = defaultdict(list)
    for row, one in zip(rows, scored, strict=True):
        if one.dropped:
            continue
        found = (False, False, False)
        if one.plan is not None:
            key = (row.id, one.plan)
            if key not in known:
                compared = compare(row.task, one.plan.by_itself())
                known[key] = (compared.decomposition, compared.routing, compared.access)
            found = known[key]
        groups[row.id].append((*found, one.correct))
    return list(groups.values())


def _mean(values: Iterable[float]) -> float:
    counted = list(values)
    return math.fsum(counted) / len(counted)
