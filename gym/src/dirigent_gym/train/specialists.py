"""Fit the gym's specialists: one LoRA adapter each, on one shared base, until each masters its own skill.

    dirigent train gym/recipes/specialists.toml [--resume] [--seconds 540]

Each adapter is fitted on the specialist's own examples and judged on fresh ones. If it misses the goal and rounds are
left, it is fitted for another round. After every round the adapter and its score are on the disk, so a run that is cut
loses at most one round and `--resume` takes the next. At the end every specialist is asked every skill and the test;
reliable specialists answer greedily, the noisy one is sampled at temperature 1.

The run's folder: `adapters/NAME/` (PEFT), `fitted/NAME.json`, `specialists.jsonl`, `figures.json` for packing, and
`matrix.json` and `matrix.md`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import torch

from dirigent.learn.base import Base
from dirigent.learn.decoder import LINEAR, Adapter, Decoder
from dirigent.learn.imitate import ImitationSettings, Lesson, batches, imitate
from dirigent.learn.sampler import BatchedSampler
from dirigent.messages import Message
from dirigent_gym.questions.examples import Example, examples
from dirigent_gym.questions.judging import (
    Matrix,
    conversations_for,
    exam_of,
    mark_replies,
    markdown,
    matrix_of,
    messages_of,
    same,
    share,
)
from dirigent_gym.questions.skills import OPERATIONS
from dirigent_gym.questions.specialists import ROSTER, UNKNOWN, Specialist, beyond, find_specialist
from dirigent_gym.train.faults import within_memory
from dirigent_gym.train.folder import RESULT_FILE, write_durably
from dirigent_gym.train.recipe import FitSettings, SpecialistsRecipe
from dirigent_gym.train.run import open_base

# llama.cpp permutes the rows of q and k. Without them the export is a plain copy, and the skills did not need them.
PARTS = tuple(part for part in LINEAR if part not in ("self_attn.q_proj", "self_attn.k_proj"))

ANSWER_TOKENS = 24
"""No right answer in the gym is longer."""


class Score(msgspec.Struct, frozen=True):
    """An adapter's accuracy on fresh examples: asked directly, with results to read, and outside its skill."""

    own: float
    """For a specialist of small numbers: its accuracy on small numbers."""
    direct: float
    reading: float
    unknown: float
    """The share of others' questions that it answers with `unknown`."""
    n: int
    large: float | None = None
    """For a specialist of small numbers: its accuracy on larger numbers, where it should fail."""


class Fitted(msgspec.Struct, frozen=True):
    """How far a specialist's fitting has come."""

    rounds: int
    score: Score
    done: bool
    """Whether the goal is reached, or all rounds are used."""
    seconds: float = 0.0
    """The duration of its last round."""


class SpecialistsResult(msgspec.Struct, frozen=True):
    recipe: str
    out: str
    scores: dict[str, Score]
    missing: tuple[str, ...] = ()
    """The specialists that the time was too short for."""
    matrix: Matrix | None = None
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        return not self.missing

    @property
    def summary(self) -> str:
        parts = [f"{name} {score.own:.1%}" for name, score in self.scores.items()]
        left = f"; not done: {', '.join(self.missing)}. Go on with --resume" if self.missing else ""
        return f"own skill: {', '.join(parts) or 'none yet'}{left}\nadapters: {Path(self.out) / 'adapters'}"


def train_specialists(
    recipe: SpecialistsRecipe, *, out: Path, seconds: float | None = None, quiet: bool = False
) -> SpecialistsResult:
    """Fit the specialists of this folder that are not done yet, then judge all of them if all are done."""
    began = time.monotonic()
    names = recipe.names or tuple(specialist.name for specialist in ROSTER)

    def all_lessons() -> list[Lesson]:
        """Lessons of every specialist, for a tiny base."""
        return [lesson for specialist in ROSTER for lesson in lessons_of(specialist, 40, seed=0)]

    base = open_base(recipe.base, all_lessons, out, seed=recipe.seed)
    for name in names:
        while not is_done(out, name):
            if seconds is not None and time.monotonic() - began + _round_seconds(out, name) >= seconds:
                break
            fit_round(recipe, base, find_specialist(name), out=out, quiet=quiet)
    fitted = {name: state for name in names if (state := read_fitted(out, name)) is not None}
    scores = {name: state.score for name, state in fitted.items()}
    write_durably(out / "figures.json", msgspec.json.format(msgspec.json.encode(pack_figures(scores))))
    missing = tuple(name for name in names if not is_done(out, name))
    matrix = None if missing or not (recipe.matrix or recipe.alone) else judge_all(recipe, base, names, out=out)
    result = SpecialistsResult(recipe.name, str(out), scores, missing, matrix, time.monotonic() - began)
    write_durably(out / RESULT_FILE, msgspec.json.encode(result))
    return result


