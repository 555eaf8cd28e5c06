"""Train what a recipe describes: a conductor, the gym's specialists, or the control that answers by itself.

    python -m dirigent_gym.train.run gym/recipes/gym-gpu.toml --out runs/gym-gpu [--resume] [--seconds 540]

A conductor is trained with the product's own loop: base, warm start, `dirigent.learn.grpo`, export. The run's folder
holds `recipe.json`, `warm-start/`, `loop/` (the loop's checkpoint and adapter), `metrics.jsonl`, `tensorboard/`, and at
the end `adapter/` (PEFT), the same as `conductor.gguf` for llama.cpp, and `result.json`. A run that is interrupted,
killed, or out of time, memory or money goes on with `--resume`.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from dirigent.errors import ConfigError, DirigentError
from dirigent.workers.adapters import packaged
from dirigent.workers.weights import KNOWN, cached
from dirigent.workers.worker import Worker
from dirigent_gym.train.controls import unevenness
from dirigent_gym.train.faults import Stop, ends_gently, within_disk, within_memory
from dirigent_gym.train.folder import RESULT_FILE, SEAL, WARM_START, claim, default_folder, held, write_durably
from dirigent_gym.train.lessons import lessons_for
from dirigent_gym.train.progress import Progress
from dirigent_gym.train.recipe import AnyRecipe, BaseSettings, Recipe, SpecialistsRecipe, load_recipe
from dirigent_gym.train.reward import Scored
from dirigent_gym.train.rows import dev_rows, training_rows
from dirigent_gym.train.workers import CapReached, Hands, open_hands

try:
    import torch

    from dirigent.learn.base import Base
    from dirigent.learn.decoder import Adapter, Decoder, Shape
    from dirigent.learn.export import export_trained, load_adapter
    from dirigent.learn.grpo import GrpoSettings, greedy_plans, steps_taken, train
    from dirigent.learn.imitate import ImitationSettings, Lesson, batches, fresh_adapter, imitate
    from dirigent.learn.sampler import BatchedSampler, Sampler
except ImportError as error:
    raise ConfigError(f"training needs more packages ({error.name}); pip install 'dirigent-gym[train]'") from None

from dirigent_gym.train.task import Collapsed, GymTask
from dirigent_gym.train.tiny import make_tiny

GGUF_FILE = "conductor.gguf"
LOOP = "loop"

LEAST_VALID = 0.98
"""Share of valid plans, greedy and sampled, that a start must have."""
MOST_UNEVEN = 0.02
"""How far a worker's share may be from an even one, so that whatever routing a conductor shows came from RL."""
SAMPLES = 4
"""Plans sampled for each row that a start is measured on: a few hundred choices could not tell two points apart."""


class AnyResult(Protocol):
    """What every kind of run reports."""

    @property
    def finished(self) -> bool: ...

    @property
    def summary(self) -> str: ...


class WarmStart(msgspec.Struct, frozen=True):
    """How good a start is."""

    valid_greedy: float
    valid_sampled: float
    uneven: float
    """Largest distance of a worker's share of the steps from an even share, over workers and over positions."""
    accuracy_greedy: float
    accuracy_sampled: float

    @property
    def figures(self) -> str:
        valid = f"valid {self.valid_greedy:.1%} greedy, {self.valid_sampled:.1%} sampled"
        return f"{valid}; right {self.accuracy_greedy:.1%}; workers within {self.uneven:.1%} of even"

    @property
    def fault(self) -> str:
        """Why it should not be trained on; empty if nothing speaks against it."""
        if min(self.valid_greedy, self.valid_sampled) < LEAST_VALID:
            return (
                f"only {self.valid_greedy:.1%} of its greedy and {self.valid_sampled:.1%} of its sampled plans are "
                f"valid, {LEAST_VALID:.0%} are wanted; raise warm_start.steps"
            )
        if self.uneven > MOST_UNEVEN:
            return f"it chooses workers up to {self.uneven:.1%} away from evenly; raise warm_start.n"
        return ""


class Result(msgspec.Struct, frozen=True):
    """How far a run came, and what it wrote."""

    recipe: str
    out: str
    step: int
    steps: int
    stopped: str = ""
    """Why it ended before its last step."""
    adapter: str = ""
    gguf: str = ""
    """The same adapter as llama.cpp loads it."""
    start: dict[str, float] = {}
    """The warm start, measured."""
    dev: dict[str, float] = {}
    """The last measurement on the development questions."""
    ceiling: float = 1.0
    """Accuracy of the right plans; 1 if the tasks do not know theirs."""
    seconds: float = 0.0
    spent_usd: float = 0.0
    """What the workers of a pool have cost, in all parts of the run."""

    @property
    def finished(self) -> bool:
        return self.step >= self.steps

    @property
    def summary(self) -> str:
        right = f"{self.start.get('accuracy_greedy', 0.0):.1%} -> {self.dev.get('accuracy', 0.0):.1%}"
        spent = f"; workers cost ${self.spent_usd:.4g}" if self.spent_usd else ""
        reached = f"step {self.step}/{self.steps}; right on dev {right}, ceiling {self.ceiling:.1%}{spent}"
        return f"{reached}\nadapter: {self.adapter}; as GGUF: {self.gguf}"


