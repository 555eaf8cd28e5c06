"""Several processes, and a model that is shared out over them: DeepSpeed's ZeRO-3, as `recipes/zero3.yaml` asks for it.

Until TRL's trainer begins, every process has the whole model, on a GPU of its own. From then on each keeps a part of
every weight, and the others' parts come and go with each pass of an update. Whatever else reads weights (the torch
sampler, the export) brings them together first and lets them go afterwards. All processes do that together or they wait
for one another for ever: it stands where all of them come by equally often, around what they do differently often.

Rows that are asked for the run as a whole (its start, its development questions) are divided among the processes: what
they cost is paid once, and every process has the figures of all of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from dirigent.errors import ConfigError, DirigentError
from dirigent.train.recipe import Recipe

T = TypeVar("T")

LONGEST_WAIT = timedelta(minutes=30)
"""Of one process for the others; transformers' own."""

Gather = Callable[[], AbstractContextManager[None]]
"""Entered by all processes together: inside, each has every weight whole."""


def take_own_device() -> None:
    """Make `cuda` mean this process's GPU, where a launcher started several on one machine."""
    import torch

    if "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


@contextmanager
def meeting() -> Iterator[None]:
    """Inside, the processes of a launch reach one another, in the way in which TRL's trainer would have them later.

    All of them wait for the last one to come. They part in good order, or Python's end may break a process off; after a
    fault they do not, as the others may never come to it.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield
        return
    import torch
    from accelerate import PartialState  # type: ignore[import-untyped]

    PartialState(cpu=not torch.cuda.is_available(), timeout=LONGEST_WAIT)
    yield
    torch.distributed.destroy_process_group()
    PartialState._reset_state()


def everyones(own: T) -> list[T]:
    """What each process brings, in the order of their numbers. All of them call it together; one alone has its own."""
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return [own]
    brought: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(brought, own)
    return brought


def divided(keys: Sequence[str], work: Callable[[Sequence[int]], Sequence[T]]) -> list[T]:
    """What `work` makes of each place, done once among all processes; all of them have all of it, in order.

    `work` is given the places that fall to this process, in every process, even where they are none. Places with equal
    keys go to the same one: attempts at a question are counted, and equal plans for it carried out once. Where it fails
    in one process, it fails in all of them, instead of leaving the others to wait.
    """
    number, processes = _number()
    if processes == 1:
        return list(work(range(len(keys))))
    of_key = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    places = [place for place, key in enumerate(keys) if of_key[key] % processes == number]
    try:
        own = dict(zip(places, work(places), strict=True))
    except Exception as error:
        everyones(({}, f"{type(error).__name__}: {error}"))
        raise
    made: dict[int, T] = {}
    for other, (share, fault) in enumerate(everyones((own, ""))):
        if fault:
            raise DirigentError(f"process {other} could not do its share: {fault}")
        made |= share
    return [made[place] for place in range(len(keys))]


def _number() -> tuple[int, int]:
    """This process's, and how many there are."""
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def refuse_unfit(recipe: Recipe) -> None:
    """Say before anything is loaded or asked what could not be carried out the way this process was launched."""
    if _launched_with("FSDP"):
        raise ConfigError("FSDP shares weights out in a way that is not known here; launch with recipes/zero3.yaml")
    if not _launched_with("DEEPSPEED"):
        return
    if find_spec("deepspeed") is None:
        raise ConfigError("this launch shares the model out with DeepSpeed, which is not here; pip install deepspeed")
    if _zero_stage() != 3:
        return
    if recipe.algorithm == "rft":
        raise ConfigError('algorithm = "rft" keeps the start beside what it learns, which ZeRO-3 has no room for')
    if recipe.policy.rank:
        raise ConfigError(
            f"policy.rank is {recipe.policy.rank}, and ZeRO-3 is for training all weights: set policy.rank = 0, or "
            "launch without it (accelerate launch --multi_gpu): an adapter takes little room beside its base"
        )


def _launched_with(what: str) -> bool:
    return os.environ.get(f"ACCELERATE_USE_{what}", "").lower() == "true"


def _zero_stage() -> int:
    """As accelerate hands it on: a number, or in DeepSpeed's own settings."""
    file = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")
    if file.lower() == "none":
        return int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2"))
    settings = json.loads(Path(file).read_text(encoding="utf-8"))
    return int(settings.get("zero_optimization", {}).get("stage", 0))


def is_shared_out(accelerator: Any) -> bool:
    from trl.distributed import DistributedBackend

    return bool(DistributedBackend(accelerator).is_zero3)


def gathering(trainer: Any) -> Gather | None:
    """How the weights of what is trained are brought together; None where every process has them anyway."""
    if not is_shared_out(trainer.accelerator):
        return None
    from trl.models import unwrap_model_for_generation

    @contextmanager
    def gathered() -> Iterator[None]:
        again = trainer.args.gradient_checkpointing_kwargs
        with unwrap_model_for_generation(
            trainer.model_wrapped, trainer.accelerator, gradient_checkpointing_kwargs=again
        ):
            yield

    return gathered
