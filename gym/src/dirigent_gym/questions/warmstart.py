"""Lessons of a conductor before RL: the language of plans, and on purpose nothing about how to coordinate.

`warm_start` has right decompositions, but only of questions over warm-only skills, which no worker has. Its workers are
uniform over the pool shown and access is random, so it shows nothing about routing, access or the decomposition of gym
questions. (Gym questions cut at random places used to be among the lessons. Even as one in eight they taught a policy
to recognise gym questions and to cut only those at random; RL then had hardly a right decomposition to reward, and
collapsed to one step.) Some lessons ask a riddle, or their first step, a random number of times: a plan may ask again,
and that is language; whether it pays is for RL to find.
`gym_decompositions` adds right decompositions of gym questions, for a separate run that says so. `right_plans` shows
everything and is the upper reference.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from dirigent.plan.plan import EarlierStep, Plan, Step
from dirigent.workers.worker import WorkerInfo
from dirigent_gym.questions.compose import Blueprint, draw_blueprint, draw_chain, sketch_of
from dirigent_gym.questions.frames import TRAINING_WORDINGS, Writer, add_decoy, write_question
from dirigent_gym.questions.pools import cards_for, draw_pool, plan_for, renamed, solvable
from dirigent_gym.questions.skills import WARM_OPERATIONS, Operation
from dirigent_gym.questions.solving import Key
from dirigent_gym.questions.specialists import RL_ROSTER
from dirigent_gym.questions.split import generate

LENGTHS = (1, 2, 1, 3, 2, 4, 1, 2, 3, 5, 1, 2, 3, 4, 1, 2, 4, 3, 1, 2)
"""The numbers of steps of the lessons, in rotation: as many of one as of two, fewer of each greater number."""
MAX_STEPS = max(LENGTHS)
RIDDLE_EVERY = 14
MOST_ASKED = 4
AGAIN_SHARE = 0.06
"""The share of the other lessons that ask their first step two or three times."""
SECOND_SHARE = 0.08
"""The share of second rounds: a coin decides whether the earlier answer is accepted or planned anew."""
DECOY_SHARE = 0.15
DECOYS = (
    *(
        "ships and harbours",
        "baking bread",
        "the theatre",
        "knots and ropes",
        "knitting",
        "garden plots",
        "mountain huts",
    ),
    *(
        "counting sheep",
        "railway signals",
        "chess openings",
        "folding paper",
        "card tricks",
        "old coins",
        "bee-keeping",
    ),
    *("weights and scales", "the parade", "museum tickets", "loom settings", "the price of fish", "crossing rivers"),
)
"""Things that a lesson's question may name without needing them."""
POOL_SIZES = (3, 11)
SMALL_POOLS = 0.6
"""The share of lessons over pools of at most `SMALL`. Every id occurs, and most lessons are quick to read."""
SMALL = 5
LANGUAGE_SHARE = 0.35
"""The share of lessons about warm-only skills among those of `gym_decompositions`."""
RIDDLES = tuple(op for op in WARM_OPERATIONS if op.full_name in ("riddles.answer", "riddles.carving"))
"""The riddles that lessons ask more than once."""


class Lesson(msgspec.Struct, frozen=True):
    """A pool as shown, a question, and the plan to imitate."""

    cards: tuple[WorkerInfo, ...]
    question: str
    plan: Plan
    """An empty plan accepts the earlier answer."""
    earlier: tuple[EarlierStep, ...] = ()
    """The steps of the first round with their replies, for a second round. The last reply is the answer."""


def warm_start(n: int, *, seed: int) -> list[Lesson]:
    """The language of plans, in short and long ones. They are right about warm-only skills and about nothing else."""
    rng = random.Random(f"warm start {seed}")
    lessons = []
    for i in range(n):
        riddle = i % RIDDLE_EVERY == 0
        question, subtasks = _riddle(rng) if riddle else _warm_question(rng, steps=LENGTHS[i % len(LENGTHS)])
        if not riddle and rng.random() < AGAIN_SHARE:
            subtasks = [subtasks[0]] * rng.randint(1, 2) + subtasks
        if rng.random() < DECOY_SHARE:
            question = add_decoy(question, rng.choice(DECOYS), writer=Writer(rng, TRAINING_WORDINGS))
        cards = _random_cards(rng)
        plan = _random_plan(rng, subtasks[:MAX_STEPS], cards)
        second = rng.random() < SECOND_SHARE
        lessons.append(_second_round(rng, cards, question, plan) if second else Lesson(cards, question, plan))
    rng.shuffle(lessons)
    return lessons


