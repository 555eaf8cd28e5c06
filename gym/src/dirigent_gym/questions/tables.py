"""The facts that the gym asks for: short, well known, plain ASCII, one word each, one right answer each."""

from __future__ import annotations

import random

COUNTRIES: tuple[tuple[str, str, str], ...] = tuple(
    (country, capital, currency)
    for country, capital, currency in (
        line.split()
        for line in """
        Norway Oslo krone
        Sweden Stockholm krona
        Denmark Copenhagen krone
        Finland Helsinki euro
        France Paris euro
        Germany Berlin euro
        Spain Madrid euro
        Portugal Lisbon euro
        Italy Rome euro
        Greece Athens euro
        Ireland Dublin euro
        Austria Vienna euro
        Belgium Brussels euro
        Poland Warsaw zloty
        Hungary Budapest forint
        Romania Bucharest leu
        Bulgaria Sofia lev
        Serbia Belgrade dinar
        Ukraine Kyiv hryvnia
        Russia Moscow ruble
        Turkey Ankara lira
        Egypt Cairo pound
        Morocco Rabat dirham
        Tunisia Tunis dinar
        Kenya Nairobi shilling
        Ghana Accra cedi
        Nigeria Abuja naira
        Senegal Dakar franc
        Zambia Lusaka kwacha
        Angola Luanda kwanza
        Japan Tokyo yen
        China Beijing yuan
        Thailand Bangkok baht
        Vietnam Hanoi dong
        Nepal Kathmandu rupee
        Mongolia Ulaanbaatar tugrik
        Iran Tehran rial
        Iraq Baghdad dinar
        Jordan Amman dinar
        Canada Ottawa dollar
        Cuba Havana peso
        Jamaica Kingston dollar
        Peru Lima sol
        Chile Santiago peso
        Uruguay Montevideo peso
        Ecuador Quito dollar
        Australia Canberra dollar
        Fiji Suva dollar
        """.strip().splitlines()
    )
)

ELEMENTS: tuple[tuple[str, str, int], ...] = tuple(
    (name, symbol, int(number))
    for name, symbol, number in (
        line.split()
        for line in """
        hydrogen H 1
        helium He 2
        lithium Li 3
        beryllium Be 4
        boron B 5
        carbon C 6
        nitrogen N 7
        oxygen O 8
        fluorine F 9
        neon Ne 10
        sodium Na 11
        magnesium Mg 12
        aluminium Al 13
        silicon Si 14
        phosphorus P 15
        sulfur S 16
        chlorine Cl 17
        argon Ar 18
        potassium K 19
        calcium Ca 20
        titanium Ti 22
        chromium Cr 24
        iron Fe 26
        cobalt Co 27
        nickel Ni 28
        copper Cu 29
        zinc Zn 30
        arsenic As 33
        krypton Kr 36
        silver Ag 47
        tin Sn 50
        iodine I 53
        xenon Xe 54
        tungsten W 74
        platinum Pt 78
        gold Au 79
        """.strip().splitlines()
    )
)

MONTHS = ["January", "February", "March", "April", "May", "June"]
MONTHS += ["July", "August", "September", "October", "November", "December"]
DAYS_IN_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
PLANETS = ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"]
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

WORD_TABLE: tuple[str, ...] = tuple(
    dict.fromkeys(
        [row[0] for row in COUNTRIES]
        + [row[1] for row in COUNTRIES]
        + [row[2] for row in COUNTRIES]
        + [row[0] for row in ELEMENTS]
        + MONTHS
        + WEEKDAYS
        + PLANETS
    )
)
"""Every word that a question about letters may use."""


def number_lists(count: int, *, seed: int) -> tuple[str, ...]:
    """A fixed set of short lists of different small numbers, written `4, 17, 9`."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        numbers = rng.sample(range(1, 31), rng.choice((3, 4, 4, 5)))
        found[", ".join(map(str, numbers))] = None
    return tuple(found)


LISTS = number_lists(240, seed=7)


def scrambles() -> dict[str, str]:
    """Jumbled letters of words from the table -> the only word that they can be turned back into."""
    rng = random.Random(11)
    places = [row[0] for row in COUNTRIES] + [row[1] for row in COUNTRIES]
    words = [word for word in places if 5 <= len(word) <= 7]
    solved = {}
    for word in words:
        letters = list(word.lower())
        while "".join(letters) == word.lower():
            rng.shuffle(letters)
        solved["".join(letters)] = word
    return solved


SCRAMBLES = scrambles()
