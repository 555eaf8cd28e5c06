"""The judge of a run is ready before anything is fitted: tasks that nobody could grade are refused when it opens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.facts import facts

from dirigent.errors import ConfigError
from dirigent.tasks.code import CodeProblem, answer_of
from dirigent.tasks.task import Task
from dirigent.workers.scripted import Scripted
from dirigent_gym.train.recipe import Recipe, TaskSettings
from dirigent_gym.train.scorer import open_scorer

GOOD = Task("good", "How much is 3 and 4?", "7", grader="final_number")
CODE = Task("code", "Write f.", answer_of(CodeProblem("assert f() == 1", ("f",))), grader="code")


def recipe_of(folder: Path, train: list[Task], dev: list[Task]) -> Recipe:
    for name, tasks in (("train", train), ("dev", dev)):
        lines = b"\n".join(msgspec.json.encode(task) for task in tasks)
        (folder / f"{name}.jsonl").write_bytes(lines + b"\n\n")
    settings = TaskSettings(file=str(folder / "train.jsonl"), dev_file=str(folder / "dev.jsonl"))
    return Recipe("own", tasks=settings)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Task("bare", "Q", " "), "dev.jsonl bare"),
        (Task("text", "Q", "seven", grader="final_number"), "dev.jsonl text"),
        (Task("no", "Q", "def f", grader="code"), "dev.jsonl 'no'"),
        (
            Task("np", "Q", answer_of(CodeProblem("f()", ("f",), libraries=("numpy",))), grader="code"),
            "dev.jsonl np numpy",
        ),
    ],
)
def test_a_task_that_nobody_could_judge_is_refused_with_its_file(task: Task, said: str, tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, [GOOD], [GOOD, task])
    with pytest.raises(ConfigError, match=facts(said)), open_scorer(recipe, workers={"one": Scripted("7", name="one")}):
        pytest.fail("a run would have begun")


@pytest.mark.parametrize(("train", "opened"), [(GOOD, 0), (CODE, 1)])
def test_a_sandbox_is_opened_once_and_only_for_programs(
    train: Task, opened: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def sandbox() -> AsyncIterator[object]:
        events.append("opened")
        yield object()
        events.append("closed")

    monkeypatch.setattr("dirigent_gym.train.scorer.open_sandbox", sandbox)
    with open_scorer(recipe_of(tmp_path, [train], [train, GOOD]), workers={"one": Scripted("7", name="one")}):
        assert events == ["opened"] * opened
    assert events == ["opened", "closed"] * opened
