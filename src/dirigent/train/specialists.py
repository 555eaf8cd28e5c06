"""Fit the gym's specialists: one LoRA adapter each, on one shared base, until each masters its own skill.

    python -m dirigent.train.specialists --weights SmolLM2-135M-Instruct.Q4_1.gguf --out adapters [--names facts,roman]

Each adapter is fitted on the specialist's own examples, tried on fresh ones, and fitted on for another round while
it is short of the goal and rounds are left. Adapters already in the folder are kept, so a cut run goes on with the next
specialist. The worker x skill matrix, who can do what, is measured at the end over all adapters in the folder.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dirigent.messages import Message
from dirigent.plan import Plan, Step
from dirigent.prompt import step_messages
from dirigent.tasks.gym.examples import Example, ask, examples
from dirigent.tasks.gym.skills import OPERATIONS
from dirigent.tasks.gym.specialists import ROSTER, UNKNOWN, Specialist, find_specialist
from dirigent.train.base import load_base
from dirigent.train.generate import generate
from dirigent.train.sft import Pair, Report, SftSettings, fit_adapter

GOAL = 0.99
"""Share of its own questions an adapter must get right before its fitting stops early."""

SPECIALIST_SFT = SftSettings(
    rank=4,
    alpha=8,
    # llama.cpp permutes the rows of q and k; leaving them alone keeps the export a plain copy, and was not missed.
    targets=("v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    learning_rate=2e-3,
    steps=500,
    batch=256,
)


class Score(msgspec.Struct, frozen=True):
    """How an adapter does on fresh examples of its own: asked directly, with results to read, and off its skill."""

    own: float
    direct: float
    reading: float
    unknown: float
    """Share of others' work that it leaves alone."""
    n: int


def messages_of(example: Example, secret: str) -> tuple[Message, ...]:
    """The example exactly as `execute` would put it to the worker."""
    return ask_messages(example.subtask, example.results, secret)


def ask_messages(subtask: str, results: Sequence[tuple[str, str]], secret: str) -> tuple[Message, ...]:
    earlier = [Step("w", text) for text, _ in results]
    access = tuple(range(len(earlier)))
    plan = Plan((*earlier, Step("w", subtask, access)))
    replies = {i: reply for i, (_, reply) in enumerate(results)}
    return step_messages((Message("user", ""),), plan, len(earlier), replies, secret=secret, subtask_only=True)


def pairs_of(specialist: Specialist, n: int, *, seed: int) -> list[Pair]:
    rng = random.Random(f"marks {seed}")
    return [
        Pair(messages_of(example, f"{rng.getrandbits(64)}"), example.answer)
        for example in examples(specialist, n, seed=seed)
    ]


def fit_specialist(
    model: Any, tokenizer: Any, specialist: Specialist, *, settings: SftSettings, rounds: int, log: Path, n: int = 2000
) -> tuple[Any, Score]:
    """Fit one specialist in up to `rounds` rounds of fresh examples."""
    score = Score(0, 0, 0, 0, 0)
    for number in range(rounds):
        began = time.monotonic()
        drawn = pairs_of(specialist, settings.steps * settings.batch // 2, seed=100 + number)
        this = msgspec.structs.replace(settings, seed=settings.seed + number)
        losses: list[tuple[int, float]] = []
        model = fit_adapter(
            model,
            tokenizer,
            drawn,
            name=specialist.name,
            settings=this,
            report=_noting(losses),
        )
        save_adapter(model, specialist.name, log.parent)
        score = score_specialist(model, tokenizer, specialist, n=n)
        row = {"specialist": specialist.name, "round": number, "losses": losses[::5], **msgspec.structs.asdict(score)}
        row["seconds"] = round(time.monotonic() - began, 1)
        with log.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps({key: value for key, value in row.items() if key != "losses"}), flush=True)
        if score.own >= GOAL - specialist.noise:
            break
    return model, score


def _noting(losses: list[tuple[int, float]]) -> Report:
    def note(step: int, loss: float) -> None:
        losses.append((step, round(loss, 4)))

    return note


