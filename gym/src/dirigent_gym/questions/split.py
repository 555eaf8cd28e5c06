"""The split between training and test questions, and the generator of both.

Held out for the test: wordings (templates, frames, leads, references), the entities and values that a question starts
from, a fifth of the ordered pairs of skills, two fifths of the triples, and every question of depth 4. Specialists know
all of it; only the conductor has never seen it. `dev` is drawn like `train`, from values of its own and half of it in
wordings of its own; it drives the curriculum and the choice between runs. `novel` asks, in the test's way, for the
skill that RL never meets.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Literal, get_args

import msgspec

from dirigent.errors import ConfigError
from dirigent.tasks.task import Task
from dirigent_gym.questions.compose import (
    Blueprint,
    Link,
    Shape,
    draw_blueprint,
    draw_chain,
    keys_by_value,
    pick_by_skill,
    sketch_of,
    walk,
)
from dirigent_gym.questions.everyday import write_everyday_if_possible
from dirigent_gym.questions.frames import (
    DECOY_WORDS,
    DEV_WORDINGS,
    TEST_WORDINGS,
    TRAINING_WORDINGS,
    QuestionText,
    Writer,
    add_decoy,
    write_question,
)
from dirigent_gym.questions.skills import (
    GYM_OPERATIONS,
    HELD_OUT_OPERATIONS,
    HELD_OUT_SKILL,
    OPERATIONS,
    RL_OPERATIONS,
    WORDS,
    Operation,
    fits,
)
from dirigent_gym.questions.solving import Key

Split = Literal["train", "dev", "test", "novel"]

MIX: dict[tuple[Shape, int], float] = {
    ("chain", 1): 0.30,
    ("chain", 2): 0.20,
    ("fan", 2): 0.09,
    ("check", 2): 0.06,
    ("chain", 3): 0.12,
    ("fan", 3): 0.09,
    ("check", 3): 0.04,
    ("chain", 4): 0.08,
    ("fan", 4): 0.02,
}
"""Share of each shape and depth: 30/35/25/10 by depth, a fifth fans, a tenth checks."""

PAIR_SHARE = 0.22
"""The least share of the test that is in minimal pairs."""
SWAP_SHARE = 0.4
"""The same for chains of depth 2 and 3, where most pairs swap two skills."""
DECOY_SHARE = 0.06
"""The share of other questions with a decoy, so that a decoy does not mark a test question."""
LEARNING_DECOY_SHARE = 0.18
"""The same for training and development, which have no pairs, so that a decoy is no rarer there than in the test."""
MAX_TRIES = 500
"""Draws in a row without a new question, after which the generator assumes that there are no new ones."""
HELD_OUT_PAIRS = 0.2
HELD_OUT_TRIPLES = 0.4


def generate(
    split: Split,
    n: int,
    *,
    seed: int,
    depths: Sequence[int] = (),
    shapes: Sequence[Shape] = (),
    everyday: float = 0.0,
) -> list[Task]:
    """`n` tasks with different questions, the same for the same seed. `depths` and `shapes` restrict them if given.

    `train` and `dev` have no depth 4. `everyday` is the share that is worded as in `everyday.py`, if possible; only
    training may set it.
    """
    if split not in get_args(Split):
        raise ConfigError(f"there is no split {split!r}; there are: {', '.join(get_args(Split))}")
    if everyday and split != "train":
        raise ConfigError(f"everyday words are for training alone, and split {split!r} is not")
    rng = random.Random(f"{split} {seed}")
    slots = _slots(split, n, depths=depths, shapes=shapes)
    drawn: list[Drawn] = []
    seen: set[str] = set()
    for (shape, depth), count in slots.items():
        found = _draw_slot(rng, split, shape, depth, seen, count=count, everyday=everyday)
        if len(found) < count:
            raise ConfigError(
                f"{split} has about {len(found)} different questions that are a {shape} of depth {depth}, and {n} in "
                f"all would take {count}; ask for {n * len(found) // count} or fewer, or for other depths"
            )
        drawn += found
    rng.shuffle(drawn)
    return [_task(f"{split}-{seed}-{i}", split, *parts) for i, parts in enumerate(drawn)]


def assert_disjoint(train_texts: Iterable[str], test_texts: Iterable[str]) -> None:
    """Raise an error if any test text occurs, whole, in any training text."""
    everything = "\n".join(train_texts).casefold()
    for text in test_texts:
        if text.casefold() in everything:
            raise ConfigError(f"the test text {text!r} occurs in a training text; draw one of them again")


def describe(tasks: Sequence[Task]) -> str:
    """The mix of a set of tasks as a small table."""
    lines = [f"{len(tasks)} tasks, {len({task.kind for task in tasks})} kinds"]
    for name in ("depth", "shape", "style", "combination", "pair_kind", "decoy"):
        values = Counter(str(task.depth) if name == "depth" else task.tags.get(name, "-") for task in tasks)
        parts = (f"{value} {count / len(tasks):.1%}" for value, count in sorted(values.items()))
        lines.append(f"{name:12} " + ", ".join(parts))
    skills = Counter(skill for task in tasks if task.sketch for skill in set(task.sketch.skills))
    lines.append("skills       " + ", ".join(f"{skill} {count}" for skill, count in skills.most_common()))
    return "\n".join(lines)


class SplitRules(msgspec.Struct, frozen=True):
    """`compose.Rules` of one split. `combination` narrows the test to seen or held-out combinations of skills."""

    split: Split
    combination: Literal["any", "seen", "held_out", "novel"] = "seen"

    def start(self, operation: Operation, key: Key) -> bool:
        home = "test" if self.split == "novel" else self.split
        if operation.skill == HELD_OUT_SKILL or _group(operation, key[0]) == "planet":
            return self.split == "novel"
        return _home(operation, key[0]) == home and self.parameter(operation, key)

    def parameter(self, operation: Operation, key: Key) -> bool:
        """Lists that are parameters belong to a split as well; small numbers and weekdays do not."""
        if len(key) == operation.arity or "," not in key[-1]:
            return True
        home = "test" if self.split == "novel" else self.split
        return _homes()["list", key[-1]] == home

    def path(self, skills: tuple[str, ...]) -> bool:
        if self.combination == "any":
            return True
        if self.combination == "novel":
            return HELD_OUT_SKILL in skills
        return held_out_combination(skills) == (self.combination == "held_out")


def held_out_combination(skills: tuple[str, ...]) -> bool:
    """Whether a path of skills has a pair or triple that training never shows."""
    pairs, triples = held_out_pairs(), held_out_triples()
    if any(pair in pairs for pair in pairwise(skills)):
        return True
    return any(triple in triples for triple in zip(skills, skills[1:], skills[2:], strict=False))


@cache
def skill_pairs() -> tuple[tuple[str, str], ...]:
    """Every ordered pair of RL skills whose second skill can take the first one's result."""
    return tuple(sorted({(a.skill, b.skill) for a, b in _edges()}))


