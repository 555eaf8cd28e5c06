"""How the rows of a step are divided: over processes, updates and passes."""

from __future__ import annotations

import msgspec

from dirigent.errors import ConfigError
from dirigent_gym.train.recipe import GrpoSettings


class Batching(msgspec.Struct, frozen=True):
    """A step's rows as every process sees them."""

    rows: int
    """Of one process."""
    minibatch: int
    accumulation: int
    """Passes of one update."""


def batching(settings: GrpoSettings, *, processes: int) -> Batching:
    """How a step is divided. Groups must not straddle processes: each grades and ranks only its own rows. Nor do they
    straddle updates: each reads its prompts once."""
    if settings.prompts % processes:
        raise ConfigError(
            f"{settings.prompts} prompts do not divide over {processes} processes; make grpo.prompts a multiple of it"
        )
    groups = settings.prompts // processes
    if groups % settings.updates:
        raise ConfigError(
            f"{groups} prompts a process do not divide into {settings.updates} updates; make grpo.prompts a multiple "
            f"of {processes * settings.updates}"
        )
    rows = groups // settings.updates * settings.rollouts
    minibatch = min(settings.minibatch_rows, rows)
    if rows % minibatch:
        of = "a process" if settings.updates == 1 else "a process and update"
        raise ConfigError(f"{rows} rows {of} do not divide into minibatches of {minibatch}; change grpo.minibatch_rows")
    return Batching(groups * settings.rollouts, minibatch, rows // minibatch)
