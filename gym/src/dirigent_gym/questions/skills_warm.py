"""Warm-only skills: they teach the language of plans before RL and appear nowhere else.

No worker has them; their questions are never carried out. Their tables share no entity with the gym's skills.
"""

from __future__ import annotations

from dirigent_gym.questions.operation import Operation, operation

_ANIMALS = {
    "dog": ("puppy", "bark", 4),
    "cat": ("kitten", "meow", 4),
    "cow": ("calf", "moo", 4),
    "sheep": ("lamb", "bleat", 4),
    "horse": ("foal", "neigh", 4),
    "duck": ("duckling", "quack", 2),
    "goose": ("gosling", "honk", 2),
    "owl": ("owlet", "hoot", 2),
    "lion": ("cub", "roar", 4),
    "bee": ("larva", "buzz", 6),
    "frog": ("tadpole", "croak", 4),
    "pig": ("piglet", "oink", 4),
}
_SHAPES = {"triangle": 3, "square": 4, "pentagon": 5, "hexagon": 6, "octagon": 8, "line": 2}
_SOLIDS = {"triangle": "pyramid", "square": "cube", "hexagon": "honeycomb prism", "octagon": "octagonal prism"}
_FACES = {"pyramid": 4, "cube": 6, "honeycomb prism": 8, "octagonal prism": 10}
_FRUIT = {
    "lemon": "yellow",
    "cherry": "red",
    "blueberry": "blue",
    "lime": "green",
    "plum": "purple",
    "apricot": "orange",
}
_COMPLEMENTS = {
    "yellow": "purple",
    "red": "green",
    "blue": "orange",
    "green": "red",
    "purple": "yellow",
    "orange": "blue",
}
_MIXES = {("yellow", "blue"): "green", ("red", "yellow"): "orange", ("blue", "red"): "purple"}
_MOODS = {"red": "angry", "blue": "sad", "yellow": "happy", "green": "calm", "purple": "proud", "orange": "lively"}
_OPPOSITES = {
    "angry": "gentle",
    "sad": "glad",
    "happy": "gloomy",
    "calm": "nervous",
    "proud": "humble",
    "lively": "sleepy",
}
_STRINGS = {"violin": 4, "guitar": 6, "banjo": 5, "cello": 4, "ukulele": 4, "lute": 8}
_PLAYERS = {"violin": "violinist", "guitar": "guitarist", "cello": "cellist", "lute": "lutenist", "banjo": "banjoist"}
_SIDES = {str(sides): shape for shape, sides in _SHAPES.items()}


def _mixed(a: str, b: str) -> str:
    return _MIXES.get((a, b)) or _MIXES[b, a]


def _lookup(
    name: str,
    *,
    takes: str,
    gives: str,
    table: dict[str, object],
    nouns: tuple[str, ...],
    orders: tuple[str, ...],
    asks: tuple[str, ...],
) -> Operation:
    """An operation that is one table."""
    return operation(
        name,
        takes=takes,
        gives=gives,
        keys=[(key,) for key in table],
        solve=table.__getitem__,
        nouns=nouns,
        orders=orders,
        asks=asks,
    )


