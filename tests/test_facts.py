"""`facts`, `says` and `Saying`, on which nearly every test of a message rests, can fail."""

from __future__ import annotations

import re

import pytest

from tests.facts import Saying, facts, says

MESSAGE = 'max_steps must be 1 to 32, not 99, in [profile.gpt-5] "a":\nsay $0.5 or less (line 3)'


@pytest.mark.parametrize("words", ["", "99 max_steps", "1 32", '"a":', "[profile.gpt-5]", "$0.5", "line 3", "line 3)"])
def test_words_are_found_in_any_order_and_on_any_line(words: str) -> None:
    assert says(MESSAGE, words)
    assert re.search(facts(words), MESSAGE)
    assert Saying(words) in ["another", MESSAGE]


@pytest.mark.parametrize("words", ["max", "max_step", "9", "2", "gpt", "5 0", "$0", "lin", "99 100", "steps"])
def test_a_part_of_a_word_or_a_number_is_not_found(words: str) -> None:
    assert not says(MESSAGE, words)
    assert Saying(words) != MESSAGE
