"""Fit an adapter to given replies: how a conductor learns the language of plans before any reward.

The loss counts the reply alone. Knows nothing of plans.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import msgspec
import torch

from dirigent.learn.base import Base
from dirigent.learn.decoder import Adapter, Decoder, logprobs
from dirigent.messages import Message


class Lesson(msgspec.Struct, frozen=True):
    prompt: tuple[Message, ...]
    reply: str


class ImitationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rank: int = 16
    alpha: float = 32
    steps: int = 300
    batch: int = 64
    learning_rate: float = 1e-3
    clip_norm: float = 1.0
    seed: int = 1


def imitate(
    base: Base,
    draw: Callable[[int, random.Random], Sequence[Lesson]],
    settings: ImitationSettings,
    *,
    observe: Callable[[int, float], None] = lambda step, loss: None,
) -> Adapter:
    """A fresh adapter, fitted to the lessons that `draw` gives for each step."""
    adapter = Adapter.fresh(base.weights, base.shape, rank=settings.rank, alpha=settings.alpha, seed=settings.seed)
    for parameter in adapter.parameters():
        parameter.requires_grad_()
    optimiser = torch.optim.AdamW(list(adapter.parameters()), lr=settings.learning_rate, weight_decay=0.0)
    rng = random.Random(settings.seed)
    for step in range(settings.steps):
        share = step / settings.steps
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, 20 * share + 0.05) * 0.5 * (1 + math.cos(math.pi * share))
        lessons = draw(settings.batch, rng)
        prompts = [base.prompt_ids(lesson.prompt) for lesson in lessons]
        replies = [[base.reply_ids(lesson.reply)] for lesson in lessons]
        loss = -logprobs(Decoder(base.weights, base.shape, adapter), prompts, replies).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(adapter.parameters()), settings.clip_norm)
        optimiser.step()
        observe(step, float(loss.detach()))
    return adapter.copy()