def carry_out(
    recipe: AnyRecipe, *, out: Path, resume: bool = False, seconds: float | None = None, quiet: bool = False
) -> AnyResult:
    """Carry out a recipe of any kind. `seconds` ends it early, to be resumed."""
    if isinstance(recipe, Recipe):
        return train_conductor(recipe, out=out, resume=resume, seconds=seconds, quiet=quiet)
    quieten()
    with held(out), within_disk():
        claim(recipe, out, resume=resume)
        if isinstance(recipe, SpecialistsRecipe):
            from dirigent_gym.train.specialists import train_specialists

            return train_specialists(recipe, out=out, seconds=seconds, quiet=quiet)
        from dirigent_gym.train.direct import train_direct

        return train_direct(recipe, out=out, quiet=quiet)


def train_conductor(
    recipe: Recipe,
    *,
    out: Path,
    resume: bool = False,
    seconds: float | None = None,
    quiet: bool = False,
    workers: Mapping[str, Worker] | None = None,
) -> Result:
    """Carry a conductor's recipe out. `workers` replace the recipe's own, by name."""
    began = time.monotonic()
    quieten()
    stop = Stop()
    with held(out), within_disk(), ends_gently(stop, aloud=not quiet):
        claim(recipe, out, resume=resume)
        progress = Progress(out, steps=recipe.grpo.steps, quiet=quiet)
        with closing(progress), opened_hands(recipe, out, workers) as (hands, runner):
            base = open_base(recipe.base, lambda: lessons_of(recipe, out), out, seed=recipe.seed)
            start = warm_start(recipe, base, out, progress)
            task = gym_task(recipe, hands, runner)
            sampler = sampler_for(recipe, base)
            measured = measure_start(recipe, base, start, task, out)
            fault = measured.fault if recipe.warm_start.lessons != "none" else ""
            progress.say(f"warm start: {measured.figures}{f'; {fault}' if fault else ''}")
            following = _Following(recipe, progress, steps_taken(out / LOOP))
            deadline_s = math.inf if seconds is None else seconds - (time.monotonic() - began)
            try:
                with within_memory("in a step", advice=f"lower grpo.minibatch_rows, {recipe.grpo.minibatch_rows} now"):
                    adapter = train(
                        base,
                        start,
                        task,
                        FromStart(sampler, base, start) if recipe.algorithm == "rft" else sampler,
                        loop_settings(recipe),
                        out / LOOP,
                        observe=following,
                        stop_after_s=deadline_s,
                        stop=lambda: bool(stop.reason) or hands.refused,
                        runner=runner,
                    )
                if not recipe.grpo.steps:
                    following.dev = task.measure(greedy_plans(base, adapter, sampler))
            except (Collapsed, CapReached) as ended:
                stop.reason = str(ended)
                adapter = Adapter.load(out / LOOP / "adapter", device="cpu")
                following.step = steps_taken(out / LOOP)
            if following.step < recipe.grpo.steps and not stop.reason:
                out_of_money = hands.spending.reached if hands.spending is not None and hands.refused else ""
                stop.reason = out_of_money or "stopped: out of time. Go on with --resume"
            if stop.reason:
                progress.say(stop.reason)
        adapter.save(out / "adapter", base=base.name)
        export_trained(out / "adapter", out / GGUF_FILE, base=base)
        result = Result(
            recipe=recipe.name,
            out=str(out),
            step=following.step,
            steps=recipe.grpo.steps,
            stopped=stop.reason,
            adapter=str(out / "adapter"),
            gguf=str(out / GGUF_FILE),
            start=msgspec.structs.asdict(measured),
            dev=following.dev,
            ceiling=task.ceiling,
            seconds=time.monotonic() - began,
            spent_usd=0.0 if hands.spending is None else hands.spending.spent_usd,
        )
        write_durably(out / RESULT_FILE, msgspec.json.encode(result))
    return result


