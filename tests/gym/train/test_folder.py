"""A run's folder: what `--resume` goes on from and says, and which changes of a recipe it takes and keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.facts import Saying, facts, says

from dirigent.errors import ConfigError
from dirigent_gym.train.checkpoint import MARKER, latest, prune, seal
from dirigent_gym.train.folder import Claim, Counted, claim, claim_unchanged, default_folder, differences, held
from dirigent_gym.train.recipe import BaseSettings, DirectRecipe, GrpoSettings, Recipe

RECIPE = Recipe("run", grpo=GrpoSettings(steps=340, learning_rate=3e-4))


def with_grpo(**changes: Any) -> Recipe:
    return msgspec.structs.replace(RECIPE, grpo=msgspec.structs.replace(RECIPE.grpo, **changes))


def checkpoint(out: Path, step: int, *, sealed: bool = True) -> Path:
    folder = out / f"checkpoint-{step}"
    (folder / "ref").mkdir(parents=True)
    (folder / "weights.bin").write_text("weights")
    (folder / "ref" / "weights.bin").write_text("others")
    if sealed:
        seal(folder, step=step)
    return folder


def begun(out: Path, recipe: Recipe = RECIPE) -> Path:
    claim(recipe, out, resume=False)
    return out


# --- what it goes on from ---


def test_a_resumed_run_goes_on_from_its_newest_checkpoint_and_says_so(tmp_path: Path) -> None:
    begun(tmp_path)
    checkpoint(tmp_path, 9)
    newest = checkpoint(tmp_path, 10)
    found = claim(RECIPE, tmp_path, resume=True)
    assert found.resume_from == newest
    assert found.notes == (Saying(f"10 {newest}"),)


def test_the_only_checkpoint_being_damaged_is_refused_with_the_folder_and_the_files(tmp_path: Path) -> None:
    folder = checkpoint(begun(tmp_path), 10)
    (folder / "ref" / "weights.bin").unlink()
    (folder / "weights.bin").write_text("weig")
    with pytest.raises(ConfigError) as raised:
        claim(RECIPE, tmp_path, resume=True)
    for part in (str(folder), "ref/weights.bin is missing", "weights.bin has 4 bytes, not 7", "delete what is damaged"):
        assert part in str(raised.value)
    assert (folder / "weights.bin").read_text() == "weig"


def test_a_marker_that_cannot_be_read_is_damage_too(tmp_path: Path) -> None:
    folder = checkpoint(begun(tmp_path), 10)
    (folder / MARKER).write_text("{")
    with pytest.raises(ConfigError, match=facts("COMPLETE.json")):
        claim(RECIPE, tmp_path, resume=True)


def test_before_a_damaged_checkpoint_an_older_whole_one_is_taken_and_nothing_is_deleted(tmp_path: Path) -> None:
    begun(tmp_path)
    whole, broken = checkpoint(tmp_path, 10), checkpoint(tmp_path, 20)
    (broken / "weights.bin").unlink()
    found = claim(RECIPE, tmp_path, resume=True)
    assert found.resume_from == whole
    assert found.notes == (
        Saying("checkpoint-20 weights.bin damaged-checkpoint-20"),
        Saying(f"10 {whole}"),
    )
    assert not broken.exists()
    assert (tmp_path / "damaged-checkpoint-20" / "ref" / "weights.bin").exists()


def test_two_damaged_checkpoints_of_one_step_are_both_kept(tmp_path: Path) -> None:
    begun(tmp_path)
    checkpoint(tmp_path, 10)
    for _ in range(2):
        (checkpoint(tmp_path, 20) / "weights.bin").unlink()
        claim(RECIPE, tmp_path, resume=True)
    assert sorted(path.name for path in tmp_path.glob("damaged-*")) == [
        "damaged-checkpoint-20",
        "damaged-checkpoint-20-1",
    ]


def test_damage_before_the_newest_whole_checkpoint_is_nobodys_trouble(tmp_path: Path) -> None:
    begun(tmp_path)
    broken, whole = checkpoint(tmp_path, 10), checkpoint(tmp_path, 20)
    (broken / "weights.bin").unlink()
    assert claim(RECIPE, tmp_path, resume=True).notes == (Saying(f"20 {whole}"),)


def test_what_was_cut_while_it_was_written_is_passed_over_and_beginning_anew_is_said(tmp_path: Path) -> None:
    checkpoint(begun(tmp_path), 10, sealed=False)
    found = claim(RECIPE, tmp_path, resume=True)
    assert found.resume_from is None
    assert found.notes == (Saying(f"{tmp_path} 0"),)


def test_a_folder_that_holds_a_run_is_not_begun_anew_by_accident(tmp_path: Path) -> None:
    start = begun(tmp_path / "run") / "warm-start"
    start.mkdir()
    seal(start, step=0)
    checkpoint(tmp_path / "lost its recipe", 10)
    for name in ("run", "lost its recipe"):
        with pytest.raises(ConfigError, match=facts("--resume")):
            claim(RECIPE, tmp_path / name, resume=False)


def test_a_start_that_failed_leaves_the_folder_to_the_recipe_as_it_was_mended(tmp_path: Path) -> None:
    (begun(tmp_path) / "warm-start").mkdir()
    mended = msgspec.structs.replace(RECIPE, base=BaseSettings(weights="smollm2-360m.gguf"))
    found = claim(mended, tmp_path, resume=False)
    assert (found.resume_from, found.history) == (None, (Counted(1, "", mended),))
    assert msgspec.json.decode((tmp_path / "recipe.json").read_bytes(), type=Recipe) == mended


def test_a_recipe_that_was_lost_is_taken_for_the_one_given_and_that_is_said(tmp_path: Path) -> None:
    checkpoint(tmp_path, 10)
    found = claim(RECIPE, tmp_path, resume=True)
    assert says(found.notes[-1], f"{tmp_path / 'recipe.json'}")
    assert found.history == (Counted(1, "", RECIPE),)


def test_where_only_the_list_of_recipes_is_left_its_last_one_still_counts(tmp_path: Path) -> None:
    checkpoint(begun(tmp_path), 10)
    (tmp_path / "recipe.json").unlink()
    with pytest.raises(ConfigError, match="seed 1 -> 99"):
        claim(msgspec.structs.replace(RECIPE, seed=99), tmp_path, resume=True)
    assert len(claim(RECIPE, tmp_path, resume=True).notes) == 1


def test_further_processes_go_on_from_the_same_place_and_say_and_write_nothing(tmp_path: Path) -> None:
    whole = checkpoint(begun(tmp_path), 10)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert claim(RECIPE, tmp_path, resume=True, process=1) == Claim(whole)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


# --- which recipe counts ---


def test_a_longer_run_at_another_rate_goes_on_and_says_what_changed_in_a_line(tmp_path: Path) -> None:
    checkpoint(begun(tmp_path), 340)
    longer = with_grpo(steps=464, learning_rate=8e-4)
    found = claim(longer, tmp_path, resume=True)
    assert says(found.notes[-1], "341 steps 340 -> 464 learning_rate 3e-4 -> 8e-4")
    assert found.history == (
        Counted(1, "", RECIPE),
        Counted(341, "steps 340 -> 464, learning_rate 3e-4 -> 8e-4", longer),
    )
    assert msgspec.json.decode((tmp_path / "recipe.json").read_bytes(), type=Recipe) == longer
    assert [one["from_update"] for one in json.loads((tmp_path / "recipes.json").read_text())] == [1, 341]


def test_each_seed_has_a_folder_of_its_own() -> None:
    assert default_folder(RECIPE) == Path("runs") / RECIPE.name
    assert default_folder(RECIPE, seed=2) == Path("runs") / f"{RECIPE.name}-seed-2"


def test_another_name_alone_is_no_change(tmp_path: Path) -> None:
    checkpoint(begun(tmp_path), 10)
    found = claim(msgspec.structs.replace(RECIPE, name="other", about="the same"), tmp_path, resume=True)
    assert found.history == (Counted(1, "", RECIPE),)


def test_all_that_may_change_may_change_at_once(tmp_path: Path) -> None:
    checkpoint(begun(tmp_path), 10)
    changed = msgspec.structs.replace(
        with_grpo(
            steps=20, learning_rate=1e-5, schedule="linear", minibatch_rows=512, oversample=1.5, save_every_steps=2
        ),
        eval=msgspec.structs.replace(RECIPE.eval, every_steps=3, n=7, ceiling=0.5),
    )
    assert claim(changed, tmp_path, resume=True).notes[-1].endswith(
        "steps 340 -> 20, minibatch_rows 1024 -> 512, learning_rate 3e-4 -> 1e-5, schedule cosine -> linear, "
        "oversample 1 -> 1.5, save_every_steps 10 -> 2, eval.every_steps 20 -> 3, eval.n 256 -> 7, "
        "eval.ceiling nothing -> 0.5"
    )  # fmt: skip


def test_any_other_change_is_refused_by_name_and_what_is_kept_stays(tmp_path: Path) -> None:
    checkpoint(begun(tmp_path), 10)
    other = msgspec.structs.replace(with_grpo(steps=400, beta=0.1), seed=99)
    with pytest.raises(ConfigError) as raised:
        claim(other, tmp_path, resume=True)
    assert says(str(raised.value), "seed 1 99 grpo.beta 0.04 0.1 --resume grpo.steps")
    assert "steps 340" not in str(raised.value)
    assert msgspec.json.decode((tmp_path / "recipe.json").read_bytes(), type=Recipe) == RECIPE


def test_a_run_at_its_end_goes_on_only_with_more_steps(tmp_path: Path) -> None:
    checkpoint(begun(tmp_path), 340)
    (tmp_path / "result.json").write_text('{"recipe":"run","step":340}')
    with pytest.raises(ConfigError, match=facts("340 grpo.steps")):
        claim(RECIPE, tmp_path, resume=True)
    with pytest.raises(ConfigError, match=facts("100")):
        claim(with_grpo(steps=100), tmp_path, resume=True)
    assert claim(with_grpo(steps=341), tmp_path, resume=True).resume_from is not None


@pytest.mark.parametrize("result", ["", "{", '{"step":330}'])
def test_a_run_that_was_killed_before_its_last_adapter_was_written_goes_on_to_write_it(
    result: str, tmp_path: Path
) -> None:
    newest = checkpoint(begun(tmp_path), 340)
    if result:
        (tmp_path / "result.json").write_text(result)
    assert claim(RECIPE, tmp_path, resume=True).resume_from == newest
    with pytest.raises(ConfigError, match=facts("100")):
        claim(with_grpo(steps=100), tmp_path, resume=True)


def test_a_folder_is_one_launchs_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with held(folder):
        with (
            pytest.raises(ConfigError, match=facts("run --out")),
            held(folder),
        ):
            pytest.fail("two runs would write the same checkpoints")
        with held(folder, process=1), held(tmp_path / "other"):
            pass
    with held(folder):
        pass


def test_a_recipe_whose_updates_were_all_lost_leaves_the_history(tmp_path: Path) -> None:
    """Changed, killed before the next checkpoint, changed again: the first change never counted."""
    checkpoint(begun(tmp_path), 100)
    claim(with_grpo(steps=400), tmp_path, resume=True)
    again = claim(with_grpo(steps=500), tmp_path, resume=True)
    assert [(one.from_update, one.changed) for one in again.history] == [(1, ""), (101, "steps 340 -> 500")]
    back = claim(RECIPE, tmp_path, resume=True)
    assert back.history == (Counted(1, "", RECIPE),)
    assert len(back.notes) == 1


def test_a_recipe_that_changed_before_any_update_is_the_only_one(tmp_path: Path) -> None:
    begun(tmp_path)
    longer = with_grpo(steps=400)
    found = claim(longer, tmp_path, resume=True)
    assert found.history == (Counted(1, "", longer),)
    assert says(found.notes[-1], "1 steps 340 -> 400")


def test_recipes_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    checkpoint(begun(tmp_path), 10)
    (tmp_path / "recipes.json").write_text("[{")
    with pytest.raises(ConfigError, match=facts("recipes.json")):
        claim(RECIPE, tmp_path, resume=True)


def test_runs_of_other_kinds_take_no_change_and_no_other_kinds_folder(tmp_path: Path) -> None:
    direct = DirectRecipe("direct")
    claim_unchanged(direct, tmp_path, resume=False)
    claim_unchanged(direct, tmp_path, resume=True)
    with pytest.raises(ConfigError, match=facts("learning_rate 0.001 5e-4")):
        claim_unchanged(msgspec.structs.replace(direct, learning_rate=5e-4), tmp_path, resume=True)
    with pytest.raises(ConfigError, match=facts("recipe.json")):
        claim(RECIPE, tmp_path, resume=True)


def test_differences_name_settings_of_tables_that_one_recipe_lacks() -> None:
    tiny = msgspec.convert({"name": "run", "base": {"tiny": {"hidden": 32}}}, Recipe)
    changed = differences(RECIPE, tiny)
    assert changed["base.tiny.hidden"] == "nothing -> 32"
    assert differences(tiny, tiny) == {}


# --- what is kept ---


def test_older_checkpoints_go_only_when_newer_ones_are_whole(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        checkpoint(tmp_path, step)
    checkpoint(tmp_path, 15, sealed=False)
    checkpoint(tmp_path, 40, sealed=False)
    (checkpoint(tmp_path, 5) / "weights.bin").unlink()
    prune(tmp_path, keep=2)
    left = sorted(int(path.name.removeprefix("checkpoint-")) for path in tmp_path.iterdir())
    assert left == [5, 20, 30, 40]  # 5 is damaged, 40 may be being written
    assert latest(tmp_path) == (tmp_path / "checkpoint-30", 30)


def test_copies_under_other_names_are_nobodys_checkpoint(tmp_path: Path) -> None:
    checkpoint(tmp_path, 10).rename(tmp_path / "checkpoint-10-mine")
    assert latest(tmp_path) is None
    prune(tmp_path, keep=2)
    assert (tmp_path / "checkpoint-10-mine").exists()
