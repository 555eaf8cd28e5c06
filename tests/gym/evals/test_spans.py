"""The gym's two training-free baselines: plans, answers and the calls they take."""

from __future__ import annotations

import pytest

from dirigent.evals.evaluate import answers_of, report_of
from dirigent.evals.report import as_markdown, as_table
from dirigent.messages import Message, Request
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import FromFunction
from dirigent.workers.worker import Worker
from dirigent_gym.evals.evaluation import GymField
from dirigent_gym.evals.pools import Gym, GymSettings
from dirigent_gym.evals.spans import SpanSearch, runs
from dirigent_gym.evals.workers import exact_worker

KNOWN = {
    "the capital of Norway": "Oslo",
    "How many letters has Oslo?": "4",
    "7 more than 5": "12",
    "10 more than 2": "3",
}


def knowing(name: str, *, known: dict[str, str] = KNOWN) -> Worker:
    return FromFunction.of_text(lambda text: known.get(text.rpartition("\n")[2], "unknown"), name=name)


async def searched(question: str, *workers: Worker) -> tuple[str, int]:
    """The answer, and how many calls of workers it took."""
    reply = await SpanSearch(Pool(workers)).ask(Request((Message("user", question),)))
    return reply.text, len(reply.attempts)


async def test_an_answer_takes_the_place_of_its_words_until_one_covers_the_question() -> None:
    assert (await searched("How many letters has the capital of Norway?", knowing("a"), knowing("b")))[0] == "4"


async def test_a_question_that_one_worker_reads_whole_takes_a_call_of_each_and_one_to_confirm() -> None:
    assert await searched("7 more than 5", knowing("a"), knowing("b", known={})) == ("12", 3)


async def test_a_question_of_which_no_words_are_known_is_answered_unknown() -> None:
    assert (await searched("What is love?", knowing("a")))[0] == "unknown"


async def test_a_word_that_refers_is_asked_with_the_answers_so_far() -> None:
    spy = FromFunction.of_text(lambda text: "5" if "Result: Oslo" in text else "unknown", name="spy")
    assert (await searched("Take the capital of Norway. Count its letters.", knowing("a"), spy))[0] == "5"


async def test_a_guesser_is_asked_again_and_a_checker_decides() -> None:
    guesses = iter(["Peru", "Chad", "Mali", "Cuba"])
    guesser = FromFunction.of_text(lambda text: next(guesses), name="guesser")
    checker = FromFunction.of_text(lambda text: "Mali" if "Result: Mali" in text else "unknown", name="checker")
    assert (await searched("Solve ilam", guesser, checker))[0] == "Mali"


def test_runs_come_longest_first_and_begin_where_a_clause_may() -> None:
    words = [run for _, _, run in runs("Find the number 7 more than 5, please.")]
    assert words[0] == "Find the number 7 more than 5, please."
    assert [len(run.split()) for run in words] == sorted((len(run.split()) for run in words), reverse=True)
    assert "7 more than 5" in words
    assert not any(run.startswith("more") for run in words)


@pytest.fixture(scope="module")
def field() -> GymField:
    return GymField(Gym(GymSettings(limit=40, seed=1), exact_worker), workers="exact")


async def test_spans_find_more_answers_than_ask_all_for_many_more_calls(field: GymField) -> None:
    answers = await answers_of(field, ["ask-all", "spans", "right"])
    report = report_of(field, answers)
    ask_all, spans, right = (report.planners[name] for name in ("ask-all", "spans", "right"))
    assert answers.complete
    assert spans.accuracy > 0.7 > ask_all.accuracy
    assert spans.calls > 10 * ask_all.calls > 10 * right.calls
    assert 3 <= ask_all.calls <= 8, "each worker offered, once"
    assert spans.steps == 1.0


async def test_the_gyms_table_shows_right_answers_per_call_and_the_planners_left_out(field: GymField) -> None:
    report = report_of(field, await answers_of(field, ["random", "right"]))
    right = report.planners["right"]
    assert right.worker_calls == right.calls, "no model planned"
    for text in (as_table(report, width=200), as_markdown(report)):
        assert "right per call" in text
        assert "vs equal cost" not in text
        assert f"{100 * right.accuracy / right.calls:.1f}" in text
        assert "moa (no specialist brings answers together)" in text
