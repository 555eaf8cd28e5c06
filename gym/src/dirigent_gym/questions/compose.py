"""Draw the operations of a question, before any words: each result is in the next operation's table.

A blueprint is a chain, a fan (two chains, the operation that joins them, and perhaps more operations after it) or a
check (a puzzle that is guessed several times and then checked). The drawing walks forward over real values, so the next
operation can always take an intermediate result. The split decides through `Rules` which operations may be drawn.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Literal, Protocol

import msgspec

from dirigent.errors import ConfigError
from dirigent.tasks.task import Sketch, SketchStep
from dirigent_gym.questions.skills import CHECK_SKILL, OPERATIONS, PUZZLE_OPERATIONS, WARM_SKILLS, Operation, fits
from dirigent_gym.questions.solving import Key

Shape = Literal["chain", "fan", "check"]

GUESSES = 3
"""Guesses in the cheapest right plan of a puzzle. The worker is right 7 times in 10, so three miss 27 in 1,000."""

MAX_LEADS, TRIES_A_LEAD = 600, 200
"""Operations tried as the first (or joining) one, and draws for each: many draws, so that the hard ones succeed too.
Many operations, because 60 in a row would miss, once in 550 draws, a skill that is one in ten under the rules."""


class Link(msgspec.Struct, frozen=True):
    """One operation on one key."""

    operation: str
    key: Key

    @property
    def gold(self) -> str:
        return OPERATIONS[self.operation].table[self.key]

    @property
    def skill(self) -> str:
        return OPERATIONS[self.operation].skill


class Blueprint(msgspec.Struct, frozen=True):
    shape: Shape
    branches: tuple[tuple[Link, ...], ...]
    join: Link | None = None
    tail: tuple[Link, ...] = ()

    @property
    def links(self) -> tuple[Link, ...]:
        join = () if self.join is None else (self.join,)
        return (*(link for branch in self.branches for link in branch), *join, *self.tail)

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The skills along each path from a start to the answer."""
        after = (() if self.join is None else (self.join,)) + self.tail
        return tuple(tuple(link.skill for link in (*branch, *after)) for branch in self.branches)

    @property
    def kind(self) -> str:
        """The operations and the shape as text."""
        branches = [">".join(link.operation for link in branch) for branch in self.branches]
        head = f"({' & '.join(branches)})" if self.join else branches[0]
        rest = [link.operation for link in self.links[sum(map(len, self.branches)) :]]
        return ">".join([f"check {head}" if self.shape == "check" else head, *rest])


class Rules(Protocol):
    """The rules by which a split allows operations, values and combinations."""

    def start(self, operation: Operation, key: Key) -> bool:
        """Whether a question may start from this key."""
        ...

    def parameter(self, operation: Operation, key: Key) -> bool:
        """Whether a later step may use this key's parameter."""
        ...

    def path(self, skills: tuple[str, ...]) -> bool:
        """Whether these skills may follow one another."""
        ...


def draw_blueprint(
    rng: random.Random,
    *,
    shape: Shape,
    depth: int,
    operations: Sequence[Operation],
    rules: Rules,
) -> Blueprint:
    """A blueprint of this shape whose cheapest plan is `depth` steps long on its longest chain."""
    for _ in range(MAX_LEADS):
        lead = _lead(rng, shape, depth, operations)
        for _ in range(TRIES_A_LEAD):
            blueprint = _draw(rng, shape, depth, lead, operations, rules)
            if blueprint is not None and all(rules.path(path) for path in blueprint.paths):
                return blueprint
    raise ConfigError(f"no {shape} of depth {depth} found; the rules leave too little to draw from")


def sketch_of(blueprint: Blueprint, subtasks: Sequence[str]) -> Sketch:
    """The cheapest right plan, with one subtask per link of the blueprint."""
    if blueprint.shape == "check":
        return _check_sketch(blueprint, subtasks)
    steps: list[SketchStep] = []
    ends: list[int] = []
    for branch in blueprint.branches:
        for i, link in enumerate(branch):
            access = (len(steps) - 1,) if i else ()
            steps.append(_step(link, subtasks[len(steps)], access))
        ends.append(len(steps) - 1)
    rest = blueprint.links[len(steps) :]
    for link in rest:
        steps.append(_step(link, subtasks[len(steps)], tuple(ends)))
        ends = [len(steps) - 1]
    return Sketch(tuple(steps))


def _check_sketch(blueprint: Blueprint, subtasks: Sequence[str]) -> Sketch:
    puzzle = blueprint.links[0]
    steps = [_step(puzzle, subtasks[0], ()) for _ in range(GUESSES)]
    check = _step(puzzle, subtasks[0], tuple(range(GUESSES)))
    steps.append(msgspec.structs.replace(check, skill=CHECK_SKILL))
    for link, subtask in zip(blueprint.tail, subtasks[1:], strict=True):
        steps.append(_step(link, subtask, (len(steps) - 1,)))
    return Sketch(tuple(steps))


def _step(link: Link, subtask: str, access: tuple[int, ...]) -> SketchStep:
    return SketchStep(link.skill, link.operation, subtask, access, link.key, link.gold)


OWN_JOIN_WEIGHT = 0.4
"""The weight of a join whose parts come from its own skill; other joins weigh 1."""


def _lead(rng: random.Random, shape: Shape, depth: int, operations: Sequence[Operation]) -> Operation:
    """The operation that a blueprint is built around: a chain's first, a fan's join, a check's puzzle."""
    if shape == "check":
        return rng.choice(PUZZLE_OPERATIONS)
    if shape == "chain":
        return pick_by_skill(rng, [op for op in operations if op.arity == 1 or depth == 1])
    joins = [op for op in operations if op.arity == 2]
    return rng.choices(joins, [OWN_JOIN_WEIGHT if _joins_its_own(op) else 1.0 for op in joins])[0]


