"""The picture of a front, as SVG and in a terminal; intervals by hand."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from dirigent.evals.front import Mark, svg_front, text_front
from dirigent.evals.prove import paired_interval

LEARNED = [Mark("learned", 1, 0.5, 0.4, 0.6), Mark("learned", 10, 0.8, 0.7, 0.9)]
SINGLE = [Mark("big <model>", 5, 0.6)]


def test_the_svg_has_a_mark_for_every_point_and_escapes_names() -> None:
    drawn = svg_front(LEARNED, SINGLE, title="a & b", unit="usd")
    root = ElementTree.fromstring(drawn)
    assert len(root.findall("{http://www.w3.org/2000/svg}circle")) == 3
    assert any((node.text or "") == "big <model>" for node in root.iter())


def test_rivals_are_named_lines_and_both_colour_schemes_are_drawn() -> None:
    rivals = {"fixed <plans>": [Mark("a", 2, 0.4), Mark("b", 20, 0.7)]}
    drawn = svg_front(LEARNED, [], title="a", unit="usd", rivals=rivals)
    root = ElementTree.fromstring(drawn)
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2
    assert any((node.text or "") == "fixed <plans>" for node in root.iter())
    assert "prefers-color-scheme:dark" in drawn


def test_the_terminal_shows_the_best_point_on_the_first_line_and_notes_beside_it() -> None:
    lines = text_front(LEARNED, SINGLE, notes=["best single: big"]).splitlines()
    assert lines[0] == "accuracy"
    assert "●" in lines[1]
    assert "80.0" in lines[1]
    assert lines[1].endswith("best single: big")
    assert sum(line.count("○") for line in lines) == 1


def test_one_point_alone_can_be_drawn() -> None:
    assert "●" in text_front(LEARNED[:1], [])
    ElementTree.fromstring(svg_front(LEARNED[:1], [], title="one", unit="calls"))


def test_questions_of_one_text_count_as_one() -> None:
    diff = np.array([1.0, 1.0, -1.0, -1.0])
    apart = paired_interval(diff, np.arange(4))
    together = paired_interval(diff, np.array([0, 0, 1, 1]))
    assert apart[1] == pytest.approx(1.959964 / 2)
    assert together[1] == pytest.approx(1.959964 * 8**0.5 / 4)
