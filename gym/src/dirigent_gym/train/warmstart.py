"""The warm start: fit the policy to the language of plans, and measure that it learned no more than that.

A start that may be called one writes valid plans (98% or more, greedy and sampled) and chooses workers evenly (within
2 points), so that whatever routing a trained conductor shows came from RL. What the lessons hold is the gym's business
(`dirigent_gym/questions/warmstart.py`, drawn by `lessons.py`); of its three kinds only the first says nothing of gym
questions.

Done once a run: the finished start is sealed like a checkpoint, and a resumed run takes it from the disk. It is also
what a policy is held near to, so a start that was damaged is not quietly fitted anew under a policy that left it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from dirigent.errors import ConfigError
from dirigent_gym.train.adapters import adapter_named, put_adapter
from dirigent_gym.train.adapters import load_adapter as read_adapter
from dirigent_gym.train.checkpoint import damage, seal, sealed_step, write_durably
from dirigent_gym.train.controls import unevenness
from dirigent_gym.train.dataset import Row
from dirigent_gym.train.folder import WARM_START
from dirigent_gym.train.lessons import draw_lessons, lessons_for
from dirigent_gym.train.memory import within_memory
from dirigent_gym.train.policy import ADAPTER, Policy, adapter_settings, export, load_adapter, tried
from dirigent_gym.train.processes import everyones
from dirigent_gym.train.recipe import Recipe, TinySettings
from dirigent_gym.train.scorer import Scorer
from dirigent_gym.train.sft import (
    Report,
    SftSettings,
    collate,
    completion_loss,
    encode_pairs,
    endless_batches,
    fit_adapter,
    rate_factor,
    with_adapter,
)
from dirigent_gym.train.start import SAMPLES, WarmStart
from dirigent_gym.train.tiny import tiny_base

FOLDER = WARM_START


def prepare(recipe: Recipe, base: tuple[Any, Any] | None, *, out: Path, report: Report, process: int = 0) -> Policy:
    """The warm-started policy, fitted now or taken from the run's folder. No base: a tiny one is made.

    Of several processes the first fits it and the others wait.
    """
    folder = out / FOLDER
    if lost := damage(folder):
        raise ConfigError(
            f"the warm start in {folder} is damaged: {', '.join(lost)}. "
            "Bring the files back, or delete the folder to have it fitted again"
        )
    while process and sealed_step(folder) is None:
        time.sleep(1.0)
    if sealed_step(folder) is None:
        needs = f"lower warm_start.batch, which is {recipe.warm_start.batch}"
        with within_memory("while the warm start was fitted", advice=needs):
            base = _fit(recipe, base, folder, report=report)
    return _loaded(recipe, base, folder)


def measure_start(
    policy: Policy, scorer: Scorer, rows: Sequence[Row], *, seed: int, out: Path, process: int = 0
) -> WarmStart:
    """Validity, evenness and accuracy on these rows, greedy and sampled: as measured before, if the folder says so.

    Where it does not, the policy must be the start still, and is measured. Of several processes the first reads and
    writes the folder for all.
    """
    file = out / FOLDER / "start.json"
    before, *_ = everyones(None if process else _measured(file))
    if before is not None:
        return before
    greedy = tried(policy, scorer, rows, seed=None)
    # Several plans a row: evenness within two points cannot be told from a few hundred choices.
    rows_sampled = [row for row in rows for _ in range(SAMPLES)]
    sampled = tried(policy, scorer, rows_sampled, seed=seed)
    start = WarmStart.of(greedy, sampled, uneven=unevenness(rows_sampled, sampled))
    if not process:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, msgspec.json.encode(start))
    return start


def _measured(file: Path) -> WarmStart | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=WarmStart)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def make_tiny(recipe: Recipe, settings: TinySettings, *, report: Report) -> tuple[Any, Any]:
    """A tiny base, all of its weights fitted to the lessons: what pretraining is to a real one."""
    pairs = draw_lessons(recipe, seed=recipe.seed)
    texts = [text for pair in pairs for text in (*(message.text for message in pair.messages), pair.completion)]
    model, tokenizer = tiny_base(texts, settings=settings, seed=recipe.seed)
    fit = SftSettings(learning_rate=settings.learning_rate, steps=settings.steps, batch=recipe.warm_start.batch)
    optimiser = torch.optim.AdamW(model.parameters(), lr=fit.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_factor(step, fit))
    batches = endless_batches(encode_pairs(tokenizer, pairs), fit.batch, random.Random(recipe.seed))
    model.train()
    for step in range(fit.steps):
        loss = completion_loss(model, *collate(next(batches), pad=tokenizer.pad_token_id, device="cpu"))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), fit.clip_norm)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        schedule.step()
        if step % 20 == 0:
            report(step, float(loss.detach()))
    return model.eval(), tokenizer


def _fit(recipe: Recipe, base: tuple[Any, Any] | None, folder: Path, *, report: Report) -> tuple[Any, Any]:
    """Fit the start and seal it in its folder; the base that it stands on, as it was."""
    folder.mkdir(parents=True, exist_ok=True)
    if base is None:
        assert recipe.base.tiny is not None
        base = make_tiny(recipe, recipe.base.tiny, report=report)
        base[0].save_pretrained(folder / "base")
        base[1].save_pretrained(folder / "base")
    if recipe.policy.rank:
        policy = _fitted(recipe, base, out=folder.parent, report=report)
        export(policy, folder / "policy")
        base = (policy.model.unload(), base[1])
    seal(folder, step=recipe.warm_start.steps)
    return base


def _fitted(recipe: Recipe, base: tuple[Any, Any], *, out: Path, report: Report) -> Policy:
    model, tokenizer = base
    settings = adapter_settings(recipe)
    if recipe.warm_start.lessons != "none" and settings.steps:
        pairs = lessons_for(recipe, out)
        model = fit_adapter(model, tokenizer, pairs, name=ADAPTER, settings=settings, report=report)
    else:
        torch.manual_seed(recipe.seed)
        model = with_adapter(model, ADAPTER, settings)
        if recipe.warm_start.adapter:
            put_adapter(model, ADAPTER, read_adapter(adapter_named(recipe.warm_start.adapter), config=model.config))
    return _policy(recipe, model, tokenizer)


def _policy(recipe: Recipe, model: Any, tokenizer: Any) -> Policy:
    settings = recipe.grpo
    return Policy(
        model,
        tokenizer,
        max_completion_tokens=settings.max_completion_tokens,
        cache=settings.cache,
        merge=settings.merge,
    )


def _loaded(recipe: Recipe, base: tuple[Any, Any] | None, folder: Path) -> Policy:
    """Always from the disk, so that a run and its resumption start from the very same numbers."""
    if base is None or recipe.base.tiny is not None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        base = (
            AutoModelForCausalLM.from_pretrained(folder / "base"),
            AutoTokenizer.from_pretrained(folder / "base", padding_side="left"),
        )
    model, tokenizer = base
    if recipe.policy.rank:
        model = load_adapter(model, folder / "policy")
    return _policy(recipe, model, tokenizer)
