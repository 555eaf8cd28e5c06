"""`dirigent demo` with the small pool, and its judgements without a pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from dirigent.cli import demo
from dirigent.config.discovery import Machine
from dirigent.planners.program import asks_for_a_value
from tests.cli.conftest import Run
from tests.facts import says


def test_the_demo_answers_judges_and_shows_the_plain_calls_answer(
    run: Run, own_place: Path, weights_path: Path
) -> None:
    folder = own_place / "home" / "weights"
    folder.mkdir(parents=True)
    (folder / weights_path.name).symlink_to(weights_path)
    ran = run("demo", "--small")
    assert ran.code == 0, ran.err
    assert ran.out.count("\nQ  ") == ran.out.count("\nA  ") == 3
    assert ran.out.count("one plain call") == 3
    assert says(ran.out, "Paris right 391 wrong")
    assert says(ran.out, "dirigent ask dirigent init")
    assert len(run("traces", "list", "--json").object["traces"]) == 3


def test_little_memory_is_said_before_anything_is_fetched(
    run: Run, own_place: Path, weights_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dirigent.config.discovery.free_memory_bytes", lambda: 10**9)
    asked: list[str] = []

    async def fetch(name: str, **_: object) -> Path:
        asked.append(name)
        raise SystemExit(3)

    monkeypatch.setattr("dirigent.cli.running.fetch", fetch)
    ran = run("demo")
    assert asked == ["smollm2-135m"]
    assert says(ran.err, "1.0 135 98 MB")


@pytest.mark.parametrize(
    ("answer", "right", "judged"),
    [
        ("67", "67", "right"),
        ("The answer is 67.", "67", "right"),
        ("It is 167 days", "67", "wrong: it is 67"),
        ("67.5", "67", "wrong: it is 67"),
        ("There are 67 days in March and so on.\nThe answer is 20.", "67", "wrong: it is 67"),
        ("The capital of Australia is Canberra.", "Canberra", "right"),
        ("Hydrogen. Oxygen.", "hydrogen and oxygen", "right"),
        ("It was written by Leo Tolstoy.", "Giuseppe Tomasi di Lampedusa", "wrong: it is Giuseppe Tomasi di Lampedusa"),
        ("", "67", "wrong: it is 67"),
    ],
)
def test_nothing_wrong_is_called_right(answer: str, right: str, judged: str) -> None:
    assert demo._judged(answer, right) == judged


def test_the_first_question_of_the_course_is_computed_and_the_others_are_not() -> None:
    assert [asks_for_a_value(question) for question in demo.QUESTIONS] == [True, False, False]
    assert Machine().small is False
