"""A whole run over an own pool's table, and the replay of what it wrote on another table."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from dirigent.errors import ConfigError
from dirigent.evals import prove_conductor as prove_conductor_module
from dirigent.evals.prove_conductor import packaged_base, prove_conductor
from dirigent.learn import run, values
from dirigent.learn.decoder import Adapter
from dirigent.learn.policy import mark_of
from dirigent.learn.saved_conductor import SavedConductor, packaged_conductor
from dirigent.learn.selector import SelectorSettings
from dirigent.learn.table import Table, TableWorker
from dirigent.learn.table_plans import PRICES
from tests.learn.made_tables import two_kinds
from tests.learn.tiny_base import tiny_base

RECIPE = """
name = "tiny"
max_plan_tokens = 24

[warm_start]
rank = 4
alpha = 8
steps = 2
batch = 4

[grpo]
steps = 2
questions = 4
rollouts = 4
measure_every = 2
save_every = 1
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A table, its values, and a run of two steps over them, in the folder `run`."""
    place = tmp_path_factory.mktemp("own-pool")
    torch.set_num_threads(1)
    real = values.fit
    quick = SelectorSettings(subsets=10, trees=12, depth=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "fit", lambda rows, workers, **_: real(rows, workers, settings=quick))
        patch.setattr(run.Base, "load", lambda folder: tiny_base())
        two_kinds(80).save(place / "table")
        values.main(["--table", str(place / "table"), "--out", str(place / "values")])
        (place / "recipe.toml").write_text(RECIPE)
        train(place)
        yield place


@pytest.fixture
def trained(place: Path) -> Path:
    return place / "run"


def train(place: Path, *more: str) -> None:
    files = ["--values", str(place / "values"), "--base", str(place), "--out", str(place / "run")]
    run.main([str(place / "recipe.toml"), *files, *more])


def test_a_run_writes_outcomes_of_every_split_and_what_replays_need(trained: Path) -> None:
    assert len((trained / "metrics.jsonl").read_bytes().splitlines()) == 2
    for split in ("dev", "train"):
        with gzip.open(trained / f"{split}.jsonl.gz") as file:
            rows = [msgspec.json.decode(line) for line in file]
        assert {row["price"] for row in rows} == set(PRICES)
    saved = SavedConductor.load(trained)
    assert set(saved.cards) == {"cheap", "dear", "select", "vote"}
    assert saved.seen
    assert (trained / "adapter" / "adapter_model.safetensors").is_file()
    assert (trained / "selector" / "selector.npz").is_file()


def test_a_run_without_steps_measures_its_warm_start_also_without_a_worker(place: Path, tmp_path: Path) -> None:
    files = ["--values", str(place / "values"), "--base", str(place), "--out", str(tmp_path / "start")]
    run.main([str(place / "recipe.toml"), *files, "--steps", "0", "--outcomes", "dev", "--without-worker", "dear"])
    assert {file.name for file in (tmp_path / "start").glob("*.jsonl.gz")} == {
        "dev.jsonl.gz",
        "dev-without-dear.jsonl.gz",
    }
    start, kept = (
        Adapter.load(tmp_path / "start" / name, device="cpu").b["mlp.up_proj"] for name in ("warm-start", "adapter")
    )
    assert start.equal(kept)


def test_an_unknown_split_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    with pytest.raises(ConfigError, match="dev, train and test"):
        train(tmp_path, "--outcomes", "dev,exam")


def test_plans_are_valued_on_questions_that_it_did_not_learn_from(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prove_conductor_module, "greedy_plans", lambda *_: lambda asked: [" ask: dear"] * len(asked))
    base = tiny_base()
    new = two_kinds(30, seed=2)
    proof = prove_conductor(trained, new, where="here", base=base)
    assert [row.price for row in proof.front] == list(PRICES.values())
    assert proof.questions == 30
    dear = sum(answer.right or 0.0 for answer in new.answers if answer.worker == "dear") / 30
    for row in proof.front:
        assert (row.planner, row.calls) == ("conductor", 1.0)
        assert row.accuracy == pytest.approx(dear, abs=1e-6)
        assert row.diff == pytest.approx(0.0, abs=1e-6)
        assert row.cost > 10, "an answer of dear costs 10, and the plan costs something as well"
    assert proof.best_single.name == "dear"
    assert proof.verdict.startswith("Nothing pays")
    assert prove_conductor(trained, new, where="here", base=base, limit=5).questions == 5


def test_questions_that_it_learned_from_are_left_out(place: Path, trained: Path) -> None:
    old = Table.load(place / "table")
    proof = prove_conductor(trained, old, where="here", base=tiny_base())
    learned = sum(int(mark_of(question.text)) in SavedConductor.load(trained).seen for question in old.questions)
    assert proof.questions == 80 - learned
    assert any("learned from are left out" in note for note in proof.notes)
    assert any("were no plan" in note for note in proof.notes)
    assert all(row.accuracy == 0.0 for row in proof.front), "an untrained model writes no plan"


def test_a_table_of_another_pool_or_without_enough_answers_is_refused(trained: Path) -> None:
    table = two_kinds(10)
    stranger = msgspec.structs.replace(
        table,
        workers=(TableWorker("stranger"),),
        answers=tuple(msgspec.structs.replace(a, worker="stranger") for a in table.answers if a.worker == "dear"),
    )
    with pytest.raises(ConfigError, match="cheap, dear"):
        prove_conductor(trained, stranger, where="here", base=tiny_base())
    few = msgspec.structs.replace(table, answers=tuple(a for a in table.answers if not a.k))
    with pytest.raises(ConfigError, match="2 of cheap, 1 of dear"):
        prove_conductor(trained, few, where="here", base=tiny_base())


def test_a_missing_base_names_the_command_that_brings_it(own_home: Path) -> None:
    with pytest.raises(ConfigError, match="dirigent pool pull smollm2-135m"):
        packaged_base("SmolLM2-135M-Instruct.Q4_1")
    with pytest.raises(ConfigError, match="--base"):
        packaged_base("some-other-model")


def test_without_a_conductor_that_ships_the_error_names_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dirigent.learn.saved_conductor.folders", list)
    with pytest.raises(ConfigError, match=r"recipes/real-135m\.toml"):
        packaged_conductor()
    with pytest.raises(ConfigError, match=r"conductor\.json"):
        SavedConductor.load(Path("nowhere"))


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIRIGENT_HOME", str(tmp_path))
    return tmp_path


RECIPES = Path(__file__).parents[2] / "recipes"
TINY = ("warm_start.steps=1", "warm_start.batch=2", "grpo.steps=1", "grpo.questions=2", "grpo.rollouts=2")


@pytest.mark.parametrize("recipe", ["real-135m", "real-135m-follow-up", "own-pool"])
def test_the_recipes_of_real_conductors_are_read_in_full(recipe: str) -> None:
    opened = run.opened(RECIPES / f"{recipe}.toml", seed=3, changes=["grpo.steps=7"])
    assert opened.name == recipe
    assert (opened.grpo.seed, opened.warm_start.seed) == (3, 3)
    assert opened.grpo.steps == opened.task.steps == 7
    with pytest.raises(ConfigError, match="stepps"):
        run.opened(RECIPES / f"{recipe}.toml", seed=None, changes=["grpo.stepps=7"])


def test_the_recipe_of_an_own_pool_is_rehearsed(place: Path, tmp_path: Path) -> None:
    changes = [part for change in TINY for part in ("--set", change)]
    files = ["--values", str(place / "values"), "--base", str(place), "--out", str(tmp_path / "own")]
    run.main([str(RECIPES / "own-pool.toml"), *files, *changes, "--outcomes", "dev"])
    assert SavedConductor.load(tmp_path / "own").recipe == "own-pool"
    assert (tmp_path / "own" / "dev.jsonl.gz").is_file()


def test_the_recipe_of_the_second_environment_is_rehearsed(place: Path, tmp_path: Path) -> None:
    changes = [part for change in TINY for part in ("--set", change)]
    files = ["--values", str(place / "values"), "--base", str(place), "--out", str(tmp_path / "second")]
    recipe = str(RECIPES / "real-135m-follow-up.toml")
    with pytest.raises(ConfigError, match="plan-first"):
        run.main([recipe, *files, *changes, "--without-worker", "dear"])
    run.main([recipe, *files, *changes, "--outcomes", "dev"])
    with gzip.open(tmp_path / "second" / "dev.jsonl.gz") as file:
        rows = [msgspec.json.decode(line) for line in file]
    assert {row["price"] for row in rows} == set(PRICES)
    assert all(row["cost"] >= row["alone_cost"] for row in rows)
    with pytest.raises(ConfigError, match="policy-first"):
        prove_conductor(tmp_path / "second", two_kinds(5, seed=3), where="here", base=tiny_base())
