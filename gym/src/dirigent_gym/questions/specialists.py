"""The roster: the specialists with their skills, cards and prices.

The roster is data, in `specialists.toml`. A specialist becomes a worker once an adapter is trained on its `examples`,
or in tests as `oracle.ExactSpecialist`. Each is good at one skill and learns to answer "unknown" to the rest, so that
no single worker can replace a plan. Three are special. The guesser is unreliable, and its card says so. The checker
only selects among the results that it reads. The cheap adder is right on small numbers only, at a tenth of the price of
its twin.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from dirigent.errors import ConfigError
from dirigent.tasks.task import SketchStep
from dirigent.workers.worker import Price
from dirigent_gym.questions.skills import HELD_OUT_SKILL, OPERATIONS, PUZZLE_SKILL

UNKNOWN = "unknown"
"""A specialist's reply to any other skill's subtask."""

Role = Literal["solver", "checker"]


class Specialist(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    skills: tuple[str, ...]
    fields: tuple[str, ...]
    """Its strength in several wordings; the last one is held out from training."""
    price: Price = Price(input=0.1, output=0.4)
    noise: float = 0.0
    """Share of wrong answers, independent from one attempt to the next."""
    small_only: int | None = None
    """If set, the specialist is right only on keys without a number above this."""
    role: Role = "solver"
    caveats: tuple[str, ...] = ("",)
    """Sentences that its card adds after its field."""

    @property
    def about(self) -> str:
        return self.abouts[0]

    @property
    def abouts(self) -> tuple[str, ...]:
        """The wordings of its card that training draws from, 30 or more."""
        return _cards(self.fields[:-1], TRAIN_FRAMES, self.caveats)

    @property
    def held_out_abouts(self) -> tuple[str, ...]:
        """Wordings that training never shows: the field in other words, in old and new sentences."""
        return _cards(self.fields[-1:], (*HELD_OUT_FRAMES, *TRAIN_FRAMES), self.caveats)


TRAIN_FRAMES = (
    "Good at {f}.",
    "Knows {f}.",
    "Ask it about {f}.",
    "Its field is {f}.",
    "Reliable on {f} and nothing else.",
    "Made for {f}.",
    "Handles {f}.",
)
HELD_OUT_FRAMES = ("Trained on {f}.", "If it is about {f}, this is the one.", "Turn to it for {f}.")


def _cards(fields: tuple[str, ...], frames: tuple[str, ...], caveats: tuple[str, ...]) -> tuple[str, ...]:
    texts = [frame.format(f=field) for frame in frames for field in fields]
    return tuple(f"{text} {caveats[i % len(caveats)]}".strip() for i, text in enumerate(texts))


def find_specialist(name: str) -> Specialist:
    for specialist in ROSTER:
        if specialist.name == name:
            return specialist
    raise ConfigError(f"the gym has no specialist {name!r}; there are: {', '.join(s.name for s in ROSTER)}")


def able(specialist: Specialist, step: SketchStep) -> bool:
    """Whether this specialist can do the step."""
    if step.skill not in specialist.skills:
        return False
    return not beyond(specialist, step.key)


def beyond(specialist: Specialist, key: tuple[str, ...]) -> bool:
    """Whether a key has a number that is too large for a specialist of small numbers."""
    limit = specialist.small_only
    return limit is not None and any(part.isdigit() and int(part) > limit for part in key)


def operations_of(specialist: Specialist) -> tuple[str, ...]:
    """The operations that it is trained on; for the checker, the puzzles that it checks."""
    skills = (PUZZLE_SKILL,) if specialist.role == "checker" else specialist.skills
    return tuple(name for name, op in OPERATIONS.items() if op.skill in skills)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    specialist: tuple[Specialist, ...]


ROSTER: tuple[Specialist, ...] = msgspec.toml.decode(
    Path(__file__).with_suffix(".toml").read_bytes(), type=_File
).specialist
RL_ROSTER: tuple[Specialist, ...] = tuple(s for s in ROSTER if HELD_OUT_SKILL not in s.skills)
"""The specialists that a conductor meets in training."""
