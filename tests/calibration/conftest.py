"""Questions about sums, and workers that know more or less about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from dirigent.learn.calibrate import Calibration, Settings, calibrate
from dirigent.learn.journal import Journal
from dirigent.learn.question_file import CalibrationQuestion
from dirigent.learn.table import Question
from dirigent.messages import Request
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import FromFunction
from dirigent.workers.worker import Price, Worker


def sums(count: int, *, labelled: int | None = None) -> list[CalibrationQuestion]:
    """Questions "What is i + i?"; the first `labelled` ones have an answer."""
    known = count if labelled is None else labelled
    return [
        CalibrationQuestion(
            Question(
                f"q{i}",
                f"What is {i} + {i}?",
                kind="even" if i % 2 == 0 else "odd",
                answer=str(2 * i) if i < known else "",
                grader="final_number",
            )
        )
        for i in range(count)
    ]


def adder(name: str, *, wrong_from: int = 10**9, by: int = 1, **settings: object) -> FromFunction:
    """A worker that adds rightly below `wrong_from`; from there on its error grows with the number."""

    def answer(request: Request) -> str:
        found = re.search(r"What is (\d+) \+ (\d+)", request.messages[-1].text)
        assert found is not None
        number = int(found[1])
        return f"The answer is {2 * number + (by if number >= wrong_from else 0)}."

    settings.setdefault("price", Price(1.0, 2.0))
    return FromFunction(answer, name=name, **settings)  # type: ignore[arg-type]


async def calibrated(
    questions: Sequence[CalibrationQuestion],
    workers: Sequence[Worker],
    journal: Journal | None = None,
    **settings: object,
) -> Calibration:
    return await calibrate(questions, Pool(workers), journal or Journal(), Settings(**settings))  # type: ignore[arg-type]


@pytest.fixture
def journal_file(tmp_path: Path) -> Path:
    return tmp_path / "calls.jsonl"


def cut_end(file: Path, count: int) -> None:
    """Cuts off the end of a file, as a machine does that loses power."""
    file.write_bytes(file.read_bytes()[:-count])
