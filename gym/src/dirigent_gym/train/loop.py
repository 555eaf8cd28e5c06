"""Train a conductor of the gym with the product's own loop: base, warm start, `dirigent.learn.grpo`, export.

The run's folder holds `recipe.json`, `warm-start/`, `loop/` (the loop's checkpoint and adapter), `metrics.jsonl`,
`tensorboard/`, and at the end `adapter/` (PEFT), the same as `conductor.gguf` for llama.cpp, and `result.json`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from dirigent.errors import ConfigError
from dirigent.learn.base import Base
from dirigent.learn.decoder import Adapter, Decoder
from dirigent.learn.export import export_trained, load_adapter
from dirigent.learn.grpo import GrpoSettings, train
from dirigent.learn.imitate import ImitationSettings, Lesson, imitate
from dirigent.learn.sampler import BatchedSampler, Sampler
from dirigent.workers.worker import Worker
from dirigent_gym.train.adapters import adapter_named
from dirigent_gym.train.base import weights_file
from dirigent_gym.train.checkpoint import damage, seal, sealed_step, write_durably
from dirigent_gym.train.controls import unevenness
from dirigent_gym.train.disk import within_disk
from dirigent_gym.train.endings import ends_gently
from dirigent_gym.train.folder import RESULT_FILE, WARM_START, claim_unchanged, held
from dirigent_gym.train.lessons import lessons_for
from dirigent_gym.train.memory import within_memory
from dirigent_gym.train.progress import Progress
from dirigent_gym.train.recipe import Recipe
from dirigent_gym.train.result import GGUF_FILE, Result, Stop
from dirigent_gym.train.rows import dev_rows, training_rows
from dirigent_gym.train.sft import Pair
from dirigent_gym.train.start import SAMPLES, WarmStart
from dirigent_gym.train.task import Collapsed, GymTask
from dirigent_gym.train.tiny import one_thread
from dirigent_gym.train.warmstart import make_tiny
from dirigent_gym.train.workers import ExactWorkers

CHECKPOINT = "checkpoint.pt"


def train_with_loop(
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
    stop = Stop()
    loop = out / "loop"
    with held(out), within_disk(), ends_gently(stop, aloud=not quiet):
        _claim(recipe, out, resume=resume)
        with closing(Progress(out, steps=recipe.grpo.steps, quiet=quiet)) as progress:
            base = open_base(recipe, out)
            start = warm_start(recipe, base, out, progress)
            task = gym_task(recipe, workers)
            sampler = BatchedSampler(
                end=base.end,
                max_tokens=recipe.grpo.max_completion_tokens,
                temperature=recipe.grpo.temperature,
            )
            measured = measure_start(recipe, base, start, task, sampler, out)
            progress.say(f"warm start: {measured.figures if recipe.warm_start.lessons == 'none' else measured.summary}")
            following = _Following(recipe, progress, _steps_taken(loop))
            adapter = start
            try:
                with within_memory("in a step", advice=f"lower grpo.minibatch_rows, {recipe.grpo.minibatch_rows} now"):
                    adapter = train(
                        base,
                        start,
                        task,
                        _FromStart(sampler, base, start) if recipe.algorithm == "rft" else sampler,
                        loop_settings(recipe),
                        loop,
                        observe=following,
                        stop_after_s=float("inf") if seconds is None else seconds - (time.monotonic() - began),
                        stop=lambda: bool(stop.reason),
                    )
            except Collapsed as collapsed:
                stop.reason = str(collapsed)
                adapter = Adapter.load(loop / "adapter", device="cpu") if (loop / "adapter").is_dir() else start
            if following.step < recipe.grpo.steps and not stop.reason:
                stop.reason = "stopped: out of time. Go on with --resume"
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
        )
        write_durably(out / RESULT_FILE, msgspec.json.encode(result))
    return result


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
        clip_norm=grpo.clip_norm,
        rows_at_once=grpo.minibatch_rows,
        measure_every=recipe.eval.every_steps,
        save_every=grpo.save_every_steps,
        seed=recipe.seed,
    )


def gym_task(recipe: Recipe, workers: Mapping[str, Worker] | None = None) -> GymTask:
    """The recipe's questions over its workers, with the ceiling of its development questions."""
    workers = workers or ExactWorkers(misled=recipe.workers.misled)
    pool = tuple(worker.info for worker in workers.values())
    rows, dev = training_rows(recipe, pool), dev_rows(recipe, pool, n=recipe.eval.n)
    task = GymTask(recipe, rows=rows, dev=dev, workers=workers)
    asyncio.run(task.measure_ceiling())
    return task


def open_base(recipe: Recipe, out: Path) -> Base:
    """The recipe's base. A tiny one is made, and kept in the run's folder."""
    if recipe.base.weights:
        return Base.from_gguf(weights_file(recipe.base.weights))
    assert recipe.base.tiny is not None, "Recipe refuses other bases for this loop"
    one_thread()
    folder = out / WARM_START / "base"
    if not (folder / "shape.json").is_file():
        from dirigent.learn.decoder import Shape

        model, tokenizer = make_tiny(recipe, recipe.base.tiny, report=lambda step, loss: None)
        weights = dict(model.state_dict())
        weights.pop("lm_head.weight", None)
        Base("tiny", weights, Shape.of(model.config), tokenizer).save(folder)
    return Base.load(folder)


