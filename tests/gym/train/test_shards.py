"""Weights that are shared out over processes: brought together where they are read, and by all processes together.

DeepSpeed itself is not needed: what stands for it here takes the weights away, as it does, until they are gathered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from tests.facts import facts
from tests.gym.train.llamas import small_llama

from dirigent.errors import ConfigError
from dirigent_gym.train import processes, shards
from dirigent_gym.train.dataset import RowState
from dirigent_gym.train.grpo import TrainState, Watch, load_state, state_file
from dirigent_gym.train.policy import Policy, export, tried
from dirigent_gym.train.progress import Progress
from dirigent_gym.train.recipe import PolicySettings, Recipe, TinySettings, load_conductor
from dirigent_gym.train.result import Stop
from dirigent_gym.train.reward import Scored
from dirigent_gym.train.rows import SkillRows
from dirigent_gym.train.scorer import open_scorer
from dirigent_gym.train.shards import gathering, refuse_unfit, take_own_device
from dirigent_gym.train.shared_prompts import in_equal_passes, log_probs_and_entropies
from dirigent_gym.train.tiny import tiny_base
from dirigent_gym.train.trainer import make_trainer

RECIPES = Path(__file__).parents[3] / "gym" / "recipes"

# --- the way a process was launched ---


@pytest.mark.parametrize(("rank", "gpus", "taken"), [("1", True, [1]), (None, True, []), ("1", False, [])])
def test_each_process_takes_the_gpu_of_its_number_where_there_are_several_and_gpus(
    rank: str | None, gpus: bool, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", seen.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    take_own_device()
    assert seen == taken


def launched(monkeypatch: pytest.MonkeyPatch, *, installed: bool = True, **settings: str) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"ACCELERATE_{name}", value)
    monkeypatch.setattr(shards, "find_spec", lambda name: object() if installed else None)


def test_the_papers_recipe_fits_the_papers_launch_because_it_trains_all_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched(monkeypatch, USE_DEEPSPEED="true", DEEPSPEED_ZERO_STAGE="3")
    recipe = load_conductor(RECIPES.parents[1] / "recipes" / "paper-7b.toml")
    refuse_unfit(recipe)
    with pytest.raises(ConfigError, match=facts("policy.rank 8")):
        refuse_unfit(msgspec.structs.replace(recipe, policy=PolicySettings(rank=8)))
    rft = msgspec.structs.replace(recipe, algorithm="rft", grpo=msgspec.structs.replace(recipe.grpo, sampler="torch"))
    with pytest.raises(ConfigError, match=facts("rft")):
        refuse_unfit(rft)


def test_what_a_launch_cannot_carry_out_is_said_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    refuse_unfit(tiny_recipe)
    launched(monkeypatch, USE_DEEPSPEED="true", DEEPSPEED_ZERO_STAGE="2")
    refuse_unfit(tiny_recipe)
    launched(monkeypatch, DEEPSPEED_ZERO_STAGE="3")
    with pytest.raises(ConfigError, match=facts("policy.rank 16 0")):
        refuse_unfit(tiny_recipe)
    settings = tmp_path / "zero.json"
    settings.write_text(json.dumps({"zero_optimization": {"stage": 1}}), encoding="utf-8")
    launched(monkeypatch, DEEPSPEED_CONFIG_FILE=str(settings))
    refuse_unfit(tiny_recipe)
    launched(monkeypatch, installed=False)
    with pytest.raises(ConfigError, match=facts("pip install deepspeed")):
        refuse_unfit(tiny_recipe)
    launched(monkeypatch, USE_FSDP="true")
    with pytest.raises(ConfigError, match=facts("recipes/zero3.yaml")):
        refuse_unfit(tiny_recipe)


# --- reading weights that are shared out ---


class SharedOut:
    """Takes a model's weights away; gathered, they are there."""

    def __init__(self, model: Any) -> None:
        self.whole = {parameter: parameter.data for parameter in model.parameters()}
        self.gathered = 0
        self._let_go()

    @contextmanager
    def gather(self) -> Iterator[None]:
        self.gathered += 1
        for parameter, data in self.whole.items():
            parameter.data = data
        try:
            yield
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for parameter in self.whole:
            parameter.data = torch.empty(0)


