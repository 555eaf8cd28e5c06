"""A trained conductor as a folder: its adapter, and what it needs to plan as it did in training.

adapter/           LoRA matrices, as PEFT writes them
selector/          the selector that its plans end in
conductor.json     its base, the pool with the workers' cards, and marks of the questions that it learned from
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from dirigent.errors import ConfigError
from dirigent.learn.values import RecordedPool
from dirigent.workers.adapters import folders

Environment = Literal["plan-first", "policy-first"]
"""Whether the conductor plans first, or reads the replies where the policy has stopped unsure."""


class SavedConductor(msgspec.Struct, frozen=True):
    """`conductor.json`."""

    base: str
    """The stem of the base model's file."""
    pool: RecordedPool
    cards: dict[str, str]
    """By worker, as every question outside training saw them."""
    max_plan_tokens: int
    recipe: str = ""
    environment: Environment = "plan-first"
    seen: tuple[int, ...] = ()
    """Marks of the questions that it learned from (`policy.mark_of`)."""

    @classmethod
    def load(cls, folder: Path) -> SavedConductor:
        file = folder / "conductor.json"
        if not file.is_file():
            raise ConfigError(
                f"{folder} holds no conductor (conductor.json); `python -m dirigent.learn.run` writes one"
            )
        try:
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{file}: {error}") from None

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "conductor.json").write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def packaged_conductor() -> Path:
    """The folder of the conductor that an installed distribution ships; raises ConfigError if none does."""
    for one in folders():
        for file in sorted(one.glob("conductors/*/conductor.json")):
            return file.parent
    raise ConfigError(
        "no conductor ships yet: train one (python -m dirigent.learn.run recipes/real-135m.toml) and name its folder, "
        "--adapter FOLDER"
    )
