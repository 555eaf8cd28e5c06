"""Rows to train on: a gym question, the pool offered for it, and the prompt that a conductor reads.

A `RowSource` draws them by the policy's accuracy: shallow questions over small pools first, depth 3 when depth 2 is
mostly right, large pools last. Within a stage it prefers kinds that the policy answers rightly about half of the time,
because a group that is all right or all wrong teaches nothing. A floor keeps every kind in the mix.

A draw depends on the seed, on the number of earlier draws and on the running estimates. All three are in `state`: a run
that is resumed from it draws the same rows again. The module knows nothing of models, rewards or optimisers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from dirigent.limits import Limits
from dirigent.messages import Message, conversation
from dirigent.plan.plan import Plan
from dirigent.plan.prompt import trained_planner_messages
from dirigent.tasks.task import Task
from dirigent.workers.worker import WorkerInfo
from dirigent_gym.questions.pools import Cards, cards_for, draw_pool, misnamed, renamed
from dirigent_gym.questions.specialists import RL_ROSTER, Specialist
from dirigent_gym.questions.split import Split, generate

Names = Literal["own", "none", "another's"]
"""The names of workers in a row: their own names, names that say nothing, or one another's."""


class Row(msgspec.Struct, frozen=True):
    """One prompt: a question with the pool as it is offered this time."""

    id: str
    """The same for all rollouts of one group, different for every other row."""
    task: Task
    infos: tuple[WorkerInfo, ...]
    """The cards as the prompt shows them, in the order of their ids."""
    names: tuple[str, ...]
    """The worker behind each card; the card may show another name."""
    messages: tuple[Message, ...]
    kind: str
    """Shape and skills: the running estimates are kept by kind."""

    @property
    def shown(self) -> tuple[str, ...]:
        """The names on the cards."""
        return tuple(info.name for info in self.infos)

    def with_worker_names(self, plan: Plan) -> Plan:
        """The plan with the names of the workers in place of the names on the cards."""
        return _renamed(plan, dict(zip(self.shown, self.names, strict=True)))

    def with_shown_names(self, plan: Plan) -> Plan:
        """The plan with the names on the cards in place of the names of the workers."""
        return _renamed(plan, dict(zip(self.names, self.shown, strict=True)))


def _renamed(plan: Plan, name_of: Mapping[str, str]) -> Plan:
    steps = tuple(msgspec.structs.replace(step, worker=name_of[step.worker]) for step in plan.steps)
    return msgspec.structs.replace(plan, steps=steps)


LAST_STAGE = 2
"""The stage with every depth that is trained, over pools of every size. Stage 0 has depths 1 and 2, stage 1 adds 3."""

CANDIDATES = 4
"""Questions drawn for each one kept."""

MEMORY = 0.97
"""The factor by which a kind's earlier results fade with each new group of that kind."""

PRIOR_GROUPS = 2.0
"""The number of groups that a kind needs before they outweigh the estimate of its depth."""


class RowSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    small_pool: tuple[int, int] = (2, 4)
    """The fewest and the most workers offered at first; a question that needs more gets more."""
    large_pool: tuple[int, int] = (3, 10)
    next_stage_at: float = 0.6
    """The accuracy on depth 2 that opens depth 3, and on depth 3 that opens large pools."""
    rename: float = 0.25
    """Share of rows that show workers under names that say nothing, so that the policy must read their cards. A policy
    that meets no such row goes by names alone; a policy that meets few other rows has nothing to begin with. Used in
    training only: measured rows have the workers' own names."""
    misname: float = 0.05
    """Share of rows that show every worker under the name of another worker of the pool."""
    later_rename: float | None = None
    """The value of `rename` from the second stage on, when the policy routes already; None: no change."""
    later_misname: float | None = None
    """The same for `misname`."""
    everyday: float = 0.0
    """Share of questions in everyday words (`dirigent_gym/questions/everyday.py`), in lessons and in RL."""
    depth_weights: dict[str, float] = msgspec.field(default_factory=lambda: {"1": 0.4})
    """How much likelier questions of a depth are drawn than in the gym's own mix: `{1 = 0.3}`. At first, one step pays
    far more often than two; with the gym's mix, questions of one step teach a policy to write one step everywhere."""
    later_depth_weights: dict[str, float] | None = None
    """The weights in the last stage, when several steps are learned; None: no change."""
    kind_floor: float = 0.4
    """The weight of a kind that is always right or always wrong; a kind that is right half of the time has 1."""
    max_steps: int = 5

    def __post_init__(self) -> None:
        for depth, weight in (*self.depth_weights.items(), *(self.later_depth_weights or {}).items()):
            if not depth.isdecimal() or weight <= 0:
                raise ValueError(f"depth_weights has {depth} = {weight}; write a depth and a number above 0")
        if not 0 <= self.everyday <= 1:
            raise ValueError(f"everyday is a share, from 0 to 1, not {self.everyday:g}")
        for name in ("small_pool", "large_pool"):
            fewest, most = getattr(self, name)
            if not 1 <= fewest <= most:
                raise ValueError(f"{name} is the fewest workers and the most, from 1 on, not {fewest} and {most}")
        Limits(max_steps=self.max_steps)
        for stage in (0, 1):
            if min(shares := self.names_at(stage)) < 0.0 or sum(shares) > 1.0:
                raise ValueError(
                    f"rename and misname are shares, together at most 1, not {shares[0]:g} and {shares[1]:g}"
                )

    def depth_weight(self, depth: int, *, stage: int) -> float:
        weights = (
            self.depth_weights if self.later_depth_weights is None or stage < LAST_STAGE else self.later_depth_weights
        )
        return weights.get(str(depth), 1.0)

    def names_at(self, stage: int) -> tuple[float, float]:
        """The shares of rows with names that say nothing, and of rows with one another's names."""
        if stage == 0:
            return self.rename, self.misname
        rename = self.rename if self.later_rename is None else self.later_rename
        return rename, self.misname if self.later_misname is None else self.later_misname


DEFAULT_ROWS = RowSettings()


class Estimate(msgspec.Struct, frozen=True):
    """A running mean in which old results fade."""

    right: float = 0.0
    seen: float = 0.0

    def share(self, prior: float, prior_weight: float) -> float:
        return (self.right + prior * prior_weight) / (self.seen + prior_weight)


class RowState(msgspec.Struct, frozen=True):
    """The state of a source. Checkpoints hold it."""

    draws: int = 0
    stage: int = 0
    kinds: dict[str, Estimate] = {}
    depths: dict[int, Estimate] = {}


class Outcome(Protocol):
    """The part of a scored rollout that the source reads."""

    @property
    def dropped(self) -> bool: ...

    @property
    def correct(self) -> bool: ...


class RowSource:
    """Draws training rows. Their scores decide which kinds it draws next."""

    def __init__(
        self,
        seed: int,
        settings: RowSettings = DEFAULT_ROWS,
        *,
        roster: Sequence[Specialist] = RL_ROSTER,
        state: RowState | None = None,
    ) -> None:
        self.seed = seed
        self.settings = settings
        self.state = state or RowState()
        self._roster = tuple(roster)

    def draw(self, n: int) -> list[Row]:
        """`n` new rows of the present stage; kinds that can teach more are likelier."""
        state, settings = self.state, self.settings
        self.state = msgspec.structs.replace(state, draws=state.draws + 1)
        rng = random.Random(f"rows {self.seed} {state.draws}")
        depths = (1, 2) if state.stage == 0 else (1, 2, 3)
        count = CANDIDATES * n
        tasks = generate("train", count, seed=rng.getrandbits(48), depths=depths, everyday=settings.everyday)
        weights = [self._weight(task) for task in tasks]
        size = settings.small_pool if state.stage < LAST_STAGE else settings.large_pool
        chosen = _weighted_sample(rng, tasks, weights, n)
        return [
            make_row(
                task,
                rng,
                size=rng.randint(*size),
                max_steps=settings.max_steps,
                roster=self._roster,
                names=self._names(rng),
            )
            for task in chosen
        ]

    def update(self, rows: Sequence[Row], scored: Sequence[Outcome]) -> None:
        """Add scored rollouts to the estimates, a row once for each of its rollouts, and open the next stage if due."""
        groups: dict[str, list[bool]] = {}
        row_of = {row.id: row for row in rows}
        for row, outcome in zip(rows, scored, strict=True):
            if not outcome.dropped:
                groups.setdefault(row.id, []).append(outcome.correct)
        kinds, depths = dict(self.state.kinds), dict(self.state.depths)
        for row_id, hits in groups.items():
            row, share = row_of[row_id], sum(hits) / len(hits)
            kinds[row.kind] = _remember(kinds.get(row.kind), share)
            depths[row.task.depth] = _remember(depths.get(row.task.depth), share)
        self.state = msgspec.structs.replace(self.state, kinds=kinds, depths=depths)
        # About 30 groups count, as many as one draw has of a depth. A lucky draw opens a stage early.
        self._pass_on({depth: e.right / e.seen for depth, e in depths.items() if e.seen >= LEAST_GROUPS})

    def note_dev(self, accuracy_by_depth: Mapping[int, float]) -> None:
        """Open the next stage if the accuracy measured on the development split is high enough."""
        self._pass_on(accuracy_by_depth)

    def estimate(self, kind: str, depth: int) -> float:
        """The estimated accuracy of the policy on a kind: its own results, filled up with those of its depth."""
        by_depth = self.state.depths.get(depth, Estimate()).share(0.5, 1.0)
        return self.state.kinds.get(kind, Estimate()).share(by_depth, PRIOR_GROUPS)

    def _weight(self, task: Task) -> float:
        by_kind = kind_weight(self.estimate(kind_of(task), task.depth), floor=self.settings.kind_floor)
        return by_kind * self.settings.depth_weight(task.depth, stage=self.state.stage)

    def _names(self, rng: random.Random) -> Names:
        draw = rng.random()
        rename, misname = self.settings.names_at(self.state.stage)
        if draw >= rename + misname:
            return "own"
        return "none" if draw < rename else "another's"

    def _pass_on(self, accuracy_by_depth: Mapping[int, float]) -> None:
        stage = next_stage(self.state.stage, accuracy_by_depth, at=self.settings.next_stage_at)
        self.state = msgspec.structs.replace(self.state, stage=stage)