def _joins_its_own(join: Operation) -> bool:
    """Whether the join's parts come from the skill that joins them, as with months, Roman numerals and warm skills."""
    return join.gives in ("month", "roman") or join.skill in WARM_SKILLS


def _draw(
    rng: random.Random, shape: Shape, depth: int, lead: Operation, operations: Sequence[Operation], rules: Rules
) -> Blueprint | None:
    if shape == "fan":
        return _draw_fan(rng, depth, lead, operations, rules)
    if shape == "chain":
        chain = draw_chain(rng, operations, rules, length=depth, first=lead)
        return None if chain is None else Blueprint("chain", (chain,))
    start = draw_chain(rng, (), rules, length=1, first=lead)
    tail = None if start is None else extend(rng, start[0], operations, rules, length=depth - 2)
    return None if start is None or tail is None else Blueprint("check", (start,), tail=tail)


def _draw_fan(
    rng: random.Random, depth: int, join: Operation, operations: Sequence[Operation], rules: Rules
) -> Blueprint | None:
    """Branches of one or two steps, a join, and a tail that makes up the depth; five steps at most."""
    longest = rng.choice([n for n in (1, 2) if 0 <= depth - n - 1 <= 1])
    tail_length = depth - longest - 1
    other = rng.randint(1, longest) if tail_length == 0 else 1
    lengths = [longest, other] if rng.random() < 0.5 else [other, longest]
    branches = [_branch(rng, operations, rules, length=n, join=join) for n in lengths]
    if branches[0] is None or branches[1] is None or branches[0] == branches[1]:
        return None
    key = (branches[0][-1].gold, branches[1][-1].gold)
    if key not in join.table:
        return None
    joined = Link(join.full_name, key)
    tail = extend(rng, joined, operations, rules, length=tail_length)
    return None if tail is None else Blueprint("fan", (branches[0], branches[1]), joined, tail)


def _branch(
    rng: random.Random, operations: Sequence[Operation], rules: Rules, *, length: int, join: Operation
) -> tuple[Link, ...] | None:
    """A chain whose result the join can take. Its last skill differs from the join's, unless the join supplies it."""
    for _ in range(20):
        chain = draw_chain(rng, operations, rules, length=length, gives=join.takes[0])
        if chain is not None and (chain[-1].skill != join.skill or _joins_its_own(join)):
            return chain
    return None


def draw_chain(
    rng: random.Random,
    operations: Sequence[Operation],
    rules: Rules,
    *,
    length: int,
    gives: str = "",
    first: Operation | None = None,
) -> tuple[Link, ...] | None:
    """A chain from a value that the question names, ending in the type `gives` if set; None if the walk got stuck."""
    if first is None:
        firsts = [op for op in operations if (length > 1 or not gives or op.gives == gives) and op.arity == 1]
        if not firsts:
            return None
        first = pick_by_skill(rng, firsts)
    key = rng.choice(list_keys(first.full_name))
    if not rules.start(first, key):
        return None
    start = Link(first.full_name, key)
    rest = extend(rng, start, operations, rules, length=length - 1)
    if rest is None or (gives and OPERATIONS[(start, *rest)[-1].operation].gives != gives):
        return None
    return (start, *rest)


def extend(
    rng: random.Random, link: Link, operations: Sequence[Operation], rules: Rules, *, length: int
) -> tuple[Link, ...] | None:
    """Steps that continue from a link's result, each by another skill than the one before, a few warm skills apart."""
    found: list[Link] = []
    for _ in range(length):
        gives = OPERATIONS[link.operation].gives
        nexts = [
            op
            for op in operations
            if fits(gives, takes=op.takes[0])
            and op.arity == 1
            and (op.skill != link.skill or op.skill in WARM_SKILLS)
            and link.gold in keys_by_value(op.full_name)
        ]
        if not nexts:
            return None
        op = pick_by_skill(rng, nexts)
        keys = [key for key in keys_by_value(op.full_name)[link.gold] if rules.parameter(op, key)]
        if not keys:
            return None
        link = Link(op.full_name, rng.choice(keys))
        found.append(link)
    return tuple(found)


def walk(values: Key, steps: Iterable[tuple[Operation, Key]]) -> tuple[Link, ...] | None:
    """Apply operations, each with its parameters, one after another to these values; None if a table has no answer."""
    found: list[Link] = []
    for operation, parameters in steps:
        key = (*values, *parameters)
        if key not in operation.table:
            return None
        found.append(Link(operation.full_name, key))
        values = (operation.table[key],)
    return tuple(found)


def pick_by_skill(rng: random.Random, operations: Sequence[Operation]) -> Operation:
    """Draw a skill first, then one of its operations, so that skills with many operations weigh no more."""
    skill = rng.choice(sorted({op.skill for op in operations}))
    return rng.choice([op for op in operations if op.skill == skill])


@cache
def list_keys(operation: str) -> tuple[Key, ...]:
    return tuple(OPERATIONS[operation].table)


@cache
def keys_by_value(operation: str) -> dict[str, tuple[Key, ...]]:
    """The keys of an operation with one value, by that value."""
    found: dict[str, list[Key]] = {}
    for key in OPERATIONS[operation].table:
        found.setdefault(key[0], []).append(key)
    return {value: tuple(keys) for value, keys in found.items()}
