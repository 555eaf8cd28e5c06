"""A base model small enough for tests: a random Llama and a tokenizer of the gym's own words.

It knows nothing: the warm start has to teach it to write at all. Its chat template, end mark and layer names are those
of the real base, so the same code trains both.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from dirigent.learn.imitate import Lesson, batches
from dirigent_gym.train.recipe import TinySettings

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
BATCH = 32
MAX_TOKENS = 512


def make_tiny(lessons: Sequence[Lesson], settings: TinySettings, *, seed: int) -> tuple[Any, Any]:
    """A tiny model and its tokenizer. All its weights are fitted to the lessons, in place of pretraining."""
    texts = [text for one in lessons for text in (*(message.text for message in one.prompt), one.reply)]
    model, tokenizer = tiny_base(texts, settings=settings, seed=seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    # The rate rises in a twentieth of the steps, then falls to nothing.
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, settings.learning_rate, total_steps=max(settings.steps, 1), pct_start=0.05, cycle_momentum=False
    )
    drawn = batches(lessons, BATCH, random.Random(seed))
    model.train()
    for _ in range(settings.steps):
        ids, labels = _padded(tokenizer, next(drawn))
        model(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        schedule.step()
    return model.eval(), tokenizer


def _padded(tokenizer: Any, lessons: Sequence[Lesson]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels. Padding comes last, where no token reads it; labels are -100 outside the reply."""
    rows = []
    for lesson in lessons:
        turns = [{"role": message.role, "content": message.text} for message in lesson.prompt]
        prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        reply = [*tokenizer(lesson.reply, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        rows.append((tokenizer(prompt, add_special_tokens=False)["input_ids"], reply))
    longest = max(len(prompt) + len(reply) for prompt, reply in rows)
    gaps = [longest - len(prompt) - len(reply) for prompt, reply in rows]
    ids = [[*prompt, *reply, *[0] * gap] for (prompt, reply), gap in zip(rows, gaps, strict=True)]
    labels = [[*[-100] * len(prompt), *reply, *[-100] * gap] for (prompt, reply), gap in zip(rows, gaps, strict=True)]
    return torch.tensor(ids), torch.tensor(labels)


def tiny_base(texts: Sequence[str], *, settings: TinySettings, seed: int) -> tuple[Any, Any]:
    """The model and its tokenizer; the same for the same texts and seed."""
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
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=True,
        initializer_range=settings.hidden**-0.5,
        bos_token_id=tokenizer.convert_tokens_to_ids(START),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config).eval(), tokenizer


def tiny_tokenizer(texts: Sequence[str], *, words: int) -> Any:
    """Byte-level, so that it can write any text; digits are tokens of their own, so that few tokens make any number."""
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
