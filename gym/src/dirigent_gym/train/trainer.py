"""TRL's trainer, set to a recipe: so many updates for each draw of rollouts, and resumed as the recipe has it now.

The dataset TRL is given only counts: `rollouts.py` draws the real rows, because what to draw follows what was learned
and because groups without variance are replaced before TRL ever sees them.

What is changed of TRL, in subclasses made on call because importing it takes seconds: which adapter a checkpoint holds,
what it is called, whose rate counts after one was read, that groups stay whole where a draw is divided, that a
group's prompt is read once, and for two controls what a plan counts and that those which count nothing are not read.
Knows nothing of rewards or curricula.

TRL and transformers count updates. Everybody else counts draws, and nothing is saved or ended but after a whole one, so
TRL's own place within a draw, which no checkpoint has, is always its beginning.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from dirigent_gym.train.batching import batching
from dirigent_gym.train.checkpoint import PREFIX
from dirigent_gym.train.passes import Sums
from dirigent_gym.train.policy import ADAPTER, Policy, exchange
from dirigent_gym.train.recipe import GrpoSettings, Recipe
from dirigent_gym.train.rollouts import Rollouts
from dirigent_gym.train.shards import gathering, is_shared_out
from dirigent_gym.train.shared_prompts import in_equal_passes, log_probs_and_entropies

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # `rollout_func` is called experimental; TRL is pinned for it

REFERENCE_ADAPTER = "ref"
"""TRL's copy of the adapter as it started, from which the policy's distance is measured."""


def make_trainer(recipe: Recipe, policy: Policy, rollouts: Rollouts, *, out: Path, callback: Any) -> Any:
    """The trainer of a policy whose rows these rollouts draw."""
    from transformers import PrinterCallback

    args = trainer_arguments(recipe, out=out)
    kind = _resuming_trainer(policy, rate=recipe.grpo.learning_rate, updates=recipe.grpo.updates)
    if recipe.algorithm != "grpo":
        kind = _imitating(kind, rollouts)
    if args.steps_per_generation > 1:
        kind = _keeping_groups_whole(kind)
    if only_right_plans_count(recipe):
        kind = _reading_what_counts(kind)
    if recipe.grpo.share_prompts and policy.model.config._attn_implementation == "sdpa":
        kind = _sharing_prompts(kind)
    trainer = kind(
        model=policy.model,
        reward_funcs=[rollouts.plan_reward],
        args=args,
        train_dataset=_counting_rows(recipe.grpo.prompts),
        processing_class=policy.tokenizer,
        rollout_func=_drawing(recipe, policy, rollouts),
        callbacks=[callback],
    )
    trainer.remove_callback(PrinterCallback)
    policy.gather = gathering(trainer)
    return trainer


def _drawing(recipe: Recipe, policy: Policy, rollouts: Rollouts) -> Any:
    """What TRL asks for a draw of rollouts."""
    if recipe.algorithm == "rft":
        return _from_start(policy, rollouts)
    if recipe.grpo.sampler == "torch" or recipe.second_round.share > 0:
        return _reading_weights(policy, rollouts)
    return rollouts.sample  # vLLM's copy writes all of it


def _reading_weights(policy: Policy, rollouts: Rollouts) -> Any:
    """The rollouts of a draw, with the weights brought together once for it: processes refill differently often."""

    def sample(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        with policy.whole():
            return rollouts.sample(prompts, trainer)

    return sample


def _from_start(policy: Policy, rollouts: Rollouts) -> Any:
    """The rollouts of a draw, written with the weights that the policy has now: before anything is learned, and before
    a checkpoint is read."""
    trained = [weight for weight in policy.model.parameters() if weight.requires_grad]
    start = [weight.detach().clone() for weight in trained]

    def sample(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        learned = [weight.data for weight in trained]
        exchange(trained, start)
        try:
            return rollouts.sample(prompts, trainer)
        finally:
            exchange(trained, learned)

    return sample


def _resuming_trainer(policy: Policy, *, rate: float, updates: int) -> Any:
    """TRL's trainer, but that a checkpoint holds the policy alone, is called by its draw, and the recipe's rate counts
    after it was read.

    Of a checkpoint with adapters in folders transformers loads those alone. TRL's reference is one, so the policy
    itself would begin again from its warm start. The reference is that start, which lies in the run's folder already
    and is on the model before a checkpoint is read: it is neither kept nor looked for.
    """
    from trl import GRPOTrainer

    class Resuming(GRPOTrainer):  # type: ignore[misc]
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            super()._save(output_dir, state_dict)
            shutil.rmtree(Path(output_dir or self.args.output_dir) / REFERENCE_ADAPTER, ignore_errors=True)

        def _save_checkpoint(self, model: Any, trial: Any) -> None:
            super()._save_checkpoint(model, trial)
            if updates > 1:
                self.accelerator.wait_for_everyone()  # each process writes a part
                if self.args.should_save:
                    name_by_draw(Path(self.args.output_dir), update=self.state.global_step, updates=updates)
                self.accelerator.wait_for_everyone()  # and adds to it what it remembers, under that name

        def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
            if hasattr(policy.model, "peft_config"):
                policy.model.load_adapter(resume_from_checkpoint, ADAPTER, is_trainable=True)
            else:
                super()._load_from_checkpoint(resume_from_checkpoint, model)

        def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
            super()._load_optimizer_and_scheduler(checkpoint)
            if checkpoint is not None:
                set_rate(self.lr_scheduler, rate)

    return Resuming


def name_by_draw(out: Path, *, update: int, updates: int) -> None:
    """Call the checkpoint that was just written by its draw. Whatever has that name was cut: none of it counts, or the
    run would have gone on from there."""
    folder = out / f"{PREFIX}{update // updates}"
    shutil.rmtree(folder, ignore_errors=True)
    (out / f"{PREFIX}{update}").rename(folder)


def set_rate(schedule: Any, rate: float) -> None:
    """Put a schedule, and the optimiser it leads, where it would be now had this been its rate from the first step.

    A checkpoint brings back the rate that the schedule began with and the one that the optimiser had last, so that
    another rate, schedule or number of steps would not count, or not for the next step.
    """
    schedule = getattr(schedule, "scheduler", schedule)  # accelerate wraps it for DeepSpeed
    if not hasattr(schedule, "lr_lambdas"):
        return  # DeepSpeed's own, whose rate stands in DeepSpeed's settings
    schedule.base_lrs = [rate for _ in schedule.base_lrs]
    schedule._last_lr = [rate * factor(schedule.last_epoch) for factor in schedule.lr_lambdas]
    for group, now in zip(schedule.optimizer.param_groups, schedule._last_lr, strict=True):
        group["initial_lr"], group["lr"] = rate, now


def _imitating(kind: Any, rollouts: Rollouts) -> Any:
    """The same trainer, but that a right plan counts 1 and any other 0, however the rest of its group did.

    The gradient is that of imitating the right plans, as often as they were drawn; nothing is learned from the others.
    """

    class Imitating(kind):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            drawn = super()._generate_and_score_completions(inputs)
            drawn["advantages"] = drawn["advantages"].new_tensor(rollouts.right)
            return drawn

    return Imitating


def _keeping_groups_whole(kind: Any) -> Any:
    """The same trainer, but that a draw is shuffled by groups before it is divided into updates and passes.

    TRL shuffles rows, so that most prompts would be read again in every part.
    """
    from trl.trainer.utils import split_tensor_dict

    class WholeGroups(kind):  # type: ignore[misc]
        def _prepare_inputs(self, generation_batch: Any) -> Any:
            parts = self.args.steps_per_generation
            part = self._step % parts
            if part == 0:
                drawn = self._generate_and_score_completions(generation_batch)
                self._buffered_inputs = split_tensor_dict(shuffled_groups(drawn, size=self.num_generations), parts)
            return self._buffered_inputs[part]

    return WholeGroups


def shuffled_groups(columns: dict[str, Any], *, size: int) -> dict[str, Any]:
    """Tensors of a draw's rows, a group being so many in a row, with the groups in another order; single figures stay.

    In the order they were drawn, those that teach nothing would all fall to the last update.
    """
    import torch

    by_group = torch.arange(len(columns["advantages"])).view(-1, size)
    order = by_group[torch.randperm(len(by_group))].flatten()
    return {name: column[order] if column.ndim else column for name, column in columns.items()}


def only_right_plans_count(recipe: Recipe) -> bool:
    """Whether a plan that was wrong moves nothing at all: none holds it near its start, and no mean over plans counts
    it."""
    settings = recipe.grpo
    alone = settings.beta == 0 and settings.entropy_target == 0 and settings.loss == "dapo"
    return recipe.algorithm != "grpo" and alone


def _reading_what_counts(kind: Any) -> Any:
    """The same trainer, but that plans which count nothing are not read: the same gradient, from a tenth of the rows
    while few are right."""

    class ReadingWhatCounts(kind):  # type: ignore[misc]
        def _prepare_inputs(self, generation_batch: Any) -> Any:
            return what_counts(super()._prepare_inputs(generation_batch))

    return ReadingWhatCounts


def what_counts(columns: dict[str, Any]) -> dict[str, Any]:
    """Tensors of rows, those with an advantage only; one row stays where none has, since something must be read."""
    counts = columns["advantages"] != 0
    if not counts.any():
        counts[0] = True
    return {name: column[counts] if column.ndim else column for name, column in columns.items()}


def _sharing_prompts(kind: Any) -> Any:
    """The same trainer, but that a group's prompt is read once, and that the reference is merged once for a run."""

    reference = Sums()

    class SharingPrompts(kind):  # type: ignore[misc]
        def _get_per_token_logps_and_entropies(
            self,
            model: Any,
            input_ids: Any,
            attention_mask: Any,
            logits_to_keep: int,
            batch_size: int | None = None,
            **options: Any,
        ) -> tuple[Any, Any, Any]:
            unwrapped = self.accelerator.unwrap_model(model)
            read = partial(
                log_probs_and_entropies,
                model,
                completion_tokens=logits_to_keep,
                sums=reference if measures_reference(unwrapped) else None,
            )
            with self.accelerator.autocast():
                if is_shared_out(self.accelerator):
                    logps, entropies = in_equal_passes(read, input_ids, attention_mask, rows=batch_size)
                else:
                    logps, entropies = read(input_ids, attention_mask)
            return logps, entropies, None

    return SharingPrompts