@cache
def skill_triples() -> tuple[tuple[str, str, str], ...]:
    edges = _edges()
    after: dict[str, set[str]] = {}
    for a, b in edges:
        after.setdefault(a.full_name, set()).add(b.full_name)
    return tuple(
        sorted({(a.skill, b.skill, OPERATIONS[c].skill) for a, b in edges for c in after.get(b.full_name, ())})
    )


@cache
def held_out_pairs() -> frozenset[tuple[str, str]]:
    pairs = list(skill_pairs())
    # This seed takes about as many pairs from every skill, so that training shows each before and after several others.
    random.Random(1322).shuffle(pairs)
    return frozenset(pairs[: round(HELD_OUT_PAIRS * len(pairs))])


@cache
def held_out_triples() -> frozenset[tuple[str, str, str]]:
    """All triples with a held-out pair inside, filled up with others to the share that is held out."""
    triples = list(skill_triples())
    random.Random(4).shuffle(triples)
    pairs = held_out_pairs()
    triples.sort(key=lambda t: t[:2] not in pairs and t[1:] not in pairs)
    forced = sum(t[:2] in pairs or t[1:] in pairs for t in triples)
    return frozenset(triples[: max(forced, round(HELD_OUT_TRIPLES * len(triples)))])


@cache
def _edges() -> tuple[tuple[Operation, Operation], ...]:
    return tuple(
        (a, b)
        for a in RL_OPERATIONS
        for b in RL_OPERATIONS
        if a.skill != b.skill
        and fits(a.gives, takes=b.takes[0])
        and not {key[0] for key in b.table}.isdisjoint(a.table.values())
    )


def _home(operation: Operation, value: str) -> Split:
    """The split whose questions may start from a value: 70% train, 10% dev, 20% test."""
    return _homes()[_group(operation, value), value]


def _group(operation: Operation, value: str) -> str:
    """The group that a value is held out with. Entities are grouped by type, so that they are held out everywhere;
    numbers are grouped by operation."""
    takes = operation.takes[0]
    if takes == "number":
        return operation.full_name
    return _word_types().get(value, "currency") if takes == "word" else takes


