"""Evaluation recipes: every shipped one is read, and a fault of a recipe is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dirigent.config.file import load_config, parse_config
from dirigent.config.runtime import open_runtime
from dirigent.errors import ConfigError
from dirigent.evals.planners import FIGURES
from dirigent.evals.recipe import EvalRecipe, changed, checked, load_recipe
from dirigent.plan.prompt import prompted_planner_messages
from dirigent.planners import PLANNERS
from dirigent.tasks.benchmarks import BENCHMARKS
from tests.facts import facts

FOLDER = Path(__file__).parents[2] / "recipes"
RECIPES = sorted([*FOLDER.glob("eval-*.toml"), *(FOLDER.parent / "gym" / "recipes").glob("eval-*.toml")])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_packaged_recipe_is_read_and_names_existing_tasks_and_planners(path: Path) -> None:
    recipe = checked(load_recipe(path))
    assert recipe.name == path.stem
    assert recipe.about
    for name in recipe.planners:
        assert name.partition(":")[0] in (*(spec.name for spec in PLANNERS), *FIGURES, "right", "ask-all", "spans")
    assert all(task == "gym" or task in BENCHMARKS for task in recipe.tasks)


def test_the_papers_table_has_seven_tasks_seven_workers_and_every_method() -> None:
    recipe = load_recipe(FOLDER / "eval-paper.toml")
    assert len(recipe.tasks) == 7
    pool = load_config(Path(recipe.pool)).config
    assert len([w for w in pool.worker if w.name != pool.profile["conductor"].planner_worker]) == 7
    methods = {name.partition(":")[0] for name in recipe.planners}
    not_of_the_paper = {"single", "warm-start", "panel", "weighted-vote", "program", "learned"}
    assert methods >= {spec.name for spec in PLANNERS} - not_of_the_paper
    assert {"each", "oracle"} <= methods


def test_paths_are_relative_to_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('tasks = ["gsm8k"]\npool = "pool.toml"\ndata = "rows"\n')
    recipe = load_recipe(tmp_path / "mine.toml")
    assert (recipe.name, recipe.pool, recipe.data) == ("mine", str(tmp_path / "pool.toml"), str(tmp_path / "rows"))
    (tmp_path / "replay.toml").write_text('pool = "recorded:answers.jsonl"\n')
    assert load_recipe(tmp_path / "replay.toml").pool == f"recorded:{tmp_path / 'answers.jsonl'}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("taks = ['gym']", "taks tasks 1"),
        ("limit = 0", "limit 1 0"),
        ("seed = 'x'", "seed x"),
        ("fit = -1", "fit 0 -1"),
        ("max_steps = 99", "max_steps 1 32 99"),
        ("deadline_s = -3", "deadline_s 0 -3"),
        ("max_cost = -1", "max_cost 0 -1"),
        ("max_cost = nan", "max_cost 0 nan"),
        ("tasks = []", "tasks"),
    ],
)
def test_a_fault_in_a_recipe_names_its_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ConfigError, match=facts(message)):
        load_recipe(tmp_path / "bad.toml")


def test_a_recipe_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=facts("bad.toml utf-8")):
        load_recipe(tmp_path / "bad.toml")


def test_a_recipe_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ConfigError, match=facts("nowhere.toml")):
        load_recipe(Path("nowhere.toml"))


def test_the_command_line_overrides_the_recipe_and_missing_options_change_nothing() -> None:
    recipe = EvalRecipe(limit=10, seed=4)
    assert changed(recipe, limit=3, seed=None) == EvalRecipe(limit=3, seed=4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tasks": ("gsm8k",)}, "gsm8k --pool dirigent.toml"),
        ({"tasks": ("gym", "gsm8k"), "pool": "p.toml"}, "gym"),
        (
            {"tasks": ("bigcodebench", "gsm8k", "bigcodebench_hard"), "pool": "p.toml"},
            "bigcodebench_hard bigcodebench --tasks",
        ),
        (
            {"tasks": ("bigcodebench_hard", "bigcodebench"), "pool": "recorded:p.jsonl"},
            "bigcodebench_hard bigcodebench",
        ),
        ({"tasks": ("gms8k",), "pool": "p.toml"}, "gms8k gsm8k"),
        ({"pool": "p.toml"}, "gym"),
        ({"split": "train"}, "train"),
        ({"workers": "exakt"}, "exakt exact"),
    ],
)
def test_recipes_that_would_fail_later_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=facts(message)):
        changed(EvalRecipe(), **given)


@pytest.mark.parametrize("name", ["bigcodebench", "bigcodebench_hard"])
def test_a_set_or_its_hard_part_alone_is_asked(name: str) -> None:
    assert changed(EvalRecipe(), tasks=(name, "gsm8k"), pool="p.toml").tasks == (name, "gsm8k")


async def test_a_conductor_of_another_dialect_is_asked_by_the_prompt_of_that_dialect() -> None:
    plan = r"model_id = [0]\nsubtasks = ['Add them.']\naccess_list = [[]]"
    text = (
        '[[worker]]\nname = "adder"\nkind = "scripted"\nreplies = ["4"]\n'
        f'[[worker]]\nname = "planner"\nkind = "scripted"\nreplies = ["{plan}"]\n'
        '[profile.conductor]\nplanner = "conductor"\nplanner_worker = "planner"\ndialect = "lists"\n'
    )
    async with open_runtime(parse_config(text, path=Path("dirigent.toml"))) as runtime:
        conductor = runtime.conductor("conductor")
        trace = await conductor.run("2+2?")
    assert conductor.pool.names == ("adder",)
    assert trace.answer == "4"
    draft = trace.rounds[0].drafts[0]
    wanted = prompted_planner_messages(
        trace.question, conductor.pool.infos, limits=conductor.limits, dialect="lists", secret="s"
    )
    assert not draft.error
    assert draft.messages[0] == wanted[0]
