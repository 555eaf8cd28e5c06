"""Outcomes on disk: nothing finished is lost, nothing foreign is mixed in."""

from __future__ import annotations

from pathlib import Path

import pytest

from dirigent.errors import ConfigError
from dirigent.evals.record import Record, digest, read_outcomes
from tests.evals.samples import outcome, sums
from tests.facts import facts

ABOUT = {"seed": "1", "tasks": "sums"}


def filled(path: Path, *tasks: str) -> Path:
    with Record.open(path, ABOUT) as record:
        for task in tasks:
            record.add(outcome("p", task, cost_usd=0.5))
    return path


def test_added_outcomes_are_there_after_reopening(tmp_path: Path) -> None:
    path = filled(tmp_path / "deep" / "o.jsonl", "a", "b")
    with Record.open(path, ABOUT, resume=True) as record:
        assert record.finished("p", "a") == outcome("p", "a", cost_usd=0.5)
        assert record.finished("p", "c") is None
        assert record.finished("q", "a") is None
        assert (record.count, record.cost_usd) == (2, 1.0)


def test_each_outcome_reaches_the_operating_system_at_once(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    with Record.open(path, ABOUT) as record:
        record.add(outcome("p", "a"))
        assert [o.task for o in read_outcomes(path)] == ["a"]


def test_a_last_line_that_was_cut_off_is_dropped_and_written_over(tmp_path: Path) -> None:
    path = filled(tmp_path / "o.jsonl", "a", "b")
    path.write_bytes(path.read_bytes()[:-20])
    with Record.open(path, ABOUT, resume=True) as record:
        assert record.count == 1
        record.add(outcome("p", "c"))
    assert [o.task for o in read_outcomes(path)] == ["a", "c"]


@pytest.mark.parametrize("content", [b"", b'{"about": {"seed'])
def test_a_record_cut_before_its_first_line_was_whole_begins_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "o.jsonl"
    path.write_bytes(content)
    with Record.open(path, ABOUT, resume=True) as record:
        record.add(outcome("p", "a"))
    assert [o.task for o in read_outcomes(path)] == ["a"]


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = filled(tmp_path / "o.jsonl", "a", "b")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{oops\n" + lines[2])
    with pytest.raises(ConfigError, match=facts("2 o.jsonl")), Record.open(path, ABOUT, resume=True):
        pass


def test_going_on_with_another_seed_is_refused(tmp_path: Path) -> None:
    path = filled(tmp_path / "o.jsonl", "a")
    with (
        pytest.raises(ConfigError, match=facts("seed '1' '2'")),
        Record.open(path, {**ABOUT, "seed": "2"}, resume=True),
    ):
        pass
    assert [o.task for o in read_outcomes(path)] == ["a"]


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("content", [b'{"id": "1", "question": "?"}', b'{"id": "1"}\n{"id": "2"}\n'])
def test_a_file_that_is_no_record_is_left_alone(tmp_path: Path, content: bytes, resume: bool) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=facts("answers.jsonl --out")), Record.open(path, ABOUT, resume=resume):
        pass
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [content]


def test_a_new_run_keeps_the_old_record_beside_it(tmp_path: Path) -> None:
    path = filled(tmp_path / "o.jsonl", "a")
    filled(path)  # a run that failed at once
    filled(path, "b")
    assert [o.task for o in read_outcomes(path)] == ["b"]
    assert [o.task for o in read_outcomes(tmp_path / "o.jsonl.old")] == ["a"]


def test_two_evaluations_cannot_write_to_one_record(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    with (
        Record.open(path, ABOUT),
        pytest.raises(ConfigError, match=facts("o.jsonl --out")),
        Record.open(path, ABOUT, resume=True),
    ):
        pass


def test_an_evaluation_begun_beside_a_live_one_is_refused_and_pushes_nothing_away(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    filled(path, "older")
    with Record.open(path, ABOUT) as live:
        live.add(outcome("p", "a"))
        with pytest.raises(ConfigError, match=facts("o.jsonl --out")), Record.open(path, ABOUT):
            pass
        live.add(outcome("p", "b"))
    assert [o.task for o in read_outcomes(path)] == ["a", "b"]
    assert [o.task for o in read_outcomes(tmp_path / "o.jsonl.old")] == ["older"]


def test_a_record_that_cannot_be_copied_is_left_unchanged(tmp_path: Path) -> None:
    path = filled(tmp_path / "o.jsonl", "a")
    (tmp_path / "o.jsonl.old").mkdir()
    with pytest.raises(ConfigError, match=facts("o.jsonl.old --out")), Record.open(path, ABOUT):
        pass
    assert [o.task for o in read_outcomes(path)] == ["a"]


def test_going_on_with_other_weights_under_the_same_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    with Record.open(path, ABOUT, weights={"conductor": "one"}) as record:
        record.add(outcome("conductor:2", "a"))
    with (
        pytest.raises(ConfigError, match=facts("conductor one two --resume")),
        Record.open(path, ABOUT, resume=True, weights={"conductor": "two"}),
    ):
        pass
    for weights in ({"conductor": "one"}, {}, None):  # the same ones, or a conductor that does not take part
        with Record.open(path, ABOUT, resume=True, weights=weights) as record:
            assert record.finished("conductor:2", "a")
    assert len(path.read_bytes().splitlines()) == 2


def test_outcomes_of_weights_that_were_not_written_down_are_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    with Record.open(path, ABOUT) as record:
        record.add(outcome("conductor", "a"))
    with (
        pytest.raises(ConfigError, match=facts("conductor one")),
        Record.open(path, ABOUT, resume=True, weights={"conductor": "one"}),
    ):
        pass


def test_a_planner_may_join_later_and_be_trained_on_until_it_has_answered(tmp_path: Path) -> None:
    path = filled(tmp_path / "o.jsonl", "a")
    for weights in ("one", "two"):
        with Record.open(path, ABOUT, resume=True, weights={"conductor": weights}) as record:
            assert record.finished("p", "a")
    with Record.open(path, ABOUT, resume=True, weights={"conductor": "two"}) as record:
        record.add(outcome("conductor", "a"))
    with pytest.raises(ConfigError, match=facts("conductor two one")):
        Record.open(path, ABOUT, resume=True, weights={"conductor": "one"}).__enter__()
    assert [o.planner for o in read_outcomes(path)] == ["p", "conductor"]


def test_a_question_spoilt_by_a_worker_is_not_finished_and_its_second_outcome_counts(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    with Record.open(path, ABOUT) as record:
        record.add(outcome("p", "a", correct=False, error_kind="WorkerError"))
        assert record.finished("p", "a") is None
        record.add(outcome("p", "a"))
    assert [o.correct for o in read_outcomes(path)] == [True]


def test_the_error_for_an_unwritable_path_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--out"), Record.open(tmp_path / "file" / "o.jsonl", ABOUT):
        pass


def test_other_questions_or_answers_have_another_digest() -> None:
    assert digest(sums(3)) == digest(sums(3)) != digest(sums(4))
