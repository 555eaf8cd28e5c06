"""Skills about how numbers are written and computed elsewhere: conversion, Roman numerals, tiny programs."""

from __future__ import annotations

from itertools import permutations

from dirigent_gym.questions.operation import operation
from dirigent_gym.questions.skills_numbers import grid, numbers

CONVERT = (
    operation(
        "convert.binary",
        takes="number",
        gives="binary",
        keys=[(n,) for n in numbers(1, 63)],
        solve=lambda x: format(int(x), "b"),
        nouns=(
            "the binary form of {x}",
            "{x} written in binary",
            "the base-two form of {x}",
            "{x} expressed in base two",
            "the binary notation of {x}",
        ),
        orders=("Convert {x} to binary.", "Write {x} in binary.", "Put {x} into base two."),
        asks=("How is {x} written in binary?", "What is {x} in binary?", "What does {x} look like in base two?"),
    ),
    operation(
        "convert.decimal",
        takes="binary",
        gives="number",
        keys=[(format(n, "b"),) for n in range(1, 64)],
        solve=lambda x: int(x, 2),
        nouns=(
            "the decimal value of the binary number {x}",
            "the decimal form of the binary number {x}",
            "the ordinary number for the binary number {x}",
            "the base-ten value of the binary number {x}",
        ),
        orders=("Convert the binary number {x} to decimal.", "Read the binary number {x} as a decimal number."),
        asks=("What is the binary number {x} in decimal?", "Which decimal number is the binary number {x}?"),
    ),
    operation(
        "convert.minutes",
        takes="number",
        gives="number",
        keys=[(n,) for n in numbers(2, 16)],
        solve=lambda x: 60 * int(x),
        nouns=(
            "the number of minutes in {x} hours",
            "the minutes that make up {x} hours",
            "the length of {x} hours in minutes",
            "{x} hours expressed in minutes",
            "the minute count of {x} hours",
        ),
        orders=("Convert {x} hours to minutes.", "Turn {x} hours into minutes."),
        asks=("How many minutes are {x} hours?", "How many minutes are there in {x} hours?"),
    ),
    operation(
        "convert.days",
        takes="number",
        gives="number",
        keys=[(n,) for n in numbers(2, 30)],
        solve=lambda x: 7 * int(x),
        nouns=(
            "the number of days in {x} weeks",
            "the days that make up {x} weeks",
            "the length of {x} weeks in days",
            "{x} weeks expressed in days",
            "the day total of {x} weeks",
        ),
        orders=("Convert {x} weeks to days.", "Turn {x} weeks into days."),
        asks=("How many days are {x} weeks?", "How many days are there in {x} weeks?"),
    ),
    operation(
        "convert.inches",
        takes="number",
        gives="number",
        keys=[(n,) for n in numbers(2, 30)],
        solve=lambda x: 12 * int(x),
        nouns=(
            "the number of inches in {x} feet",
            "the inches that make up {x} feet",
            "the length of {x} feet in inches",
            "{x} feet expressed in inches",
            "the inch count of {x} feet",
        ),
        orders=("Convert {x} feet to inches.", "Turn {x} feet into inches."),
        asks=("How many inches are {x} feet?", "How many inches are there in {x} feet?"),
    ),
)