def all_weights(recipe: Recipe) -> Recipe:
    return msgspec.structs.replace(recipe, policy=PolicySettings(rank=0))


@pytest.fixture
def policy() -> Policy:
    model, tokenizer = tiny_base(
        ["Convert 14 to Roman numerals.", "0: roman"], settings=TinySettings(words=300), seed=3
    )
    return Policy(model, tokenizer, max_completion_tokens=6)


def questions(recipe: Recipe, n: int) -> Sequence[Any]:
    return SkillRows(recipe.tasks.skills, seed=1, settings=recipe.rows).draw(n)


def test_plans_are_written_with_gathered_weights_and_never_by_captured_graphs(
    policy: Policy, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = questions(tiny_recipe, 3)
    before = policy.write(rows, group=2, seed=5)
    policy.gather = (shared := SharedOut(policy.model)).gather
    seen: list[Any] = []
    from dirigent_gym.train import policy as module

    real = module.decode

    def looked_at(*args: Any, graphs: Any, **options: Any) -> Any:
        seen.append(graphs)
        return real(*args, graphs=graphs, **options)

    monkeypatch.setattr(module, "decode", looked_at)
    assert policy.write(rows, group=2, seed=5) == before
    assert (shared.gathered, seen) == (1, [None])
    assert all(not parameter.numel() for parameter in policy.model.parameters())


def test_weights_are_gathered_once_for_all_that_happens_inside(policy: Policy, tiny_recipe: Recipe) -> None:
    rows = questions(tiny_recipe, 2)
    policy.gather = (shared := SharedOut(policy.model)).gather
    with policy.whole():
        policy.write(rows, group=1, seed=None)
        policy.write(rows, group=1, seed=None)
    assert shared.gathered == 1
    with pytest.raises(ValueError, match="no such thing"), policy.whole():
        raise ValueError("no such thing")
    policy.write(rows, group=1, seed=None)
    assert shared.gathered == 3


def test_what_is_exported_is_whole(policy: Policy, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    whole = {name: parameter.detach().clone() for name, parameter in policy.model.named_parameters()}
    policy.gather = SharedOut(policy.model).gather
    with policy.whole():
        export(policy, tmp_path / "adapter")
    found = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "adapter").named_parameters())
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) for name in whole)