@contextmanager
def opened_hands(
    recipe: Recipe, out: Path | None = None, workers: Mapping[str, Worker] | None = None
) -> Iterator[tuple[Hands, asyncio.Runner]]:
    """The recipe's workers, and the runner of the event loop on which they live."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            yield runner.run(stack.enter_async_context(open_hands(recipe, out=out, workers=workers))), runner
        finally:
            runner.run(stack.aclose())


def loop_settings(recipe: Recipe) -> GrpoSettings:
    """The recipe's settings, as the loop knows them."""
    grpo = recipe.grpo
    return GrpoSettings(
        steps=grpo.steps,
        questions=grpo.prompts,
        rollouts=grpo.rollouts,
        learning_rate=grpo.learning_rate,
        warmup=grpo.warmup,
        beta=grpo.beta,
        rows_at_once=grpo.minibatch_rows,
        measure_every=recipe.eval.every_steps,
        save_every=grpo.save_every_steps,
        seed=recipe.seed,
    )


def sampler_for(recipe: Recipe, base: Base) -> BatchedSampler:
    return BatchedSampler(end=base.end, max_tokens=recipe.grpo.max_completion_tokens)


def gym_task(recipe: Recipe, hands: Hands, runner: asyncio.Runner) -> GymTask:
    """The recipe's questions over its workers, with the ceiling of its development questions."""
    pool = tuple(worker.info for worker in hands.workers.values())
    rows, dev = training_rows(recipe, pool), dev_rows(recipe, pool, n=recipe.eval.n)
    task = GymTask(recipe, rows=rows, dev=dev, hands=hands, runner=runner)
    task.measure_ceiling()
    return task


def lessons_of(recipe: Recipe, out: Path) -> Sequence[Lesson]:
    """The warm start's lessons; none if the recipe has a start of its own."""
    if recipe.warm_start.lessons == "none":
        return ()
    return [Lesson(pair.messages, pair.completion) for pair in lessons_for(recipe, out)]


def open_base(settings: BaseSettings, lessons: Callable[[], Sequence[Lesson]], out: Path, *, seed: int) -> Base:
    """The base of a recipe. A tiny one is made, learns these lessons, and is kept in the run's folder."""
    if settings.weights:
        return Base.from_gguf(weights_file(settings.weights))
    assert settings.tiny is not None, "BaseSettings has one of the two"
    # A tiny model's products are too small to share: threads that wait for one another cost ten times the work.
    torch.set_num_threads(1)
    folder = out / WARM_START / "base"
    if not (folder / "shape.json").is_file():
        model, tokenizer = make_tiny(lessons(), settings.tiny, seed=seed)
        weights = dict(model.state_dict())
        weights.pop("lm_head.weight", None)
        Base("tiny", weights, Shape.of(model.config), tokenizer).save(folder)
    return Base.load(folder)


def weights_file(name: str) -> Path:
    """A GGUF file by its path, or by the name of known weights that were fetched before."""
    if name in KNOWN:
        path = cached(name)
        if path is None:
            raise ConfigError(f"the weights {name} are not here yet; `dirigent pool pull` fetches them")
        return path
    if not Path(name).is_file():
        raise ConfigError(f"base.weights is {name!r}, which is no file and none of: {', '.join(KNOWN)}")
    return Path(name)


def adapter_file(name: str) -> Path:
    """An adapter by its path, or by the name of one that ships."""
    if Path(name).exists():
        return Path(name)
    if name not in (known := packaged()):
        raise ConfigError(f"warm_start.adapter is {name!r}, which is no file and none of: {', '.join(known)}")
    return known[name]


def warm_start(recipe: Recipe, base: Base, out: Path, progress: Progress) -> Adapter:
    """The adapter that the run starts from: read from the run's folder, or made and kept there."""
    folder, device = out / WARM_START, str(base.weights["model.norm.weight"].device)
    if not (folder / SEAL).is_file():
        _made_start(recipe, base, out, progress).save(folder / "policy", base=base.name)
        write_durably(folder / SEAL, msgspec.json.encode({"steps": recipe.warm_start.steps}))
    # Always read from the disk, so that a run and its resumption start from the same numbers.
    try:
        return Adapter.load(folder / "policy", device=device)
    except Exception as error:
        raise ConfigError(
            f"the warm start in {folder} cannot be read: {error}. "
            "Bring the files back, or delete the folder to have it fitted again"
        ) from None


def _made_start(recipe: Recipe, base: Base, out: Path, progress: Progress) -> Adapter:
    start = recipe.warm_start
    if start.adapter:
        return load_adapter(adapter_file(start.adapter), base=base)
    settings = ImitationSettings(
        rank=recipe.policy.rank,
        alpha=recipe.policy.alpha,
        steps=start.steps,
        batch=start.batch,
        learning_rate=start.learning_rate,
        seed=recipe.seed,
    )
    lessons = lessons_of(recipe, out) if start.steps else ()
    if not lessons:
        return fresh_adapter(base, settings)
    drawn = batches(lessons, start.batch, random.Random(recipe.seed))

    def report(step: int, loss: float) -> None:
        if step % 20 == 0 or step == start.steps - 1:
            progress.record("warm start", step, {"loss": loss})

    with within_memory("while the warm start was fitted", advice=f"lower warm_start.batch, which is {start.batch}"):
        return imitate(base, lambda count, rng: next(drawn), settings, observe=report)