@cache
def _homes() -> dict[tuple[str, str], Split]:
    values: dict[str, dict[str, None]] = {}
    for op in GYM_OPERATIONS:
        for key in op.table:
            values.setdefault(_group(op, key[0]), {})[key[0]] = None
    homes: dict[tuple[str, str], Split] = {}
    turns: tuple[Split, ...] = ("test", "dev", "train", "train", "train", "test", "train", "train", "train", "train")
    for group, members in sorted(values.items()):
        order = sorted(members)
        random.Random(group).shuffle(order)
        homes.update({(group, value): turns[i % 10] for i, value in enumerate(order)})
    return homes


@cache
def _word_types() -> dict[str, str]:
    found: dict[str, str] = {}
    for op in GYM_OPERATIONS:
        if op.takes[0] in WORDS:
            found.update({key[0]: op.takes[0] for key in op.table})
        if op.gives in WORDS:
            found.update({value: op.gives for value in op.table.values() if value not in found})
    return found


def _slots(split: Split, n: int, *, depths: Sequence[int], shapes: Sequence[Shape]) -> dict[tuple[Shape, int], int]:
    """The number of tasks of each shape and depth, by largest remainder, so that the mix is exact."""
    there = {slot: w for slot, w in MIX.items() if slot[1] < 4 or split in ("test", "novel")}
    there = {slot: w for slot, w in there.items() if split != "novel" or slot[0] == "chain"}
    wanted_depths, wanted_shapes = set(depths or range(1, 5)), set(shapes or ("chain", "fan", "check"))
    shares = {slot: w for slot, w in there.items() if slot[0] in wanted_shapes and slot[1] in wanted_depths}
    if not shares:
        kinds = ", ".join(f"{shape} of depth {depth}" for shape, depth in there)
        asked = f"of depths {list(depths)}" if depths else ""
        asked += f" of shapes {list(shapes)}" if shapes else ""
        raise ConfigError(f"split {split!r} has no tasks {asked.strip()}; it has: {kinds}")
    total = sum(shares.values())
    exact = {slot: n * share / total for slot, share in shares.items()}
    counts = {slot: int(x) for slot, x in exact.items()}
    for slot in sorted(exact, key=lambda s: counts[s] - exact[s])[: n - sum(counts.values())]:
        counts[slot] += 1
    return counts


Drawn = tuple[Blueprint, QuestionText, dict[str, str]]


def _draw_slot(
    rng: random.Random, split: Split, shape: Shape, depth: int, seen: set[str], *, count: int, everyday: float
) -> list[Drawn]:
    """Tasks of one shape and depth, the test's minimal pairs first; fewer than `count` if there are no more."""
    swaps = shape == "chain" and depth in (2, 3)
    pairs = round(count * (SWAP_SHARE if swaps else PAIR_SHARE) / 2) if split == "test" else 0
    drawn: list[Drawn] = []
    for i in range(pairs):
        drawn += _draw_pair(rng, shape, depth, seen, swap=swaps and i % 4 != 3)
    while len(drawn) < count and (new := _draw_new(rng, split, shape, depth, seen, everyday=everyday)) is not None:
        drawn.append(new)
        seen.add(new[1].question)
    return drawn


def _draw_new(
    rng: random.Random, split: Split, shape: Shape, depth: int, seen: set[str], *, everyday: float = 0.0
) -> Drawn | None:
    """One task whose question is not among those seen; None if every try failed."""
    operations = (*RL_OPERATIONS, *HELD_OUT_OPERATIONS) if split == "novel" else RL_OPERATIONS
    for _ in range(MAX_TRIES):
        rules = SplitRules(split, _combination(rng, split, shape, depth))
        blueprint = draw_blueprint(rng, shape=shape, depth=depth, operations=operations, rules=rules)
        if everyday and rng.random() < everyday:
            blueprint, written = write_everyday_if_possible(blueprint, rules, _writer(rng, split))
        else:
            written = write_question(blueprint, _writer(rng, split))
        tags: dict[str, str] = {}
        if rng.random() < (LEARNING_DECOY_SHARE if split in ("train", "dev") else DECOY_SHARE):
            written, tags = _with_decoy(blueprint, written, _writer(rng, split))
        if written.question not in seen and (split != "test" or written.new_wording):
            return blueprint, written, tags
    return None