def warm_start(recipe: Recipe, base: Base, out: Path, progress: Progress) -> Adapter:
    """The adapter that the run starts from: read from the run's folder, or made and kept there."""
    folder, device = out / WARM_START, str(base.weights["model.norm.weight"].device)
    if lost := damage(folder):
        raise ConfigError(
            f"the warm start in {folder} is damaged: {', '.join(lost)}. "
            "Bring the files back, or delete the folder to have it fitted again"
        )
    if sealed_step(folder) is None:
        made = _made_start(recipe, base, out, progress)
        made.save(folder / "policy", base=base.name)
        seal(folder, step=recipe.warm_start.steps)
    # Always read from the disk, so that a run and its resumption start from the same numbers.
    return Adapter.load(folder / "policy", device=device)


def _made_start(recipe: Recipe, base: Base, out: Path, progress: Progress) -> Adapter:
    start, policy = recipe.warm_start, recipe.policy
    if start.adapter:
        return load_adapter(adapter_named(start.adapter), base=base)
    if start.lessons == "none" or not start.steps:
        return Adapter.fresh(base.weights, base.shape, rank=policy.rank, alpha=policy.alpha, seed=recipe.seed)
    settings = ImitationSettings(
        rank=policy.rank,
        alpha=policy.alpha,
        steps=start.steps,
        batch=start.batch,
        learning_rate=start.learning_rate,
        seed=recipe.seed,
    )
    batches = _batches(lessons_for(recipe, out), start.batch, random.Random(recipe.seed))

    def report(step: int, loss: float) -> None:
        if step % 20 == 0 or step == start.steps - 1:
            progress.record("warm start", step, {"loss": loss})

    needs = f"lower warm_start.batch, which is {start.batch}"
    with within_memory("while the warm start was fitted", advice=needs):
        return imitate(base, lambda count, rng: next(batches), settings, observe=report)


def _batches(pairs: Sequence[Pair], size: int, rng: random.Random) -> Iterator[list[Lesson]]:
    """Epoch after epoch in a new order. Lessons of like length share a batch, so that little is padded."""
    lessons = [Lesson(pair.messages, pair.completion) for pair in pairs]
    while True:
        rng.shuffle(lessons)
        batches = []
        for at in range(0, len(lessons), size * 16):
            near = sorted(lessons[at : at + size * 16], key=lambda one: sum(len(m.text) for m in one.prompt))
            batches += [near[i : i + size] for i in range(0, len(near), size)]
        rng.shuffle(batches)
        yield from batches


def measure_start(
    recipe: Recipe, base: Base, start: Adapter, task: GymTask, sampler: BatchedSampler, out: Path
) -> WarmStart:
    """Validity, evenness and accuracy of the start on development questions, measured once a run."""
    import torch

    file = out / WARM_START / "start.json"
    if file.is_file():
        return msgspec.json.decode(file.read_bytes(), type=WarmStart)
    rows = dev_rows(recipe, [worker.info for worker in task.workers.values()], n=recipe.warm_start.measure)
    prompts = [base.prompt_ids(row.messages) for row in rows]
    with torch.no_grad():
        decoder = Decoder(base.weights, base.shape, start)
    greedy_texts = [base.text(ids) for ids in sampler.greedy(decoder, prompts)]
    drawn_PG = sampler.sample(decoder, prompts, group=SAMPLES, seed=recipe.seed)  # noqa: N806
    rows_sampled = [row for row in rows for _ in range(SAMPLES)]
    greedy = asyncio.run(task.outcomes(rows, greedy_texts))
    sampled = asyncio.run(task.outcomes(rows_sampled, [base.text(ids) for group in drawn_PG for ids in group]))
    measured = WarmStart.of(greedy, sampled, uneven=unevenness(rows_sampled, sampled))
    write_durably(file, msgspec.json.encode(measured))
    return measured


class _FromStart:
    """A sampler that always writes with the start's weights: rejection sampling draws nothing from what it learns."""

    def __init__(self, sampler: Sampler, base: Base, start: Adapter) -> None:
        import torch

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


def _claim(recipe: Recipe, out: Path, *, resume: bool) -> None:
    """Make the folder this run's, or refuse it: another recipe's, or a run that `resume` was not asked for."""
    if not resume and (out / "loop" / CHECKPOINT).is_file():
        raise ConfigError(f"{out} holds a run already; --resume goes on with it, --out names another folder")
    claim_unchanged(recipe, out, resume=True)


def _steps_taken(loop: Path) -> int:
    """The step that a run resumes from, by the loop's own checkpoint."""
    import torch

    file = loop / CHECKPOINT
    if not file.is_file():
        return 0
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    return int(state["progress"]["step"])
