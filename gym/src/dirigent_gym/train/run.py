"""One command from recipe to adapter: base, warm start, GRPO, export; or the specialists; or a control.

    python -m dirigent_gym.train.run gym/recipes/gym-gpu.toml --out runs/gym-gpu [--resume] [--seconds 540]

The run's folder holds everything: `recipe.json`, `warm-start/`, `checkpoint-N/`, `metrics.jsonl`, `tensorboard/`, and
at the end `adapter/` (PEFT), the same as `conductor.gguf` for llama.cpp, and `result.json`. A run that is interrupted,
killed, or out of time or memory goes on with `--resume` (`folder.py` says from where); one that reached its end says so
and does nothing more, unless its recipe now has more steps.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from dirigent.errors import ConfigError, DirigentError
from dirigent.serve.http.gc_tuning import seldom_collecting
from dirigent.workers.worker import Worker
from dirigent_gym.train.batching import batching
from dirigent_gym.train.checkpoint import latest, write_durably
from dirigent_gym.train.disk import within_disk
from dirigent_gym.train.endings import ends_gently, says_what_is_kept
from dirigent_gym.train.folder import RESULT_FILE, Claim, claim, claim_unchanged, default_folder, held
from dirigent_gym.train.memory import within_memory
from dirigent_gym.train.processes import meeting
from dirigent_gym.train.recipe import AnyRecipe, GrpoSettings, Recipe, SpecialistsRecipe, load_recipe
from dirigent_gym.train.result import GGUF_FILE, Change, Result, Stop
from dirigent_gym.train.shards import refuse_unfit, take_own_device

if TYPE_CHECKING:
    from dirigent_gym.train.policy import Policy
    from dirigent_gym.train.progress import Progress
    from dirigent_gym.train.scorer import Scorer

COLLECT_AFTER = 200_000
"""New objects after which Python looks for unreachable cycles. A step makes a few hundred thousand; by default it would
be looked through hundreds of times."""

Base = tuple[Any, Any]
"""A model and its tokenizer."""


class AnyResult(Protocol):
    """What every kind of run can say of itself."""

    @property
    def finished(self) -> bool: ...

    @property
    def summary(self) -> str: ...


def carry_out(
    recipe: AnyRecipe, *, out: Path, resume: bool = False, seconds: float | None = None, quiet: bool = False
) -> AnyResult:
    """A recipe of any kind."""
    if isinstance(recipe, Recipe) and recipe.loop == "learn":
        from dirigent_gym.train.loop import train_with_loop

        quieten()
        return train_with_loop(recipe, out=out, resume=resume, seconds=seconds, quiet=quiet)
    if isinstance(recipe, Recipe):
        return train(recipe, out=out, resume=resume, seconds=seconds, quiet=quiet)
    quieten()
    with held(out), says_what_is_kept(recipe, out), within_disk():
        claim_unchanged(recipe, out, resume=resume)
        if isinstance(recipe, SpecialistsRecipe):
            from dirigent_gym.train.specialists import train_specialists

            return train_specialists(recipe, out=out, seconds=seconds, quiet=quiet)
        from dirigent_gym.train.direct import train_direct

        return train_direct(recipe, out=out, quiet=quiet)


def train(
    recipe: Recipe,
    *,
    out: Path,
    resume: bool = False,
    seconds: float | None = None,
    quiet: bool = False,
    workers: Mapping[str, Worker] | None = None,
) -> Result:
    """Carry a conductor's recipe out with TRL's trainer. `workers` replace the recipe's own, by name."""
    began = time.monotonic()
    process = int(os.environ.get("RANK", "0"))
    quieten()
    refuse_unfit(recipe)
    _refuse_steps_that_cannot_be_taken(recipe.grpo)
    take_own_device()
    without_cudnn_attention()
    from dirigent_gym.train.progress import Progress

    with held(out, process=process), says_what_is_kept(recipe, out), within_disk():
        claimed = claim(recipe, out, resume=resume, process=process)
        own = out / f"process-{process}" if process else out
        deadline = None if seconds is None else began + seconds
        with closing(Progress(own, steps=recipe.grpo.steps, quiet=quiet or process > 0)) as progress:
            part = _Part(out, own, process, claimed, progress, Stop(), deadline)
            for note in claimed.notes:
                progress.say(note)
            learned = _carried_out(recipe, part, workers=workers)
            if part.stop.reason:
                progress.say(part.stop.reason)
        result = _result(recipe, part, learned, seconds=time.monotonic() - began)
        write_durably(own / RESULT_FILE, msgspec.json.encode(result))
    return result