def _combination(
    rng: random.Random, split: Split, shape: Shape, depth: int
) -> Literal["any", "seen", "held_out", "novel"]:
    if split == "novel":
        return "novel"
    if split != "test" or shape == "check" or depth == 1:
        return "seen"
    # Fans are not divided: both branches of a fan would have to be of one kind, and few fans are.
    return "any" if depth == 4 or shape == "fan" else rng.choice(("seen", "held_out"))


def _writer(rng: random.Random, split: Split) -> Writer:
    return Writer(rng, {"train": TRAINING_WORDINGS, "dev": DEV_WORDINGS}.get(split, TEST_WORDINGS))


def _with_decoy(blueprint: Blueprint, written: QuestionText, writer: Writer) -> tuple[QuestionText, dict[str, str]]:
    used = {link.skill for link in blueprint.links}
    skill = writer.rng.choice([skill for skill in DECOY_WORDS if skill not in used])
    question = add_decoy(written.question, DECOY_WORDS[skill], writer=writer)
    new = written.new_wording or writer.used_new
    return msgspec.structs.replace(written, question=question, new_wording=new), {"decoy": skill}


def _draw_pair(rng: random.Random, shape: Shape, depth: int, seen: set[str], *, swap: bool) -> list[Drawn]:
    """Two test tasks that differ in the order of two skills, or in a sentence that should change nothing."""
    for _ in range(MAX_TRIES):
        if swap:
            blueprints = _swapped(rng, depth)
            seed = rng.random()
            both_written = [write_question(b, Writer(random.Random(seed), TEST_WORDINGS)) for b in blueprints]
            tags = [{"pair_kind": "swap"}] * 2
        else:
            new = _draw_new(rng, "test", shape, depth, seen)
            if new is None:
                break
            blueprint, written, decoy = new
            if decoy:
                continue
            decoyed, decoy = _with_decoy(blueprint, written, _writer(rng, "test"))
            blueprints, both_written = [blueprint, blueprint], [written, decoyed]
            tags = [{"pair_kind": "decoy"}, {"pair_kind": "decoy", **decoy}]
        fresh = len({written.question for written in both_written} - seen) == 2
        if fresh and all(written.new_wording for written in both_written):
            pair = f"{shape}-{depth}-{len(seen)}"
            seen.update(written.question for written in both_written)
            return [(b, t, {**tag, "pair": pair}) for b, t, tag in zip(blueprints, both_written, tags, strict=True)]
    raise ConfigError(f"no new minimal pair of {shape} of depth {depth} left after {len(seen)} tasks; ask for fewer")


def _swapped(rng: random.Random, depth: int) -> list[Blueprint]:
    """Two chains that take the same two steps from number to number in both orders, to different answers.

    Their first number belongs to the test by the first chain's operation; by the other's it may belong to training.
    """
    rules = SplitRules("test", "any")
    steps = [op for op in RL_OPERATIONS if op.takes == ("number",) and op.gives == "number"]
    while True:
        a = pick_by_skill(rng, steps)
        b = pick_by_skill(rng, [op for op in steps if op.skill != a.skill])
        prefix: tuple[Link, ...] = ()
        if depth == 3:
            others = [op for op in RL_OPERATIONS if op.skill not in (a.skill, b.skill)]
            prefix = draw_chain(rng, others, rules, length=1, gives="number") or ()
            if not prefix:
                continue
            value = prefix[0].gold
        else:
            value = rng.choice([v for v in keys_by_value(a.full_name) if _home(a, v) == "test"])
        parameters = {op.full_name: rng.choice([k[1:] for k in op.table if rules.parameter(op, k)]) for op in (a, b)}
        chains = [walk((value,), [(op, parameters[op.full_name]) for op in order]) for order in ((a, b), (b, a))]
        if chains[0] and chains[1] and chains[0][-1].gold != chains[1][-1].gold:
            return [Blueprint("chain", ((*prefix, *chain),)) for chain in chains if chain]


def _task(task_id: str, split: Split, blueprint: Blueprint, written: QuestionText, tags: dict[str, str]) -> Task:
    sketch = sketch_of(blueprint, written.subtasks)
    last = OPERATIONS[blueprint.links[-1].operation]
    held_out = any(held_out_combination(path) for path in blueprint.paths)
    return Task(
        id=task_id,
        question=written.question,
        answer=blueprint.links[-1].gold,
        grader=last.grader,
        kind=blueprint.kind,
        depth=sketch.depth,
        sketch=sketch,
        tags={
            "split": split,
            "shape": blueprint.shape,
            "style": written.style,
            "wording": "new" if written.new_wording else "known",
            "combination": "held_out" if held_out else "seen",
            "skills": ">".join(sketch.skills),
            **tags,
        },
    )
