"""Write the questions that ship for `dirigent calibrate`: `src/dirigent/learn/builtin_questions.jsonl.gz`.

    python benchmarks/builtin_questions.py --gsm8k questions_gsm8k_train.jsonl.gz

Every question but the last two kinds is drawn here, and its answer is computed. Plain facts were checked by hand. Word
problems are a sample of the training part of GSM8K (MIT; `builtin_questions.md` holds its notice). They are taken from
problems whose published solution is arithmetic that gives the published answer when it is computed again. Without
`--gsm8k` the word problems of the present file are kept.
"""

from __future__ import annotations

import argparse
import calendar
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import random
import re
import string
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "src" / "dirigent" / "learn" / "builtin_questions.jsonl.gz"

Drawn = tuple[str, str, str]
"""Question, answer, grader."""

WORDS = (
    "apple", "basket", "candle", "dragon", "engine", "forest", "garden", "hammer", "island", "jacket", "kettle",
    "ladder", "market", "needle", "orange", "pepper", "quarry", "rabbit", "saddle", "tunnel", "umbrella", "violin",
    "window", "yellow", "zipper", "anchor", "bottle", "copper", "desert", "eleven", "falcon", "guitar", "harbor",
    "insect", "jungle", "kitten", "lemon", "mirror", "nickel", "oyster", "planet", "quiver", "ribbon", "silver",
    "turtle", "urchin", "velvet", "walnut", "canyon", "meadow", "pillow", "rocket", "singer", "temple", "valley",
    "wizard", "branch", "circle", "doctor", "fabric",
)  # fmt: skip
NAMES = ("Ana", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo")

FACTS = (
    ("What is the capital of Australia?", "Canberra"), ("What is the capital of Canada?", "Ottawa"),
    ("What is the capital of Norway?", "Oslo"), ("What is the capital of Kenya?", "Nairobi"),
    ("What is the capital of Peru?", "Lima"), ("What is the capital of Vietnam?", "Hanoi"),
    ("What is the capital of Morocco?", "Rabat"), ("What is the capital of New Zealand?", "Wellington"),
    ("Which chemical element has the symbol Fe?", "iron"), ("Which chemical element has the symbol Na?", "sodium"),
    ("Which chemical element has the symbol W?", "tungsten"), ("Which chemical element has the symbol K?", "potassium"),
    ("What is the chemical symbol of gold?", "Au"), ("What is the chemical symbol of mercury?", "Hg"),
    ("Which planet of our solar system is closest to the Sun?", "Mercury"),
    ("Which planet of our solar system is the largest?", "Jupiter"),
    ("Which is the largest ocean on Earth? Give its name without the word ocean.", "Pacific"),
    ("Who wrote the play Hamlet? Give the last name.", "Shakespeare"),
    ("Who painted the Mona Lisa? Answer Leonardo, Raphael or Michelangelo.", "Leonardo"),
    ("Who wrote the novel Pride and Prejudice? Give the last name.", "Austen"),
    ("Which gas do plants take in for photosynthesis: oxygen, nitrogen or carbon dioxide?", "carbon dioxide"),
    ("How many sides does a dodecagon have? Answer with a number.", "12"),
    ("How many bones does an adult human usually have? Answer with a number.", "206"),
    ("In which year did the first humans land on the Moon? Answer with a number.", "1969"),
    ("In which year did the Berlin Wall fall? Answer with a number.", "1989"),
    ("What is the square root of 196? Answer with a number.", "14"),
    ("What is the hardest natural mineral?", "diamond"),
    ("Which organ of the human body pumps blood?", "heart"),
    ("What is the currency of Japan?", "yen"),
)  # fmt: skip
"""Plain facts, checked by hand."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsm8k", type=Path, help="GSM8K's training part, as JSON lines in our form")
    given = parser.parse_args()
    rows = [*generated(), *(word_problems(given.gsm8k) if given.gsm8k else kept_word_problems())]
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, packed, mtime=0) as file:
        file.writelines(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    FILE.write_bytes(packed.getvalue())
    print(f"{len(rows)} questions, {len(packed.getvalue()):,} bytes")


def generated() -> list[dict[str, Any]]:
    """Returns every question that is not from GSM8K, the same at every call."""
    rows = []
    for kind, (draw, count) in KINDS.items():
        rng = random.Random(f"builtin {kind}")
        seen: set[str] = set()
        while len(seen) < count:
            question, answer, grader = draw(rng)
            if question not in seen:
                seen.add(question)
                rows.append(_row(f"{kind}-{len(seen)}", kind, question, answer, grader))
    for number, (question, answer) in enumerate(FACTS, start=1):
        grader = "number" if answer.isdigit() else "short"
        rows.append(_row(f"facts-{number}", "facts", question, answer, grader))
    return rows


def _row(id: str, kind: str, question: str, answer: str, grader: str) -> dict[str, Any]:
    return {"id": id, "kind": kind, "question": question, "answer": answer, "grader": grader, "split": "train"}


def arithmetic(rng: random.Random) -> Drawn:
    a, b, c = rng.randint(12, 99), rng.randint(12, 99), rng.randint(3, 19)
    big, other = rng.randint(1200, 98000), rng.randint(1200, 98000)
    shape = rng.randrange(6)
    if shape == 0:
        return f"What is {a} * {b}?", str(a * b), "number"
    if shape == 1:
        return f"What is {big} + {other} - {a * b}?", str(big + other - a * b), "number"
    if shape == 2:
        return f"What is ({a} + {b}) * {c} - {big}?", str((a + b) * c - big), "number"
    if shape == 3:
        return f"What is the remainder when {big} is divided by {c}?", str(big % c), "number"
    if shape == 4:
        percent = rng.choice((5, 12, 15, 35, 45, 80))
        return f"What is {percent}% of {a * 100}?", str(percent * a), "number"
    return f"What is {a} squared minus {b} squared?", str(a * a - b * b), "number"


def dates(rng: random.Random) -> Drawn:
    day = date(2000, 1, 1) + timedelta(days=rng.randrange(12000))
    days = rng.randint(17, 400)
    shape = rng.randrange(4)
    if shape == 0:
        return (
            f"How many days are there from {_day_text(day)} to {_day_text(day + timedelta(days=days))}?",
            str(days),
            "number",
        )
    if shape == 1:
        return f"On which day of the week was {_day_text(day)}?", calendar.day_name[day.weekday()], "short"
    if shape == 2:
        later = day + timedelta(days=days)
        return f"Which date is {days} days after {_day_text(day)}? Write it as YYYY-MM-DD.", later.isoformat(), "exact"
    start, minutes = datetime(2024, 1, 1, rng.randrange(24), rng.randrange(60)), rng.randint(75, 900)
    end = start + timedelta(minutes=minutes)
    question = f"A train leaves at {start:%H:%M} and travels {minutes // 60} hours and {minutes % 60} minutes. "
    return f"{question}At what time does it arrive? Write it as HH:MM in 24 hours.", f"{end:%H:%M}", "exact"


def _day_text(day: date) -> str:
    return f"{day.day} {day:%B} {day.year}"


def units(rng: random.Random) -> Drawn:
    a, b = rng.randint(2, 95), rng.randint(2, 59)
    shape = rng.randrange(6)
    if shape == 0:
        return f"How many seconds are {a} hours and {b} minutes?", str(a * 3600 + b * 60), "number"
    if shape == 1:
        return f"How many metres are {a}.{b:02} kilometres?", str(a * 1000 + b * 10), "number"
    if shape == 2:
        return f"How many degrees Fahrenheit are {a * 5} degrees Celsius?", str(a * 9 + 32), "number"
    if shape == 3:
        return f"How many grams are {a} kilograms and {b} grams?", str(a * 1000 + b), "number"
    if shape == 4:
        hours = rng.choice((2, 3, 4, 5))
        speed = rng.randint(12, 130)
        question = f"A car covers {speed * hours} kilometres in {hours} hours at a constant speed."
        return f"{question} What is its speed in kilometres per hour?", str(speed), "number"
    return (
        f"One inch is 2.54 centimetres. How many centimetres are {a} inches?",
        str(Fraction(254 * a, 100) * 1.0),
        ("number"),
    )


def sorting(rng: random.Random) -> Drawn:
    shape = rng.randrange(4)
    if shape == 0:
        words = rng.sample(WORDS, rng.randint(6, 10))
        question = f"Sort these words in alphabetical order: {', '.join(words)}. Separate them by commas."
        return question, ", ".join(sorted(words)), "exact"
    numbers = rng.sample(range(-99, 999), rng.randint(6, 9))
    listed = ", ".join(map(str, numbers))
    if shape == 1:
        question = f"Sort these numbers from the largest to the smallest: {listed}. Write them as a Python list."
        return question, str(sorted(numbers, reverse=True)), "literal"
    if shape == 2:
        return f"What is the third smallest of these numbers? {listed}", str(sorted(numbers)[2]), "number"
    odd = numbers if len(numbers) % 2 else numbers[:-1]
    listed = ", ".join(map(str, odd))
    return f"What is the median of these numbers? {listed}", str(sorted(odd)[len(odd) // 2]), "number"


def strings(rng: random.Random) -> Drawn:
    word, other = rng.sample(WORDS, 2)
    shape = rng.randrange(6)
    if shape == 0:
        return f'Write the word "{word}" backwards.', word[::-1], "short"
    if shape == 1:
        text = " ".join(rng.sample(WORDS, 6))
        letter = rng.choice("aeilnrt")
        return f'How often does the letter "{letter}" occur in "{text}"?', str(text.count(letter)), "number"
    if shape == 2:
        left = "".join(letter for letter in word + other if letter not in "aeiou")
        return f'Write "{word}{other}" without its vowels (a, e, i, o, u).', left, "short"
    if shape == 3:
        by = rng.randint(1, 5)
        table = str.maketrans(string.ascii_lowercase, string.ascii_lowercase[by:] + string.ascii_lowercase[:by])
        question = f"Replace every letter of {word!r} by the one {by} places later in the alphabet (after z comes a)."
        return f"{question} Write the result.", word.translate(table), "short"
    if shape == 4:
        words = rng.sample(WORDS, 5)
        question = (
            f"Take the first letter of each of these words, in order: {', '.join(words)}. Write them as one word."
        )
        return question, "".join(one[0] for one in words), "short"
    position = rng.randint(2, len(word) - 1)
    return f'What is letter number {position} of the word "{word}", counted from 1?', word[position - 1], "short"


def logic(rng: random.Random) -> Drawn:
    """People in a row, with clues that leave one order; or truth-tellers and liars."""
    if rng.random() < 0.4:
        return _liars(rng)
    people = rng.sample(NAMES, rng.randint(4, 5))
    order = tuple(rng.sample(people, len(people)))
    clues = [
        (f"{a} stands directly left of {b}.", lambda o, a=a, b=b: o.index(a) + 1 == o.index(b))
        for a, b in itertools.pairwise(order)
    ] + [
        (f"{a} stands somewhere to the left of {b}.", lambda o, a=a, b=b: o.index(a) < o.index(b))
        for a, b in itertools.combinations(order, 2)
    ]  # fmt: skip
    rng.shuffle(clues)
    used: list[tuple[str, Callable[..., bool]]] = []
    left = list(itertools.permutations(people))
    for clue in clues:
        fitting = [one for one in left if clue[1](one)]
        if len(fitting) < len(left):
            left, used = fitting, [*used, clue]
        if len(left) == 1:
            break
    place = rng.randrange(len(people))
    options = rng.sample(people, len(people))
    question = (
        f"{len(people)} people stand in a row: {', '.join(sorted(people))}. {' '.join(text for text, _ in used)} "
    )
    question += f"Who is number {place + 1} from the left?\n\n"
    question += "\n".join(f"{letter}. {name}" for letter, name in zip("ABCDE", options, strict=False))
    return question, "ABCDE"[options.index(left[0][place])], "choice"


def _liars(rng: random.Random) -> Drawn:
    """Each person is a knight, who says the truth, or a knave, who lies. The statements leave one solution."""
    while True:
        people = rng.sample(NAMES, 3)
        said = []
        for person in people:
            b, c = rng.sample([other for other in people if other != person], 2)
            said.append((person, b, c, rng.choice(tuple(STATEMENTS))))
        solutions = [
            truth
            for values in itertools.product((True, False), repeat=3)
            if (truth := dict(zip(people, values, strict=True)))
            and all(truth[a] == STATEMENTS[text](truth[b], truth[c]) for a, b, c, text in said)
        ]
        if len(solutions) == 1:
            break
    lines = " ".join(f'{a} says: "{text.format(b=b, c=c)}"' for a, b, c, text in said)
    question = f"Knights always tell the truth and knaves always lie. {lines} How many of the three are knights?"
    return question, str(sum(solutions[0].values())), "number"


STATEMENTS: dict[str, Callable[[bool, bool], bool]] = {
    "{b} is a knight.": lambda b, c: b,
    "{b} is a knave.": lambda b, c: not b,
    "{b} and {c} are of the same kind.": lambda b, c: b == c,
    "{b} or {c} is a knight, or both are.": lambda b, c: b or c,
    "{b} and {c} are both knaves.": lambda b, c: not b and not c,
}


PROGRAMS = (
    "def f(numbers):\n    total = {a}\n    for i, n in enumerate(numbers):\n        if n % {b} == 0:\n"
    "            total += n * i\n        else:\n            total -= 1\n    return total\n\nprint(f({numbers}))",
    "def f(text):\n    found = {{}}\n    for letter in text:\n        found[letter] = found.get(letter, 0) + 1\n"
    "    return sorted(found.items(), key=lambda item: (-item[1], item[0]))[:3]\n\nprint(f({word!r}))",
    "def f(n):\n    steps = 0\n    while n != 1 and steps < 60:\n        n = n // 2 if n % 2 == 0 else 3 * n + 1\n"
    "        steps += 1\n    return steps\n\nprint(f({c}))",
    "words = {words}\nprint([w[::-1].capitalize() for w in words if len(w) > {d}])",
    "stack = []\nfor n in {numbers}:\n    while stack and stack[-1] < n:\n        stack.pop()\n    stack.append(n)\n"
    "print(stack)",
    "def f(a, b):\n    return a if b == 0 else f(b, a % b)\n\nprint([f(n, {e}) for n in {numbers}])",
    "text = {word!r}\nprint(text[{a}:] + text[:{a}].upper() + str(len(text) * {b}))",
)


def program_output(rng: random.Random) -> Drawn:
    values = {
        "a": rng.randint(1, 3), "b": rng.randint(2, 4), "c": rng.randint(3, 30), "d": rng.randint(5, 6),
        "e": rng.choice((12, 18, 30, 36)), "numbers": [rng.randint(1, 60) for _ in range(6)],
        "word": rng.choice(WORDS) + rng.choice(WORDS), "words": rng.sample(WORDS, 4),
    }  # fmt: skip
    program = rng.choice(PROGRAMS).format(**values)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {})  # our own program, above
    question = f"What does this Python program print?\n\n```python\n{program}\n```"
    return question, printed.getvalue().strip(), "literal"


def extraction(rng: random.Random) -> Drawn:
    people = [
        {
            "name": name,
            "age": rng.randint(19, 79),
            "city": rng.choice(("Lisbon", "Oslo", "Quito", "Turin", "Osaka")),
            "orders": [{"item": item, "price": rng.randint(3, 95)} for item in rng.sample(WORDS, rng.randint(1, 3))],
        }
        for name in rng.sample(NAMES, 4)
    ]
    person = rng.choice(people)
    record = json.dumps(people, indent=rng.choice((None, 1)))
    shape = rng.randrange(5)
    if shape == 0:
        asked, answer, grader = f"How old is {person['name']}?", str(person["age"]), "number"
    elif shape == 1:
        asked = f"What do the orders of {person['name']} cost together?"
        answer, grader = str(sum(order["price"] for order in person["orders"])), "number"
    elif shape == 2:
        asked = "Which names are there? Write them as a Python list, in the order of the record."
        answer, grader = str([one["name"] for one in people]), "literal"
    elif shape == 3:
        orders = [order for one in people for order in one["orders"]]
        dearest = max(orders, key=lambda order: order["price"])
        if sum(order["price"] == dearest["price"] for order in orders) > 1:
            return extraction(rng)
        asked, answer, grader = "Which item is the dearest one in the record?", dearest["item"], "short"
    else:
        age = rng.randint(30, 60)
        asked = f"How many of the people are older than {age}?"
        answer, grader = str(sum(one["age"] > age for one in people)), "number"
    return f"{asked}\n\n{record}", answer, grader


KINDS: dict[str, tuple[Callable[[random.Random], Drawn], int]] = {
    "arithmetic": (arithmetic, 30),
    "dates": (dates, 30),
    "units": (units, 30),
    "sorting": (sorting, 25),
    "strings": (strings, 30),
    "logic": (logic, 30),
    "program output": (program_output, 30),
    "extraction": (extraction, 30),
}
WORD_PROBLEMS = 40


def word_problems(file: Path) -> list[dict[str, Any]]:
    """Returns a sample of GSM8K's training part whose solutions hold when they are computed again.

    A third of the ids is left out: evaluations of this project keep it for their final measurement.
    """
    with gzip.open(file) as lines:
        rows = [json.loads(line) for line in lines]
    usable = [
        row
        for row in rows
        if row["meta"]["split"] == "train"
        and int(hashlib.sha1(row["id"].encode()).hexdigest(), 16) % 3
        and _holds(row["meta"]["solution"], row["answer"])
    ]
    chosen = random.Random("builtin word problems").sample(usable, WORD_PROBLEMS)
    return [_row(row["id"], "word problems", row["question"], row["answer"], "number") for row in chosen]


def kept_word_problems() -> list[dict[str, Any]]:
    with gzip.open(FILE) as lines:
        return [row for row in map(json.loads, lines) if row["kind"] == "word problems"]


def _holds(solution: str, answer: str) -> bool:
    """Whether every equation of the solution is right and the last one gives the answer."""
    results = list(_results(solution))
    return len(results) >= 3 and None not in results and results[-1] == Fraction(answer)


def _results(solution: str) -> Iterator[Fraction | None]:
    """Yields the result of each equation; None if its sides differ."""
    for left, right in re.findall(r"([\d.,$%*/+() -]*\d[\d.,$)]*)\s*=\s*\$?(-?[\d,]*\.?\d+)", solution):
        term = re.sub(r"[$,]", "", left).strip()
        if "%" in term or not re.search(r"[-+*/]", term):
            continue
        try:
            value = eval(re.sub(r"(\d+\.?\d*|\.\d+)", r"Fraction('\1')", term), {"Fraction": Fraction})
        except (SyntaxError, ValueError, TypeError, ZeroDivisionError):
            yield None
            continue
        wanted = Fraction(right.replace(",", ""))
        yield wanted if value == wanted else None


if __name__ == "__main__":
    main()
