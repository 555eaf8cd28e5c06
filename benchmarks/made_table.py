"""Does the trainer learn a plan that depends on the price and on the question's kind? A made table, a tiny model.

    python benchmarks/made_table.py [--beta 0.02] [--learning-rate 2e-3] [--price-whole 0] [--price-in-question]

`quick` is right on sums and never on riddles, for 20 units; `programmer` is right on both, for 1,500; the selector is
as sure of a sum's `quick` as of a riddle's, so no threshold tells them apart. The best plan of a sum is `quick`; that
of a riddle is `programmer`. At the highest price the best plan of a riddle is `quick` too: a right answer is worth less
than the call of `programmer` costs.

A model of two layers first learns the language of plans, all weights, from random valid plans; then `learn/grpo.py`
trains an adapter. Prints sampled cost by price, the greedy plans at the end, and the utility beside the best that is
possible. A minute on an idle core.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dirigent.learn.base import Base
from dirigent.learn.decoder import Adapter, Decoder, Shape, logprobs
from dirigent.learn.grpo import Asked, GrpoSettings, greedy_plans, train
from dirigent.learn.sampler import BatchedSampler
from dirigent.learn.table_plans import PRICES, RecordedQuestions, Seat, TableTask, TableTaskSettings
from dirigent.learn.values import RecordedPool, RecordedWorker
from dirigent.messages import Message

PIECE = re.compile(r" until| ask:| ?[A-Za-z]+|\d|\n|.", re.DOTALL)
POOL = RecordedPool(
    (RecordedWorker("quick", 2), RecordedWorker("programmer", 1)),
    {"sums": "sums", "riddles": "riddles"},
    plan_token_cost=0.0,
)
TEXTS = {"sums": "give the sum of some numbers", "riddles": "who walks alone at night"}
QUESTIONS = 240
QUICK_COST, PROGRAMMER_COST = 20.0, 1500.0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beta", type=float, default=0.02)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lessons", type=int, default=150, help="steps of the warm start")
    parser.add_argument("--price-whole", type=float, default=0.0, help="share of the steps in which the price rises")
    parser.add_argument("--price-in-question", action="store_true", help="ask for it there, not as the reply's opening")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    task = MadeTask(options.price_in_question, TableTaskSettings(
        steps=options.steps, smaller_pools=0.0, neutral_names=0.0, price_whole=options.price_whole
    ))  # fmt: skip
    base = task.base
    base.weights = taught(task, options.lessons)
    start = Adapter.fresh(base.weights, base.shape, rank=16, alpha=32, seed=1)
    settings = GrpoSettings(
        steps=options.steps, questions=24, learning_rate=options.learning_rate, beta=options.beta, measure_every=10_000
    )
    sampler = BatchedSampler(end=base.end, max_tokens=20)
    with tempfile.TemporaryDirectory() as folder:
        policy = train(base, start, task, sampler, settings, Path(folder), observe=_show)
    write = greedy_plans(base, policy, sampler)
    for question, kind in enumerate(TEXTS):
        plans = write([task.asked(question, price=price) for price in PRICES])
        print(kind, {price: plan.strip() for price, plan in zip(PRICES, plans, strict=True)})
    quick, dear = ([price * cost / 1000 for price in PRICES.values()] for cost in (QUICK_COST, PROGRAMMER_COST))
    best = sum(1 - q + max(1 - d, -q) for q, d in zip(quick, dear, strict=True)) / 2 / len(quick)
    always = sum(1 - d for d in dear) / len(dear)
    print(f"utility {task.measure(write)['utility']:.3f} of {best:.3f}; `programmer` for every question: {always:.3f}")


class MadeTask(TableTask):
    """The made table; with `in_question`, the price is the question's last word and the reply opens with nothing."""

    def __init__(self, in_question: bool, settings: TableTaskSettings) -> None:
        self.in_question = in_question
        super().__init__(
            made_table(), tiny_base(), settings, cards=dict.fromkeys(("quick", "programmer", "select", "vote"), "x")
        )

    def asked(self, question: int, *, price: str, pool: Sequence[Seat] | None = None) -> Asked:
        one = super().asked(question, price=price, pool=pool)
        if not self.in_question:
            return one
        system, user = one.prompt
        return msgspec.structs.replace(one, prompt=(system, Message("user", f"{user.text}\n{one.opening}")), opening="")


