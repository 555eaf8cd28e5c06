"""Curves of a training run, as files that need no other file."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.facts import says

from dirigent_gym.evals.curves import curves

SVG = "{http://www.w3.org/2000/svg}"


def test_a_figure_has_a_line_for_each_run_and_an_entry_in_the_legend() -> None:
    drawn = curves({"valid": [[(1, 0.5), (2, 1.0)], [(1, 0.6)]], "right & wrong": [[(2, 0.25)]]}, title="plans")
    root = ElementTree.fromstring(drawn)
    lines = [line.get("class") for line in root.iter(f"{SVG}polyline")]
    assert lines == ["c0", "c0", "c0", "c1", "c1"]
    assert root.find(f"{SVG}title").text == "plans"  # type: ignore[union-attr]
    said = root.find(f"{SVG}desc").text  # type: ignore[union-attr]
    assert says(said, "2 valid 1.00 0.60 right & wrong 0.25")


def test_shares_stand_between_nought_and_one_and_larger_figures_have_room() -> None:
    def top(values: list[float]) -> list[str | None]:
        drawn = curves({"x": [list(enumerate(values))]}, title="t")
        return [text.text for text in ElementTree.fromstring(drawn).iter(f"{SVG}text")]

    assert "1" in top([0.2, 0.9])
    assert "2.5" in top([1.0, 2.3])


def test_missing_figures_are_not_drawn() -> None:
    assert curves({"valid": [[]], "steps": []}, title="t") == ""
    assert "steps" not in curves({"valid": [[(1, 1.0)]], "steps": [[]]}, title="t")