def to_roman(number: int) -> str:
    signs = ((100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))
    text = ""
    for value, sign in signs:
        text, number = text + sign * (number // value), number % value
    return text


FROM_ROMAN = {to_roman(n): n for n in range(1, 121)}


def larger_roman(x: str, y: str) -> str:
    return max(x, y, key=FROM_ROMAN.__getitem__)


ROMAN = (
    operation(
        "roman.write",
        takes="number",
        gives="roman",
        keys=[(n,) for n in numbers(1, 120)],
        solve=lambda x: to_roman(int(x)),
        nouns=(
            "the Roman numeral for {x}",
            "{x} written as a Roman numeral",
            "the Roman form of {x}",
            "{x} expressed in Roman numerals",
            "the way the Romans wrote {x}",
        ),
        orders=("Write {x} as a Roman numeral.", "Turn {x} into a Roman numeral.", "Put {x} in Roman numerals."),
        asks=(
            "Which Roman numeral stands for {x}?",
            "What is {x} as a Roman numeral?",
            "How did the Romans write {x}?",
        ),
    ),
    operation(
        "roman.read",
        takes="roman",
        gives="number",
        keys=[(text,) for text in FROM_ROMAN],
        solve=FROM_ROMAN.__getitem__,
        nouns=(
            "the number that the Roman numeral {x} stands for",
            "the value of the Roman numeral {x}",
            "the Roman numeral {x} as an ordinary number",
            "the number meant by the Roman numeral {x}",
        ),
        orders=("Read the Roman numeral {x} as a number.", "Turn the Roman numeral {x} into digits."),
        asks=("Which number is the Roman numeral {x}?", "What does the Roman numeral {x} stand for?"),
    ),
    operation(
        "roman.signs",
        takes="roman",
        gives="number",
        keys=[(text,) for text in FROM_ROMAN],
        solve=len,
        nouns=(
            "the number of signs in the Roman numeral {x}",
            "the count of signs in the Roman numeral {x}",
            "the number of symbols that the Roman numeral {x} needs",
            "how many signs the Roman numeral {x} takes",
        ),
        orders=("Count the signs in the Roman numeral {x}.", "Count the symbols of the Roman numeral {x}."),
        asks=("How many signs does the Roman numeral {x} have?", "How many symbols make up the Roman numeral {x}?"),
    ),
    operation(
        "roman.larger",
        takes="roman roman",
        gives="roman",
        keys=[(to_roman(int(a)), to_roman(int(b))) for a, b in permutations(numbers(1, 40), 2)],
        solve=larger_roman,
        nouns=(
            "the larger of the Roman numerals {x} and {y}",
            "the greater of the Roman numerals {x} and {y}",
            "the one of the Roman numerals {x} and {y} that is worth more",
            "the Roman numeral of higher worth among {x} and {y}",
        ),
        orders=(
            "Choose the larger of the Roman numerals {x} and {y}.",
            "Keep the Roman numeral worth more among {x} and {y}.",
        ),
        asks=(
            "Which of the Roman numerals {x} and {y} is larger?",
            "Which of the Roman numerals {x} and {y} is worth more?",
        ),
    ),
)

CODE = (
    operation(
        "code.modulo",
        takes="number",
        gives="number",
        keys=grid(numbers(0, 60), numbers(3, 9)),
        solve=lambda x, k: int(x) % int(k),
        nouns=(
            "the value of `n % {k}` for n = {x}",
            "the value of the code `n % {k}` when n is {x}",
            "the Python result of `n % {k}` with n = {x}",
            "the output of `print(n % {k})` where n = {x}",
        ),
        orders=("Evaluate `n % {k}` with n = {x}.", "Run the code `n % {k}` for n = {x}."),
        asks=("What does `n % {k}` give when n is {x}?", "What does Python return for `n % {k}` with n = {x}?"),
    ),
    operation(
        "code.divide",
        takes="number",
        gives="number",
        keys=grid(numbers(0, 60), numbers(2, 6)),
        solve=lambda x, k: int(x) // int(k),
        nouns=(
            "the value of `n // {k}` for n = {x}",
            "the value of the code `n // {k}` when n is {x}",
            "the Python result of `n // {k}` with n = {x}",
            "the output of `print(n // {k})` where n = {x}",
        ),
        orders=("Evaluate `n // {k}` with n = {x}.", "Run the code `n // {k}` for n = {x}."),
        asks=("What does `n // {k}` give when n is {x}?", "What does Python return for `n // {k}` with n = {x}?"),
    ),
    operation(
        "code.square",
        takes="number",
        gives="number",
        keys=[(n,) for n in numbers(0, 30)],
        solve=lambda x: int(x) ** 2,
        nouns=(
            "the value of `n * n` for n = {x}",
            "the value of the code `n * n` when n is {x}",
            "the Python result of `n * n` with n = {x}",
            "the output of `print(n * n)` where n = {x}",
        ),
        orders=("Evaluate `n * n` with n = {x}.", "Run the code `n * n` for n = {x}."),
        asks=("What does `n * n` give when n is {x}?", "What does Python return for `n * n` with n = {x}?"),
    ),
    operation(
        "code.cap",
        takes="number",
        gives="number",
        keys=grid(numbers(0, 40), numbers(5, 25)),
        solve=lambda x, k: min(int(x), int(k)),
        nouns=(
            "the value of `min(n, {k})` for n = {x}",
            "the value of the code `min(n, {k})` when n is {x}",
            "the Python result of `min(n, {k})` with n = {x}",
            "the output of `print(min(n, {k}))` where n = {x}",
        ),
        orders=("Evaluate `min(n, {k})` with n = {x}.", "Run the code `min(n, {k})` for n = {x}."),
        asks=("What does `min(n, {k})` give when n is {x}?", "What does Python return for `min(n, {k})` with n = {x}?"),
    ),
)
