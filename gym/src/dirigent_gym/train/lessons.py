"""The warm start's lessons: conversations, each with the plan to imitate. Drawn from a recipe or read from a folder.

Tens of thousands of lessons take a processor minutes, in which a GPU would wait, so a run's folder may hold them ready
(`dirigent train RECIPE --draw-lessons`). Stored lessons are used only if the recipe would draw the same now: a digest
of its settings, of the generator's files and of some prompts and plans decides that. Both ways, no test text may occur
in the lessons.
"""

from __future__ import annotations

import hashlib
import lzma
import random
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import msgspec

import dirigent_gym.questions
from dirigent.errors import ConfigError
from dirigent.limits import Limits
from dirigent.messages import Message, conversation
from dirigent.plan.plan import Plan, format_plan
from dirigent.plan.prompt import next_round_messages, trained_planner_messages
from dirigent_gym.questions.warmstart import Lesson, gym_decompositions, right_plans, warm_start
from dirigent_gym.train.folder import write_durably
from dirigent_gym.train.heldout import held_out
from dirigent_gym.train.recipe import Recipe
from dirigent_gym.train.rows import skill_lesson, skill_row, skill_tasks

SECRET = "gym"
"""Marks around earlier results must be unguessable where users write; here they must be the same in every run."""

FILE = "lessons.xz"
GENERATOR = Path(dirigent_gym.questions.__file__).parent
DIGEST_LESSONS = 50
"""Lessons in the digest, which stand for the form of all of them; some of so many have second rounds."""

LESSONS: dict[str, Callable[..., list[Lesson]]] = {
    "warm_start": warm_start,
    "gym_decompositions": gym_decompositions,
    "right_plans": right_plans,
}


class Pair(msgspec.Struct, frozen=True):
    """A conversation and the reply it should get."""

    messages: tuple[Message, ...]
    completion: str


class StoredLessons(msgspec.Struct, frozen=True):
    """Lessons as stored on the disk."""

    drawn_from: str
    """The digest of everything that the lessons depend on."""
    pairs: tuple[Pair, ...]


def store_lessons(recipe: Recipe, out: Path) -> Path:
    """Draw the recipe's lessons and store them in the run's folder."""
    kept = StoredLessons(_digest(recipe), tuple(draw_lessons(recipe, seed=recipe.seed)))
    out.mkdir(parents=True, exist_ok=True)
    write_durably(out / FILE, lzma.compress(msgspec.msgpack.encode(kept), preset=1))
    return out / FILE


def lessons_for(recipe: Recipe, out: Path) -> list[Pair]:
    """The lessons in the run's folder, or newly drawn lessons if the folder has none."""
    file = out / FILE
    if not file.exists():
        return draw_lessons(recipe, seed=recipe.seed)
    try:
        kept = msgspec.msgpack.decode(lzma.decompress(file.read_bytes()), type=StoredLessons)
    except (lzma.LZMAError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file} cannot be read as lessons: {error}; delete it to draw them anew") from None
    if kept.drawn_from != _digest(recipe):
        raise ConfigError(
            f"the lessons in {file} were drawn for another recipe, another prompt or another generator of questions; "
            "delete the file to draw them anew"
        )
    return _without_test_texts(list(kept.pairs))


def draw_lessons(recipe: Recipe, *, seed: int) -> list[Pair]:
    """The lessons as conversations and the plans to imitate."""
    return _without_test_texts(_draw(recipe, seed=seed))


def _draw(recipe: Recipe, *, seed: int) -> list[Pair]:
    n, limits = recipe.warm_start.n, Limits(max_steps=recipe.rows.max_steps)
    if skills := recipe.tasks.skills:
        rng = random.Random(f"skill lessons {seed}")
        pairs = []
        for task in skill_tasks("train", n, skills=skills, seed=seed):
            row = skill_row(task, skills, max_steps=limits.max_steps)
            plan = skill_lesson(task, rng, names=row.names)
            pairs.append(Pair(row.messages, format_plan(plan, row.names, dialect="lines")))
        return pairs
    draw = LESSONS[recipe.warm_start.lessons]
    # Questions that no worker of the gym can answer, in words of their own, teach the language of plans alone.
    lessons = draw(n, seed=seed) if draw is warm_start else draw(n, seed=seed, everyday=recipe.rows.everyday)
    return [_pair(lesson, limits=limits) for lesson in lessons]


def _pair(lesson: Lesson, *, limits: Limits) -> Pair:
    names = [card.name for card in lesson.cards]
    messages = trained_planner_messages(conversation(lesson.question), lesson.cards, limits=limits)
    if lesson.earlier:
        draft = format_plan(Plan(lesson.earlier), names, dialect="lines")
        messages = (*messages, *next_round_messages(draft, lesson.earlier, dialect="lines", secret=SECRET))
    return Pair(messages, format_plan(lesson.plan, names, dialect="lines"))


def _without_test_texts(pairs: list[Pair]) -> list[Pair]:
    """Returns the same pairs, or raises an error that names a test text found in them."""
    # The system's text is left out: it shows the cards, which all questions share.
    asked = (message.text for pair in pairs for message in pair.messages if message.role != "system")
    held_out().check(chain(asked, (pair.completion for pair in pairs)))
    return pairs


def _digest(recipe: Recipe) -> str:
    """The digest of the settings, of the generator's files, and of the form of prompts and plans."""
    start = recipe.warm_start
    settings = (recipe.seed, start.lessons, start.n, recipe.rows.max_steps, recipe.rows.everyday, recipe.tasks)
    limits = Limits(max_steps=recipe.rows.max_steps)
    shown = [_pair(lesson, limits=limits) for lesson in warm_start(DIGEST_LESSONS, seed=0)]
    digest = hashlib.sha256(msgspec.json.encode((settings, shown)))
    for path in sorted(GENERATOR.rglob("*")):
        if path.suffix in (".py", ".toml", ".jsonl"):
            digest.update(str(path.relative_to(GENERATOR)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
