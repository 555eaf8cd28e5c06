"""Recipes: every shipped one is parsed, and faults name the key and the remedy."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from tests.facts import facts

from dirigent.config.file import load_config
from dirigent.errors import ConfigError
from dirigent.workers.adapters import read_cards
from dirigent_gym.train.recipe import (
    DirectRecipe,
    Recipe,
    SpecialistsRecipe,
    WorkerSettings,
    load_conductor,
    load_recipe,
    parse_recipe,
)
from dirigent_gym.train.reward import score
from dirigent_gym.train.rows import dev_rows
from dirigent_gym.train.workers import open_resources

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "gym" / "recipes"
PAPER = ROOT / "recipes" / "paper-7b.toml"
RECIPES = sorted(path for path in FOLDER.glob("*.toml") if not path.stem.startswith("eval-"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_that_ships_is_read_and_carries_its_files_name(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name == path.stem


NAMED = re.compile(r"[\w./-]+\.(?:toml|yaml|jsonl?|py|md)\b")
BROUGHT = {
    "paper-train.jsonl",
    "paper-dev.jsonl",
    "own-train.jsonl",
    "own-dev.jsonl",
    "dirigent.toml",
    "../dirigent.toml",
}
"""What whoever runs a recipe brings along."""


@pytest.mark.parametrize(
    "path", [*sorted(FOLDER.rglob("*.*")), *sorted(PAPER.parent.rglob("*.*"))], ids=lambda path: path.name
)
def test_files_that_a_recipe_or_its_comment_names_are_there(path: Path) -> None:
    """From the root of the repository, as commands are typed, or from beside the recipe. Reports are written."""
    named = set(NAMED.findall(path.read_text(encoding="utf-8"))) - BROUGHT
    missing = [name for name in named if not ((ROOT / name).exists() or (path.parent / name).exists())]
    assert [name for name in missing if not name.startswith("reports/")] == []


def test_the_three_recipes_are_there() -> None:
    assert {path.stem for path in RECIPES} >= {"tiny-cpu", "gym-gpu", "own-tasks"}


def test_gym_gpu_starts_from_the_settings_that_were_measured() -> None:
    recipe = load_conductor(FOLDER / "gym-gpu.toml")
    grpo = recipe.grpo
    assert (grpo.prompts, grpo.rollouts, grpo.learning_rate, grpo.beta) == (64, 16, 4e-4, 0.04)
    assert (grpo.scale, recipe.policy.rank) == ("with_cost", 16)
    assert (recipe.reward.invalid, recipe.reward.wrong, recipe.reward.right) == (0.0, 0.1, 1.0)
    assert (recipe.cost.most, recipe.cost.from_share) == (0.2, 0.7)
    assert recipe.warm_start.lessons == "gym_decompositions"


def test_gym_language_differs_from_the_shipped_recipe_in_its_start_and_in_later_findings() -> None:
    ours, theirs = load_conductor(FOLDER / "gym-language.toml"), load_conductor(FOLDER / "gym-gpu.toml")
    assert ours.warm_start.lessons == "warm_start"
    different = {field for field in Recipe.__struct_fields__ if getattr(ours, field) != getattr(theirs, field)}
    assert different == {"name", "about", "warm_start", "grpo", "rows"}


def test_gym_everyday_differs_from_the_shipped_recipe_in_its_wordings() -> None:
    ours, theirs = load_conductor(FOLDER / "gym-everyday.toml"), load_conductor(FOLDER / "gym-gpu.toml")
    assert ours.rows.everyday > 0
    same = msgspec.structs.replace(ours, name=theirs.name, about=theirs.about, rows=theirs.rows)
    assert same == theirs
    assert msgspec.structs.replace(ours.rows, everyday=0.0) == theirs.rows


FREE = "price = { input = 0, output = 0 }\n"


async def test_the_examples_in_own_tasks_are_valid_tasks_and_configuration(tmp_path: Path) -> None:
    recipe = load_conductor(FOLDER / "own-tasks.toml")
    said = [
        line.removeprefix("#   ") for line in (FOLDER / "own-tasks.toml").read_text().splitlines() if "#   " in line
    ]
    (task,) = (line for line in said if line.startswith("{"))
    pool = "\n".join(line for line in said if not line.startswith(("{", "dirigent ")))
    for name in (recipe.tasks.file, recipe.tasks.dev_file):
        (tmp_path / name).write_text(task + "\n")
    (tmp_path / "dirigent.toml").write_text(
        f'[[worker]]\nname = "one"\nkind = "scripted"\nreplies = ["7"]\n{FREE}{pool}\n'
    )
    tasks = msgspec.structs.replace(
        recipe.tasks, file=str(tmp_path / recipe.tasks.file), dev_file=str(tmp_path / recipe.tasks.dev_file)
    )
    workers = msgspec.structs.replace(recipe.workers, config=str(tmp_path / recipe.workers.config))
    recipe = msgspec.structs.replace(recipe, tasks=tasks, workers=workers)
    async with open_resources(recipe) as resources:
        assert resources.spending is not None
        assert resources.spending.max_cost_usd == 10.0
        rows = dev_rows(recipe, [worker.info for worker in resources.workers.values()], n=1)
        (found,) = await score(rows, ["Say it. | one 0 | -"], resources.workers, ledger=resources.spending)
    assert found.correct
    profile = load_config(tmp_path / "dirigent.toml").config.profile[recipe.workers.profile]
    assert profile.max_steps == recipe.rows.max_steps, "so that it is asked as it was trained"


def test_the_defaults_are_a_recipe() -> None:
    assert parse_recipe('name = "mine"') == Recipe("mine")


def test_a_misspelt_key_names_its_neighbour_and_its_line() -> None:
    with pytest.raises(ConfigError, match=facts("rolouts [grpo] rollouts 3")):
        parse_recipe('name = "x"\n[grpo]\nrolouts = 8\n', file="x.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[base]\nweights = "a.gguf"\n[base.tiny]', "weights tiny"),
        ("[grpo]\nrollouts = 1", "rollouts 2 1"),
        ("[grpo]\nsteps = -1", "steps 0 -1"),
        ("[grpo]\noversample = 0.5", "oversample 1"),
        ("[warm_start]\nn = 0", "warm_start.n 1 0 128"),
        ("[warm_start]\nbatch = 0", "warm_start.batch 1 40000 0"),
        ("[eval]\nevery_steps = 0", "eval.every_steps 1 0 256"),
        ("[eval]\nn = 0", "eval.n 1 20 0"),
        ('[workers]\nkind = "config"', "config"),
        ('[workers]\nkind = "exact"\nmisled = 1.5', "misled 0 1 1.5"),
        ('[workers]\nkind = "config"\nconfig = "a.toml"\nmisled = 0.3', "misled exact"),
        ('[workers]\nprofile = "ultra"', "profile config"),
        ("[workers]\nmax_cost_usd = 1.0", "max_cost_usd config"),
        ('[workers]\nkind = "config"\nconfig = "a.toml"\nmax_cost_usd = -1.0', "max_cost_usd 0 -1.0"),
        ('[workers]\nkind = "config"\nconfig = "a.toml"\nmax_cost_usd = nan', "max_cost_usd 0 nan"),
        ('[tasks]\nfile = "a.jsonl"', "file dev_file"),
        ('[tasks]\nfile = "a.jsonl"\ndev_file = "b.jsonl"\nskills = ["roman"]', "skills file"),
        ('[tasks]\nskills = ["roman"]\n[rows]\neveryday = 0.3', "everyday rows.everyday"),
        ("[rows]\neveryday = -0.1", "everyday 0 1 -0.1"),
        ("[policy]\nrank = 0", "policy.rank"),
        ('[warm_start]\nadapter = "conductor"', "warm_start.adapter lessons"),
        ('[warm_start]\nlessons = "none"\n[base.tiny]\n[workers]\nkind = "exact"', "warm_start.lessons"),
        ("[reward]\nwrong = 2.0", "rewards 0 2 1"),
        ('[reward]\ncontrol = "shufled"', "shuffled"),
        ("[rows]\nsmall_pool = [4, 2]", "small_pool 1 4 2"),
        ("[rows]\nlarge_pool = [0, 2]", "not 0 and 2"),
        ("[rows]\nmax_steps = 40", "max_steps 1 32 40"),
        ("[grpo]\nlearning_rate = 0.0", "learning_rate 0"),
        ('kind = "specialist"', "specialist specialists"),
        ('kind = "specialists"\n[specialist.date]\nrank = 8', "date dates"),
    ],
)
def test_settings_that_cannot_work_together_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=facts(said)):
        parse_recipe(f'name = "x"\n{text}\n')


def test_a_recipe_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=facts("nowhere.toml")):
        load_recipe(tmp_path / "nowhere.toml")


def test_a_specialist_has_the_common_settings_but_for_what_the_recipe_changes() -> None:
    recipe = load_recipe(FOLDER / "specialists.toml")
    assert isinstance(recipe, SpecialistsRecipe)
    dates = recipe.fit_of("dates")
    assert (dates.rank, dates.rounds, dates.batch) == (8, 5, recipe.fit.batch)
    assert recipe.fit_of("facts") == recipe.fit


def test_only_a_conductors_recipe_is_one() -> None:
    with pytest.raises(ConfigError, match=facts("specialists conductor")):
        load_conductor(FOLDER / "specialists.toml")


def test_a_kind_that_is_no_text_and_a_text_that_is_no_toml_are_told_apart() -> None:
    with pytest.raises(ConfigError, match=facts("3")):
        parse_recipe('name = "x"\nkind = 3')
    with pytest.raises(ConfigError, match=facts("TOML")):
        parse_recipe("name = ")


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("control-rft", {"algorithm", "grpo", "warm_start"}),
        ("control-online-rft", {"algorithm", "warm_start"}),
        ("control-format", {"grpo", "reward", "warm_start"}),
        ("control-shuffled", {"grpo", "reward", "warm_start"}),
        ("control-right-plans", {"grpo", "warm_start"}),
    ],
)
def test_a_control_differs_from_gym_gpu_in_what_it_controls_for_and_nothing_else(name: str, changed: set[str]) -> None:
    ours, theirs = load_conductor(FOLDER / f"{name}.toml"), load_conductor(FOLDER / "gym-gpu.toml")
    different = {field for field in Recipe.__struct_fields__ if getattr(ours, field) != getattr(theirs, field)} - {
        "name",
        "about",
    }
    assert different == changed
    if "grpo" in changed:
        own = {"steps": theirs.grpo.steps} if ours.algorithm == "grpo" else {"beta": theirs.grpo.beta}
        assert msgspec.structs.replace(ours.grpo, **own) == theirs.grpo
    if name == "control-right-plans":
        lessons = theirs.warm_start.lessons
        assert msgspec.structs.replace(ours.warm_start, lessons=lessons) == theirs.warm_start
    else:
        assert (ours.warm_start.lessons, ours.warm_start.adapter) == ("none", "warm-start")


def test_the_start_that_controls_begin_at_is_that_of_the_conductor_that_ships() -> None:
    cards = read_cards()
    assert cards["warm-start"].recipe == cards["conductor"].recipe
    assert cards["warm-start"].commit == cards["conductor"].commit


def test_the_direct_control_has_an_adapter_of_the_conductors_size() -> None:
    direct = load_recipe(FOLDER / "control-direct.toml")
    assert isinstance(direct, DirectRecipe)
    assert direct.policy == load_conductor(FOLDER / "gym-gpu.toml").policy


POOL = """
[[worker]]
name = "one"
kind = "scripted"
replies = ["1"]
[[worker]]
name = "two"
kind = "scripted"
replies = ["2"]
[profile.conductor]
planner = "language"
planner_worker = "two"
"""

TO_BE_TRAINED = """
[[worker]]
name = "one"
kind = "scripted"
replies = ["1"]
[[worker]]
name = "mine"
kind = "local"
adapter = "runs/mine/conductor.gguf"
[profile.team]
planner = "conductor"
planner_worker = "mine"
"""


async def offered(file: Path, *, profile: str = "") -> list[str]:
    async with open_resources(
        Recipe("mine", workers=WorkerSettings("config", config=str(file), profile=profile))
    ) as resources:
        return list(resources.workers)


async def test_the_conductor_that_a_run_is_to_make_may_stand_in_the_file_of_its_workers(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text(TO_BE_TRAINED)
    assert await offered(file, profile="team") == ["one"]
    with pytest.raises(ConfigError, match=facts("conductor.gguf")):
        await offered(file)


async def test_a_policy_is_not_offered_the_worker_that_plans(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text(POOL)
    assert await offered(file) == ["one", "two"]
    assert await offered(file, profile="conductor") == ["one"]
    with pytest.raises(ConfigError, match=facts("ultra conductor")):
        await offered(file, profile="ultra")