def gym_decompositions(n: int, *, seed: int, everyday: float = 0.0) -> list[Lesson]:
    """Right subtasks of gym questions, mixed with lessons of the warm start, which have longer plans and second rounds.

    Workers and access are still random: a conductor that starts from these may claim routing and access only.
    """
    rng = random.Random(f"gym decompositions {seed}")
    lessons = warm_start(round(n * LANGUAGE_SHARE), seed=seed)
    for task in generate("train", n - len(lessons), seed=seed, everyday=everyday):
        cards = _random_cards(rng)
        subtasks = [step.subtask for step in task.sketch.steps] if task.sketch else []
        lessons.append(Lesson(cards, task.question, _random_plan(rng, subtasks, cards)))
    rng.shuffle(lessons)
    return lessons


def right_plans(n: int, *, seed: int, everyday: float = 0.0) -> list[Lesson]:
    """Right subtasks, workers and access."""
    rng = random.Random(f"right plans {seed}")
    lessons = []
    for task in generate("train", n, seed=seed, everyday=everyday):
        pool = draw_pool(task, rng, size=rng.randint(*POOL_SIZES))
        while not solvable(task, pool):
            pool = draw_pool(task, rng, size=rng.randint(*POOL_SIZES))
        cards = _named(cards_for(pool, rng), rng)
        name_of = {specialist.name: card.name for specialist, card in zip(pool, cards, strict=True)}
        plan = plan_for(task, pool)
        steps = [msgspec.structs.replace(step, worker=name_of[step.worker]) for step in plan.steps]
        lessons.append(Lesson(cards, task.question, Plan(tuple(steps))))
    return lessons


class _Anything:
    """Rules that allow everything, because no test asks warm-only questions."""

    def start(self, operation: Operation, key: Key) -> bool:
        return True

    def parameter(self, operation: Operation, key: Key) -> bool:
        return True

    def path(self, skills: tuple[str, ...]) -> bool:
        return True


def _warm_question(rng: random.Random, *, steps: int) -> tuple[str, list[str]]:
    blueprint = _warm_blueprint(rng, steps=steps)
    written = write_question(blueprint, Writer(rng, TRAINING_WORDINGS))
    return written.question, [step.subtask for step in sketch_of(blueprint, written.subtasks).steps]


def _second_round(rng: random.Random, cards: tuple[WorkerInfo, ...], question: str, plan: Plan) -> Lesson:
    """A second round. Its lesson shows how to accept or to plan anew; a coin chooses, so it does not show when."""
    earlier = []
    for step in plan.steps:
        reply = rng.choice((str(rng.randint(1, 99)), rng.choice(question.split()).strip(".,:;?!"), "unknown"))
        earlier.append(EarlierStep(step.worker, step.subtask, step.access, reply))
    anew = _random_plan(rng, [step.subtask for step in plan.steps], cards, first=len(earlier))
    return Lesson(cards, question, anew if rng.random() < 0.5 else Plan(()), earlier=tuple(earlier))


def _riddle(rng: random.Random) -> tuple[str, list[str]]:
    """A riddle, asked once or several times, and in some lessons one more step on its answer."""
    lead = rng.choice(RIDDLES)
    while True:
        chain = draw_chain(rng, WARM_OPERATIONS, _Anything(), length=rng.choice((1, 1, 2)), first=lead)
        if chain is not None:
            break
    written = write_question(Blueprint("chain", (chain,)), Writer(rng, TRAINING_WORDINGS))
    return written.question, [written.subtasks[0]] * rng.randint(1, MOST_ASKED) + list(written.subtasks[1:])


def _warm_blueprint(rng: random.Random, *, steps: int) -> Blueprint:
    """A chain of exactly so many steps, or for three steps and more sometimes a fan."""
    fan = steps == MAX_STEPS or (steps >= 3 and rng.random() < 0.45)
    while True:
        depth = 3 if steps == MAX_STEPS else rng.choice((2, 3)) if fan else steps
        blueprint = draw_blueprint(
            rng, shape="fan" if fan else "chain", depth=depth, operations=WARM_OPERATIONS, rules=_Anything()
        )
        if len(blueprint.links) == steps:
            return blueprint


def _random_cards(rng: random.Random) -> tuple[WorkerInfo, ...]:
    fewest, most = POOL_SIZES
    size = rng.randint(fewest, SMALL if rng.random() < SMALL_POOLS else most)
    return _named(cards_for(rng.sample(RL_ROSTER, size), rng), rng)


def _named(cards: tuple[WorkerInfo, ...], rng: random.Random) -> tuple[WorkerInfo, ...]:
    """The cards under their own names or under others, equally often."""
    return renamed(cards, rng) if rng.random() < 0.5 else cards


def _random_plan(rng: random.Random, subtasks: Sequence[str], cards: Sequence[WorkerInfo], *, first: int = 0) -> Plan:
    steps = []
    for i, subtask in enumerate(subtasks, first):
        access = tuple(j for j in range(i) if rng.random() < 0.5)
        steps.append(Step(rng.choice(cards).name, subtask, access))
    return Plan(tuple(steps), first)