def measure_start(recipe: Recipe, base: Base, start: Adapter, task: GymTask, out: Path) -> WarmStart:
    """Validity, evenness and accuracy of the start on development questions, measured once a run."""
    file = out / WARM_START / "start.json"
    if file.is_file():
        return msgspec.json.decode(file.read_bytes(), type=WarmStart)
    rows = dev_rows(recipe, [worker.info for worker in task.hands.workers.values()], n=recipe.warm_start.measure)
    sampler, prompts = sampler_for(recipe, base), [base.prompt_ids(row.messages) for row in rows]
    with torch.no_grad():
        decoder = Decoder(base.weights, base.shape, start)
    greedy_texts = [base.text(ids) for ids in sampler.greedy(decoder, prompts)]
    drawn_PG = sampler.sample(decoder, prompts, group=SAMPLES, seed=recipe.seed)  # noqa: N806
    rows_sampled = [row for row in rows for _ in range(SAMPLES)]
    greedy = task.carried_out(rows, greedy_texts)
    sampled = task.carried_out(rows_sampled, [base.text(ids) for group in drawn_PG for ids in group])
    measured = WarmStart(
        valid_greedy=_share(greedy, "valid"),
        valid_sampled=_share(sampled, "valid"),
        uneven=unevenness(rows_sampled, sampled),
        accuracy_greedy=_share(greedy, "correct"),
        accuracy_sampled=_share(sampled, "correct"),
    )
    write_durably(file, msgspec.json.encode(measured))
    return measured


def _share(scored: Sequence[Scored], what: str) -> float:
    return sum(bool(getattr(one, what)) for one in scored) / len(scored) if scored else 0.0


class FromStart:
    """A sampler that always writes with the start's weights: rejection sampling draws nothing from what it learns."""

    def __init__(self, sampler: Sampler, base: Base, start: Adapter) -> None:
        self._sampler = sampler
        with torch.no_grad():
            self._start = Decoder(base.weights, base.shape, start)

    def sample(
        self, decoder: Decoder, prompts: Sequence[Sequence[int]], *, group: int, seed: int
    ) -> list[list[list[int]]]:
        return self._sampler.sample(self._start, prompts, group=group, seed=seed)

    def greedy(self, decoder: Decoder, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        return self._sampler.greedy(decoder, prompts)


class _Following:
    """Records every step and shows the line of progress."""

    def __init__(self, recipe: Recipe, progress: Progress, step: int) -> None:
        self.recipe = recipe
        self.progress = progress
        self.step = step
        """Steps that were taken."""
        self.dev: dict[str, float] = {}
        self._seconds = 0.0

    def __call__(self, facts: Mapping[str, float]) -> None:
        self.step = int(facts["step"]) + 1
        taken = facts["write_s"] + facts["score_s"] + facts["update_s"]
        self._seconds = taken if not self._seconds else 0.8 * self._seconds + 0.2 * taken
        figures = {name: value for name, value in facts.items() if not name.startswith("dev/") and name != "step"}
        self.progress.record("train", self.step, figures | {"step_seconds": taken})
        if dev := {name[4:]: value for name, value in facts.items() if name.startswith("dev/")}:
            self.dev = dev
            self.progress.record("dev", self.step, dev)
        left = (self.recipe.grpo.steps - self.step) * self._seconds
        self.progress.show(self.step, figures | {"step_seconds": self._seconds}, seconds_left=left)


def quieten() -> None:
    """Keep libraries from writing over the progress line, and from looking for a network."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument(
        "--out", type=Path, help="the run's folder; default: runs/NAME of the recipe, with --seed runs/NAME-seed-N"
    )
    parser.add_argument("--seed", type=int, help="another seed than the recipe's")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint, as the recipe is now")
    parser.add_argument("--seconds", type=float, help="end, with a checkpoint, before this much time has passed")
    args = parser.parse_args()
    try:
        recipe = load_recipe(args.recipe, seed=args.seed)
        out = args.out or default_folder(recipe, seed=args.seed)
        result = carry_out(recipe, out=out, resume=args.resume, seconds=args.seconds)
    except DirigentError as error:
        sys.exit(f"error: {error}")
    print(msgspec.json.encode(result).decode())


if __name__ == "__main__":
    main()