def test_a_draw_gathers_once_however_often_it_is_refilled(policy: Policy, tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Processes refill differently often, and all of them gather together."""

    def sample(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        for _ in prompts:
            policy.write(rows, group=1, seed=None)
        return {"refilled": len(prompts)}

    from transformers import TrainerCallback

    recipe, rows = all_weights(tiny_recipe), questions(tiny_recipe, 2)

    async def plan_reward(**_: Any) -> list[float]:
        return []

    rollouts: Any = SimpleNamespace(sample=sample, plan_reward=plan_reward)
    trainer = make_trainer(recipe, policy, rollouts, out=tmp_path, callback=TrainerCallback())
    assert policy.gather is None, "one process has its weights"
    policy.gather = (shared := SharedOut(policy.model)).gather
    assert trainer.rollout_func(["", "", ""], trainer) == {"refilled": 3}
    assert shared.gathered == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_process_gathers_with_the_others_whatever_becomes_of_its_share(
    policy: Policy, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The second of two, where there is one row: nothing falls to it. All the same it may fail."""
    theirs = Scored(True, True, 1.0, tokens=4)
    told: list[Any] = []

    def everyones(own: Any) -> list[Any]:
        told.append(own)
        return [({0: theirs}, ""), own]

    def prompts(rows: Sequence[Any]) -> Any:
        raise ValueError("no words for it")

    monkeypatch.setattr(processes, "_number", lambda: (1, 2))
    monkeypatch.setattr(processes, "everyones", everyones)
    policy.gather = (shared := SharedOut(policy.model)).gather
    with open_scorer(tiny_recipe) as scorer:
        if fails:
            monkeypatch.setattr(policy, "prompts", prompts)
            with pytest.raises(ValueError, match="no words for it"):
                tried(policy, scorer, questions(tiny_recipe, 1), seed=None)
        else:
            assert tried(policy, scorer, questions(tiny_recipe, 1), seed=None) == [theirs]
    assert told == [({}, "ValueError: no words for it" if fails else "")]
    assert shared.gathered == 1


def test_a_row_is_written_to_in_the_words_that_it_has_among_all(policy: Policy, tiny_recipe: Recipe) -> None:
    rows = questions(tiny_recipe, 5)
    for seed in (None, 7):
        among_all, alone = (policy.write(rows, group=2, seed=seed, places=places) for places in (None, [4, 1]))
        assert alone.texts_PG == [among_all.texts_PG[4], among_all.texts_PG[1]]
        assert alone.prompts_P == [among_all.prompts_P[4], among_all.prompts_P[1]]


def test_only_where_weights_are_shared_out_are_they_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """By TRL's own way of it, around the model as it is wrapped by then."""

    def trainer(stage: int) -> Any:
        plugin = SimpleNamespace(zero_stage=stage)
        accelerator = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin))
        args = SimpleNamespace(gradient_checkpointing_kwargs={"use_reentrant": False})
        return SimpleNamespace(accelerator=accelerator, args=args, model_wrapped="not yet")

    entered: list[Any] = []

    @contextmanager
    def unwrapped(model: Any, accelerator: Any, **options: Any) -> Iterator[None]:
        entered.append((model, options))
        yield

    monkeypatch.setattr("trl.models.unwrap_model_for_generation", unwrapped)
    assert gathering(trainer(2)) is None
    gather = gathering(now := trainer(3))
    assert gather is not None
    now.model_wrapped = "wrapped"
    with gather():
        pass
    assert entered == [("wrapped", {"gradient_checkpointing_kwargs": {"use_reentrant": False}})]


@pytest.mark.parametrize(("rows", "passes"), [(2, 3), (4, 2), (None, 1)])
def test_every_process_makes_as_many_passes_however_long_its_rows_are(rows: int | None, passes: int) -> None:
    model = small_llama(seed=2, vocab_size=300, max_position_embeddings=64)
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    ids = torch.arange(6 * 20).reshape(6, 20)
    mask = torch.ones_like(ids)
    mask[:3, 12:] = 0
    made: list[int] = []
    model.register_forward_hook(lambda *_: made.append(1))
    read = partial(log_probs_and_entropies, model, completion_tokens=10)
    with torch.no_grad():
        wanted = read(ids, mask, most_tokens=8)
        assert len(made) == 6, "of their own choosing rows go by how long they are"
        made.clear()
        found = in_equal_passes(read, ids, mask, rows=rows)
    assert len(made) == passes
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


# --- what processes remember ---


def test_each_process_goes_on_from_what_it_remembered_and_a_new_one_from_what_the_first_did(tmp_path: Path) -> None:
    for process, draws in ((0, 4), (1, 7)):
        state = TrainState(rows=RowState(draws=draws))
        state_file(tmp_path, process).write_bytes(msgspec.json.encode(state))
    assert [load_state(tmp_path, process=process).rows.draws for process in range(3)] == [4, 7, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dirigent-1.json", "dirigent.json"]


def test_an_update_that_deepspeed_stepped_over_had_bad_gradients(tmp_path: Path, tiny_recipe: Recipe) -> None:
    """DeepSpeed keeps gradients to itself and has looked at them by then."""
    rows, progress = SkillRows(("roman",), seed=1, settings=tiny_recipe.rows), Progress(tmp_path, steps=1, quiet=True)
    watch = Watch(
        tiny_recipe, None, None, rows=rows, dev=(), ceiling=1.0, progress=progress, stop=Stop()  # type: ignore[arg-type]
    )  # fmt: skip
    progress.close()
    seen = []
    for skipped in (False, True, False):
        watch.callback().on_optimizer_step(None, None, None, optimizer=SimpleNamespace(step_was_skipped=skipped))
        seen.append(watch.rollouts.metrics["bad_gradients"])
    assert seen == [0.0, 1.0, 1.0]
