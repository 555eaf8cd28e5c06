"""A base small enough to train in a test: random weights and one token a character."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dirigent.learn.base import Base
from dirigent.learn.decoder import Shape

CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " \n…"


class Characters:
    """As much of a tokenizer as a base asks of one."""

    eos_token_id = len(CHARACTERS)

    def get_vocab(self) -> dict[str, int]:
        return {character: i for i, character in enumerate(CHARACTERS)}

    def apply_chat_template(self, turns: list[dict[str, str]], **options: Any) -> str:
        return "".join(f"{turn['content']}\n" for turn in turns)

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [CHARACTERS.index(character) for character in text]}

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(CHARACTERS[i] for i in ids if i < len(CHARACTERS))


def tiny_base(seed: int = 0) -> Base:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=len(CHARACTERS) + 1,
        tie_word_embeddings=True,
    )
    weights: dict[str, torch.Tensor] = LlamaForCausalLM(config).state_dict()
    weights.pop("lm_head.weight", None)
    # Larger weights than a fresh model has: with small embeddings no adapter could make one token likely.
    larger = {name: tensor * 12 if tensor.dim() > 1 else tensor for name, tensor in weights.items()}
    return Base("tiny", larger, Shape.of(config), Characters())