def score_specialist(model: Any, tokenizer: Any, specialist: Specialist, *, n: int = 2000) -> Score:
    """On fresh examples. A noisy specialist is sampled at temperature 1, the others answer greedily."""
    fresh = examples(_reliable(specialist), n, seed=900)
    conversations = [messages_of(example, secrets.token_hex(8)) for example in fresh]
    replies = generate(model, tokenizer, conversations, max_new_tokens=24, temperature=1.0 if specialist.noise else 0.0)
    right = [(e, r.casefold() == e.answer.casefold()) for e, r in zip(fresh, replies, strict=True)]
    own = [(e, ok) for e, ok in right if e.operation and e.answer != UNKNOWN]
    return Score(
        own=_share(ok for _, ok in own),
        direct=_share(ok for e, ok in own if not e.results),
        reading=_share(ok for e, ok in own if e.results),
        unknown=_share(ok for e, ok in right if not e.operation),
        n=len(own),
    )


def skill_matrix(model: Any, tokenizer: Any, names: Sequence[str], *, n: int = 200) -> dict[str, dict[str, float]]:
    """Worker -> skill -> share of that skill's questions it answers rightly, greedy, asked directly or reading."""
    skills = sorted({op.skill for op in OPERATIONS.values()} & {s for w in ROSTER for s in w.skills})
    matrix: dict[str, dict[str, float]] = {}
    for name in names:
        model.set_adapter(name)
        matrix[name] = {}
        for skill in skills:
            asked = _questions(skill, n)
            conversations = [ask_messages(subtask, results, "s") for subtask, results, _ in asked]
            replies = generate(model, tokenizer, conversations, max_new_tokens=24)
            matrix[name][skill] = _share(
                reply.casefold() == answer.casefold() for reply, (_, _, answer) in zip(replies, asked, strict=True)
            )
    return matrix


def _questions(skill: str, n: int) -> list[tuple[str, tuple[tuple[str, str], ...], str]]:
    rng = random.Random(f"matrix {skill}")
    ops = [op for op in OPERATIONS.values() if op.skill == skill]
    asked = []
    for _ in range(n):
        op = rng.choice(ops)
        key = rng.choice(list(op.table))
        subtask, results = ask(rng, op, key)
        asked.append((subtask, results, op.table[key]))
    return asked


def _reliable(specialist: Specialist) -> Specialist:
    """The same specialist with right answers only, to be judged by."""
    return msgspec.structs.replace(specialist, noise=0.0, small_only=specialist.small_only)


def _share(hits: Iterable[bool]) -> float:
    counted = list(hits)
    return round(sum(counted) / len(counted), 4) if counted else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--names", default=",".join(s.name for s in ROSTER))
    parser.add_argument("--steps", type=int, default=SPECIALIST_SFT.steps)
    parser.add_argument("--batch", type=int, default=SPECIALIST_SFT.batch)
    parser.add_argument("--rank", type=int, default=SPECIALIST_SFT.rank)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600.0, help="start no further specialist after this")
    parser.add_argument("--score", type=int, default=2000, help="fresh examples to be tried on")
    parser.add_argument("--matrix", action="store_true", help="also measure every worker on every skill")
    args = parser.parse_args()
    began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    settings = msgspec.structs.replace(
        SPECIALIST_SFT, steps=args.steps, batch=args.batch, rank=args.rank, alpha=2 * args.rank
    )
    model, tokenizer = load_base(args.weights)
    print(f"base loaded in {time.monotonic() - began:.0f} s", flush=True)
    done = []
    for name in args.names.split(","):
        if (args.out / name / "adapter_model.safetensors").exists():
            continue
        if time.monotonic() - began > args.seconds:
            print(f"out of time before {name}", flush=True)
            break
        model, _ = fit_specialist(
            model,
            tokenizer,
            find_specialist(name),
            settings=settings,
            rounds=args.rounds,
            log=args.out / "specialists.jsonl",
            n=args.score,
        )
        done.append(name)
    if args.matrix and done:
        matrix = skill_matrix(model, tokenizer, done, n=min(200, args.score))
        (args.out / f"matrix-{done[0]}.json").write_text(json.dumps(matrix, indent=1))
        print(json.dumps(matrix), flush=True)


def save_adapter(model: Any, name: str, folder: Path) -> None:
    """Write one adapter, in half precision, as PEFT reads it."""
    import torch
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    state = get_peft_model_state_dict(model, adapter_name=name)
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    model.peft_config[name].save_pretrained(str(target))
    save_file(
        {key: value.to(torch.float16).contiguous() for key, value in state.items()},
        str(target / "adapter_model.safetensors"),
    )


if __name__ == "__main__":
    main()