def made_table() -> RecordedQuestions:
    right, confidence = torch.zeros(QUESTIONS, 8), torch.zeros(QUESTIONS, 8)
    for held in range(1, 8):
        right[:, held] = 1.0 if held & 4 else 0.0
        confidence[:, held] = 0.9 if held & 4 else 0.5
    right[::2, 1:] = 1.0
    single = torch.tensor([0.0, 0.0, 1.0]).repeat(QUESTIONS, 1)
    single[::2] = 1.0
    kinds = [list(TEXTS)[i % 2] for i in range(QUESTIONS)]
    return RecordedQuestions(
        ids=[f"q{i}" for i in range(QUESTIONS)],
        texts=[TEXTS[kind] for kind in kinds],
        families=kinds,
        splits=["dev" if i % 8 > 5 else "train" for i in range(QUESTIONS)],
        folds=[-1 if i % 8 > 5 else i % 2 for i in range(QUESTIONS)],
        right=right,
        confidence=confidence,
        vote=right,
        single=single,
        cost=torch.tensor([QUICK_COST, QUICK_COST, PROGRAMMER_COST]).repeat(QUESTIONS, 1),
        pool=POOL,
    )


class Words:
    """As much of a tokenizer as a base asks of one; a token is a word with the space before it."""

    def __init__(self) -> None:
        language = (
            f" until ask: select vote quick programmer 0123456789 {' '.join(PRICES)} Price: {' '.join(TEXTS.values())}"
        )
        self.pieces = list(dict.fromkeys([*PIECE.findall(language), "\n"]))
        self.places = {piece: i for i, piece in enumerate(self.pieces)}
        self.unknown = len(self.pieces)
        self.eos_token_id = self.unknown + 1

    def get_vocab(self) -> dict[str, int]:
        return self.places

    def apply_chat_template(self, turns: list[dict[str, str]], **options: Any) -> str:
        return "".join(f"{turn['content']}\n" for turn in turns)

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [self.places.get(piece, self.unknown) for piece in PIECE.findall(text)]}

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(self.pieces[i] if i < self.unknown else "?" for i in ids)


def tiny_base() -> Base:
    """A model of two layers that knows nothing yet."""
    words = Words()
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=64,
        vocab_size=words.eos_token_id + 1,
        tie_word_embeddings=True,
    )
    state: dict[str, torch.Tensor] = LlamaForCausalLM(config).state_dict()
    state.pop("lm_head.weight", None)
    weights = {
        name: torch.randn_like(w) * (0.5 if "embed" in name else w.shape[1] ** -0.5)
        if w.dim() > 1
        else torch.ones_like(w)
        for name, w in state.items()
    }
    return Base("tiny", weights, Shape.of(config), words)


def taught(task: TableTask, steps: int) -> dict[str, torch.Tensor]:
    """The base's weights after so many steps of random valid plans."""
    base, rng = task.base, random.Random(1)
    weights = {name: tensor.clone().requires_grad_() for name, tensor in base.weights.items()}
    optimiser = torch.optim.AdamW(weights.values(), weight_decay=0.0)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 5e-3 * min(1.0, step / 20 + 0.05) * 0.5 * (1 + math.cos(math.pi * step / steps))
        lessons = task.lessons(16, rng)
        prompts = [base.prompt_ids(lesson.prompt, lesson.opening) for lesson in lessons]
        replies = [[base.reply_ids(lesson.reply)] for lesson in lessons]
        loss = -logprobs(Decoder(weights, base.shape), prompts, replies).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimiser.step()
    return {name: tensor.detach() for name, tensor in weights.items()}


def _show(facts: Mapping[str, float]) -> None:
    if facts["step"] % 10 == 9:
        costs = " ".join(f"{price} {facts.get(f'cost_at_{price}', math.nan):.0f}" for price in PRICES)
        line = f"step {facts['step'] + 1:3.0f}  reward {facts['reward']:.3f}  entropy {facts['entropy']:.2f}"
        print(f"{line}  cost at {costs}", flush=True)


if __name__ == "__main__":
    main()
