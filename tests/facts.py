"""Find facts in a text, whatever sentence holds them.

A message or a page may be reworded at any time. Its facts may not: field names, values, numbers, nearest names,
commands, file names. Tests match those alone.
"""

from __future__ import annotations

import re


def facts(words: str) -> str:
    """Return a pattern that matches a text holding every one of the blank-separated words, in any order.

    A word is matched whole: "0" is found in "$0 left" and "0, not 1", but not in "10", "0.5" or "gpt-0-mini".
    """
    found = (rf"(?=.*(?<!\w)(?<!\w-)(?<!\d[.,]){re.escape(word)}(?!\w|-\w|[.,]\d))" for word in words.split())
    return "(?s)^" + "".join(found)


def says(text: str, words: str) -> bool:
    """Say whether the text holds every one of the blank-separated words, as in `facts`."""
    return re.search(facts(words), text) is not None


class Saying(str):
    """Blank-separated words, equal to every text that holds them all: for one line in a list of exact ones."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and says(other, str(self))

    __hash__ = str.__hash__
