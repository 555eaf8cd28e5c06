"""TRL trains a tiny model on a CPU with our reward function, and the rewards are those of the plans."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.facts import facts

pytest.importorskip("trl", reason="needs the extra `trl`")

from dirigent.config.file import load_config
from dirigent.errors import ConfigError, LimitError
from dirigent.learn.live_plans import Outcome, carry_out
from dirigent.limits import Limits
from dirigent.plan.plan import Plan, Step, format_plan
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted
from dirigent_gym.train import trl_run
from dirigent_gym.train.trl_run import (
    PlanReward,
    PlanRewards,
    TrlRecipe,
    load_recipe,
    opened,
    prompts,
    rewards,
    trl_config,
)

ROOT = Path(__file__).parents[3]
PAPER = ROOT / "recipes" / "paper-7b.toml"
TASKS = [Task(f"t{n}", f"How much is {n} and 1?", str(n + 1), grader="final_number") for n in range(8)]
POOL = """
[[worker]]
name = "able"
kind = "scripted"
replies = ["1"]
[[worker]]
name = "mine"
kind = "scripted"
replies = ["0"]
[profile.team]
planner = "language"
planner_worker = "mine"
"""
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama that knows characters, in the hub's format."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=260, special_tokens=["<pad>", "<end>"], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(["a"], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<end>", chat_template=TEMPLATE, padding_side="left"
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=8192, eos_token_id=1, pad_token_id=0, bos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def recipe(tmp_path: Path, model: Path) -> TrlRecipe:
    (tmp_path / "pool.toml").write_text(POOL)
    (tmp_path / "tasks.jsonl").write_bytes(b"\n".join(msgspec.json.encode(task) for task in TASKS))
    trl = {
        "max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 6,
        "learning_rate": 1e-3, "use_cpu": True, "bf16": False, "save_steps": 1, "logging_steps": 1,
        "eval_strategy": "steps", "eval_steps": 2, "num_generations_eval": 1, "disable_tqdm": True,
    }  # fmt: skip
    tasks = str(tmp_path / "tasks.jsonl")
    return TrlRecipe(
        "tiny",
        str(model),
        str(tmp_path / "pool.toml"),
        tasks,
        dev_tasks=tasks,
        profile="team",
        dialect="lines",
        trl=trl,
    )


def log_of(out: Path, step: int) -> list[dict[str, Any]]:
    state = json.loads((out / f"checkpoint-{step}" / "trainer_state.json").read_text())
    return list(state["log_history"])


@pytest.mark.timeout(600)
def test_trl_trains_a_model_on_our_rewards_and_resumes(recipe: TrlRecipe, tmp_path: Path) -> None:
    out = tmp_path / "run"
    trl_run.train(recipe, out)
    assert (out / "model" / "model.safetensors").is_file()
    assert sorted(folder.name for folder in out.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    first = log_of(out, 2)[0]
    assert first["rewards/plan/mean"] == 0.0, "a random model writes no plan"
    assert first["valid"] == 0.0
    longer = msgspec.structs.replace(recipe, trl=recipe.trl | {"max_steps": 3})
    trl_run.train(longer, out, resume=True)
    assert [row["step"] for row in log_of(out, 3) if "loss" in row] == [1, 2, 3]


def completion(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def plan(worker: str, names: tuple[str, ...] = ("able",)) -> str:
    return format_plan(Plan((Step(worker, "Say it."),)), names, dialect="lines")


def test_a_plan_is_carried_out_over_the_pool_and_judged(recipe: TrlRecipe) -> None:
    with opened(recipe) as (pool, sandbox, run):
        assert pool.names == ("able",), "the planning worker is not offered"
        reward = PlanReward(recipe, pool, run, sandbox=sandbox)
        logged: dict[str, float] = {}
        dataset = prompts(TASKS[:2], pool, recipe)
        tasks = [dataset[0]["task"], dataset[1]["task"], dataset[0]["task"]]
        texts = [completion(plan("able")), completion(plan("able")), completion("no plan")]
        assert reward([], texts, tasks, log_metric=logged.__setitem__) == [1.0, 0.5, 0.0]
        assert (logged["valid"], logged["right"], logged["steps"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3), 1.0)
        assert TASKS[0].question in dataset[0]["prompt"][-1]["content"]


async def outcome(text: str, pool: Pool) -> Outcome:
    return await carry_out(text, TASKS[0], pool, limits=Limits(), dialect="lines")


async def test_a_fault_of_a_worker_gets_the_mean_of_its_group() -> None:
    from dirigent.errors import WorkerError

    pool = Pool([Scripted("1", name="able"), Scripted(WorkerError("down", fault="connect"), name="down")])
    names = ("able", "down")
    fine = await outcome(plan("able", names), pool)
    down = await outcome(plan("down", names), pool)
    none = await outcome("no plan", pool)
    assert (fine.correct, bool(down.dropped), none.valid) == (True, True, False)
    settings = PlanRewards()
    assert rewards([fine, down, none, down], ["a", "a", "a", "b"], settings) == [1.0, 0.5, 0.0, 0.5]


def test_a_run_ends_once_its_workers_may_cost_no_more(recipe: TrlRecipe, tmp_path: Path) -> None:
    priced = POOL.replace('replies = ["1"]', 'replies = ["1"]\nprice = { input = 1000000, output = 1000000 }')
    (tmp_path / "pool.toml").write_text(priced)
    capped = msgspec.structs.replace(recipe, max_cost_usd=0.5)
    with opened(capped) as (pool, sandbox, run):
        reward = PlanReward(capped, pool, run, sandbox=sandbox)
        task = prompts(TASKS[:1], pool, capped)[0]["task"]
        with pytest.raises(LimitError, match=facts("max_cost_usd")):
            reward([], [completion(plan("able"))], [task])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trl": {"num_generation": 4}}, "num_generation num_generations"),
        ({"trl": {"seed": 4}}, "seed"),
        ({"profile": "tem"}, "tem team"),
        ({"tasks": "nowhere.jsonl"}, "nowhere.jsonl"),
    ],
)
def test_settings_that_cannot_be_carried_out_are_named(
    changes: dict[str, Any], said: str, recipe: TrlRecipe, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=facts(said)):
        trl_run.train(msgspec.structs.replace(recipe, **changes), tmp_path / "run")


def test_the_papers_recipe_has_the_papers_settings(tmp_path: Path) -> None:
    recipe = load_recipe(PAPER, changes=["trl.use_vllm=false", "trl.bf16=false", "trl.use_cpu=true"])
    config = trl_config(recipe, tmp_path)
    assert recipe.model == "Qwen/Qwen2.5-7B-Instruct"
    assert (config.max_steps, config.num_generations, config.max_completion_length) == (200, 64, 1024)
    assert (config.learning_rate, config.lr_scheduler_type, config.warmup_steps / 200) == (1e-6, "cosine", 0.03)
    assert (config.loss_type, config.scale_rewards, config.beta, config.epsilon) == ("bnpo", "group", 0.0, 0.2)
    assert (recipe.reward.invalid, recipe.reward.wrong, recipe.reward.right) == (0.0, 0.5, 1.0)
    assert (recipe.dialect, recipe.max_steps) == ("lists", 5)


def test_the_papers_conductor_is_asked_in_the_dialect_that_it_is_trained_in() -> None:
    recipe = load_recipe(PAPER)
    asked = load_config(ROOT / recipe.pool).config.profile[recipe.profile]
    assert (asked.planner, asked.dialect) == ("conductor", recipe.dialect)


def test_the_papers_launch_makes_four_groups_a_step_on_the_processes_that_it_starts() -> None:
    """DeepSpeed ZeRO-3 in bf16. Batches are the recipe's, which DeepSpeed asks."""
    from accelerate.commands.launch import launch_command_parser
    from yaml import safe_load

    command = re.search(r"^#   accelerate launch (.*)$", PAPER.read_text(encoding="utf-8"), re.M)
    assert command is not None
    typed = launch_command_parser().parse_args(command[1].split())
    assert (typed.module, typed.training_script) == (True, "dirigent_gym.train.trl_run")
    launch = safe_load((ROOT / typed.config_file).read_text())
    assert (launch["distributed_type"], launch["deepspeed_config"]["zero_stage"]) == ("DEEPSPEED", 3)
    assert "gradient_accumulation_steps" not in launch["deepspeed_config"]
    trl = load_recipe(ROOT / typed.training_script_args[0]).trl
    rows = launch["num_processes"] * trl["per_device_train_batch_size"] * trl["gradient_accumulation_steps"]
    assert rows == 4 * trl["num_generations"]


def test_a_recipe_that_cannot_be_read_names_the_file_and_the_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=facts("nowhere.toml")):
        load_recipe(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match=facts("rewards")):
        load_recipe(PAPER, changes=["rewards.right=2"])
    with pytest.raises(ConfigError, match=facts("max_steps")):
        load_recipe(PAPER, changes=["max_steps=many"])


async def test_a_second_round_may_improve_the_first_ones_answer() -> None:
    pool = Pool([Scripted("0", "1", name="able")])
    ran = await carry_out(plan("able"), TASKS[0], pool, limits=Limits(), dialect="lines", then=plan("able"))
    assert (ran.correct, len(ran.trace.rounds)) == (True, 2)
    assert ran.plan == ran.trace.rounds[0].plan