def measures_reference(model: Any) -> bool:
    """Whether a pass is one of TRL's reference, which stays as it started and is never learned from."""
    import torch

    return (
        not torch.is_grad_enabled()
        and hasattr(model, "peft_config")
        and bool(model.active_adapter == REFERENCE_ADAPTER)
    )


def _counting_rows(n: int) -> Any:
    """Rows that only count: one epoch is one draw, and `Rollouts` draws what is really asked."""
    from datasets import Dataset

    return Dataset.from_dict({"prompt": [""] * n})


def trainer_arguments(recipe: Recipe, *, out: Path, processes: int | None = None) -> Any:
    """The recipe in TRL's words."""
    import torch
    from trl import GRPOConfig

    cuda = torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(out),
        seed=recipe.seed,
        bf16=cuda,
        use_cpu=not cuda,
        dataloader_pin_memory=False,
        # They are constants, and sent in every pass, of which processes may make differently many.
        ddp_broadcast_buffers=False,
        logging_steps=recipe.grpo.updates,
        report_to="none",
        disable_tqdm=True,
        save_strategy="steps",
        save_steps=recipe.grpo.save_every_steps * recipe.grpo.updates,
        save_total_limit=None,  # ours go when a newer one is sealed, not when it is written
        **_sampling(recipe.grpo, processes=processes or int(os.environ.get("WORLD_SIZE", "1"))),
        **_loss(recipe.grpo),
        **_optimising(recipe.grpo),
    )