def fit_round(recipe: SpecialistsRecipe, base: Base, specialist: Specialist, *, out: Path, quiet: bool) -> None:
    """Fit one specialist to one round of fresh examples. Adapter and score are on the disk before this returns."""
    began = time.monotonic()
    fit, folder = recipe.fit_of(specialist.name), out / "adapters" / specialist.name
    before = read_fitted(out, specialist.name)
    number = 0 if before is None else before.rounds
    losses: list[tuple[int, float]] = []

    def report(step: int, loss: float) -> None:
        if step % 100 == 0 or step == fit.steps - 1:
            losses.append((step, round(loss, 4)))

    settings = _settings(fit, seed=recipe.seed + number)
    lessons = lessons_of(specialist, fit.steps * fit.batch // 2, seed=100 + number)
    drawn = batches(lessons, fit.batch, random.Random(settings.seed))
    start = Adapter.load(folder, device=_device(base)) if number else None
    with within_memory(f"while {specialist.name} was fitted", advice=f"lower fit.batch, which is {fit.batch}"):
        adapter = imitate(base, lambda count, rng: next(drawn), settings, start=start, observe=report)
    adapter.save(folder, base=base.name)
    score = score_specialist(base, adapter, specialist, n=recipe.judge)
    done = score.own >= recipe.goal - specialist.noise or number + 1 >= fit.rounds
    fitted = Fitted(number + 1, score, done, round(time.monotonic() - began, 1))
    write_durably(out / "fitted" / f"{specialist.name}.json", msgspec.json.encode(fitted))
    row = {"specialist": specialist.name, "round": fitted.rounds, "seconds": fitted.seconds}
    row |= msgspec.to_builtins(score) | {"losses": losses}
    with (out / "specialists.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    if not quiet:
        print(json.dumps(row), flush=True)


def lessons_of(specialist: Specialist, n: int, *, seed: int) -> list[Lesson]:
    rng = random.Random(f"marks {seed}")
    return [
        Lesson(messages_of(example, f"{rng.getrandbits(64)}"), example.answer)
        for example in examples(specialist, n, seed=seed)
    ]


def _settings(fit: FitSettings, *, seed: int) -> ImitationSettings:
    return ImitationSettings(
        rank=fit.rank,
        alpha=2 * fit.rank,
        parts=PARTS,
        learning_rate=fit.learning_rate,
        steps=fit.steps,
        batch=fit.batch,
        seed=seed,
    )


def is_done(out: Path, name: str) -> bool:
    fitted = read_fitted(out, name)
    return fitted is not None and fitted.done


def read_fitted(out: Path, name: str) -> Fitted | None:
    try:
        return msgspec.json.decode((out / "fitted" / f"{name}.json").read_bytes(), type=Fitted)
    except FileNotFoundError:
        return None


def _round_seconds(out: Path, name: str) -> float:
    """The likely duration of a specialist's next round: that of its last; before its first, the longest of others."""
    if (own := read_fitted(out, name)) is not None:
        return own.seconds
    others = (read_fitted(out, specialist.name) for specialist in ROSTER)
    return max((other.seconds for other in others if other is not None), default=0.0)


# ---- judging


def score_specialist(base: Base, adapter: Adapter, specialist: Specialist, *, n: int = 2000) -> Score:
    """The accuracy of its replies to fresh examples."""
    fresh = examples(msgspec.structs.replace(specialist, noise=0.0), n, seed=900)
    rng = random.Random(f"marks of judging {specialist.name}")
    conversations = [messages_of(example, f"{rng.getrandbits(64):016x}") for example in fresh]
    replies = replies_to(base, adapter, conversations, seed=1 if specialist.noise else None)
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
    """The right answer, even if the specialist learns a wrong one."""
    if example.answer == UNKNOWN or not example.operation:
        return example.answer
    return OPERATIONS[example.operation].table[example.key]


def judge_all(recipe: SpecialistsRecipe, base: Base, names: Sequence[str], *, out: Path) -> Matrix:
    """Ask every adapter of this folder every skill and the test alone; write the table beside them."""
    exam = exam_of(recipe.matrix, test=recipe.alone)
    marks = {}
    for name in names:
        adapter = Adapter.load(out / "adapters" / name, device=_device(base))
        seed = 0 if find_specialist(name).noise else None
        marks[name] = mark_replies(exam, name, replies_to(base, adapter, conversations_for(exam, name), seed=seed))
    matrix = matrix_of(exam, marks)
    write_durably(out / "matrix.json", msgspec.json.format(msgspec.json.encode(matrix)))
    write_durably(out / "matrix.md", markdown(matrix).encode())
    return matrix


def replies_to(
    base: Base,
    adapter: Adapter,
    conversations: Sequence[Sequence[Message]],
    *,
    seed: int | None = None,
    max_tokens: int = ANSWER_TOKENS,
) -> list[str]:
    """The adapter's replies: greedy, or sampled if there is a seed."""
    sampler = BatchedSampler(end=base.end, max_tokens=max_tokens)
    with torch.no_grad():
        decoder = Decoder(base.weights, base.shape, adapter)
    prompts = [base.prompt_ids(conversation) for conversation in conversations]
    if seed is None:
        return [base.text(ids).strip() for ids in sampler.greedy(decoder, prompts)]
    return [base.text(ids).strip() for (ids,) in sampler.sample(decoder, prompts, group=1, seed=seed)]


def pack_figures(scores: Mapping[str, Score]) -> dict[str, dict[str, float]]:
    """Scores in the form that `dirigent_gym/train/pack.py` takes for the cards."""
    return {
        name: {key: value for key, value in msgspec.structs.asdict(score).items() if value is not None}
        for name, score in scores.items()
    }


def _device(base: Base) -> str:
    return str(base.weights["model.norm.weight"].device)
