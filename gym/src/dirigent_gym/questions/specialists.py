"""The roster: the specialists with their skills, cards and prices.

Plain data. A specialist becomes a worker once an adapter is trained on its `examples`, or in tests as
`oracle.ExactSpecialist`. Each is good at one skill and learns to say "unknown" about the rest, so that no single worker
can replace a plan. Three are special: the guesser is unreliable and says so, the checker only selects among the results
it reads, and the cheap adder is right on small numbers only, at a tenth of the price of its dear twin.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from dirigent.errors import ConfigError
from dirigent.tasks.task import SketchStep
from dirigent.workers.worker import Price
from dirigent_gym.questions.skills import CHECK_SKILL, HELD_OUT_SKILL, OPERATIONS, PUZZLE_SKILL

UNKNOWN = "unknown"
"""A specialist's reply to any other skill's subtask."""

Role = Literal["solver", "checker"]


class Specialist(msgspec.Struct, frozen=True):
    name: str
    skills: tuple[str, ...]
    fields: tuple[str, ...]
    """Its strength, in several wordings; the last is held out from training."""
    price: Price = Price(input=0.1, output=0.4)
    noise: float = 0.0
    """Share of wrong answers, independent from one attempt to the next."""
    small_only: int | None = None
    """Right only if no number is above this."""
    role: Role = "solver"
    caveats: tuple[str, ...] = ("",)
    """Said on the card after its field."""

    @property
    def about(self) -> str:
        return self.abouts[0]

    @property
    def abouts(self) -> tuple[str, ...]:
        """Wordings of its card that training draws from: 30 or more."""
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
    """Whether this specialist is one to give the step to."""
    if step.skill not in specialist.skills:
        return False
    return not beyond(specialist, step.key)


def beyond(specialist: Specialist, key: tuple[str, ...]) -> bool:
    """Whether a key has a number too large for a specialist of small numbers."""
    limit = specialist.small_only
    return limit is not None and any(part.isdigit() and int(part) > limit for part in key)


def operations_of(specialist: Specialist) -> tuple[str, ...]:
    """The operations of its training; the checker's are the puzzles it checks."""
    skills = (PUZZLE_SKILL,) if specialist.role == "checker" else specialist.skills
    return tuple(name for name, op in OPERATIONS.items() if op.skill in skills)


ROSTER: tuple[Specialist, ...] = (
    Specialist(
        "facts",
        ("facts",),
        (
            "capitals, currencies and chemical elements",
            "facts about countries and elements",
            "looking up capitals, money, symbols and atomic numbers",
            "countries, their capitals and currencies, and the periodic table",
            "general knowledge of geography and chemistry",
            "which city governs which country, and which symbol an element has",
        ),
    ),
    Specialist(
        "letters",
        ("letters",),
        (
            "letters, vowels and the first and last letter of words",
            "counting letters and vowels in a word",
            "spelling: how many letters, which comes first or last",
            "the letters that words are made of",
            "word lengths, vowels, and first and last letters",
            "taking words apart letter by letter",
        ),
    ),
    Specialist(
        "numbers",
        ("numbers",),
        (
            "arithmetic: adding, subtracting, multiplying, comparing numbers",
            "sums, differences, products and the larger of two numbers",
            "calculating with numbers of any size it may meet",
            "plus, minus, times, and which number is larger",
            "careful arithmetic, with large numbers too",
            "working sums of every kind",
        ),
        price=Price(input=1.0, output=4.0),
    ),
    Specialist(
        "sums",
        ("numbers",),
        (
            "arithmetic with numbers up to 20",
            "small sums and products, nothing above 20",
            "adding, subtracting and comparing small numbers",
            "quick sums on numbers of at most 20",
            "simple arithmetic below 21",
            "little calculations with little numbers",
        ),
        small_only=20,
        caveats=("Often wrong on larger numbers.", "Not to be trusted above 20."),
    ),
    Specialist(
        "lists",
        ("lists",),
        (
            "lists of numbers: largest, smallest, sorting, picking items",
            "finding, counting and sorting the entries of a list",
            "number lists and what stands where in them",
            "maximum, minimum, order and places in lists",
            "putting numbers in lists and reading items from them",
            "rows of numbers and their entries",
        ),
    ),
    Specialist(
        "dates",
        ("dates",),
        (
            "months, weekdays and days in a month",
            "the calendar: month numbers, lengths and weekdays",
            "dates, months and days of the week",
            "which weekday or month comes after how many days or months",
            "the calendar year and its months and weekdays",
            "reckoning with days, weeks and months of the year",
        ),
    ),
    Specialist(
        "convert",
        ("convert",),
        (
            "converting to and from binary and between units of time and length",
            "binary numbers, hours to minutes, weeks to days, feet to inches",
            "changing units and number bases",
            "conversions: base two, minutes, days, inches",
            "turning hours, weeks, feet and binary into something else",
            "expressing amounts in other units or in base two",
        ),
    ),
    Specialist(
        "roman",
        ("roman",),
        (
            "Roman numerals",
            "reading and writing Roman numerals",
            "numerals of the Romans: writing, reading, comparing, counting signs",
            "turning numbers into Roman numerals and back",
            "everything written in I, V, X, L and C",
            "the number signs of ancient Rome",
        ),
    ),
    Specialist(
        "cipher",
        ("cipher",),
        (
            "positions in the alphabet and shifted letters",
            "the alphabet: positions, shifts and mirrored letters",
            "simple ciphers on single letters",
            "turning letters into alphabet positions and back, shifting and mirroring",
            "where letters stand in the alphabet and how to move them",
            "Caesar and Atbash on one letter at a time",
        ),
    ),
    Specialist(
        "code",
        ("code",),
        (
            "evaluating tiny Python expressions",
            "running short pieces of Python code",
            "the value of a line of code such as n % 5",
            "code: remainders, whole division, squares, min",
            "what a small Python expression gives",
            "acting as a Python interpreter for one expression",
        ),
    ),
    Specialist(
        "guesser",
        (PUZZLE_SKILL,),
        (
            "anagrams and square roots",
            "solving jumbled place names and square roots",
            "puzzles: unscrambling letters, undoing squares",
            "unscrambling places and finding roots",
            "jumbles and roots",
            "riddles with jumbled letters or squared numbers",
        ),
        noise=0.3,
        caveats=(
            "Wrong about 3 times in 10, differently each time.",
            "Right in about 70% of tries; ask it more than once.",
            "Unreliable: 30% of its answers are wrong.",
        ),
    ),
    Specialist(
        "checker",
        (CHECK_SKILL,),
        (
            "checking proposed answers to anagrams and square roots",
            "picking the right one among earlier answers to a puzzle",
            "selecting the correct candidate for a jumble or root",
            "verifying solutions of puzzles that others propose",
            "telling right from wrong among the answers it reads",
            "judging which of several puzzle answers fits",
        ),
        role="checker",
        caveats=("Cannot solve anything by itself.", "Needs candidates to read."),
    ),
    Specialist(
        "planets",
        (HELD_OUT_SKILL,),
        (
            "the planets and their order from the Sun",
            "which planet comes where, counted from the Sun",
            "the solar system's planets",
            "planets, their places and neighbours",
            "the order of the planets",
            "worlds that circle our Sun and how they line up",
        ),
    ),
)

RL_ROSTER: tuple[Specialist, ...] = tuple(s for s in ROSTER if HELD_OUT_SKILL not in s.skills)
"""Those a conductor meets in training."""
