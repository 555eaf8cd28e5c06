"""Skills over numbers: arithmetic and lists.

Ranges are small on purpose: a specialist must know its whole table, and a chain must stay inside it.
"""

from __future__ import annotations

from itertools import permutations

from dirigent_gym.questions.operation import Key, operation
from dirigent_gym.questions.tables import LISTS


def numbers(first: int, last: int) -> list[str]:
    return [str(n) for n in range(first, last + 1)]


def grid(values: list[str], parameters: list[str]) -> list[Key]:
    return [(value, parameter) for value in values for parameter in parameters]


PAIRS: list[Key] = [(a, b) for a, b in permutations(numbers(0, 40), 2)]
"""What two results may be when they are joined: different numbers, so that there is a larger one."""

NUMBERS = (
    operation(
        "numbers.plus",
        takes="number",
        gives="number",
        keys=grid(numbers(0, 99), numbers(2, 20)),
        solve=lambda x, k: int(x) + int(k),
        nouns=(
            "{k} more than {x}",
            "the result of adding {k} to {x}",
            "the number {k} above {x}",
            "{x} increased by {k}",
            "what adding {k} to {x} gives",
        ),
        orders=("Add {k} to {x}.", "Increase {x} by {k}.", "Raise {x} by {k}."),
        asks=(
            "What do you get when you add {k} to {x}?",
            "How much is {k} more than {x}?",
            "What does {x} become when raised by {k}?",
        ),
    ),
    operation(
        "numbers.minus",
        takes="number",
        gives="number",
        keys=[(x, k) for x, k in grid(numbers(2, 99), numbers(2, 20)) if int(x) >= int(k)],
        solve=lambda x, k: int(x) - int(k),
        nouns=(
            "{k} less than {x}",
            "the result of subtracting {k} from {x}",
            "the number {k} below {x}",
            "{x} decreased by {k}",
            "what subtracting {k} from {x} leaves",
        ),
        orders=("Subtract {k} from {x}.", "Decrease {x} by {k}.", "Lower {x} by {k}."),
        asks=(
            "What is left when you take {k} from {x}?",
            "How much is {k} less than {x}?",
            "What does {x} become when lowered by {k}?",
        ),
    ),
    operation(
        "numbers.times",
        takes="number",
        gives="number",
        keys=grid(numbers(1, 40), numbers(2, 9)),
        solve=lambda x, k: int(x) * int(k),
        nouns=(
            "{k} times {x}",
            "the result of multiplying {x} by {k}",
            "the {k}-fold of {x}",
            "{x} multiplied by {k}",
            "what multiplying {x} by {k} gives",
        ),
        orders=("Multiply {x} by {k}.", "Take {x} {k} times.", "Scale {x} up by a factor of {k}."),
        asks=(
            "What do you get when you multiply {x} by {k}?",
            "How much is {k} times {x}?",
            "What does {x} scaled by {k} come to?",
        ),
    ),
    operation(
        "numbers.larger",
        takes="number number",
        gives="number",
        keys=PAIRS,
        solve=lambda x, y: max(int(x), int(y)),
        nouns=(
            "the larger of {x} and {y}",
            "the greater of {x} and {y}",
            "the bigger one of {x} and {y}",
            "the higher of {x} and {y}",
        ),
        orders=(
            "Choose the larger of {x} and {y}.",
            "Compare {x} and {y} and keep the larger.",
            "Keep the higher of {x} and {y}.",
        ),
        asks=(
            "Which of {x} and {y} is larger?",
            "Which is the greater of {x} and {y}?",
            "Which of {x} and {y} is the higher?",
        ),
    ),
    operation(
        "numbers.sum",
        takes="number number",
        gives="number",
        keys=PAIRS,
        solve=lambda x, y: int(x) + int(y),
        nouns=(
            "the sum of {x} and {y}",
            "the total of {x} and {y}",
            "what {x} and {y} make together",
            "the combined value of {x} and {y}",
        ),
        orders=("Add {x} and {y} together.", "Add up {x} and {y}.", "Put {x} and {y} together into one total."),
        asks=(
            "What do {x} and {y} add up to?",
            "How much are {x} and {y} together?",
            "What total do {x} and {y} make?",
        ),
    ),
    operation(
        "numbers.difference",
        takes="number number",
        gives="number",
        keys=PAIRS,
        solve=lambda x, y: abs(int(x) - int(y)),
        nouns=(
            "the difference between {x} and {y}",
            "the gap between {x} and {y}",
            "the distance between {x} and {y}",
            "how far apart {x} and {y} are",
        ),
        orders=(
            "Work out how far apart {x} and {y} are.",
            "Compare {x} and {y} and give the gap.",
            "Measure the distance between {x} and {y}.",
        ),
        asks=(
            "How far apart are {x} and {y}?",
            "By how much do {x} and {y} differ?",
            "How large is the gap between {x} and {y}?",
        ),
    ),
)


