"""A random Llama, small enough that a test takes no time: the one shape that tests of decoding and of passes use."""

from __future__ import annotations

from typing import Any


def small_llama(*, seed: int, **changes: Any) -> Any:
    """Two layers; three query heads read what one key head keeps, as SmolLM2 has it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape = {
        "vocab_size": 50,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    return LlamaForCausalLM(LlamaConfig(**shape | changes)).eval()