def _sampling(settings: GrpoSettings, *, processes: int) -> dict[str, Any]:
    parts = batching(settings, processes=processes)
    vllm = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": settings.vllm_memory,
    }
    return {
        "per_device_train_batch_size": parts.minibatch,
        "gradient_accumulation_steps": parts.accumulation,
        "steps_per_generation": parts.accumulation * settings.updates,
        "num_generations": settings.rollouts,
        "max_completion_length": settings.max_completion_tokens,
        "temperature": settings.temperature,
        "top_p": 1.0,
        "top_k": 0,
        **(vllm if settings.sampler == "vllm" else {}),
    }


def _loss(settings: GrpoSettings) -> dict[str, Any]:
    return {
        "loss_type": settings.loss,
        "scale_rewards": "group" if settings.scale == "group" else "none",
        "epsilon": settings.epsilon,
        "beta": settings.beta,
        "use_adaptive_entropy": settings.entropy_target > 0,
        "entropy_target": settings.entropy_target,
        "entropy_coef_delta": settings.entropy_step,
        "entropy_coef_max": settings.entropy_most,
    }


def _optimising(settings: GrpoSettings) -> dict[str, Any]:
    updates = settings.steps * settings.updates
    return {
        "max_steps": updates,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": "constant_with_warmup" if settings.schedule == "constant" else settings.schedule,
        "warmup_steps": round(settings.warmup * updates),
        "weight_decay": 0.0,
        "max_grad_norm": settings.clip_norm,
        "gradient_checkpointing": settings.gradient_checkpointing,
    }
