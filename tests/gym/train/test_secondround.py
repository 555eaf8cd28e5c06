"""Second rounds come last, from checkable questions, as many right as wrong, written by the policy of the day."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from dirigent.plan.plan import EarlierStep, Plan, Step
from dirigent.tasks.task import grade
from dirigent_gym.train.dataset import Row, RowSettings
from dirigent_gym.train.recipe import SecondRoundSettings
from dirigent_gym.train.reward import Scored
from dirigent_gym.train.secondround import SecondRounds, Stock, first_rounds, second_metrics

SETTINGS = SecondRoundSettings(share=0.25, every_steps=5, tries=12)


def tried_out(rows: Sequence[Row]) -> tuple[list[str], list[Scored]]:
    """A policy that is right on two of three, writes an invalid plan now and then, and meets one fault."""
    texts, scored = [], []
    for i, row in enumerate(rows):
        plan = Plan((Step(row.names[0], "Solve it."),))
        answer = row.task.answer if i % 3 else "nothing"
        texts.append(f"Solve it. | {row.names[0]} 0 | -")
        if i == 4:
            scored.append(Scored(False, False, 0.0, error="invalid"))
        elif i == 5:
            scored.append(Scored(True, False, None, plan=plan, error="down"))
        else:
            steps = (EarlierStep(row.names[0], "Solve it.", reply=answer),)
            scored.append(Scored(True, bool(i % 3), 1.0, plan=plan, answer=answer, steps=steps))
    return texts, scored


def test_only_checkable_questions_are_asked() -> None:
    rows = first_rounds(random.Random(1), 10, settings=RowSettings())
    assert {row.task.tags["shape"] for row in rows} == {"check"}
    assert len({row.id for row in rows}) == len(rows) == 10


def test_rows_are_balanced_between_right_and_wrong_answers_and_show_plan_and_answer() -> None:
    seconds = SecondRounds(SETTINGS, RowSettings(), seed=1)
    rows = seconds.draw(6, step=0, try_out=tried_out)
    right = [row for row in rows if grade(row.task, row.earlier_answer or "").correct]
    assert (len(rows), len(right)) == (6, 3)
    for row in rows:
        assert row.kind.startswith("second ")
        assert row.earlier_answer is not None
        assert "Solve it." in row.messages[-2].text
        assert row.earlier_answer in row.messages[-1].text
    # Of twelve tries one was invalid and one met a fault: those are nobody's answer.
    assert len(seconds.stock.right) + len(seconds.stock.wrong) == 10


def test_a_shortage_of_either_kind_makes_fewer_rows_not_lopsided_ones() -> None:
    def always_right(rows: Sequence[Row]) -> tuple[list[str], list[Scored]]:
        plan = Plan((Step(rows[0].names[0], "x"),))
        steps = [(EarlierStep(row.names[0], "x", reply=row.task.answer),) for row in rows]
        return ["x | a 0 | -"] * len(rows), [Scored(True, True, 1.0, plan=plan, steps=done) for done in steps]

    assert SecondRounds(SETTINGS, RowSettings(), seed=1).draw(6, step=0, try_out=always_right) == []


def test_the_stock_is_written_anew_every_few_steps() -> None:
    seconds = SecondRounds(SETTINGS, RowSettings(), seed=1)
    stocks: list[Stock] = []
    for step in (10, 11, 14, 15):
        seconds.draw(4, step=step, try_out=tried_out)
        stocks.append(seconds.stock)
    assert [stock.written_at for stock in stocks] == [10, 10, 10, 15]
    assert stocks[3].right != stocks[0].right


def test_a_draw_from_a_restored_stock_is_the_same() -> None:
    seconds = SecondRounds(SETTINGS, RowSettings(), seed=1)
    seconds.draw(4, step=10, try_out=tried_out)
    again = SecondRounds(SETTINGS, RowSettings(), seed=1)
    again.stock = msgspec.json.decode(msgspec.json.encode(seconds.stock), type=Stock)
    assert again.draw(4, step=11, try_out=tried_out) == seconds.draw(4, step=11, try_out=tried_out)


@pytest.mark.parametrize(("stage", "wanted"), [(0, 0), (1, 0), (2, 16)])
def test_they_come_last_in_the_curriculum(stage: int, wanted: int) -> None:
    assert SecondRounds(SETTINGS, RowSettings(), seed=1).wanted(64, stage=stage) == wanted


def test_figures_say_what_second_rounds_did_to_the_answers() -> None:
    rows = SecondRounds(SETTINGS, RowSettings(), seed=1).draw(4, step=0, try_out=tried_out)
    right = [row for row in rows if grade(row.task, row.earlier_answer or "").correct]
    wrong = [row for row in rows if row not in right]
    accept, repair = Plan(()), Plan((Step("a", "again"),))
    figures = second_metrics(
        [
            (right[0], Scored(True, True, 1.0, plan=accept)),
            (right[1], Scored(True, False, 0.1, plan=repair)),
            (wrong[0], Scored(True, True, 1.0, plan=repair)),
            (wrong[1], Scored(True, False, None)),
        ]
    )
    assert figures == {"second_spoilt": 0.5, "second_mended": 1.0, "second_accepted": pytest.approx(1 / 3)}
    assert second_metrics([]) == {}


def test_right_answers_that_stay_right_are_not_spoilt_and_no_plan_is_no_acceptance() -> None:
    rows = SecondRounds(SETTINGS, RowSettings(), seed=1).draw(4, step=0, try_out=tried_out)
    right = [row for row in rows if grade(row.task, row.earlier_answer or "").correct]
    kept = second_metrics([(row, Scored(True, True, 1.0, plan=Plan(()))) for row in right])
    assert kept == {"second_spoilt": 0.0, "second_accepted": 1.0}
    lost = second_metrics([(row, Scored(False, False, 0.0, error="no plan")) for row in right])
    assert lost == {"second_spoilt": 1.0, "second_accepted": 0.0}
