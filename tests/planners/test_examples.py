"""Figures from examples, worked by hand: the best worker, the cheapest one, and the cost of samples."""

from __future__ import annotations

import math

import pytest

from dirigent.errors import ConfigError
from dirigent.messages import Message
from dirigent.plan.plan import Plan, Step
from dirigent.planners.examples import (
    Example,
    accuracies,
    cheapest,
    mean_costs_usd,
    ranked,
    self_moa_cost,
    vote_cost,
)
from dirigent.run.step_prompt import ANSWER, SYNTHESISE, step_messages
from dirigent.workers.worker import Price, WorkerInfo

EXAMPLES = [
    Example(
        "one",
        {"a": 1.0, "b": 0.0, "c": 1.0},
        {"a": 0.004, "b": 0.001, "c": 0.002},
        replies={"a": "oooooooooooooooooooooooooooooooooooooooo"},
        tokens={"a": (100, 40)},
    ),
    Example(
        "two",
        {"a": 1.0, "b": 1.0, "c": 1.0},
        {"a": 0.006, "b": 0.001, "c": 0.002},
        replies={"a": "tttttttttttttttttttttttttttttttttttttttt"},
        tokens={"a": (300, 60)},
    ),
    Example(
        "three",
        {"a": 0.0, "b": 1.0, "c": 0.0},
        {"a": 0.005, "b": 0.001, "c": 0.002},
        replies={"a": "tttttttttttttttttttttttttttttttttttttttt"},
        tokens={"a": (200, 50)},
    ),
    Example("four", {"b": 0.0, "c": 0.0}, {"b": 0.001, "c": 0.002}),
]


def test_a_question_that_a_worker_was_not_asked_counts_as_wrong() -> None:
    assert accuracies(EXAMPLES) == {"a": 0.5, "b": 0.5, "c": 0.5}
    assert mean_costs_usd(EXAMPLES) == pytest.approx({"a": 0.005, "b": 0.001, "c": 0.002})


def test_equals_are_ranked_by_cost() -> None:
    assert ranked(EXAMPLES) == ("b", "c", "a")
    assert cheapest(EXAMPLES) == ("b", "c", "a")
    assert ranked(EXAMPLES[:1]) == ("c", "a", "b")


def test_a_vote_of_three_costs_three_answers() -> None:
    assert vote_cost(EXAMPLES, "a").usd_of(3) == pytest.approx(0.015)


def test_a_self_moa_also_pays_for_reading_all_answers_with_the_words_around_them_and_writing_one() -> None:
    # Questions are billed at 200 tokens on average and answers at 50 written. Each shown answer adds a line of marks,
    # its subtask and itself; the preamble, the warning and the subtask stand there once.
    info = WorkerInfo("a", price=Price(10.0, 20.0))
    cost = self_moa_cost(EXAMPLES, info)
    shown = [_shown(example.question, example.replies["a"], samples=2) for example in EXAMPLES[:3]]
    read = 200 + sum(math.ceil(len(text) / 4) - 1 for text in shown) / 3 - 1 / 3  # "three" alone takes two tokens
    assert cost.usd_of(2) == pytest.approx(2 * 0.005 + read * 10e-6 + 50 * 20e-6)
    assert cost.usd_of(2) > 2 * 0.005 + (200 + 2 * 10 + 100) * 10e-6 + 50 * 20e-6  # the words are more than 100 tokens


def _shown(question: str, reply: str, *, samples: int) -> str:
    """The synthesis's prompt, as the executor writes it."""
    plan = Plan((*[Step("a", ANSWER)] * samples, Step("a", SYNTHESISE, tuple(range(samples)))))
    replies = dict.fromkeys(range(samples), reply)
    (message,) = step_messages([Message("user", question)], plan, samples, replies, secret="any")
    return message.text


def test_a_worker_that_never_sees_the_question_reads_it_in_its_subtask() -> None:
    example = Example("q" * 400, {"a": 1.0}, {"a": 0.001}, {"a": "5"}, {"a": (100, 1)})
    price = Price(1.0, 1.0)
    seeing = self_moa_cost([example], WorkerInfo("a", price=price))
    blind = self_moa_cost([example], WorkerInfo("a", price=price, subtask_only=True))
    # Each result shown brings the subtask along, which is the question: some 95 tokens more than `Answer the question.`
    assert blind.each_usd - seeing.each_usd == pytest.approx(95e-6, abs=1e-6)


def test_with_unknown_tokens_or_prices_a_synthesis_counts_as_one_more_call() -> None:
    for info in (WorkerInfo("b", price=Price(1.0, 1.0)), WorkerInfo("a")):
        cost = self_moa_cost(EXAMPLES, info)
        assert cost.usd_of(3) == pytest.approx(4 * mean_costs_usd(EXAMPLES)[info.name])


def test_nothing_to_fit_on_is_refused() -> None:
    with pytest.raises(ConfigError):
        ranked([])