WARM = (
    _lookup(
        "animals.young",
        takes="animal",
        gives="young",
        table={name: row[0] for name, row in _ANIMALS.items()},
        nouns=(
            "the young of a {x}",
            "the name for a baby {x}",
            "the word for a young {x}",
            "the offspring of a {x}",
        ),
        orders=(
            "Name the young of a {x}.",
            "Say what a baby {x} is called.",
        ),
        asks=(
            "What is a baby {x} called?",
            "What do you call the young of a {x}?",
        ),
    ),
    _lookup(
        "animals.sound",
        takes="animal",
        gives="sound",
        table={name: row[1] for name, row in _ANIMALS.items()},
        nouns=(
            "the sound of a {x}",
            "the noise a {x} makes",
            "the cry of a {x}",
            "the call of a {x}",
        ),
        orders=(
            "Name the sound a {x} makes.",
            "Say which noise a {x} makes.",
        ),
        asks=(
            "What sound does a {x} make?",
            "Which noise does a {x} make?",
        ),
    ),
    _lookup(
        "animals.legs",
        takes="animal",
        gives="number",
        table={name: row[2] for name, row in _ANIMALS.items()},
        nouns=(
            "the number of legs of a {x}",
            "the legs a {x} stands on, counted",
            "the leg count of a {x}",
            "how many legs a {x} has",
        ),
        orders=(
            "Count the legs of a {x}.",
            "Say how many legs a {x} walks on.",
        ),
        asks=(
            "How many legs does a {x} have?",
            "On how many legs does a {x} walk?",
        ),
    ),
    _lookup(
        "shapes.sides",
        takes="shape",
        gives="number",
        table=dict(_SHAPES),
        nouns=(
            "the number of sides of a {x}",
            "the side count of a {x}",
            "the sides a {x} has, counted",
            "how many sides a {x} has",
        ),
        orders=(
            "Count the sides of a {x}.",
            "Say how many sides bound a {x}.",
        ),
        asks=(
            "How many sides does a {x} have?",
            "How many sides bound a {x}?",
        ),
    ),
    _lookup(
        "shapes.named",
        takes="number",
        gives="shape",
        table=dict(_SIDES),
        nouns=(
            "the shape with {x} sides",
            "the figure that has {x} sides",
            "the shape whose side count is {x}",
            "the figure bounded by {x} sides",
        ),
        orders=(
            "Name the shape with {x} sides.",
            "Draw up the name of the figure with {x} sides.",
        ),
        asks=(
            "Which shape has {x} sides?",
            "What do you call a figure with {x} sides?",
        ),
    ),
    _lookup(
        "solids.raised",
        takes="shape",
        gives="solid",
        table=dict(_SOLIDS),
        nouns=(
            "the solid built up from a {x}",
            "the body whose base is a {x}",
            "the solid on a base shaped as a {x}",
            "the solid raised from a {x}",
        ),
        orders=(
            "Name the solid built up from a {x}.",
            "Raise a {x} into a solid.",
        ),
        asks=(
            "Which solid is built up from a {x}?",
            "Which body has a {x} as its base?",
        ),
    ),
    _lookup(
        "solids.faces",
        takes="solid",
        gives="number",
        table=dict(_FACES),
        nouns=(
            "the number of faces of a {x}",
            "the face count of a {x}",
            "the faces a {x} has, counted",
            "how many faces a {x} shows",
        ),
        orders=(
            "Count the faces of a {x}.",
            "Say how many faces a {x} has.",
        ),
        asks=(
            "How many faces does a {x} have?",
            "How many faces bound a {x}?",
        ),
    ),
    _lookup(
        "colours.fruit",
        takes="fruit",
        gives="colour",
        table=dict(_FRUIT),
        nouns=(
            "the colour of a ripe {x}",
            "the usual colour of a {x}",
            "the shade a {x} ripens to",
            "the colour that a {x} has",
        ),
        orders=(
            "Name the colour of a ripe {x}.",
            "Say which colour a {x} turns.",
        ),
        asks=(
            "Which colour is a ripe {x}?",
            "What colour does a {x} turn?",
        ),
    ),
    _lookup(
        "colours.complement",
        takes="colour",
        gives="colour",
        table=dict(_COMPLEMENTS),
        nouns=(
            "the colour across the wheel from {x}",
            "the complement of {x} on the colour wheel",
            "the colour that {x} clashes with most",
            "the wheel partner of {x}",
        ),
        orders=(
            "Cross the colour wheel from {x}.",
            "Name the complement of {x} on the wheel.",
        ),
        asks=(
            "Which colour lies across the wheel from {x}?",
            "Which colour complements {x} on the wheel?",
        ),
    ),
    operation(
        "colours.mix",
        takes="colour colour",
        gives="colour",
        keys=[(a, b) for pair in _MIXES for a, b in (pair, pair[::-1])],
        solve=_mixed,
        nouns=(
            "the paint you get from mixing {x} and {y}",
            "the mixture of {x} and {y}",
            "the blend of the paints {x} and {y}",
            "the shade made by {x} and {y}",
        ),
        orders=("Mix {x} and {y}.", "Blend {x} and {y} into one paint."),
        asks=("What colour do {x} and {y} make?", "Which paint comes from mixing {x} and {y}?"),
    ),
    _lookup(
        "feelings.mood",
        takes="colour",
        gives="feeling",
        table=dict(_MOODS),
        nouns=(
            "the feeling that {x} stands for",
            "the mood painted in {x}",
            "the feeling people link with {x}",
            "the mood behind {x}",
        ),
        orders=(
            "Name the feeling that {x} stands for.",
            "Put {x} into a mood.",
        ),
        asks=(
            "Which feeling does {x} stand for?",
            "Which mood do people link with {x}?",
        ),
    ),
    _lookup(
        "feelings.opposite",
        takes="feeling",
        gives="contrast",
        table=dict(_OPPOSITES),
        nouns=(
            "the opposite of {x}",
            "the contrary of {x}",
            "the word that means the reverse of {x}",
            "the antonym of {x}",
        ),
        orders=(
            "Turn {x} into its opposite.",
            "Name the contrary of {x}.",
        ),
        asks=(
            "What is the reverse of {x}?",
            "Which word is the contrary of {x}?",
        ),
    ),
    _lookup(
        "music.strings",
        takes="instrument",
        gives="number",
        table=dict(_STRINGS),
        nouns=(
            "the number of strings on a {x}",
            "the string count of a {x}",
            "the strings a {x} carries, counted",
            "how many strings a {x} has",
        ),
        orders=(
            "Count the strings on a {x}.",
            "Say how many strings a {x} carries.",
        ),
        asks=(
            "How many strings does a {x} have?",
            "How many strings are on a {x}?",
        ),
    ),
    _lookup(
        "music.player",
        takes="instrument",
        gives="player",
        table=dict(_PLAYERS),
        nouns=(
            "the name for someone who plays the {x}",
            "the player of a {x}",
            "the musician behind a {x}",
            "the title of a {x} player",
        ),
        orders=(
            "Name someone who plays the {x}.",
            "Say what a {x} player is called.",
        ),
        asks=(
            "What is a {x} player called?",
            "What do you call someone who plays the {x}?",
        ),
    ),
)
