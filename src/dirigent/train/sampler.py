"""Sample plans from the policy: each prompt is read once, its cache is shared by the whole group.

TRL would read every prompt once a rollout; with 16 rollouts a prompt that is most of the work. Nothing here knows what
a plan is. Noise comes from a generator that is passed in, so a step can be drawn again exactly.
"""

# ruff: noqa: N803, N806 -- suffixes name dimensions: prompts, rollouts of a group, batch, time, vocabulary

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch


class Sample(msgspec.Struct, frozen=True):
    """One completion, end mark included where the model wrote one."""

    ids: list[int]
    logprobs: list[float]


@torch.no_grad()
def sample_groups(
    model: Any,
    prompts_P: Sequence[Sequence[int]],
    *,
    group: int,
    max_new_tokens: int,
    temperature: float,
    pad: int,
    end: int,
    generator: torch.Generator | None = None,
    chunk_rows: int = 2048,
) -> list[list[Sample]]:
    """`group` samples of every prompt, in order. Temperature 0 takes the likeliest token each time."""
    order = sorted(range(len(prompts_P)), key=lambda i: len(prompts_P[i]))
    groups: list[list[Sample]] = [[] for _ in prompts_P]
    size = max(1, chunk_rows // group)
    with _evaluating(model):
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            rows = _sample_chunk(
                model,
                [prompts_P[i] for i in chosen],
                group=group,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                pad=pad,
                end=end,
                generator=generator,
            )
            for k, i in enumerate(chosen):
                groups[i] = rows[k * group : (k + 1) * group]
    return groups


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _sample_chunk(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    group: int,
    max_new_tokens: int,
    temperature: float,
    pad: int,
    end: int,
    generator: torch.Generator | None,
) -> list[Sample]:
    from transformers import DynamicCache

    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    device = next(inner.parameters()).device
    longest = max(len(prompt) for prompt in prompts)
    ids_PT = torch.tensor([[pad] * (longest - len(p)) + list(p) for p in prompts], device=device)
    mask_PT = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    cache = DynamicCache(config=inner.config)
    logits_BV = _next_logits(inner, ids_PT, mask_PT, cache).repeat_interleave(group, 0)
    cache.batch_repeat_interleave(group)
    mask_BT = mask_PT.repeat_interleave(group, 0)
    done_B = torch.zeros(len(mask_BT), dtype=torch.bool, device=device)
    tokens, logprobs = [], []
    for turn in range(max_new_tokens):
        token_B, logprob_B = _choose(logits_BV, temperature=temperature, generator=generator)
        token_B = token_B.masked_fill(done_B, pad)
        tokens.append(token_B)
        logprobs.append(logprob_B)
        done_B = done_B | (token_B == end)
        if turn == max_new_tokens - 1 or bool(done_B.all()):
            break
        mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(mask_BT), 1)], dim=1)
        logits_BV = _next_logits(inner, token_B[:, None], mask_BT, cache)
    return _cut(torch.stack(tokens, 1), torch.stack(logprobs, 1), end=end)


def _next_logits(inner: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor, cache: Any) -> torch.Tensor:
    """Logits after the last column; positions are counted without the padding on the left."""
    positions = (mask_BT.cumsum(1) - 1).clamp(min=0)[:, -ids_BT.shape[1] :]
    with torch.autocast(ids_BT.device.type, dtype=torch.bfloat16, enabled=ids_BT.device.type == "cuda"):
        out = inner.model(
            input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions, past_key_values=cache, use_cache=True
        )
        logits: torch.Tensor = inner.lm_head(out.last_hidden_state[:, -1])
    return logits.float()


def _choose(
    logits_BV: torch.Tensor,
    *,
    temperature: float,
    generator: torch.Generator | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs = torch.log_softmax(logits_BV / (temperature or 1.0), dim=-1)
    if temperature == 0:
        token = logprobs.argmax(-1)
    else:
        token = torch.multinomial(logprobs.exp(), 1, generator=generator)[:, 0]
    return token, logprobs.gather(1, token[:, None])[:, 0]


def _cut(tokens_BT: torch.Tensor, logprobs_BT: torch.Tensor, *, end: int) -> list[Sample]:
    """Rows up to their end mark."""
    samples = []
    for ids, logprobs in zip(tokens_BT.tolist(), logprobs_BT.tolist(), strict=True):
        length = ids.index(end) + 1 if end in ids else len(ids)
        samples.append(Sample(ids[:length], logprobs[:length]))
    return samples
