"""Fit an adapter to given replies: how a conductor learns the language of plans before any reward.

The loss counts the reply alone. Knows nothing of plans.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

import msgspec
import torch

from dirigent.learn.base import Base
from dirigent.learn.decoder import LINEAR, Adapter, Decoder, logprobs
from dirigent.messages import Message


class Lesson(msgspec.Struct, frozen=True):
    prompt: tuple[Message, ...]
    reply: str
    opening: str = ""
    """How the reply begins: given, and not learned."""


class ImitationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rank: int = 16
    alpha: float = 32
    parts: tuple[str, ...] = LINEAR
    """The linear layers that get an adapter."""
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
    start: Adapter | None = None,
    observe: Callable[[int, float], None] = lambda step, loss: None,
) -> Adapter:
    """A copy of `start`, or a fresh adapter, fitted to the lessons that `draw` gives for each step."""
    adapter = start.copy() if start is not None else fresh_adapter(base, settings)
    for parameter in adapter.parameters():
        parameter.requires_grad_()
    optimiser = torch.optim.AdamW(list(adapter.parameters()), lr=settings.learning_rate, weight_decay=0.0)
    rng = random.Random(settings.seed)
    for step in range(settings.steps):
        share = step / settings.steps
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, 20 * share + 0.05) * 0.5 * (1 + math.cos(math.pi * share))
        lessons = draw(settings.batch, rng)
        prompts = [base.prompt_ids(lesson.prompt, lesson.opening) for lesson in lessons]
        replies = [[base.reply_ids(lesson.reply)] for lesson in lessons]
        loss = -logprobs(Decoder(base.weights, base.shape, adapter), prompts, replies).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(adapter.parameters()), settings.clip_norm)
        optimiser.step()
        observe(step, float(loss.detach()))
    return adapter.copy()


def fresh_adapter(base: Base, settings: ImitationSettings) -> Adapter:
    """The adapter that `imitate` begins with if it is given none."""
    return Adapter.fresh(
        base.weights,
        base.shape,
        rank=settings.rank,
        alpha=settings.alpha,
        seed=settings.seed,
        parts=settings.parts,
    )


def batches(lessons: Sequence[Lesson], size: int, rng: random.Random) -> Iterator[list[Lesson]]:
    """Epoch after epoch, each in a new order. Lessons of like length share a batch, so that little is padded."""
    order = list(lessons)
    while True:
        rng.shuffle(order)
        found = []
        for at in range(0, len(order), size * 16):
            near = sorted(order[at : at + size * 16], key=lambda one: sum(len(turn.text) for turn in one.prompt))
            found += [near[i : i + size] for i in range(0, len(near), size)]
        rng.shuffle(found)
        yield from found
