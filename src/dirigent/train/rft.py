"""A control: rejection-sampling fine-tuning. Draw as many rollouts as GRPO would, imitate those that were right.

The same rows, sampler, workers, curriculum, rate and watch as `grpo.py`; what is missing is the comparison within a
group, so nothing is ever learned from a rollout that was wrong. RL is worth its name only if it beats this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from dirigent.train.checkpoint import PREFIX
from dirigent.train.grpo import TrainState, Watch
from dirigent.train.policy import Policy
from dirigent.train.recipe import GrpoSettings
from dirigent.train.rollouts import Group
from dirigent.train.sft import Row as Lesson
from dirigent.train.sft import collate, completion_loss
from dirigent.train.trainer import schedule_name

WEIGHTS_FILE = "weights.pt"


def train_by_imitation(watch: Watch, *, out: Path, resume_from: Path | None = None) -> TrainState:
    """Train the watched policy, in place, until the recipe's last step or until the watch says that it is to end."""
    recipe, policy, rollouts = watch.recipe, watch.policy, watch.rollouts
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=recipe.grpo.learning_rate, weight_decay=0.0)
    begin = 0 if resume_from is None else _load(resume_from, policy, optimiser)
    rate_at = rates(recipe.grpo)
    for step in range(begin, recipe.grpo.steps):
        watch.begin_step()
        for group in optimiser.param_groups:
            group["lr"] = rate_at(step)
        lessons = right_lessons(rollouts.groups(recipe.grpo.prompts, step=step))
        loss = imitate(policy, lessons, optimiser, rows=recipe.grpo.minibatch_rows, clip_norm=recipe.grpo.clip_norm)
        watch.end_step(step + 1)
        figures = {"loss": loss, "imitated": float(len(lessons)), "learning_rate": rate_at(step)}
        watch.log(step + 1, rollouts.metrics | figures)
        last = bool(watch.stop.reason) or step + 1 == recipe.grpo.steps
        if last or (step + 1) % recipe.grpo.save_every_steps == 0:
            _save(out, step + 1, policy, optimiser, watch)
        if last:
            break
    return watch.state()


def rates(settings: GrpoSettings) -> Callable[[int], float]:
    """The rate of a step, counted from 0: what GRPO's would be with one update a step."""
    from transformers import get_scheduler

    schedule = get_scheduler(
        schedule_name(settings),
        optimizer=torch.optim.SGD([torch.zeros(1)], lr=settings.learning_rate),
        num_warmup_steps=round(settings.warmup * settings.steps),
        num_training_steps=settings.steps,
    )
    (factor,) = schedule.lr_lambdas
    return lambda step: settings.learning_rate * float(factor(step))


def right_lessons(groups: Sequence[Group]) -> list[Lesson]:
    """Prompts and completions of the right rollouts, each different one once a group."""
    lessons: list[Lesson] = []
    for group in groups:
        right = {tuple(s.ids) for s, one in zip(group.samples, group.scored, strict=True) if one.correct}
        lessons += [(group.prompt, list(ids)) for ids in sorted(right)]
    return lessons


def imitate(policy: Policy, lessons: Sequence[Lesson], optimiser: Any, *, rows: int, clip_norm: float) -> float:
    """One optimiser step on these lessons, every completion token counting alike; the mean loss. Nothing on none, nor
    where a gradient is no number."""
    tokens = sum(len(completion) for _, completion in lessons)
    if not tokens:
        return 0.0
    device = next(policy.model.parameters()).device
    total = 0.0
    policy.model.train()
    for start in range(0, len(lessons), rows):
        part = lessons[start : start + rows]
        weight = sum(len(completion) for _, completion in part) / tokens
        batch = collate(part, pad=policy.tokenizer.pad_token_id, device=device)
        loss = completion_loss(policy.model, *batch) * weight
        loss.backward()
        total += float(loss.detach())
    norm = torch.nn.utils.clip_grad_norm_([p for p in policy.model.parameters() if p.requires_grad], clip_norm)
    if norm.isfinite():
        optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    policy.model.eval()
    return total


def _save(out: Path, step: int, policy: Policy, optimiser: Any, watch: Watch) -> None:
    folder = out / f"{PREFIX}{step}"
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: p.detach() for name, p in policy.model.named_parameters() if p.requires_grad}
    torch.save({"step": step, "weights": weights, "optimiser": optimiser.state_dict()}, folder / WEIGHTS_FILE)
    watch.save(folder, step)


def _load(folder: Path, policy: Policy, optimiser: Any) -> int:
    """The step that a checkpoint was written after."""
    device = next(policy.model.parameters()).device
    kept = torch.load(folder / WEIGHTS_FILE, map_location=device, weights_only=True)
    own = dict(policy.model.named_parameters())
    with torch.no_grad():
        for name, value in kept["weights"].items():
            own[name].copy_(value)
    optimiser.load_state_dict(kept["optimiser"])
    return int(kept["step"])
