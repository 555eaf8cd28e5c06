"""Skills over names: facts about countries and elements, and the calendar."""

from __future__ import annotations

from dirigent_gym.questions.operation import operation
from dirigent_gym.questions.tables import COUNTRIES, DAYS_IN_MONTH, ELEMENTS, MONTHS, WEEKDAYS

CAPITAL = {country: capital for country, capital, _ in COUNTRIES}
CURRENCY = {country: currency for country, _, currency in COUNTRIES}
COUNTRY = {capital: country for country, capital, _ in COUNTRIES}
SYMBOL = {name: symbol for name, symbol, _ in ELEMENTS}
ATOMIC = {name: number for name, _, number in ELEMENTS}

FACTS = (
    operation(
        "facts.capital",
        takes="country",
        gives="capital",
        keys=[(c,) for c in CAPITAL],
        solve=CAPITAL.__getitem__,
        nouns=(
            "the capital of {x}",
            "the capital city of {x}",
            "the city that is the capital of {x}",
            "the national capital of {x}",
        ),
        orders=("Name {x's} capital.", "Look up the capital of {x}.", "Say which city is the capital of {x}."),
        asks=("Which city is the capital of {x}?", "What is {x's} capital?", "What city serves as the capital of {x}?"),
    ),
    operation(
        "facts.currency",
        takes="country",
        gives="currency",
        keys=[(c,) for c in CURRENCY],
        solve=CURRENCY.__getitem__,
        nouns=(
            "the currency of {x}",
            "the money used in {x}",
            "the currency that people pay with in {x}",
            "the official currency of {x}",
        ),
        orders=("Name {x's} currency.", "Look up the currency of {x}.", "Say which currency is used in {x}."),
        asks=("Which currency does {x} use?", "What is {x's} currency?", "What money do people pay with in {x}?"),
    ),
    operation(
        "facts.country",
        takes="capital",
        gives="country",
        keys=[(c,) for c in COUNTRY],
        solve=COUNTRY.__getitem__,
        nouns=(
            "the country whose capital is {x}",
            "the country governed from {x}",
            "the country that has {x} as its capital",
            "the nation whose capital city is {x}",
        ),
        orders=("Name the country governed from {x}.", "Look up the country that {x} is the capital of."),
        asks=("Which country has {x} as its capital?", "Which country is governed from {x}?"),
    ),
    operation(
        "facts.symbol",
        takes="element",
        gives="symbol",
        keys=[(e,) for e in SYMBOL],
        solve=SYMBOL.__getitem__,
        nouns=(
            "the chemical symbol of {x}",
            "the symbol for the element {x}",
            "the chemical symbol for {x}",
            "the periodic table symbol of {x}",
        ),
        orders=("Look up the chemical symbol of {x}.", "Write down {x's} chemical symbol."),
        asks=(
            "Which chemical symbol does {x} have?",
            "What is {x's} chemical symbol?",
            "How do chemists abbreviate {x}?",
        ),
    ),
    operation(
        "facts.atomic",
        takes="element",
        gives="number",
        keys=[(e,) for e in ATOMIC],
        solve=ATOMIC.__getitem__,
        nouns=(
            "the atomic number of {x}",
            "the number of protons in an atom of {x}",
            "the atomic number of the element {x}",
            "the proton count of {x}",
        ),
        orders=("Look up the atomic number of {x}.", "Write down {x's} atomic number."),
        asks=(
            "Which atomic number does {x} have?",
            "What is {x's} atomic number?",
            "How many protons has an atom of {x}?",
        ),
    ),
)

MONTH_NUMBER = {month: i + 1 for i, month in enumerate(MONTHS)}


def weekday_after(days: str, start: str) -> str:
    return WEEKDAYS[(WEEKDAYS.index(start) + int(days)) % 7]


def earlier_month(a: str, b: str) -> str:
    return min(a, b, key=MONTHS.index)


DATES = (
    operation(
        "dates.number",
        takes="month",
        gives="number",
        keys=[(m,) for m in MONTHS],
        solve=MONTH_NUMBER.__getitem__,
        nouns=(
            "the month number of {x}",
            "the number that {x} has among the months",
            "the place of {x} in the year, as a month number",
            "the calendar month number of {x}",
        ),
        orders=("Write the month {x} as a month number.", "Turn {x} into its month number."),
        asks=(
            "Which month number does {x} have?",
            "What is {x's} month number?",
            "What number among the months is {x}?",
        ),
    ),
    operation(
        "dates.month",
        takes="number",
        gives="month",
        keys=[(str(n),) for n in range(1, 13)],
        solve=lambda n: MONTHS[int(n) - 1],
        nouns=(
            "the month with number {x}",
            "the name of the month that has number {x}",
            "the calendar month whose number is {x}",
            "the month of the year that bears the number {x}",
        ),
        orders=("Name the month with number {x}.", "Turn the month number {x} into the name of its month."),
        asks=("Which month has number {x}?", "Which month of the year has the number {x}?"),
    ),
    operation(
        "dates.later",
        takes="month",
        gives="month",
        keys=[(m, str(k)) for m in MONTHS for k in range(2, 12)],
        solve=lambda m, k: MONTHS[(MONTHS.index(m) + int(k)) % 12],
        nouns=(
            "the month {k} months after {x}",
            "the month that comes {k} months after {x}",
            "the month that follows {x} by {k} months",
            "the month reached {k} months on from {x}",
        ),
        orders=("Go {k} months forward from {x}.", "Move {k} months on from {x}."),
        asks=("Which month comes {k} months after {x}?", "Which month is it {k} months after {x}?"),
    ),
    operation(
        "dates.days",
        takes="month",
        gives="number",
        keys=[(m,) for m in MONTHS],
        solve=lambda m: DAYS_IN_MONTH[MONTHS.index(m)],
        nouns=(
            "the number of days in {x}",
            "the number of days that {x} has",
            "the length of {x} in days",
            "the day count of {x} in a common year",
        ),
        orders=("Count the days in {x}.", "Count {x's} days.", "Say how many days {x} lasts."),
        asks=("How many days does {x} have?", "How many days are there in {x}?", "How many days long is {x}?"),
    ),
    operation(
        "dates.weekday",
        takes="number",
        gives="weekday",
        keys=[(str(n), day) for n in range(1, 61) for day in WEEKDAYS],
        solve=weekday_after,
        nouns=(
            "the weekday that comes {x} days after a {k}",
            "the day of the week {x} days after a {k}",
            "the weekday reached by going {x} days on from a {k}",
            "the day of the week that follows a {k} by {x} days",
        ),
        orders=(
            "Start on a {k} and go {x} days forward to a weekday.",
            "Count {x} days on from a {k} and name the weekday.",
        ),
        asks=("Which weekday comes {x} days after a {k}?", "What day of the week is it {x} days after a {k}?"),
    ),
    operation(
        "dates.earlier",
        takes="month month",
        gives="month",
        keys=[(a, b) for a in MONTHS for b in MONTHS if a != b],
        solve=earlier_month,
        nouns=(
            "the earlier of the months {x} and {y}",
            "the month among {x} and {y} that comes earlier in the year",
            "the one of the months {x} and {y} that the year reaches first",
            "the first to come round of the months {x} and {y}",
        ),
        orders=(
            "Choose the earlier of the months {x} and {y}.",
            "Pick the one of the months {x} and {y} that a year reaches first.",
        ),
        asks=(
            "Which of the months {x} and {y} comes earlier in the year?",
            "Which of the months {x} and {y} does a year reach first?",
        ),
    ),
)
