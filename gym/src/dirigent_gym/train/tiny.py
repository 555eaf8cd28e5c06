"""A base model small enough for tests: a random Llama and a tokenizer of the gym's own words.

It knows nothing: the warm start has to teach it to write at all. Everything else about it (chat template, end mark,
names of its layers) is as in the real base, so the same code trains both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dirigent_gym.train.recipe import TinySettings

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


def tiny_base(texts: Sequence[str], *, settings: TinySettings, seed: int) -> tuple[Any, Any]:
    """Model and tokenizer; the same for the same texts and seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer(texts, words=settings.words)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=2 * settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=settings.max_tokens,
        tie_word_embeddings=True,
        initializer_range=settings.hidden**-0.5,
        bos_token_id=tokenizer.convert_tokens_to_ids(START),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config).eval(), tokenizer


def tiny_tokenizer(texts: Sequence[str], *, words: int) -> Any:
    """Byte-level, so that any text can be written; digits stand alone, so that a few tokens make every number."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def one_thread() -> None:
    """Compute with one thread: a tiny model's products are too small to share, and threads that wait for one another
    cost ten times the work."""
    torch.set_num_threads(1)
