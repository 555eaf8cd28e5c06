"""Every worker answers every question, within a cap, and unknown costs are marked as estimates."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dirigent.errors import ConfigError, WorkerError
from dirigent.learn.calibrate import GIVE_UP_AFTER, Calibration, CallEnded, Settings, calibrate, estimate
from dirigent.learn.journal import Journal
from dirigent.learn.question_file import CalibrationQuestion
from dirigent.learn.table import Question
from dirigent.limits import Quote
from dirigent.messages import Event, Ran, Request
from dirigent.workers.pool import Pool
from dirigent.workers.role import Role, RoleSettings
from dirigent.workers.scripted import FromFunction, Scripted
from dirigent.workers.worker import Price
from tests.calibration.conftest import adder, calibrated, cut_end, sums


async def test_every_worker_answers_every_question_and_is_graded() -> None:
    done = await calibrated(sums(10), [adder("good"), adder("weak", wrong_from=4)], samples=2)
    table = done.table
    table.check("here")
    assert len(table.answers) == 10 * 2 * 2
    right = {name: [a.right for a in table.answers if a.worker == name] for name in ("good", "weak")}
    assert right["good"] == [1.0] * 20
    assert sum(map(float, right["weak"])) == 8
    assert (done.labelled, done.estimated, done.ungraded) == (10, 0, 0)
    assert not any(answer.estimated for answer in table.answers)
    assert table.unit == "usd"
    assert done.spent_usd == pytest.approx(sum(answer.cost for answer in table.answers))
    assert done.spent_usd > 0


async def test_equal_answers_fall_into_one_class_whatever_is_right() -> None:
    done = await calibrated(sums(1), [adder("a", wrong_from=0), adder("b", wrong_from=0), adder("c")], samples=1)
    assert [(a.worker, a.same, a.right) for a in done.table.answers] == [("a", 0, 0.0), ("b", 0, 0.0), ("c", 1, 1.0)]


async def test_the_journal_is_read_in_place_of_a_second_call(journal_file: Path) -> None:
    first, again = adder("a"), adder("a")
    with Journal.open(journal_file) as journal:
        paid = await calibrated(sums(5), [first], journal)
    with Journal.open(journal_file) as journal:
        done = await calibrated(sums(7), [again], journal)
    assert (first.calls, again.calls) == (10, 4)
    assert (done.answered, done.asked) == (10, 4)
    assert done.spent_usd > paid.spent_usd
    assert done.table.answers[:5] == paid.table.answers[:5]


async def test_a_worker_that_changed_is_asked_anew(journal_file: Path) -> None:
    for fingerprint, calls in (("one", 10), ("one", 0), ("two", 10)):
        worker = adder("a", fingerprint=fingerprint)
        with Journal.open(journal_file) as journal:
            await calibrated(sums(5), [worker], journal)
        assert worker.calls == calls


async def test_a_line_that_was_cut_off_is_asked_again(journal_file: Path) -> None:
    with Journal.open(journal_file) as journal:
        await calibrated(sums(3), [adder("a")], journal, samples=1)
    cut_end(journal_file, 20)
    again = adder("a")
    with Journal.open(journal_file) as journal:
        done = await calibrated(sums(3), [again], journal, samples=1)
    assert again.calls == 1
    assert len(done.table.answers) == 3


async def test_money_that_a_killed_run_had_set_aside_counts_as_spent(journal_file: Path) -> None:
    with Journal.open(journal_file) as journal:
        await calibrated(sums(1), [adder("a")], journal, samples=1)
        spent = journal.spent_usd
        await journal.reserve(Quote("a", 0.5, 0.0, 100))  # and nothing more is heard of it
    with Journal.open(journal_file) as journal:
        assert (journal.lost_usd, journal.spent_usd) == (0.5, pytest.approx(spent + 0.5))


def test_a_file_that_is_no_journal_is_left_alone(journal_file: Path) -> None:
    journal_file.write_text("my notes\n")
    with pytest.raises(ConfigError, match="--out"), Journal.open(journal_file):
        pass
    assert journal_file.read_text() == "my notes\n"


def test_a_second_calibration_of_the_same_folder_is_refused(journal_file: Path) -> None:
    with (
        Journal.open(journal_file),
        pytest.raises(ConfigError, match="another calibration"),
        Journal.open(journal_file),
    ):
        pass


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_the_cap_holds_and_no_answer_is_cut_for_want_of_money(concurrency: int) -> None:
    costly = adder("costly", price=Price(0.0, 1_000.0))  # at worst 100 tokens, so 10 cents a call; really 4 or 5
    journal = Journal(max_cost_usd=0.14)
    done = await calibrated(sums(20), [costly], journal, samples=1, max_output_tokens=100, concurrency=concurrency)
    assert "--max-cost" in done.stopped
    assert 0 < done.spent_usd <= 0.14
    assert done.spent_usd > 0.14 - 0.1 - 0.01  # it went on until a whole answer could not be paid
    assert all(answer.ended and answer.right == 1.0 for answer in done.table.answers)


async def test_a_cap_over_several_runs_counts_the_spending_of_earlier_runs(journal_file: Path) -> None:
    for _ in range(3):
        with Journal.open(journal_file, max_cost_usd=0.14) as journal:
            done = await calibrated(
                sums(20), [adder("a", price=Price(0.0, 1_000.0))], journal, samples=1, max_output_tokens=100
            )
    assert done.spent_usd <= 0.14
    assert done.stopped


async def test_a_worker_that_only_fails_is_given_up_and_named() -> None:
    dead = Scripted(WorkerError("no such model", worker="dead"), name="dead", price=Price())
    done = await calibrated(sums(30), [dead, adder("good")], samples=1)
    (failed,) = done.failures
    assert (failed.worker, failed.always, failed.last) == ("dead", True, "no such model")
    assert GIVE_UP_AFTER <= dead.calls <= GIVE_UP_AFTER + 8
    assert {answer.worker for answer in done.table.answers} == {"good"}
    assert len(done.table.answers) == 30


async def test_a_call_that_failed_is_made_once_more_and_is_no_wrong_answer() -> None:
    calls: list[str] = []

    def sometimes(request: Request) -> str:
        text = request.messages[-1].text
        calls.append(text)
        if "3 + 3" in text or ("2 + 2" in text and calls.count(text) == 1):
            raise WorkerError("overloaded", worker="w")
        return "The answer is 0."

    done = await calibrated(sums(5), [FromFunction(sometimes, name="w", price=Price())], samples=1, concurrency=1)
    assert {answer.question for answer in done.table.answers} == {"q0", "q1", "q2", "q4"}
    (failed,) = done.failures
    assert (failed.failed, failed.answered, failed.always) == (3, 4, False)


async def test_a_worker_that_rests_after_failures_is_waited_for() -> None:
    resting = WorkerError("rests", worker="w", fault="open", retry_after_s=0.01)
    worker = Scripted("The answer is 0.", resting, resting, "The answer is 2.", name="w", price=Price())
    done = await calibrated(sums(2), [worker], samples=1, concurrency=1)
    assert (worker.calls, len(done.table.answers), done.failures) == (4, 2, ())


async def test_a_worker_that_never_answered_is_not_waited_for() -> None:
    resting = WorkerError("rests", worker="w", fault="open", retry_after_s=60.0)
    worker = Scripted(resting, name="w", price=Price())
    done = await calibrated(sums(2), [worker, adder("good")], samples=1, concurrency=1)
    assert worker.calls == 2
    assert done.failures[0].always


async def test_a_bug_in_a_worker_is_not_taken_for_a_failure() -> None:
    def broken(request: Request) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await calibrated(sums(2), [FromFunction(broken, name="w")], samples=1)


async def test_without_labels_right_is_an_estimate_from_agreement() -> None:
    workers = [adder("a"), adder("b"), adder("c", wrong_from=2, by=3)]
    done = await calibrated(sums(20, labelled=0), workers, samples=1)
    assert (done.labelled, done.estimated) == (0, 60)
    assert all(answer.estimated for answer in done.table.answers)
    mean = {name: sum(a.right or 0 for a in done.table.answers if a.worker == name) / 20 for name in "abc"}
    assert mean["a"] > 0.85
    assert mean["a"] == mean["b"]
    assert mean["c"] < 0.3


async def test_labels_correct_a_majority_that_errs_together() -> None:
    """Two of three err alike from question 2 on. Twenty labels show it, and the other twenty are estimated so."""
    workers = [adder("a", wrong_from=2), adder("b", wrong_from=2), adder("c")]
    blind = await calibrated(sums(40, labelled=0), workers, samples=1)
    seeing = await calibrated(sums(40, labelled=20), workers, samples=1)

    def mean_of_c(done: Calibration) -> float:
        late = [a for a in done.table.answers if a.worker == "c" and int(a.question[1:]) >= 20]
        return sum(a.right or 0.0 for a in late) / len(late)

    assert mean_of_c(blind) < 0.3
    assert mean_of_c(seeing) > 0.7
    assert seeing.estimated == 60


async def test_one_answer_alone_is_not_estimated() -> None:
    done = await calibrated(sums(3, labelled=0), [adder("a")], samples=1)
    assert [answer.right for answer in done.table.answers] == [None] * 3
    assert (done.estimated, done.ungraded) == (0, 3)


async def test_second_steps_read_the_answers_of_first_steps() -> None:
    seen: list[str] = []

    def review(request: Request) -> str:
        seen.append(request.messages[-1].text)
        return "The answer is 0."

    workers = [
        adder("a"),
        adder("b", wrong_from=1),
        FromFunction(review, name="review", second_step="review", price=Price()),
        FromFunction(review, name="judge", second_step="judge", price=Price()),
    ]
    done = await calibrated(sums(2), workers, samples=2)
    read = {(a.question, a.worker, a.read) for a in done.table.answers if a.read}
    reviews = {(f"q{i}", "review", ((name, 0),)) for i in range(2) for name in "ab"}
    assert read == reviews | {("q1", "judge", (("a", 0), ("b", 0)))}  # on q0 they agree
    assert all("What is" in text for text in seen)
    assert sum("The answer is 3." in text for text in seen) == 2  # b's wrong answer, to the review and to the judge
    assert [worker.reads for worker in done.table.workers] == [False, False, True, True]


class Programs:
    """A sandbox in which every program but one prints 2."""

    def start(self) -> None:
        pass

    async def run(self, source: str) -> Ran:
        return Ran(source, 1, error="NameError: n") if source == "print(n)" else Ran(source, 0, output="2\n")


async def test_a_repair_reads_programs_that_failed() -> None:
    def program(request: Request) -> str:
        return f"```python\nprint({'n' if '0 + 0' in request.messages[-1].text else '2'})\n```"

    model = FromFunction(program, name="code", price=Price())
    code = Role(
        model, RoleSettings(instruction="Write a program.", runs="python"), info=model.info, programs=Programs()
    )
    repair = Scripted("The answer is 0.", name="repair", second_step="repair", price=Price())
    done = await calibrated(sums(2), [code, repair], samples=1)
    assert [(a.worker, a.question, a.right, a.failed) for a in done.table.answers] == [
        ("code", "q0", 0.0, True),
        ("repair", "q0", 1.0, False),
        ("code", "q1", 1.0, False),
    ]
    assert done.table.answers[0].same == -1
    assert [worker.runs for worker in done.table.workers] == [True, False]
    assert "NameError" in repair.seen_text
    assert model.requests[0].messages[-1].text.startswith("What is 0 + 0?\n\nWrite a program.")


async def test_workers_that_only_count_are_not_asked() -> None:
    counter = Scripted("x", name="count", reads_results=True)
    done = await calibrated(sums(2), [adder("a"), counter], samples=1)
    assert counter.calls == 0
    assert [worker.name for worker in done.table.workers] == ["a"]


async def test_a_judge_applies_rubrics_and_its_agreement_with_labels_is_measured() -> None:
    labelled = sums(10)
    poems = [
        CalibrationQuestion(Question(f"p{i}", f"What is {i} + {i} as a poem?"), rubric="It names a number.")
        for i in range(3)
    ]

    def verdict(request: Request) -> str:
        text = request.messages[-1].text
        if "What a good answer is like" not in text:
            return "The answer is 100."
        return "It is fine. The answer is yes." if "<answer>\nThe answer is 100" not in text else "The answer is no."

    judge = FromFunction(verdict, name="judge", price=Price())
    done = await calibrated([*labelled, *poems], [adder("a", wrong_from=5), judge], samples=1, judge="judge")
    judged = [a for a in done.table.answers if a.question.startswith("p")]
    assert {(a.worker, a.right, a.estimated, a.source) for a in judged} == {
        ("a", 1.0, True, "judge"),
        ("judge", 0.0, True, "judge"),
    }
    # It accepts all ten of a's answers, of which five are right, and rejects its own ten, which are all wrong.
    assert done.judge is not None
    assert (done.judge.agreed, done.judge.of) == (15, 20)
    assert done.judge.low < 0.75 < done.judge.high
    assert done.labelled == 10


async def test_free_workers_are_compared_by_tokens_of_one_model_or_by_seconds() -> None:
    one = await calibrated(sums(2), [adder("a", price=Price(), model="m"), adder("b", price=Price(), model="m")])
    assert one.table.unit == "units"
    assert one.table.answers[0].cost == one.table.answers[0].output_tokens + one.table.answers[0].input_tokens / 4
    two = await calibrated(sums(2), [adder("a", price=Price(), model="m"), adder("b", price=Price(), model="n")])
    assert two.table.unit == "seconds"
    assert two.table.answers[0].cost == two.table.answers[0].seconds


async def test_progress_is_observed_call_by_call() -> None:
    events: list[Event] = []
    await calibrate(sums(3), Pool([adder("a")]), Journal(), Settings(samples=1), observe=events.append)
    ended = [event for event in events if isinstance(event, CallEnded)]
    assert [(event.done, event.total, event.stage) for event in ended] == [(i, 3, "answers") for i in (1, 2, 3)]
    assert ended[-1].spent_usd > ended[0].spent_usd > 0


def test_an_estimate_counts_calls_and_prices_them_before_any_is_made() -> None:
    workers = [adder("a", price=Price(0.0, 10.0)), adder("free", price=Price())]
    expected = estimate(sums(10), Pool(workers), Journal(), Settings(samples=2, max_output_tokens=1000))
    assert expected.calls == 40
    assert expected.usual_usd == pytest.approx(20 * 300 * 10 / 1e6)
    assert expected.most_usd == pytest.approx(20 * 1000 * 10 / 1e6)
    assert expected.seconds > 0
    assert [worker.calls for worker in workers] == [0, 0]


async def test_a_local_worker_that_was_measured_side_by_side_is_expected_to_go_on_so() -> None:
    journal, pool = Journal(), Pool([adder("here", kind="local")])
    await calibrate(sums(6), pool, journal, Settings(samples=1))
    journal.answers.update({key: msgspec.structs.replace(a, seconds=10.0) for key, a in journal.answers.items()})
    alone, together = (estimate(sums(14), pool, journal, Settings(samples=1, concurrency=count)) for count in (1, 8))
    assert (alone.calls, alone.seconds) == (8, pytest.approx(80))
    assert together.seconds == pytest.approx(20)  # four at a time


async def test_an_estimate_uses_answers_that_exist() -> None:
    journal, pool = Journal(), Pool([adder("a", price=Price(0.0, 10.0))])
    await calibrate(sums(10), pool, journal, Settings(samples=1))
    again = estimate(sums(10), pool, journal, Settings(samples=2))
    assert (again.calls, again.answered) == (10, 10)
    tokens = [answer.output_tokens for answer in journal.answers.values()]
    assert again.usual_usd == pytest.approx(sum(tokens) / len(tokens) * 10 * 10 / 1e6)


def test_an_estimate_names_workers_without_a_price() -> None:
    expected = estimate(sums(1), Pool([adder("a", price=None), adder("b")]), Journal())
    assert expected.unpriced == ("a",)
    assert expected.most_usd is None


async def test_programs_are_compared_by_their_syntax_and_ungraded_without_a_sandbox() -> None:
    row = CalibrationQuestion(Question("c", "Write f.", answer='{"tests":[]}', grader="code"))
    workers = [
        Scripted(f"```python\n{program}\n```", name=name, price=Price())
        for name, program in (("a", "def f(): return 1"), ("b", "def f():\n    return 1  # one"), ("c", "f = 1"))
    ]
    done = await calibrated([row], workers, samples=1)
    assert [answer.same for answer in done.table.answers] == [0, 0, 1]
    assert all(answer.estimated for answer in done.table.answers)
