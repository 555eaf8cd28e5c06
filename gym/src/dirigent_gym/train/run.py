"""Train the model that a recipe describes: a conductor, the gym's specialists, or the control without workers.

    python -m dirigent_gym.train.run gym/recipes/gym-gpu.toml --out runs/gym-gpu [--resume] [--seconds 540]

A conductor is trained with the product's own loop: base, warm start, `dirigent.learn.grpo`, export. The run's folder
holds `recipe.json`, `warm-start/`, `loop/` (the loop's checkpoint and adapter), `metrics.jsonl` and `tensorboard/`. At
the end it also holds `adapter/` (PEFT), the same adapter as `conductor.gguf` for llama.cpp, and `result.json`. A run
that was interrupted or killed, or that ran out of time, memory or money, continues with `--resume`.
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
from dirigent_gym.train.faults import Stop, stop_on_signal, within_disk, within_memory
from dirigent_gym.train.folder import RESULT_FILE, SEAL, WARM_START, claim, default_folder, locked, write_durably
from dirigent_gym.train.lessons import lessons_for
from dirigent_gym.train.progress import Progress
from dirigent_gym.train.recipe import AnyRecipe, BaseSettings, Recipe, SpecialistsRecipe, load_recipe
from dirigent_gym.train.reward import Scored
from dirigent_gym.train.rows import dev_rows, training_rows
from dirigent_gym.train.workers import CapReached, Resources, open_resources

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
"""The least share of valid plans, greedy and sampled, that a warm start must have."""
MOST_UNEVEN = 0.02
"""The most that a worker's share may differ from an even share, so that any routing a conductor shows came from RL."""
SAMPLES = 4
"""Plans sampled for each row that a start is measured on. A few hundred choices could not tell two points apart."""


class AnyResult(Protocol):
    """The properties that the result of every kind of run has."""

    @property
    def finished(self) -> bool: ...

    @property
    def summary(self) -> str: ...


class WarmStart(msgspec.Struct, frozen=True):
    """How good a warm start is."""

    valid_greedy: float
    valid_sampled: float
    uneven: float
    """The largest distance of a worker's share of the steps from an even share, over workers and over positions."""
    accuracy_greedy: float
    accuracy_sampled: float

    @property
    def figures(self) -> str:
        valid = f"valid {self.valid_greedy:.1%} greedy, {self.valid_sampled:.1%} sampled"
        return f"{valid}; right {self.accuracy_greedy:.1%}; workers within {self.uneven:.1%} of even"

    @property
    def fault(self) -> str:
        """Returns why no run should start from it, or an empty string if it is good."""
        if min(self.valid_greedy, self.valid_sampled) < LEAST_VALID:
            return (
                f"only {self.valid_greedy:.1%} of its greedy and {self.valid_sampled:.1%} of its sampled plans are "
                f"valid, {LEAST_VALID:.0%} are wanted; raise warm_start.steps"
            )
        if self.uneven > MOST_UNEVEN:
            return f"it chooses workers up to {self.uneven:.1%} away from evenly; raise warm_start.n"
        return ""


class Result(msgspec.Struct, frozen=True):
    """How far a run came, and which files it wrote."""

    recipe: str
    out: str
    step: int
    steps: int
    stopped: str = ""
    """Why the run ended before its last step."""
    adapter: str = ""
    gguf: str = ""
    """The same adapter in llama.cpp's format."""
    start: dict[str, float] = {}
    """The figures of the warm start."""
    dev: dict[str, float] = {}
    """The last measurement on the development questions."""
    ceiling: float = 1.0
    """The accuracy of the right plans; 1 if the right plans are unknown."""
    seconds: float = 0.0
    spent_usd: float = 0.0
    """The cost of a pool's workers, over all parts of the run."""

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
    """Carry out a recipe of any kind. The run ends early after `seconds` and can be resumed."""
    if isinstance(recipe, Recipe):
        return train_conductor(recipe, out=out, resume=resume, seconds=seconds, quiet=quiet)
    silence_libraries()
    with locked(out), within_disk():
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
    """Carry out a conductor's recipe. `workers` replace the recipe's own, by name."""
    began = time.monotonic()
    silence_libraries()
    stop = Stop()
    with locked(out), within_disk(), stop_on_signal(stop, aloud=not quiet):
        claim(recipe, out, resume=resume)
        progress = Progress(out, steps=recipe.grpo.steps, quiet=quiet)
        with closing(progress), opened_resources(recipe, out, workers) as (resources, runner):
            base = open_base(recipe.base, lambda: lessons_of(recipe, out), out, seed=recipe.seed)
            start = warm_start(recipe, base, out, progress)
            task = gym_task(recipe, resources, runner)
            sampler = sampler_for(recipe, base)
            measured = measure_start(recipe, base, start, task, out)
            fault = measured.fault if recipe.warm_start.lessons != "none" else ""
            progress.say(f"warm start: {measured.figures}{f'; {fault}' if fault else ''}")
            recorder = _StepRecorder(recipe, progress, steps_taken(out / LOOP))
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
                        observe=recorder,
                        stop_after_s=deadline_s,
                        stop=lambda: bool(stop.reason) or resources.refused,
                        runner=runner,
                    )
                if not recipe.grpo.steps:
                    recorder.dev = task.measure(greedy_plans(base, adapter, sampler))
            except (Collapsed, CapReached) as ended:
                stop.reason = str(ended)
                adapter = Adapter.load(out / LOOP / "adapter", device="cpu")
                recorder.step = steps_taken(out / LOOP)
            if recorder.step < recipe.grpo.steps and not stop.reason:
                out_of_money = (
                    resources.spending.reached if resources.spending is not None and resources.refused else ""
                )
                stop.reason = out_of_money or "stopped: out of time. Go on with --resume"
            if stop.reason:
                progress.say(stop.reason)
        adapter.save(out / "adapter", base=base.name)
        export_trained(out / "adapter", out / GGUF_FILE, base=base)
        result = Result(
            recipe=recipe.name,
            out=str(out),
            step=recorder.step,
            steps=recipe.grpo.steps,
            stopped=stop.reason,
            adapter=str(out / "adapter"),
            gguf=str(out / GGUF_FILE),
            start=msgspec.structs.asdict(measured),
            dev=recorder.dev,
            ceiling=task.ceiling,
            seconds=time.monotonic() - began,
            spent_usd=0.0 if resources.spending is None else resources.spending.spent_usd,
        )
        write_durably(out / RESULT_FILE, msgspec.json.encode(result))
    return result


