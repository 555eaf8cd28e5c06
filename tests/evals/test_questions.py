"""Questions to ask and questions to fit on: every shipped recipe, on made-up sets of full size."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.paper_table import counts_of

from dirigent.errors import ConfigError
from dirigent.evals.questions import gather, held_out
from dirigent.evals.recipe import load_recipe
from dirigent.evals.record import Record
from dirigent.tasks import hub
from dirigent.tasks.benchmarks import BENCHMARKS
from dirigent.tasks.hub import Addresses
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted
from dirigent_gym.evals.pools import Gym, GymSettings
from dirigent_gym.evals.workers import exact_worker
from tests.evals.samples import evaluate_live
from tests.facts import facts, says
from tests.published_rows import published

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("eval-*.toml"))
SIZES = {
    "gsm8k": 1319, "math500": 500, "aime24": 30, "aime25": 30, "mmlu": 14042, "rlpr": 15540, "livecodebench": 175,
    "bigcodebench_hard": 148, "gpqa": 198,
}  # fmt: skip
TRAINING = {
    "gsm8k_train": ("gsm8k", 7473),
    "mmlu_validation": ("mmlu", 1531),
    "livecodebench_v1": ("livecodebench", 400),
}
"""A file of training questions -> the set whose form it has, and how many there are."""


def write(folder: Path, file: str, name: str, n: int, *, said: str = "") -> None:
    """Made-up rows; the text `said` before the number makes their questions differ from another set's."""
    lines = (json.dumps(row).replace(f"[{name} #", f"[{name} #{said}") for row, _ in published(name, n))
    (folder / f"{file}.jsonl").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("full")
    for name, size in SIZES.items():
        write(folder, name, name, size)
    for file, (name, size) in TRAINING.items():
        write(folder, file, name, size, said="train ")
    return folder


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
async def test_every_recipe_that_ships_finds_its_questions(path: Path, full: Path) -> None:
    recipe = load_recipe(path)
    if recipe.kind == "gym":
        gym = Gym(GymSettings(sets=recipe.gym_sets, limit=recipe.limit or 200, seed=recipe.seed), exact_worker)
        assert len(gym.tasks) == recipe.limit
        return
    assert recipe.kind == "live"
    assert set(recipe.tasks) <= set(SIZES)
    found = await gather(recipe.tasks, data=full, limit=recipe.limit, fit=recipe.fit, seed=recipe.seed)
    asked, fitted = (Counter(task.kind for task in tasks) for tasks in (found.tasks, found.fit))
    for name in recipe.tasks:
        assert fitted[name] == min(recipe.fit, 30 if name == "aime25" else recipe.fit)
        assert min(recipe.limit or SIZES[name], SIZES[name] - recipe.fit) <= asked[name] or name == "aime25"
    assert asked["aime25"] == 30
    assert not {task.question for task in found.tasks} & {task.question for task in found.fit}
    ids = [task.id for task in (*found.tasks, *found.fit)]
    assert len(ids) == len(set(ids))


async def test_the_papers_estimate_counts_as_many_questions_as_are_asked(full: Path) -> None:
    recipe = load_recipe(next(path for path in RECIPES if path.stem == "eval-paper"))
    found = await gather(recipe.tasks, data=full, limit=recipe.limit, fit=recipe.fit, seed=recipe.seed)
    counts = counts_of(recipe)
    assert {name: count.asked for name, count in counts.items()} == Counter(task.kind for task in found.tasks)
    assert {name: count.fit for name, count in counts.items()} == Counter(task.kind for task in found.fit)


async def test_a_year_of_aime_is_fitted_on_the_other(full: Path) -> None:
    for name, other in (("aime25", "aime24"), ("aime24", "aime25")):
        questions = await gather([name], data=full, fit=60)
        assert len(questions.tasks) == len(questions.fit) == 30
        assert all(f"[{other} #" in task.question and task.kind == name for task in questions.fit)
        assert questions.left_out == {}


async def test_a_year_that_is_asked_is_not_fitted_on(full: Path) -> None:
    questions = await gather(["aime24", "aime25"], data=full, fit=60)
    assert Counter(task.kind for task in questions.tasks) == {"aime24": 20, "aime25": 20}
    assert Counter(task.kind for task in questions.fit) == {"aime24": 10, "aime25": 10}
    assert not {task.question for task in questions.tasks} & {task.question for task in questions.fit}
    assert list(questions.left_out.values()) == [10, 10]
    for why, names in zip(questions.left_out, ("aime24: aime25", "aime25: aime24"), strict=True):
        assert says(why, f"{names} 10 60")


