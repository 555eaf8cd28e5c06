"""Batched generation with the model in memory: greedy or sampled, many prompts at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dirigent.messages import Message
from dirigent.train.base import encode, prompt_texts


@torch.no_grad()
def generate(
    model: Any,
    tokenizer: Any,
    conversations: Sequence[Sequence[Message]],
    *,
    max_new_tokens: int = 32,
    temperature: float = 0.0,
    batch: int = 512,
) -> list[str]:
    """The model's reply to each conversation, in order. Prompts of like length share a batch."""
    rows = encode(tokenizer, prompt_texts(tokenizer, conversations))
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    device = next(model.parameters()).device
    replies = [""] * len(rows)
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        longest = max(len(rows[i]) for i in chosen)
        pad = tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (longest - len(rows[i])) + rows[i] for i in chosen], device=device)
        mask = torch.tensor([[0] * (longest - len(rows[i])) + [1] * len(rows[i]) for i in chosen], device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            out = model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=max_new_tokens,
                pad_token_id=pad,
                **sampling,
            )
        texts = tokenizer.batch_decode(out[:, longest:], skip_special_tokens=True)
        for i, text in zip(chosen, texts, strict=True):
            replies[i] = text.strip()
    return replies
