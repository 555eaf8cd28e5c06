"""Skills over letters: those of a word, and those of the alphabet."""

from __future__ import annotations

from dirigent_gym.questions.operation import operation
from dirigent_gym.questions.tables import ALPHABET, WORD_TABLE


def vowels(word: str) -> int:
    return sum(letter in "aeiou" for letter in word.lower())


LETTERS = (
    operation(
        "letters.length",
        takes="word",
        gives="number",
        keys=[(w,) for w in WORD_TABLE],
        solve=len,
        nouns=(
            "the number of letters in {x}",
            "the letter count of {x}",
            "the number of letters that {x} has",
            "the length of {x} in letters",
        ),
        orders=("Count {x's} letters.", "Count the letters in {x}.", "Count how many letters {x} is made of."),
        asks=("How many letters does {x} have?", "How many letters are in {x}?", "How many letters is {x} long?"),
    ),
    operation(
        "letters.vowels",
        takes="word",
        gives="number",
        keys=[(w,) for w in WORD_TABLE],
        solve=vowels,
        nouns=(
            "the number of vowels in {x}",
            "the vowel count of {x}",
            "the number of vowels that {x} has",
            "how many vowels there are in {x}",
        ),
        orders=("Count {x's} vowels.", "Count the vowels in {x}.", "Count how many vowels {x} contains."),
        asks=("How many vowels does {x} have?", "How many vowels are in {x}?", "How many vowels does {x} contain?"),
    ),
    operation(
        "letters.first",
        takes="word",
        gives="letter",
        keys=[(w,) for w in WORD_TABLE],
        solve=lambda word: word[0].upper(),
        nouns=(
            "the first letter of {x}",
            "the initial letter of {x}",
            "the letter that {x} starts with",
            "the opening letter of {x}",
        ),
        orders=("Take {x's} first letter.", "Pick out the first letter of {x}.", "Say which letter {x} begins with."),
        asks=("Which letter does {x} start with?", "What is {x's} first letter?", "What letter comes first in {x}?"),
    ),
    operation(
        "letters.last",
        takes="word",
        gives="letter",
        keys=[(w,) for w in WORD_TABLE],
        solve=lambda word: word[-1].upper(),
        nouns=(
            "the last letter of {x}",
            "the final letter of {x}",
            "the letter that {x} ends with",
            "the closing letter of {x}",
        ),
        orders=("Take {x's} last letter.", "Pick out the last letter of {x}.", "Say which letter {x} ends in."),
        asks=("Which letter does {x} end with?", "What is {x's} last letter?", "What letter comes last in {x}?"),
    ),
    operation(
        "letters.same",
        takes="letter letter",
        gives="verdict",
        keys=[(a, b) for a in ALPHABET for b in ALPHABET],
        solve=lambda a, b: "same" if a == b else "different",
        nouns=(
            'the word "same" or "different" for the letters {x} and {y}',
            'the verdict "same" or "different" on the letters {x} and {y}',
            "whether the letters {x} and {y} are the same or different",
            "whether the letters {x} and {y} are equal, as same or different",
        ),
        orders=(
            "Say whether the letters {x} and {y} are the same or different.",
            "Decide whether the letters {x} and {y} are the same or different.",
            "Tell same or different for the letters {x} and {y}.",
        ),
        asks=(
            "Are the letters {x} and {y} the same or different?",
            "Would you call the letters {x} and {y} the same or different?",
        ),
    ),
)


def shifted(letter: str, by: str) -> str:
    return ALPHABET[(ALPHABET.index(letter) + int(by)) % 26]


CIPHER = (
    operation(
        "cipher.position",
        takes="letter",
        gives="number",
        keys=[(a,) for a in ALPHABET],
        solve=lambda a: ALPHABET.index(a) + 1,
        nouns=(
            "the alphabet position of {x}",
            "the position of {x} in the alphabet",
            "the place that {x} has in the alphabet",
            "the rank of {x} in the alphabet",
        ),
        orders=(
            "Turn the letter {x} into its alphabet position.",
            "Look {x} up in the alphabet and give its position.",
        ),
        asks=("Which position does {x} have in the alphabet?", "What is {x's} position in the alphabet?"),
    ),
    operation(
        "cipher.letter",
        takes="number",
        gives="letter",
        keys=[(str(n),) for n in range(1, 27)],
        solve=lambda n: ALPHABET[int(n) - 1],
        nouns=(
            "the letter at alphabet position {x}",
            "the letter at position {x} of the alphabet",
            "the letter with number {x} in the alphabet",
            "the letter found at place {x} in the alphabet",
        ),
        orders=("Turn the alphabet position {x} into its letter.", "Take the letter with number {x} in the alphabet."),
        asks=("Which letter stands at position {x} of the alphabet?", "Which letter has number {x} in the alphabet?"),
    ),
    operation(
        "cipher.shift",
        takes="letter",
        gives="letter",
        keys=[(a, str(k)) for a in ALPHABET for k in range(1, 14)],
        solve=shifted,
        nouns=(
            "the letter {k} places after {x} in the alphabet",
            "the letter that {x} becomes when shifted by {k}",
            "the Caesar shift of {x} by {k}",
            "the letter {k} steps on from {x} in the alphabet",
        ),
        orders=("Shift the letter {x} by {k} places.", "Move {x} forward {k} letters in the alphabet."),
        asks=("Which letter comes {k} places after {x} in the alphabet?", "What does {x} become when shifted by {k}?"),
    ),
    operation(
        "cipher.mirror",
        takes="letter",
        gives="letter",
        keys=[(a,) for a in ALPHABET],
        solve=lambda a: ALPHABET[25 - ALPHABET.index(a)],
        nouns=(
            "the mirror letter of {x} in the alphabet",
            "the letter opposite {x} in the mirrored alphabet",
            "the mirror image of {x} in the alphabet",
            "the Atbash partner of {x}",
        ),
        orders=("Mirror the letter {x} in the alphabet.", "Swap {x} for its mirror letter."),
        asks=(
            "Which letter mirrors {x} in the alphabet?",
            "What is {x's} mirror letter?",
            "Which letter is the Atbash of {x}?",
        ),
    ),
    operation(
        "cipher.earlier",
        takes="letter letter",
        gives="letter",
        keys=[(a, b) for a in ALPHABET for b in ALPHABET if a != b],
        solve=min,
        nouns=(
            "the earlier of the letters {x} and {y} in the alphabet",
            "the letter among {x} and {y} that comes earlier in the alphabet",
            "the one of the letters {x} and {y} that is nearer to A",
            "the alphabetically first of the letters {x} and {y}",
        ),
        orders=(
            "Choose the earlier of the letters {x} and {y} in the alphabet.",
            "Pick the one of the letters {x} and {y} with the lower place in the alphabet.",
        ),
        asks=(
            "Which of the letters {x} and {y} comes earlier in the alphabet?",
            "Which of the letters {x} and {y} is closer to A?",
        ),
    ),
)
