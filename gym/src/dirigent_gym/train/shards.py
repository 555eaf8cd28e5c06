"""A model that is shared out over several processes: DeepSpeed's ZeRO-3, as `recipes/zero3.yaml` asks for it.

Until TRL's trainer begins, every process has the whole model, on a GPU of its own. From then on each keeps a part of
every weight, and the others' parts come and go with each pass of an update. Whatever else reads weights (the torch
sampler, the export) brings them together first and lets them go afterwards. All processes do that together or they wait
for one another for ever: it stands where all of them come by equally often, around what they do differently often.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dirigent.errors import ConfigError
from dirigent_gym.train.recipe import Recipe

Gather = Callable[[], AbstractContextManager[None]]
"""Entered by all processes together: inside, each has every weight whole."""


def take_own_device() -> None:
    """Make `cuda` mean this process's GPU, where a launcher started several on one machine."""
    import torch

    if "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


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
