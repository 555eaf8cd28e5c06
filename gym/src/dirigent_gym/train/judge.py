"""How good specialists are: each on its own skill, every one on every skill, every one alone on the test.

The first says when an adapter is done. The other two are what the gym stands on: each worker masters one thing, and
none answers the test by itself. Reliable specialists answer greedily, the noisy one is sampled at temperature 1.
The questions and how they are marked are `dirigent_gym/questions/judging.py`'s; here adapters answer them, in torch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dirigent.messages import Message
from dirigent_gym.questions.examples import Example, examples
from dirigent_gym.questions.judging import (
    Matrix,
    conversations_for,
    exam_of,
    marked,
    matrix_of,
    messages_of,
    same,
    share,
)
from dirigent_gym.questions.skills import OPERATIONS
from dirigent_gym.questions.specialists import UNKNOWN, Specialist, beyond, find_specialist
from dirigent_gym.train.base import encode, prompt_texts
from dirigent_gym.train.decode import DecodeSettings, decode
from dirigent_gym.train.stacked import Stacked, write

MAX_NEW_TOKENS = 24


class Score(msgspec.Struct, frozen=True):
    """How an adapter does on fresh examples of its own: asked directly, with results to read, and off its skill."""

    own: float
    """Of a specialist of small numbers: on small numbers."""
    direct: float
    reading: float
    unknown: float
    """Share of others' work that it leaves alone."""
    n: int
    large: float | None = None
    """Of a specialist of small numbers: on the larger ones, where it should fail."""


def score_specialist(model: Any, tokenizer: Any, specialist: Specialist, *, n: int = 2000) -> Score:
    """On fresh examples, against the right answers."""
    fresh = examples(msgspec.structs.replace(specialist, noise=0.0), n, seed=900)
    rng = random.Random(f"marks of judging {specialist.name}")
    conversations = [messages_of(example, f"{rng.getrandbits(64):016x}") for example in fresh]
    replies = replies_to(model, tokenizer, conversations, seed=1 if specialist.noise else None)
    right = [(e, same(reply, truth(e))) for e, reply in zip(fresh, replies, strict=True)]
    mine = [(e, ok) for e, ok in right if e.operation and e.answer != UNKNOWN]
    own = [(e, ok) for e, ok in mine if not beyond(specialist, e.key)]
    return Score(
        own=share(ok for _, ok in own),
        direct=share(ok for e, ok in own if not e.results),
        reading=share(ok for e, ok in own if e.results),
        unknown=share(ok for e, ok in right if not e.operation),
        n=len(own),
        large=share(ok for e, ok in mine if beyond(specialist, e.key)) if specialist.small_only is not None else None,
    )


def truth(example: Example) -> str:
    """The right answer, also where the specialist is taught a wrong one."""
    if example.answer == UNKNOWN or not example.operation:
        return example.answer
    return OPERATIONS[example.operation].table[example.key]


def judge_all(stacked: Stacked, tokenizer: Any, names: Sequence[str], *, a_skill: int, test: int) -> Matrix:
    """Every worker on every skill and alone on the test."""
    exam = exam_of(a_skill, test=test)
    marks = {}
    for name in names:
        replies = _stacked_replies(stacked, tokenizer, name, conversations_for(exam, name))
        marks[name] = marked(exam, name, replies)
    return matrix_of(exam, marks)


def replies_to(
    model: Any,
    tokenizer: Any,
    conversations: Sequence[Sequence[Message]],
    *,
    seed: int | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> list[str]:
    """The model's replies: greedy, or sampled where there is a seed."""
    prompts = encode(tokenizer, prompt_texts(tokenizer, conversations))
    seeds = [[None if seed is None else seed * len(prompts) + i] for i in range(len(prompts))]
    groups = decode(model, prompts, seeds_PG=seeds, settings=_settings(tokenizer, max_new_tokens))
    texts = tokenizer.batch_decode([sample.ids for (sample,) in groups], skip_special_tokens=True)
    return [text.strip() for text in texts]


def _stacked_replies(
    stacked: Stacked, tokenizer: Any, name: str, conversations: Sequence[Sequence[Message]]
) -> list[str]:
    prompts = encode(tokenizer, prompt_texts(tokenizer, conversations))
    noisy = find_specialist(name).noise > 0
    written = write(
        stacked,
        prompts,
        adapters=[stacked.index(name)] * len(prompts),
        seeds=[i if noisy else None for i in range(len(prompts))],
        settings=_settings(tokenizer, MAX_NEW_TOKENS),
    )
    return [text.strip() for text in tokenizer.batch_decode(written, skip_special_tokens=True)]


def _settings(tokenizer: Any, max_new_tokens: int) -> DecodeSettings:
    return DecodeSettings(max_new_tokens, pad=tokenizer.pad_token_id, end=tokenizer.eos_token_id)


def pack_figures(scores: Mapping[str, Score]) -> dict[str, dict[str, float]]:
    """Scores as `dirigent_gym/train/pack.py` wants them for the cards."""
    return {
        name: {key: value for key, value in msgspec.structs.asdict(score).items() if value is not None}
        for name, score in scores.items()
    }
