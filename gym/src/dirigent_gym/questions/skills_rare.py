"""Skills that stand apart: puzzles that are hard to solve and easy to check, and planets, which RL never sees."""

from __future__ import annotations

from dirigent_gym.questions.operation import operation
from dirigent_gym.questions.tables import PLANETS, SCRAMBLES

PUZZLES = (
    operation(
        "puzzles.anagram",
        takes="jumble",
        gives="country",
        keys=[(letters,) for letters in SCRAMBLES],
        solve=SCRAMBLES.__getitem__,
        nouns=(
            "the place name hidden in the jumbled letters {x}",
            "the place whose letters were jumbled into {x}",
            "the place name that the jumble {x} can be turned into",
            "the place you get by putting the letters {x} in the right order",
        ),
        orders=(
            "Unscramble the letters {x} into a place name.",
            "Solve the anagram {x}, which is a place name.",
            "Rearrange the jumble {x} into a place name.",
        ),
        asks=(
            "Which place name is hidden in the jumbled letters {x}?",
            "Which place name can be made from all the letters {x}?",
            "What place is {x} an anagram of?",
        ),
    ),
    operation(
        "puzzles.root",
        takes="square",
        gives="number",
        keys=[(str(n * n),) for n in range(11, 61)],
        solve=lambda x: round(int(x) ** 0.5),
        nouns=(
            "the square root of {x}",
            "the number whose square is {x}",
            "the positive number that squared gives {x}",
            "the side of a square with area {x}",
        ),
        orders=(
            "Find which number has {x} as its square.",
            "Take the square root of {x}.",
            "Undo the squaring that gave {x}.",
        ),
        asks=(
            "Which number gives {x} when multiplied by itself?",
            "Which number has the square {x}?",
            "What was squared to get {x}?",
        ),
    ),
)

PLANET_OPS = (
    operation(
        "planets.place",
        takes="planet",
        gives="number",
        keys=[(p,) for p in PLANETS],
        solve=lambda p: PLANETS.index(p) + 1,
        nouns=(
            "the place of {x} among the planets, counted from the Sun",
            "the orbit number of {x} counted from the Sun",
            "the rank of {x} by distance from the Sun",
            "the planetary number of {x} from the Sun",
        ),
        orders=("Count from the Sun to the planet {x}.", "Number the planet {x} from the Sun outwards."),
        asks=("Which place from the Sun does {x} have?", "How far down the row of planets from the Sun is {x}?"),
    ),
    operation(
        "planets.named",
        takes="number",
        gives="planet",
        keys=[(str(n),) for n in range(1, 9)],
        solve=lambda n: PLANETS[int(n) - 1],
        nouns=(
            "the planet at place {x} from the Sun",
            "the planet with number {x} counted from the Sun",
            "the planet on orbit number {x} from the Sun",
            "the planet that has rank {x} from the Sun",
        ),
        orders=("Name the planet at place {x} from the Sun.", "Say which planet has rank {x} from the Sun."),
        asks=("Which planet is at place {x} from the Sun?", "Which planet has orbit number {x} from the Sun?"),
    ),
    operation(
        "planets.next",
        takes="planet",
        gives="planet",
        keys=[(p,) for p in PLANETS[:-1]],
        solve=lambda p: PLANETS[PLANETS.index(p) + 1],
        nouns=(
            "the planet just outside {x}",
            "the next planet out from {x}",
            "the planet that follows {x} going away from the Sun",
            "the outer neighbour planet of {x}",
        ),
        orders=("Name the planet just outside {x}.", "Go one planet outwards from {x}."),
        asks=("Which planet is just outside {x}?", "Which planet comes after {x} going outwards?"),
    ),
)