async def test_a_single_year_of_aime_has_questions_held_out_and_gives_the_reason(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "TRIES", 1)
    source = BENCHMARKS["aime25"].hub
    assert source is not None
    shutil.copy(full / "aime25.jsonl", tmp_path / f"{source.name}.jsonl")  # as if it had been fetched before
    nowhere = Addresses("http://127.0.0.1:1", "")
    fetched = await gather(["aime25"], cache=tmp_path, addresses=nowhere, fit=5)
    (why,) = fetched.left_out
    assert says(why, "aime25: aime24 HuggingFaceH4/aime_2024")
    (tmp_path / "folder").mkdir()
    shutil.copy(full / "aime25.jsonl", tmp_path / "folder")
    lying = await gather(["aime25"], data=tmp_path / "folder", fit=5)
    assert [(says(reason, "aime25: aime24"), count) for reason, count in lying.left_out.items()] == [(True, 5)]
    for questions in (fetched, lying):
        assert (len(questions.tasks), len(questions.fit)) == (25, 5)
        assert all("[aime25 #" in task.question for task in (*questions.tasks, *questions.fit))
        assert not {task.question for task in questions.tasks} & {task.question for task in questions.fit}
    report = await evaluate_live(fetched, ["best"], Pool([Scripted("7", name="seven")]))
    assert report.tasks["left_out"] == {why: 5}


async def test_a_training_part_of_its_own_that_cannot_be_fetched_is_an_error_and_so_is_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "TRIES", 1)
    source = BENCHMARKS["gsm8k"].hub
    assert source is not None
    write(tmp_path, source.name, "gsm8k", 9)
    nowhere = Addresses("http://127.0.0.1:1", "")
    with pytest.raises(ConfigError, match=facts("openai/gsm8k --data")):
        await gather(["gsm8k"], cache=tmp_path, addresses=nowhere, fit=3)
    with pytest.raises(ConfigError, match=facts("opencompass/AIME2025 --data")):
        await gather(["aime25"], cache=tmp_path, addresses=nowhere, fit=3)


async def test_without_a_training_part_a_third_at_most_is_held_out_and_said(full: Path) -> None:
    questions = await gather(["gpqa"], data=full, fit=100)
    assert (len(questions.tasks), len(questions.fit)) == (132, 66)
    assert [(says(why, "gpqa: 66 100"), count) for why, count in questions.left_out.items()] == [(True, 66)]
    fewer = (await gather(["gpqa"], data=full, fit=20)).left_out
    assert [(says(why, "gpqa:"), count) for why, count in fewer.items()] == [(True, 20)]
    assert (await gather(["gpqa"], data=full)).left_out == {}


@pytest.mark.parametrize(("size", "fit", "held"), [(30, 60, 10), (30, 5, 5), (2, 9, 1), (1, 9, 0), (30, 0, 0)])
def test_how_many_are_held_out(size: int, fit: int, held: int) -> None:
    assert held_out(size, fit=fit) == held


async def test_a_set_of_which_nothing_can_be_graded_is_refused(tmp_path: Path) -> None:
    row = published("bigcodebench", 1)[0][0] | {"libs": "['numpy']"}
    (tmp_path / "bigcodebench.jsonl").write_text(json.dumps(row))
    with pytest.raises(ConfigError, match=facts("bigcodebench numpy --tasks")):
        await gather(["bigcodebench"], data=tmp_path, fit=5)


async def test_an_answer_to_a_training_question_is_not_taken_for_one_to_the_test(tmp_path: Path) -> None:
    """Both parts of GSM8K number their questions from 0."""
    (tmp_path / "gsm8k.jsonl").write_text(json.dumps({"question": "How much is 1 + 1?", "answer": "#### 2"}))
    (tmp_path / "gsm8k_train.jsonl").write_text(json.dumps({"question": "How much is 2 + 2?", "answer": "#### 4"}))
    questions = await gather(["gsm8k"], data=tmp_path, fit=1)
    pool = Pool([Scripted("The answer is 4.", name="four")])
    with Record.open(tmp_path / "outcomes.jsonl", {}, resume=False) as record:
        report = await evaluate_live(questions, ["each", "best"], pool, record=record)
    assert report.planners["single:four"].accuracy == 0.0


async def test_questions_of_one_set_are_not_fitted_on_for_another(tmp_path: Path) -> None:
    def row(i: int) -> str:
        return json.dumps({"id": str(i), "question": f"What is {i} + 1?", "answer": str(i + 1), "grader": "math"})

    (tmp_path / "math500.jsonl").write_text("\n".join(row(i) for i in range(20)))
    (tmp_path / "math_l5.jsonl").write_text("\n".join(row(i) for i in range(10, 40)))
    (tmp_path / "math_train.jsonl").write_text("\n".join(row(i) for i in range(100, 120)))
    found = await gather(["math500", "math_l5"], data=tmp_path, fit=10)
    asked, fitted = ({task.question for task in of} for of in (found.tasks, found.fit))
    assert not asked & fitted
    shared = [count for count in found.left_out.values() if count == 20 - len(found.fit)]
    assert len(shared) == 1
    assert 0 < shared[0] < 10
    alone = await gather(["math_l5"], data=tmp_path, fit=10)
    assert len(alone.fit) == 10