def _refuse_steps_that_cannot_be_taken(settings: GrpoSettings) -> None:
    """Said before a warm start is fitted and workers are paid to measure it."""
    if not settings.steps:
        return
    batching(settings, processes=int(os.environ.get("WORLD_SIZE", "1")))
    if settings.sampler == "vllm" and find_spec("vllm") is None:
        raise ConfigError('grpo.sampler = "vllm" wants the package vllm, which is not here; install it, or set "torch"')


class _Part(msgspec.Struct, frozen=True):
    """One process's part of a run: where it writes, whom it tells, when it ends."""

    out: Path
    own: Path
    """The run's folder, or for further processes one of their own inside it."""
    process: int
    claimed: Claim
    progress: Progress
    stop: Stop
    deadline: float | None
    """On the monotonic clock."""


class _Learned(msgspec.Struct, frozen=True):
    """The policy before and after, in figures, and how it was written."""

    start: dict[str, float]
    dev: dict[str, float]
    ceiling: float | None
    spent_usd: float = 0.0
    no_gguf: str = ""
    """Why the adapter is there in PEFT's format alone."""


def _carried_out(recipe: Recipe, part: _Part, *, workers: Mapping[str, Worker] | None) -> _Learned:
    """From the base to the exported adapter."""
    from dirigent_gym.train.policy import export
    from dirigent_gym.train.scorer import open_scorer

    base = _opened_base(recipe)
    with (
        open_scorer(recipe, base=base, workers=workers, out=part.out) as scorer,
        ends_gently(part.stop, aloud=not part.process),
        seldom_collecting(after=COLLECT_AFTER),
    ):
        policy = _warm_started(recipe, base, part)
        with meeting():
            learned = _learned(recipe, policy, scorer, part)
            if scorer.spending is not None:
                learned = msgspec.structs.replace(learned, spent_usd=scorer.spending.total_usd)
            with policy.whole():
                if not part.process:
                    export(policy, part.out / "adapter")
                    learned = msgspec.structs.replace(learned, no_gguf=_left_as_peft(recipe, policy, part.out))
    return learned


def _left_as_peft(recipe: Recipe, policy: Policy, out: Path) -> str:
    """Nothing where the adapter is written as GGUF now; else why it is not."""
    from dirigent.learn.export import export_if_possible

    if not recipe.policy.rank:
        return "all weights were trained, and only adapters are exported"
    return export_if_possible(out / "adapter", out / GGUF_FILE, config=policy.model.config)


def _opened_base(recipe: Recipe) -> Base | None:
    """The base that all adapters stand on; a tiny model is made where it is needed."""
    from dirigent_gym.train.policy import open_base

    if recipe.base.tiny is None:
        return open_base(recipe.base)
    from dirigent_gym.train.tiny import one_thread

    one_thread()
    return None


def _warm_started(recipe: Recipe, base: Base | None, part: _Part) -> Policy:
    from dirigent_gym.train.warmstart import prepare

    def report(step: int, loss: float) -> None:
        part.progress.record("warm start", step, {"loss": loss})

    return prepare(recipe, base, out=part.out, report=report, process=part.process)


