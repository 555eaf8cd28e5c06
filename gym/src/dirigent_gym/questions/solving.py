"""The domain of each operation: the keys that it may be asked for, and the function that solves a key.

Wordings are data (`skills.toml`, `skills_warm.toml`) under the same names. Ranges are small on purpose: a specialist
must know its whole table, and a chain must stay inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import permutations

from dirigent_gym.questions.tables import (
    ALPHABET,
    COUNTRIES,
    DAYS_IN_MONTH,
    ELEMENTS,
    LISTS,
    MONTHS,
    PLANETS,
    SCRAMBLES,
    WEEKDAYS,
    WORD_TABLE,
)

Key = tuple[str, ...]
"""The input of an operation: the values first, then the parameter."""

Domain = tuple[Iterable[Key], Callable[..., object]]
"""The keys of an operation, and the function that solves a key; the result is written as text."""


def one(values: Iterable[str]) -> list[Key]:
    return [(value,) for value in values]


def grid(values: Iterable[str], parameters: Iterable[str]) -> list[Key]:
    parameters = list(parameters)
    return [(value, parameter) for value in values for parameter in parameters]


def numbers(first: int, last: int) -> list[str]:
    return [str(n) for n in range(first, last + 1)]


# ---- words: facts about countries and elements, letters, the calendar

CAPITAL = {country: capital for country, capital, _ in COUNTRIES}
CURRENCY = {country: currency for country, _, currency in COUNTRIES}
COUNTRY = {capital: country for country, capital, _ in COUNTRIES}
SYMBOL = {name: symbol for name, symbol, _ in ELEMENTS}
ATOMIC = {name: number for name, _, number in ELEMENTS}
MONTH_NUMBER = {month: i + 1 for i, month in enumerate(MONTHS)}


def vowels(word: str) -> int:
    return sum(letter in "aeiou" for letter in word.lower())


def weekday_after(days: str, start: str) -> str:
    return WEEKDAYS[(WEEKDAYS.index(start) + int(days)) % 7]


WORDS: dict[str, Domain] = {
    "facts.capital": (one(CAPITAL), CAPITAL.__getitem__),
    "facts.currency": (one(CURRENCY), CURRENCY.__getitem__),
    "facts.country": (one(COUNTRY), COUNTRY.__getitem__),
    "facts.symbol": (one(SYMBOL), SYMBOL.__getitem__),
    "facts.atomic": (one(ATOMIC), ATOMIC.__getitem__),
    "letters.length": (one(WORD_TABLE), len),
    "letters.vowels": (one(WORD_TABLE), vowels),
    "letters.first": (one(WORD_TABLE), lambda word: word[0].upper()),
    "letters.last": (one(WORD_TABLE), lambda word: word[-1].upper()),
    "letters.same": (grid(ALPHABET, ALPHABET), lambda a, b: "same" if a == b else "different"),
    "dates.number": (one(MONTHS), MONTH_NUMBER.__getitem__),
    "dates.month": (one(numbers(1, 12)), lambda n: MONTHS[int(n) - 1]),
    "dates.later": (grid(MONTHS, numbers(2, 11)), lambda m, k: MONTHS[(MONTHS.index(m) + int(k)) % 12]),
    "dates.days": (one(MONTHS), lambda m: DAYS_IN_MONTH[MONTHS.index(m)]),
    "dates.weekday": (grid(numbers(1, 60), WEEKDAYS), weekday_after),
    "dates.earlier": (permutations(MONTHS, 2), lambda a, b: min(a, b, key=MONTHS.index)),
}

# ---- numbers: arithmetic, lists, notation, tiny programs

PAIRS: list[Key] = list(permutations(numbers(0, 40), 2))
"""Pairs of results that may be joined. The numbers differ, so that one of them is larger."""


def items(text: str) -> list[int]:
    return [int(part) for part in text.split(", ")]


def rising(values: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(values)))


FOURS = [text for text in LISTS if len(items(text)) == 4]


def to_roman(number: int) -> str:
    signs = ((100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))
    text = ""
    for value, sign in signs:
        text, number = text + sign * (number // value), number % value
    return text


FROM_ROMAN = {to_roman(n): n for n in range(1, 121)}

NUMBERS: dict[str, Domain] = {
    "numbers.plus": (grid(numbers(0, 99), numbers(2, 20)), lambda x, k: int(x) + int(k)),
    "numbers.minus": (
        [(x, k) for x, k in grid(numbers(2, 99), numbers(2, 20)) if int(x) >= int(k)],
        lambda x, k: int(x) - int(k),
    ),
    "numbers.times": (grid(numbers(1, 40), numbers(2, 9)), lambda x, k: int(x) * int(k)),
    "numbers.larger": (PAIRS, lambda x, y: max(int(x), int(y))),
    "numbers.sum": (PAIRS, lambda x, y: int(x) + int(y)),
    "numbers.difference": (PAIRS, lambda x, y: abs(int(x) - int(y))),
    "lists.largest": (one(LISTS), lambda text: max(items(text))),
    "lists.smallest": (one(LISTS), lambda text: min(items(text))),
    "lists.sort": (one(LISTS), lambda text: rising(items(text))),
    "lists.item": (grid(numbers(1, 4), FOURS[:80]), lambda x, k: items(k)[int(x) - 1]),
    "lists.above": (grid(numbers(1, 30), FOURS[:60]), lambda x, k: sum(n > int(x) for n in items(k))),
    "lists.pair": (PAIRS, lambda x, y: rising((int(x), int(y)))),
    "convert.binary": (one(numbers(1, 63)), lambda x: format(int(x), "b")),
    "convert.decimal": (one(format(n, "b") for n in range(1, 64)), lambda x: int(x, 2)),
    "convert.minutes": (one(numbers(2, 16)), lambda x: 60 * int(x)),
    "convert.days": (one(numbers(2, 30)), lambda x: 7 * int(x)),
    "convert.inches": (one(numbers(2, 30)), lambda x: 12 * int(x)),
    "roman.write": (one(numbers(1, 120)), lambda x: to_roman(int(x))),
    "roman.read": (one(FROM_ROMAN), FROM_ROMAN.__getitem__),
    "roman.signs": (one(FROM_ROMAN), len),
    "roman.larger": (
        permutations([to_roman(n) for n in range(1, 41)], 2),
        lambda x, y: max(x, y, key=FROM_ROMAN.__getitem__),
    ),
    "code.modulo": (grid(numbers(0, 60), numbers(3, 9)), lambda x, k: int(x) % int(k)),
    "code.divide": (grid(numbers(0, 60), numbers(2, 6)), lambda x, k: int(x) // int(k)),
    "code.square": (one(numbers(0, 30)), lambda x: int(x) ** 2),
    "code.cap": (grid(numbers(0, 40), numbers(5, 25)), lambda x, k: min(int(x), int(k))),
}

# ---- the alphabet, puzzles, planets

LETTERS: dict[str, Domain] = {
    "cipher.position": (one(ALPHABET), lambda a: ALPHABET.index(a) + 1),
    "cipher.letter": (one(numbers(1, 26)), lambda n: ALPHABET[int(n) - 1]),
    "cipher.shift": (grid(ALPHABET, numbers(1, 13)), lambda a, k: ALPHABET[(ALPHABET.index(a) + int(k)) % 26]),
    "cipher.mirror": (one(ALPHABET), lambda a: ALPHABET[25 - ALPHABET.index(a)]),
    "cipher.earlier": (permutations(ALPHABET, 2), min),
    "puzzles.anagram": (one(SCRAMBLES), SCRAMBLES.__getitem__),
    "puzzles.root": (one(str(n * n) for n in range(11, 61)), lambda x: round(int(x) ** 0.5)),
    "planets.place": (one(PLANETS), lambda p: PLANETS.index(p) + 1),
    "planets.named": (one(numbers(1, 8)), lambda n: PLANETS[int(n) - 1]),
    "planets.next": (one(PLANETS[:-1]), lambda p: PLANETS[PLANETS.index(p) + 1]),
}

# ---- warm-only

NOTES = ("do", "re", "mi", "fa", "so", "la", "ti")
QUEUES = (
    "Ann, Ben, Cleo",
    "Dora, Emil, Finn, Gus",
    "Hugo, Iris, Jon, Kim, Lea",
    "Max, Nora, Otto, Pia, Quin, Rosa",
    "Sam, Tess, Ulla, Vito",
)
CORNERS = {"triangle": 3, "square": 4, "pentagon": 5, "hexagon": 6, "octagon": 8}
FEELINGS = ("angry", "sad", "happy", "calm", "proud", "lively")
BRIGHT = ("happy", "calm", "proud", "lively")
MIXES = {("yellow", "blue"): "green", ("red", "yellow"): "orange", ("blue", "red"): "purple"}


def mixed(a: str, b: str) -> str:
    return MIXES.get((a, b)) or MIXES[b, a]


def note_at(note: str, steps: int) -> str:
    return NOTES[NOTES.index(note) + steps]


WARM: dict[str, Domain] = {
    "colours.mix": ([(a, b) for pair in MIXES for a, b in (pair, pair[::-1])], mixed),
    "scales.up": (
        [(note, str(k)) for i, note in enumerate(NOTES) for k in range(1, len(NOTES) - i)],
        lambda x, k: note_at(x, int(k)),
    ),
    "scales.down": (
        [(note, str(k)) for i, note in enumerate(NOTES) for k in range(1, i + 1)],
        lambda x, k: note_at(x, -int(k)),
    ),
    "scales.degree": (one(NOTES), lambda x: NOTES.index(x) + 1),
    "scales.tone": (one(numbers(1, len(NOTES))), lambda x: NOTES[int(x) - 1]),
    "scales.higher": (permutations(NOTES, 2), lambda x, y: max(x, y, key=NOTES.index)),
    "queues.child": (
        [(str(i + 1), queue) for queue in QUEUES for i in range(len(queue.split(", ")))],
        lambda place, queue: queue.split(", ")[int(place) - 1],
    ),
    "queues.place": (
        [(child, queue) for queue in QUEUES for child in queue.split(", ")],
        lambda child, queue: queue.split(", ").index(child) + 1,
    ),
    "bricks.taller": (permutations(numbers(2, 10), 2), lambda x, y: max(int(x), int(y))),
    "shapes.pointier": (permutations(CORNERS, 2), lambda x, y: max(x, y, key=CORNERS.__getitem__)),
    "feelings.match": (
        permutations(FEELINGS, 2),
        lambda x, y: "match" if (x in BRIGHT) == (y in BRIGHT) else "clash",
    ),
}

DOMAINS: dict[str, Domain] = {**WORDS, **NUMBERS, **LETTERS, **WARM}