def items(text: str) -> list[int]:
    return [int(part) for part in text.split(", ")]


def ordered_pair(x: str, y: str) -> str:
    return ", ".join(map(str, sorted((int(x), int(y)))))


FOURS = [text for text in LISTS if len(items(text)) == 4]

LIST_OPS = (
    operation(
        "lists.largest",
        takes="list",
        gives="number",
        keys=[(text,) for text in LISTS],
        solve=lambda text: max(items(text)),
        nouns=(
            "the largest number in the list {x}",
            "the maximum of the list {x}",
            "the biggest entry of the list {x}",
            "the top value in the list {x}",
        ),
        orders=("Pick the largest number from the list {x}.", "Search the list {x} for its maximum."),
        asks=("Which number is the largest in the list {x}?", "What is the biggest entry in the list {x}?"),
    ),
    operation(
        "lists.smallest",
        takes="list",
        gives="number",
        keys=[(text,) for text in LISTS],
        solve=lambda text: min(items(text)),
        nouns=(
            "the smallest number in the list {x}",
            "the minimum of the list {x}",
            "the lowest entry of the list {x}",
            "the bottom value in the list {x}",
        ),
        orders=("Pick the smallest number from the list {x}.", "Search the list {x} for its minimum."),
        asks=("Which number is the smallest in the list {x}?", "What is the lowest entry in the list {x}?"),
    ),
    operation(
        "lists.sort",
        takes="list",
        gives="list",
        keys=[(text,) for text in LISTS],
        solve=lambda text: ", ".join(map(str, sorted(items(text)))),
        nouns=(
            "the list {x} sorted from low to high",
            "the list {x} in rising order",
            "the numbers of the list {x} sorted upwards",
            "the list {x} arranged from smallest to largest",
        ),
        orders=(
            "Sort the list {x} from low to high.",
            "Put the list {x} in rising order.",
            "Arrange the list {x} upwards.",
        ),
        asks=("What is the list {x} in rising order?", "How does the list {x} look when sorted upwards?"),
    ),
    operation(
        "lists.item",
        takes="number",
        gives="number",
        keys=grid(numbers(1, 4), FOURS[:80]),
        solve=lambda x, k: items(k)[int(x) - 1],
        nouns=(
            "the item whose place is {x} in the list {k}",
            "the list item with index {x} in {k}",
            "the entry at place {x} in the list {k}",
            "the list entry that index {x} picks out of {k}",
        ),
        orders=("Take item number {x} of the list {k}.", "Read off the entry at place {x} in the list {k}."),
        asks=("Which number is at place {x} in the list {k}?", "What is item number {x} of the list {k}?"),
    ),
    operation(
        "lists.above",
        takes="number",
        gives="number",
        keys=grid(numbers(1, 30), FOURS[:60]),
        solve=lambda x, k: sum(n > int(x) for n in items(k)),
        nouns=(
            "the number of entries above {x} in the list {k}",
            "the count of numbers larger than {x} in the list {k}",
            "the number of list items over {x} in {k}",
            "how many entries exceed {x} in the list {k}",
        ),
        orders=("Count the entries above {x} in the list {k}.", "Count the numbers that exceed {x} in the list {k}."),
        asks=("How many entries are above {x} in the list {k}?", "How many numbers exceed {x} in the list {k}?"),
    ),
    operation(
        "lists.pair",
        takes="number number",
        gives="list",
        keys=PAIRS,
        solve=ordered_pair,
        nouns=(
            "the list made of {x} and {y}, smaller first",
            "the list holding {x} and {y} in rising order",
            "a list of {x} and {y} with the smaller first",
            "the two-item list built from {x} and {y}, lower one first",
        ),
        orders=("Put {x} and {y} in a list, smaller first.", "Write {x} and {y} as a list in rising order."),
        asks=("What is the list of {x} and {y} with the smaller first?", "How do {x} and {y} read as a rising list?"),
    ),
)
