"""No run learns from a test text: a run that meets one ends, whatever the text's source."""

from __future__ import annotations

import asyncio
import lzma
import random
import tomllib
from pathlib import Path

import msgspec
import pytest
from tests.facts import facts

pytest.importorskip("torch", reason="needs the train extra")

from gym.benchmarks import must
from gym.benchmarks.claims_evidence import Sizes, rounds_tasks

from dirigent.errors import ConfigError
from dirigent.messages import Message
from dirigent.tasks import Task
from dirigent_gym.questions import assert_disjoint, generate
from dirigent_gym.questions.warmstart import Lesson, warm_start
from dirigent_gym.train import direct, heldout, lessons
from dirigent_gym.train.dataset import Row
from dirigent_gym.train.heldout import HeldOut, held_out
from dirigent_gym.train.recipe import DirectRecipe, Recipe, load_conductor
from dirigent_gym.train.rows import training_rows
from dirigent_gym.train.task import GymTask
from dirigent_gym.train.workers import Resources

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    whole = load_conductor(ROOT / "gym/recipes/gym-gpu.toml")
    return msgspec.structs.replace(whole, warm_start=msgspec.structs.replace(whole.warm_start, n=40))


@pytest.fixture(scope="module")
def reported() -> list[Task]:
    """Some of the questions that are reported on."""
    return generate("test", 400, seed=1)


def test_a_text_is_found_whole_in_any_case_and_among_others_and_not_with_a_word_of_it_changed() -> None:
    texts = ["Lower 98 by 16.", "Name it.", "What is the capital of Peru, and how many letters has it?"]
    tests = HeldOut(texts)
    for text in texts:
        for hidden in (text, text.upper(), f"Well: {text} Thanks.", f"x{text}y"):
            with pytest.raises(ConfigError, match=facts("training")):
                tests.check(["Something else.", hidden])
    tests.check(["", "Lower 98 by 17.", "Lower 98 by", "Name them.", "What is the capital of Chile, and so on?"])


def test_every_question_that_is_reported_is_found(reported: list[Task]) -> None:
    probes = [task for name in heldout.PROBES for task in heldout.probe_tasks(name, limit=300, seed=1)]
    rounds = generate("test", heldout.ROUNDS, seed=heldout.ROUNDS_SEED)[:200]
    for task in (*reported, *generate("test", 1000, seed=1), *probes, *rounds):
        with pytest.raises(ConfigError, match=facts("training")):
            held_out().check([f"Now, please. {task.question}"])


def test_it_agrees_with_the_slow_comparison(reported: list[Task]) -> None:
    training = [task.question for task in generate("train", 500, seed=3)]
    assert_disjoint(training, [task.question for task in reported])
    held_out().check(training)


def test_the_sets_are_those_that_the_tables_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes()
    evaluated = tomllib.loads((ROOT / "gym/recipes/eval-gym.toml").read_text(encoding="utf-8"))
    assert (sizes.seed, evaluated["seed"]) == (heldout.SEED, heldout.SEED)
    assert {sizes.test, evaluated["limit"]} == set(heldout.TEST)
    monkeypatch.setattr("sys.argv", ["must.py"])
    by_files = must._arguments().controls
    assert {sizes.novel, evaluated["limit"], by_files} == set(heldout.PROBES["novel"])
    assert {sizes.probes, evaluated["limit"], by_files} == set(heldout.PROBES["second-seed"])
    asked = {task.question for task in rounds_tasks(sizes)}
    assert len(asked) == sizes.rounds
    assert asked <= {task.question for task in generate("test", heldout.ROUNDS, seed=heldout.ROUNDS_SEED)}


def test_lessons_with_a_test_text_are_not_drawn(
    recipe: Recipe, reported: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaking(n: int, *, seed: int, everyday: float) -> list[Lesson]:
        drawn = warm_start(n, seed=seed)
        return [*drawn[1:], msgspec.structs.replace(drawn[0], question=reported[0].question)]

    monkeypatch.setitem(lessons.LESSONS, "gym_decompositions", leaking)
    with pytest.raises(ConfigError, match=facts("training")):
        lessons.draw_lessons(recipe, seed=1)


@pytest.mark.parametrize("place", ["question", "plan"])
def test_kept_lessons_with_a_test_text_are_not_taken_up(
    recipe: Recipe, reported: list[Task], tmp_path: Path, place: str
) -> None:
    file = lessons.store_lessons(recipe, tmp_path)
    kept = msgspec.msgpack.decode(lzma.decompress(file.read_bytes()), type=lessons.StoredLessons)
    first, text = kept.pairs[0], reported[0].question
    if place == "question":
        leak = lessons.Pair((*first.messages[:-1], Message("user", text)), first.completion)
    else:
        leak = lessons.Pair(first.messages, f"{text} | facts 0 | -")
    leaking = msgspec.structs.replace(kept, pairs=(*kept.pairs[1:], leak))
    file.write_bytes(lzma.compress(msgspec.msgpack.encode(leaking)))
    with pytest.raises(ConfigError, match=facts("training")):
        lessons.lessons_for(recipe, tmp_path)


def test_rows_with_a_test_text_are_not_trained_on(recipe: Recipe, reported: list[Task]) -> None:
    source = training_rows(recipe, ())
    as_ever = source.draw

    def leaking(n: int) -> list[Row]:
        rows = as_ever(n)
        return [*rows[1:], msgspec.structs.replace(rows[0], task=reported[0])]

    source.draw = leaking  # type: ignore[method-assign]
    with asyncio.Runner() as runner:
        task = GymTask(recipe, rows=source, dev=(), resources=Resources({}), runner=runner)
        with pytest.raises(ConfigError, match=facts("training")):
            task.draw(4, step=0, rng=random.Random(0))


def test_the_direct_control_is_shown_none_either(reported: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = DirectRecipe("direct", n=20, measure=20)
    assert len(direct.lessons_for(recipe)) == 20
    for test in (reported[0], direct.measured_on("test", recipe)[0]):
        drawn = {"train": [test], "test": generate("test", 20, seed=direct.MEASURE_SEED)}
        monkeypatch.setattr(direct, "generate", lambda split, *_, drawn=drawn, **__: drawn[split])
        with pytest.raises(ConfigError, match=facts("training")):
            direct.lessons_for(recipe)
