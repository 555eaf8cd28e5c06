"""Fit the gym's specialists: one LoRA adapter each, on one shared base, until each masters its own skill.

    dirigent train gym/recipes/specialists.toml [--resume] [--seconds 540]

Each adapter is fitted on the specialist's own examples, judged on fresh ones, and fitted on for another round while
it is short of the goal and rounds are left. After every round it is on the disk, with what it scored, so a cut run
loses at most one round and `--resume` takes the next. With several processes the specialists are dealt out by how long
they take. At the end all of them are put to every skill and to the test (`judge.py`).

The run's folder: `adapters/NAME/` (PEFT), `fitted/NAME.json`, `specialists.jsonl`, `figures.json` for packing, and
`matrix.json` and `matrix.md`.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dirigent.errors import ConfigError, DirigentError
from dirigent_gym.questions.examples import examples
from dirigent_gym.questions.judging import Matrix, markdown, messages_of
from dirigent_gym.questions.specialists import ROSTER, Specialist, find_specialist
from dirigent_gym.train.adapters import load_adapters
from dirigent_gym.train.checkpoint import write_durably
from dirigent_gym.train.disk import within_disk
from dirigent_gym.train.judge import Score, judge_all, pack_figures, score_specialist
from dirigent_gym.train.memory import within_memory
from dirigent_gym.train.recipe import FitSettings, SpecialistsRecipe, TinySettings
from dirigent_gym.train.sft import Pair, Report, SftSettings, fit_adapter, save_adapter
from dirigent_gym.train.stacked import stack

# llama.cpp permutes the rows of q and k; leaving them alone keeps the export a plain copy, and was not missed.
TARGETS = ("v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Fitted(msgspec.Struct, frozen=True):
    """How far a specialist is."""

    rounds: int
    score: Score
    done: bool
    """The goal is reached, or all rounds are used."""
    seconds: float = 0.0
    """Of its last round."""


class SpecialistsResult(msgspec.Struct, frozen=True):
    recipe: str
    out: str
    scores: dict[str, Score]
    missing: tuple[str, ...] = ()
    """Those that time was too short for."""
    matrix: Matrix | None = None
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        return not self.missing

    @property
    def summary(self) -> str:
        parts = [f"{name} {score.own:.1%}" for name, score in self.scores.items()]
        left = f"; not done: {', '.join(self.missing)}. Go on with --resume" if self.missing else ""
        return f"own skill: {', '.join(parts) or 'nobody yet'}{left}\nadapters: {Path(self.out) / 'adapters'}"


def train_specialists(
    recipe: SpecialistsRecipe, *, out: Path, seconds: float | None = None, quiet: bool = False
) -> SpecialistsResult:
    """Fit whoever is not done yet in this folder, then judge them all if all are done."""
    began = time.monotonic()
    deadline = None if seconds is None else began + seconds
    names = recipe.names or tuple(specialist.name for specialist in ROSTER)
    todo = [name for name in names if not is_done(out, name)]
    if len(todo) > 1 and recipe.processes > 1:
        fit_in_processes(recipe, todo, out=out, seconds=seconds, quiet=quiet)
    elif todo:
        fit_here(recipe, todo, out=out, deadline=deadline, quiet=quiet)
    fitted = {name: state for name in names if (state := read_fitted(out, name)) is not None}
    scores = {name: state.score for name, state in fitted.items()}
    write_durably(out / "figures.json", msgspec.json.format(msgspec.json.encode(pack_figures(scores))))
    missing = tuple(name for name in names if not is_done(out, name))
    matrix = None if missing or not (recipe.matrix or recipe.alone) else _judged(recipe, names, out=out)
    result = SpecialistsResult(recipe.name, str(out), scores, missing, matrix, time.monotonic() - began)
    write_durably(out / "result.json", msgspec.json.encode(result))
    return result


def fit_here(
    recipe: SpecialistsRecipe, names: Sequence[str], *, out: Path, deadline: float | None, quiet: bool
) -> None:
    """One after the other in this process; whoever the time does not suffice for is left for later."""
    model, tokenizer = open_specialist_base(recipe)
    for name in names:
        specialist, settings = find_specialist(name), recipe.fit_of(name)
        while not is_done(out, name):
            if deadline is not None and time.monotonic() + _round_seconds(out, name) >= deadline:
                return
            model = fit_round(recipe, model, tokenizer, specialist, settings=settings, out=out, quiet=quiet)
        if hasattr(model, "unload"):
            model = model.unload()


def fit_round(
    recipe: SpecialistsRecipe,
    model: Any,
    tokenizer: Any,
    specialist: Specialist,
    *,
    settings: FitSettings,
    out: Path,
    quiet: bool,
) -> Any:
    """One round of fresh examples for one specialist; what came of it is on the disk before it returns."""
    began = time.monotonic()
    before = read_fitted(out, specialist.name)
    number = 0 if before is None else before.rounds
    folder = out / "adapters"
    if number and not hasattr(model, "peft_config"):
        model = _from_disk(model, folder / specialist.name, specialist.name)
    losses: list[tuple[int, float]] = []
    pairs = pairs_of(specialist, settings.steps * settings.batch // 2, seed=100 + number)
    with within_memory(f"while {specialist.name} was fitted", advice=f"lower fit.batch, which is {settings.batch}"):
        model = fit_adapter(
            model, tokenizer, pairs, name=specialist.name, report=_noting(losses),
            settings=sft_settings(settings, seed=recipe.seed + number),
        )  # fmt: skip
    save_adapter(model, specialist.name, folder)
    score = score_specialist(model, tokenizer, specialist, n=recipe.judge)
    done = score.own >= recipe.goal - specialist.noise or number + 1 >= settings.rounds
    fitted = Fitted(number + 1, score, done, round(time.monotonic() - began, 1))
    _note(fitted, specialist.name, losses, out=out, quiet=quiet)
    return model


def pairs_of(specialist: Specialist, n: int, *, seed: int) -> list[Pair]:
    rng = random.Random(f"marks {seed}")
    return [
        Pair(messages_of(example, f"{rng.getrandbits(64)}"), example.answer)
        for example in examples(specialist, n, seed=seed)
    ]


def sft_settings(fit: FitSettings, *, seed: int) -> SftSettings:
    return SftSettings(
        rank=fit.rank,
        alpha=2 * fit.rank,
        targets=TARGETS,
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


def fit_in_processes(
    recipe: SpecialistsRecipe, names: Sequence[str], *, out: Path, seconds: float | None, quiet: bool
) -> None:
    """Deal the specialists out to processes of their own, and wait for all; broken off, none is left running."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "recipe.json"
    write_durably(file, msgspec.json.encode(recipe))
    running: list[tuple[list[str], subprocess.Popen[bytes]]] = []
    with _terminated_by_exception():
        try:
            for share in dealt(recipe, names):
                command = [sys.executable, "-m", "dirigent_gym.train.specialists", str(file), "--out", str(out)]
                command += ["--names", ",".join(share)]
                command += [] if seconds is None else ["--seconds", str(seconds)]
                running.append((share, subprocess.Popen(command, stdout=subprocess.DEVNULL if quiet else None)))
            failed = [share for share, process in running if process.wait() != 0]
        except BaseException:
            for _, process in running:
                process.terminate()
            for _, process in running:
                process.wait()
            raise
    if failed:
        raise ConfigError(f"the process that fitted {', '.join(failed[0])} failed; what it said stands above")