@contextmanager
def opened_resources(
    recipe: Recipe, out: Path | None = None, workers: Mapping[str, Worker] | None = None
) -> Iterator[tuple[Resources, asyncio.Runner]]:
    """Opens the recipe's workers, and the runner of the event loop that they use."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            yield runner.run(stack.enter_async_context(open_resources(recipe, out=out, workers=workers))), runner
        finally:
            runner.run(stack.aclose())


def loop_settings(recipe: Recipe) -> GrpoSettings:
    """The recipe's settings in the form that the loop takes."""
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


def gym_task(recipe: Recipe, resources: Resources, runner: asyncio.Runner) -> GymTask:
    """The recipe's questions and workers as a task, with the ceiling of its development questions measured."""
    pool = tuple(worker.info for worker in resources.workers.values())
    rows, dev = training_rows(recipe, pool), dev_rows(recipe, pool, n=recipe.eval.n)
    task = GymTask(recipe, rows=rows, dev=dev, resources=resources, runner=runner)
    task.measure_ceiling()
    return task


def lessons_of(recipe: Recipe, out: Path) -> Sequence[Lesson]:
    """The warm start's lessons; empty if the recipe starts from an adapter of its own."""
    if recipe.warm_start.lessons == "none":
        return ()
    return [Lesson(pair.messages, pair.completion) for pair in lessons_for(recipe, out)]


def open_base(settings: BaseSettings, lessons: Callable[[], Sequence[Lesson]], out: Path, *, seed: int) -> Base:
    """Open the base of a recipe. A tiny base is made once, fitted to these lessons and saved in the run's folder."""
    if settings.weights:
        return Base.from_gguf(weights_file(settings.weights))
    assert settings.tiny is not None, "BaseSettings has one of the two"
    # A tiny model's matrix products are too small to share: waiting threads would cost ten times the work.
    torch.set_num_threads(1)
    folder = out / WARM_START / "base"
    if not (folder / "shape.json").is_file():
        model, tokenizer = make_tiny(lessons(), settings.tiny, seed=seed)
        weights = dict(model.state_dict())
        weights.pop("lm_head.weight", None)
        Base("tiny", weights, Shape.of(model.config), tokenizer).save(folder)
    return Base.load(folder)


def weights_file(name: str) -> Path:
    """The path of a GGUF file, given its path or the name of known weights that were fetched before."""
    if name in KNOWN:
        path = cached(name)
        if path is None:
            raise ConfigError(f"the weights {name} are not here yet; `dirigent pool pull` fetches them")
        return path
    if not Path(name).is_file():
        raise ConfigError(f"base.weights is {name!r}, which is neither a file nor one of: {', '.join(KNOWN)}")
    return Path(name)


def adapter_file(name: str) -> Path:
    """The path of an adapter, given its path or the name of an adapter that ships."""
    if Path(name).exists():
        return Path(name)
    if name not in (known := packaged()):
        raise ConfigError(f"warm_start.adapter is {name!r}, which is neither a file nor one of: {', '.join(known)}")
    return known[name]


def warm_start(recipe: Recipe, base: Base, out: Path, progress: Progress) -> Adapter:
    """The adapter that the run starts from, read from the run's folder; it is made and saved there first if missing."""
    folder, device = out / WARM_START, str(base.weights["model.norm.weight"].device)
    if not (folder / SEAL).is_file():
        _fit_start(recipe, base, out, progress).save(folder / "policy", base=base.name)
        write_durably(folder / SEAL, msgspec.json.encode({"steps": recipe.warm_start.steps}))
    # The adapter is always read from the disk, so that a run and its resumption start from the same numbers.
    try:
        return Adapter.load(folder / "policy", device=device)
    except Exception as error:
        raise ConfigError(
            f"the warm start in {folder} cannot be read: {error}. "
            "Bring the files back, or delete the folder to fit the warm start again"
        ) from None


def _fit_start(recipe: Recipe, base: Base, out: Path, progress: Progress) -> Adapter:
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
    """Measure validity, evenness and accuracy of the start on development questions, once a run."""
    file = out / WARM_START / "start.json"
    if file.is_file():
        return msgspec.json.decode(file.read_bytes(), type=WarmStart)
    rows = dev_rows(recipe, [worker.info for worker in task.resources.workers.values()], n=recipe.warm_start.measure)
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
    """A sampler that always writes with the start's weights, because rejection sampling draws from the start alone."""

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


class _StepRecorder:
    """Records every step and shows the line of progress."""

    def __init__(self, recipe: Recipe, progress: Progress, step: int) -> None:
        self.recipe = recipe
        self.progress = progress
        self.step = step
        """The number of steps taken so far."""
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


def silence_libraries() -> None:
    """Keep libraries from writing over the progress line and from using the network."""
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
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint of this recipe's run")
    parser.add_argument("--seconds", type=float, help="end the run, with a checkpoint, before this time has passed")
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