LEAST_GROUPS = 20.0
"""The number of groups of a depth, faded, that its accuracy needs before it counts."""


def next_stage(stage: int, accuracy_by_depth: Mapping[int, float], *, at: float) -> int:
    """The present stage. It never falls; the deepest questions of a stage open the next one."""
    deepest = {0: 2, 1: 3}
    if stage in deepest and accuracy_by_depth.get(deepest[stage], 0.0) >= at:
        return stage + 1
    return stage


def kind_weight(share_right: float, *, floor: float) -> float:
    """How much a kind can teach: 1 if it is right half of the time, `floor` if it is always or never right."""
    return floor + (1.0 - floor) * 4.0 * share_right * (1.0 - share_right)


def kind_of(task: Task) -> str:
    """Shape and skills. Operations would make too many kinds to learn anything about each."""
    return f"{task.tags.get('shape', '')} {task.tags.get('skills', '')}".strip() or task.kind


def make_row(
    task: Task,
    rng: random.Random,
    *,
    size: int,
    max_steps: int = 5,
    wording: Cards = "train",
    roster: Sequence[Specialist] = RL_ROSTER,
    names: Names = "own",
) -> Row:
    """A question with a pool drawn for it, and the prompt that shows both to a conductor."""
    own = infos = cards_for(draw_pool(task, rng, size=size, roster=roster), rng, wording=wording)
    if names != "own":
        infos = renamed(own, rng) if names == "none" else misnamed(own, rng)
    return Row(
        id=f"{task.id}/{rng.getrandbits(40):010x}",
        task=task,
        infos=infos,
        names=tuple(info.name for info in own),
        messages=trained_planner_messages(conversation(task.question), infos, limits=Limits(max_steps=max_steps)),
        kind=kind_of(task),
    )


def held_rows(
    split: Split, n: int, *, seed: int, settings: RowSettings = DEFAULT_ROWS, wording: Cards = "train"
) -> list[Row]:
    """Rows to measure on, the same for the same seed: every depth of the split, pools of every size."""
    rng = random.Random(f"{split} rows {seed}")
    return [
        make_row(task, rng, size=rng.randint(*settings.large_pool), max_steps=settings.max_steps, wording=wording)
        for task in generate(split, n, seed=seed)
    ]


def _remember(estimate: Estimate | None, share_right: float) -> Estimate:
    old = estimate or Estimate()
    return Estimate(old.right * MEMORY + share_right, old.seen * MEMORY + 1.0)


def _weighted_sample(rng: random.Random, tasks: Sequence[Task], weights: Sequence[float], n: int) -> list[Task]:
    """`n` different tasks; a heavier task is likelier, because its weight raises its random key."""
    keys = [math.log(1.0 - rng.random()) / weight for weight in weights]
    order = sorted(range(len(tasks)), key=keys.__getitem__, reverse=True)
    return [tasks[i] for i in order[:n]]