@contextmanager
def _terminated_by_exception() -> Iterator[None]:
    """Inside, SIGTERM leaves as an exception does, so that what was started is ended too."""

    def leave(number: int, _: Any) -> None:
        sys.exit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not in the main thread: whoever runs this one hears the signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def dealt(recipe: SpecialistsRecipe, names: Sequence[str]) -> list[list[str]]:
    """Names by process, the longest first, each to whoever has least to do."""

    def work(name: str) -> int:
        fit = recipe.fit_of(name)
        return fit.steps * fit.batch * fit.rounds

    shares: list[list[str]] = [[] for _ in range(min(recipe.processes, len(names)))]
    for name in sorted(names, key=work, reverse=True):
        min(shares, key=lambda share: sum(map(work, share))).append(name)
    return shares


def open_specialist_base(recipe: SpecialistsRecipe) -> tuple[Any, Any]:
    if recipe.base.tiny is not None:
        return _tiny(recipe.base.tiny, seed=recipe.seed)
    from dirigent_gym.train.policy import open_base

    return open_base(recipe.base)


def _tiny(settings: TinySettings, *, seed: int) -> tuple[Any, Any]:
    from dirigent_gym.train.tiny import tiny_base

    pairs = [pair for specialist in ROSTER for pair in pairs_of(specialist, 40, seed=0)]
    texts = [text for pair in pairs for text in (*(message.text for message in pair.messages), pair.completion)]
    return tiny_base(texts, settings=settings, seed=seed)


def _round_seconds(out: Path, name: str) -> float:
    """How long a specialist's next round may take: as long as its last one, or before its first as anybody's longest;
    nothing where nobody had one."""
    if (own := read_fitted(out, name)) is not None:
        return own.seconds
    others = (read_fitted(out, specialist.name) for specialist in ROSTER)
    return max((other.seconds for other in others if other is not None), default=0.0)


def _from_disk(model: Any, folder: Path, name: str) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(model, str(folder), adapter_name=name, is_trainable=True)


def _noting(losses: list[tuple[int, float]]) -> Report:
    def note(step: int, loss: float) -> None:
        losses.append((step, round(loss, 4)))

    return note


def _note(fitted: Fitted, name: str, losses: list[tuple[int, float]], *, out: Path, quiet: bool) -> None:
    (out / "fitted").mkdir(parents=True, exist_ok=True)
    write_durably(out / "fitted" / f"{name}.json", msgspec.json.encode(fitted))
    row = {"specialist": name, "round": fitted.rounds, "seconds": fitted.seconds, **msgspec.to_builtins(fitted.score)}
    with (out / "specialists.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row | {"losses": losses[::5]}) + "\n")
    if not quiet:
        print(json.dumps(row), flush=True)


def _judged(recipe: SpecialistsRecipe, names: Sequence[str], *, out: Path) -> Matrix:
    """The matrix of these adapters as they lie on the disk."""
    model, tokenizer = open_specialist_base(recipe)
    stacked = stack(model, load_adapters([out / "adapters" / name for name in names], config=model.config))
    matrix = judge_all(stacked, tokenizer, names, a_skill=recipe.matrix, test=recipe.alone)
    write_durably(out / "matrix.json", msgspec.json.format(msgspec.json.encode(matrix)))
    write_durably(out / "matrix.md", markdown(matrix).encode())
    return matrix


def main() -> None:
    """One process's share of a run."""
    parser = argparse.ArgumentParser(description="Fit some specialists of a run; `dirigent train` starts this.")
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--names", required=True)
    parser.add_argument("--seconds", type=float)
    args = parser.parse_args()
    from dirigent_gym.train.run import quieten

    quieten()
    deadline = None if args.seconds is None else time.monotonic() + args.seconds
    recipe = msgspec.json.decode(args.recipe.read_bytes(), type=SpecialistsRecipe)
    try:
        with within_disk():
            fit_here(recipe, args.names.split(","), out=args.out, deadline=deadline, quiet=False)
    except DirigentError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