def _learned(recipe: Recipe, policy: Policy, scorer: Scorer, part: _Part) -> _Learned:
    """Measure the policy as it starts, then train it, in place; with no steps to take it stays as it starts."""
    from dirigent_gym.train.grpo import Watch, train_policy
    from dirigent_gym.train.policy import measure
    from dirigent_gym.train.rows import dev_rows, training_rows
    from dirigent_gym.train.scorer import ceiling
    from dirigent_gym.train.warmstart import measure_start

    resume_from = part.claimed.resume_from
    rows = training_rows(recipe, scorer.pool, process=part.process)
    dev = dev_rows(recipe, scorer.pool, n=recipe.eval.n)
    tried = dev_rows(recipe, scorer.pool, n=recipe.warm_start.measure)
    with within_memory("while the start was measured", advice=f"lower warm_start.measure, which is {len(tried)}"):
        start = measure_start(policy, scorer, tried, seed=recipe.seed, out=part.out, process=part.process)
    # A start that was not fitted may choose as it likes, and no setting of the fit would change it.
    part.progress.say(f"warm start: {start.summary if recipe.warm_start.lessons != 'none' else start.figures}")
    most = recipe.eval.ceiling if recipe.eval.ceiling is not None else ceiling(scorer, dev)
    if not recipe.grpo.steps:
        return _Learned(msgspec.structs.asdict(start), measure(policy, scorer, dev), most)
    watch = Watch(
        recipe, policy, scorer, rows=rows, dev=dev, ceiling=1.0 if most is None else most, progress=part.progress,
        stop=part.stop, deadline=part.deadline, resume_from=resume_from, process=part.process,
    )  # fmt: skip
    with within_memory("in the update", advice=_smaller_passes(recipe.grpo)):
        state = train_policy(watch, out=part.out, resume_from=resume_from)
    return _Learned(msgspec.structs.asdict(start), state.dev, most)


def _smaller_passes(settings: GrpoSettings) -> str:
    rows = min(settings.minibatch_rows, settings.prompts * settings.rollouts // settings.updates)
    half = f"; {rows // 2} takes about half" if rows % 2 == 0 else ""
    return f"lower grpo.minibatch_rows, which is {rows}{half}"


def _result(recipe: Recipe, part: _Part, learned: _Learned, *, seconds: float) -> Result:
    reached = latest(part.out)
    return Result(
        recipe=recipe.name,
        out=str(part.out),
        step=0 if reached is None else reached[1],
        steps=recipe.grpo.steps,
        stopped=part.stop.reason,
        adapter=str(part.out / "adapter"),
        gguf="" if learned.no_gguf or part.process else str(part.out / GGUF_FILE),
        no_gguf=learned.no_gguf,
        start=learned.start,
        dev=learned.dev,
        ceiling=learned.ceiling or 0.0,
        seconds=seconds,
        spent_usd=learned.spent_usd,
        changes=tuple(Change(one.from_update, one.changed) for one in part.claimed.history if one.changed),
        notes=part.claimed.notes,
    )


def quieten() -> None:
    """Keep libraries from talking over the progress line, and from looking for a network."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        from transformers.utils import logging
    except ImportError as error:
        raise ConfigError(f"training needs more packages ({error.name}); pip install 'dirigent[train]'") from None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # No adapter of ours modifies the vocabulary; PEFT says of each that a GGUF file has no config to compare with.
    warnings.filterwarnings("ignore", message="Could not find a config file in .* will assume that the vocabulary was")


def without_cudnn_attention() -> None:
    """Its backward pass gave NaN for rows that may read nothing, which left padding makes."""
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument(
        "--out", type=Path, help="the run's folder; default: runs/NAME of the recipe, with --seed runs/NAME-seed-N"
    )
    parser.add_argument("--seed", type=int, help="another seed than the recipe's")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the newest whole checkpoint, as the recipe is now"
    )
    parser.add_argument("--loop", choices=("learn", "trl"), help="another loop than the recipe's")
    parser.add_argument("--seconds", type=float, help="end, with a checkpoint, before this much time has passed")
    args = parser.parse_args()
    try:
        recipe = load_recipe(args.recipe, seed=args.seed, loop=args.loop)
        out = args.out or default_folder(recipe, seed=args.seed)
        result = carry_out(recipe, out=out, resume=args.resume, seconds=args.seconds)
    except DirigentError as error:
        sys.exit(f"error: {error}")
    print(msgspec.json.encode(result).decode())


if __name__ == "__main__":
    main()
