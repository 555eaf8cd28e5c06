"""The questions that learned baselines were fitted on have a digest, and reports name it."""

from __future__ import annotations

import hashlib
import json

import msgspec

from dirigent.evals.page import as_html
from dirigent.evals.record import fitted_on
from dirigent.evals.report import as_markdown
from dirigent.tasks import Task
from dirigent_gym.evals.pools import Gym, GymSettings
from dirigent_gym.evals.workers import exact_worker
from tests.gym.evals.samples import evaluate_gym

TASKS = [Task("1", "How much is 1 + 1?", "2"), Task("2", "Wer bist du? ä", "ich")]


def test_the_name_is_a_hash_of_ids_texts_and_answers() -> None:
    text = json.dumps([[t.id, t.question, t.answer] for t in TASKS], ensure_ascii=False, separators=(",", ":"))
    assert fitted_on(TASKS) == f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def test_other_questions_texts_or_another_order_have_another_name() -> None:
    reworded = [msgspec.structs.replace(TASKS[0], question="1 + 1?"), TASKS[1]]
    renamed = [msgspec.structs.replace(TASKS[0], id="3"), TASKS[1]]
    names = [fitted_on(tasks) for tasks in (TASKS, TASKS[::-1], TASKS[:1], [], reworded, renamed)]
    assert len(set(names)) == len(names)


async def test_a_report_of_the_gym_names_its_training_questions_where_something_was_fitted() -> None:
    gym = Gym(GymSettings(limit=4, calibration=8), exact_worker)
    report = await evaluate_gym(gym, ["best", "knn", "random"])
    name = fitted_on(gym.calibration("train"))
    assert report.recipe["fitted_on"] == name
    assert name in as_markdown(report)
    assert f"<td>{name}</td>" in as_html(report)
    assert "fitted_on" not in (await evaluate_gym(gym, ["random"])).recipe
