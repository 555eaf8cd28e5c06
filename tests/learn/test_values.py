"""Recorded replies become graded classes of answers, a selector, and the value of every set of samples."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dirigent.errors import ConfigError
from dirigent.learn import values
from dirigent.learn.roles_table import (
    SLOTS,
    Answered,
    Comparisons,
    ReplyRow,
    answer_classes,
    answer_of,
    final_text,
    load_table,
    normal_form,
)
from dirigent.learn.selector import Row, Selector, SelectorSettings, features, fit, worker_scores
from dirigent.learn.table import TableWorker
from dirigent.learn.table_plans import PlanValues, RecordedQuestions, TablePlan
from dirigent.tasks.task import Grader
from tests.learn.made_tables import two_kinds

ROLES = ("direct", "think", "code")
QUICK = SelectorSettings(subsets=10, trees=12, depth=3)


# ---- answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "question", "answer"),
    [
        ("So she has 4.\nAnswer: 12", "How many?", "12"),
        ("First 3.\nThen 7 apples are left", "How many?", "7"),
        ("Thus the answer is (B).", "Which?\nOptions:\n(A) one\n(B) two", "B"),
        ("no idea\nat all", "How many?", ""),
        ("so \\boxed{\\frac{1}{2}}\nas shown", "Find x.", "\\frac{1}{2}"),
    ],
)
def test_the_final_answer_of_a_reply(reply: str, question: str, answer: str) -> None:
    grader: Grader = "math" if "Find" in question else "final_number"
    assert answer_of(reply, question=question, grader=grader) == answer


def test_only_a_wanted_number_is_taken_from_the_end_of_a_reply() -> None:
    assert answer_of("First 3.\nThen 7 are left", question="Find x.", grader="math") == ""


@pytest.mark.parametrize(
    ("left", "right", "grader"),
    [
        ("12", "12.0", "math"),
        ("$1,200", "1200 dollars", "math"),
        ("10 + 13 = 23", "23", "final_number"),
        ("\\frac{1}{2}", "0.5", "math"),
        ("[1,2]", "[1, 2]", "literal"),
        ("`Answer: 'abc'`", '"abc"', "literal"),
        ("abc", "'abc'", "literal"),
        ("apple, pear", "Apple pear", "exact"),
        ("x = 3", "3", "math"),
    ],
)
def test_plainly_equal_answers_have_one_form(left: str, right: str, grader: Grader) -> None:
    assert normal_form(left, grader=grader) == normal_form(right, grader=grader)


@pytest.mark.parametrize(
    ("left", "right", "grader"),
    [
        ("12", "13", "final_number"),
        ("3 million", "3", "exact"),
        ("10*pi", "10", "math"),
        ("[1, 2]", "(1, 2)", "literal"),
        ("'1'", "1", "literal"),
        ("1", "1.0", "literal"),
        ("'a'", "'A'", "literal"),
    ],
)
def test_different_answers_have_different_forms(left: str, right: str, grader: Grader) -> None:
    assert normal_form(left, grader=grader) != normal_form(right, grader=grader)


async def test_classes_count_from_the_first_answer_and_leave_out_missing_ones() -> None:
    assert await answer_classes(["5", "", "7", "5.0", "$7"], Comparisons(None), grader="final_number") == (
        0,
        -1,
        1,
        0,
        1,
    )


async def test_computer_algebra_joins_equal_formulas() -> None:
    pytest.importorskip("math_verify")
    assert await answer_classes(["10\\pi", "10*pi", "2\\pi"], Comparisons(None), grader="math") == (0, 0, 1)


def test_a_failed_program_has_no_answer() -> None:
    reply = ReplyRow("q", "bbh", "code", 0, "print(1)", 3, 4, True, runs={"run": (1, "41\n", "NameError")})
    assert final_text(reply) == ""
    assert final_text(ReplyRow("q", "bbh", "code", 0, "x", 3, 4, True, runs={"run": (0, "a\n 42 \n\n", "")})) == " 42"


# ---- the table ----------------------------------------------------------------------------------------------


def test_a_table_is_graded(tmp_path: Path) -> None:
    write_data(tmp_path, [("q1", "gsm8k_train", "7", ["7", "8", "7", "7", "9", "", "7", "fail", "8", "7"])])
    (one,) = load_table(tmp_path, cache=tmp_path / "cache.json")
    assert one.classes == (0, 1, 0, 0, 2, -1, 0, -1, 1, 0)
    assert one.answers == ("7", "8", "9")
    assert one.right == (True, False, True, True, False, False, True, False, False, True)
    assert one.cost[0] == 20 + 40 / 4
    assert load_table(tmp_path, cache=tmp_path / "cache.json") == [one]


def test_questions_without_all_samples_and_programs_are_left_out(tmp_path: Path) -> None:
    whole = ["7"] * 10
    write_data(tmp_path, [("q1", "gsm8k_train", "7", whole), ("q2", "gsm8k_train", "7", whole[:6])])
    assert [one.id for one in load_table(tmp_path)] == ["q1"]
    write_data(tmp_path, [("q1", "mbpp", "7", whole)], grader="code")
    assert load_table(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "content", "fact"),
    [
        ("roles_a.jsonl", '{"id": "q1", "set": "bbh"}\n', "roles_a.jsonl, line 1"),
        ("roles_a.jsonl", "no json\n", "roles_a.jsonl, line 1"),
        ("questions_a.jsonl", '{"id": "q1"}\n', "questions_a.jsonl, line 1"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, file: str, content: str, fact: str) -> None:
    write_data(tmp_path, [("q1", "gsm8k_train", "7", ["7"] * 10)])
    (tmp_path / file).write_text(content)
    with pytest.raises(ConfigError, match=fact):
        load_table(tmp_path)


def test_a_reply_to_an_unknown_question_or_a_second_same_reply_is_refused(tmp_path: Path) -> None:
    write_data(tmp_path, [("q1", "gsm8k_train", "7", ["7"] * 10)])
    line = (tmp_path / "roles_a.jsonl").read_text().splitlines()[0]
    (tmp_path / "roles_a.jsonl").write_text(line.replace('"q1"', '"q9"'))
    with pytest.raises(ConfigError, match="'q9'"):
        load_table(tmp_path)
    (tmp_path / "roles_a.jsonl").write_text(f"{line}\n{line}\n")
    with pytest.raises(ConfigError, match="direct 0 twice"):
        load_table(tmp_path)


def test_an_empty_folder_names_the_files_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"roles_\*"):
        load_table(tmp_path)


# ---- the selector -------------------------------------------------------------------------------------------


def test_the_selector_learns_which_role_to_believe() -> None:
    """Programs are always right here and thinks always agree on a wrong answer, two against one."""
    rows = [
        Row(f"How many of {i}?", (str(i), str(i + 1)), ("think", "think", "code"), (0, 0, 1), (True,) * 3, (0.0, 1.0))
        for i in range(60)
    ]
    think, code = fit(rows, ROLES, settings=QUICK).chances(rows[0])
    assert code > 0.7 > 0.3 > think


def test_a_saved_selector_gives_the_same_chances_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    rows = [row_of_classes(i, (0, 1, 0, 0, 1, -1, 0, -1, 1, 0)) for i in range(20)]
    selector = fit(rows, ROLES, settings=QUICK)
    selector.save(tmp_path)
    assert Selector.load(tmp_path).chances(rows[3]) == selector.chances(rows[3])
    with pytest.raises(ConfigError, match=r"selector\.npz"):
        Selector.load(tmp_path / "nothing")


def test_many_rows_and_few_rows_get_the_same_chances() -> None:
    rows = [row_of_classes(i, (0, 1, 0, 0, 1, -1, 0, -1, 1, 0)) for i in range(20)]
    selector = fit(rows, ROLES, settings=QUICK)
    found, present = features(rows[0], values.sets_of(10), selector.prior(rows[0].question), ROLES)
    flat = found[present]
    assert len(flat) > 64
    np.testing.assert_allclose(selector.chance_of(flat)[:40], selector.chance_of(flat[:40]), rtol=0, atol=1e-12)


def test_a_fit_without_wrong_answers_is_refused() -> None:
    rows = [row_of_classes(i, (0,) * 10, right=(1.0,)) for i in range(5)]
    with pytest.raises(ConfigError, match="right and wrong"):
        fit(rows, ROLES, settings=QUICK)


def test_the_chances_do_not_see_which_answer_is_right() -> None:
    rows = [row_of_classes(i, (0, 1, 0, 0, 1, -1, 0, -1, 1, 0)) for i in range(20)]
    selector = fit(rows, ROLES, settings=QUICK)
    turned = row_of_classes(3, (0, 1, 0, 0, 1, -1, 0, -1, 1, 0), right=(0.0, 1.0))
    assert selector.chances(rows[3]) == selector.chances(turned)


def test_a_question_without_any_answer_has_no_chances_and_no_value() -> None:
    rows = [row_of_classes(i, (0, 1, 0, 0, 1, -1, 0, -1, 1, 0)) for i in range(20)]
    silent = row_of_classes(1, (-1,) * 10, right=())
    selector = fit([*rows, silent], ROLES, settings=QUICK)
    assert selector.chances(silent) == []
    question = msgspec.structs.replace(answered("q", "bbh"), answers=(), classes=(-1,) * 10, right=(False,) * 10)
    (chance,) = values.sets_chances([silent], selector)
    assert not np.any(values.picked(chance, question))


def test_scores_of_roles() -> None:
    row = row_of_classes(0, (0, 1, 0, 0, 1, -1, 0, -1, 1, 0))
    assert worker_scores(row, ROLES) == [0.5, 0.5, 0.5, 1.0]


# ---- values -------------------------------------------------------------------------------------------------


def test_the_values_of_sets_by_hand() -> None:
    """Samples 0, 2 and 3 say the right 7; 1 and 4 the wrong 8. The selector believes 8 a little more."""
    question = msgspec.structs.replace(
        answered("q", "bbh"), classes=(0, 1, 0, 0, 1, -1, -1, -1, -1, -1), right=(True, False, True, True, *[False] * 6)
    )
    counts = values.sets_of(10).astype(int) @ (np.array(question.classes)[:, None] == np.arange(2))
    right, confidence, vote = values.picked(np.where(counts > 0, np.array([0.4, 0.6]), -1.0), question)
    only_7, only_8, both, majority_7, silent = 0b1, 0b10, 0b11, 0b111, 0b100000
    assert [right[s] for s in (0, silent, only_7, only_8, both)] == [0, 0, 1, 0, 0]
    assert [confidence[s] for s in (0, silent, only_7, only_8, both)] == [0, 0, 0.4, 0.6, 0.6]
    assert [vote[s] for s in (0, silent, only_7, only_8, both, majority_7)] == [0, 0, 1, 0, 0.5, 1]
    tied, _, _ = values.picked(np.where(counts > 0, 0.5, -1.0), question)
    assert tied[both] == 0.5


def test_a_training_question_is_valued_by_a_selector_that_never_saw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [answered(f"q{i}", "gsm8k_train" if i % 2 else "bbh") for i in range(12)]
    folds = [-1 if i >= 10 else i % 5 for i in range(12)]
    fitted: list[set[str]] = []
    real = values.fit

    def watched(rows: Any, workers: Any, **_: Any) -> Selector:
        fitted.append({row.question for row in rows})
        return real(rows, workers, settings=QUICK)

    monkeypatch.setattr(values, "fit", watched)
    values.cross_fitted(table, folds, values.QWEN_IN_ROLES, without=None, seed=1)
    whole, *others = fitted
    assert whole == {f"question q{i}" for i in range(10)}
    for fold, seen in enumerate(others):
        assert seen == {f"question q{i}" for i in range(10) if folds[i] != fold}
    fitted.clear()
    values.cross_fitted(table, folds, values.QWEN_IN_ROLES, without="bbh", seed=1)
    assert all(int(question.split("q")[-1]) % 2 for seen in fitted for question in seen)


def test_test_questions_are_identified_by_set_and_by_hash() -> None:
    assert values.split_of(answered("any", "gsm8k_test")) == values.split_of(answered("any", "math500")) == "test"
    assert {values.split_of(answered(f"q{i}", "gsm8k_train")) for i in range(100)} == {"train", "dev"}
    assert values.split_of(answered("bbh-navigate-5", "bbh")) in ("train", "dev", "test")
    assert 0.4 < np.mean([values.split_of(answered(f"q{i}", "bbh")) == "test" for i in range(300)]) < 0.6


def test_the_command_writes_the_questions_that_plans_are_valued_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = values.fit
    monkeypatch.setattr(values, "fit", lambda rows, workers, **_: real(rows, workers, settings=QUICK))
    data = tmp_path / "data"
    data.mkdir()
    said = ["7", "8", "7", "7", "9", "", "7", "fail", "8", "7"]
    write_data(data, [(f"q{i}", "gsm8k_train", "7", said) for i in range(40)])
    values.main(["--data", str(data), "--out", str(tmp_path / "out")])
    assert "development" in capsys.readouterr().out
    recorded = RecordedQuestions.load(tmp_path / "out", device="cpu")
    right, cost, calls = PlanValues(recorded).of(
        [0, 0], [TablePlan(("quick",)), TablePlan(("thinker", "thinker"), "vote")]
    )
    # Thinks say 7, 7, 9 and nothing: of the six pairs, 7 wins alone in three (7 and 7; 7 and nothing, twice), ties
    # with 9 in two, and is absent in one.
    assert right.tolist() == pytest.approx([0.5, (1 + 2 + 2 * 0.5) / 6])
    assert cost.tolist() == pytest.approx([30, 60])
    assert calls.tolist() == [1, 2]


def test_a_table_of_an_own_pool_is_valued_on_the_same_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = values.fit
    monkeypatch.setattr(values, "fit", lambda rows, workers, **_: real(rows, workers, settings=QUICK))
    two_kinds(80).save(tmp_path / "table")
    values.main(["--table", str(tmp_path / "table"), "--out", str(tmp_path / "out")])
    recorded = RecordedQuestions.load(tmp_path / "out", device="cpu")
    assert [(one.name, one.samples) for one in recorded.pool.workers] == [("cheap", 2), ("dear", 1)]
    assert set(recorded.pool.kinds) == {"sums", "riddles"}
    # `dear` is the best single worker; its answer of 10 is what a price word counts as 176 units.
    assert recorded.pool.cost_scale == pytest.approx(17.6)
    riddle = recorded.families.index("riddles")
    right, cost, _ = PlanValues(recorded).of([riddle], [TablePlan(("cheap", "cheap"), "vote")])
    assert (right.item(), cost.item()) == (0.0, pytest.approx(35.2))


def test_a_family_left_out_is_neither_trained_nor_developed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = values.fit
    monkeypatch.setattr(values, "fit", lambda rows, workers, **_: real(rows, workers, settings=QUICK))
    two_kinds(120).save(tmp_path / "table")
    values.main(["--table", str(tmp_path / "table"), "--out", str(tmp_path / "out"), "--without", "riddles"])
    recorded = RecordedQuestions.load(tmp_path / "out", device="cpu")
    splits = {recorded.splits[i] for i, kind in enumerate(recorded.families) if kind == "riddles"}
    assert splits == {"left out"}
    with pytest.raises(ConfigError, match="sums, riddles"):
        values.main(["--table", str(tmp_path / "table"), "--out", str(tmp_path / "out"), "--without", "poems"])


def test_a_table_without_grades_or_with_too_many_workers_cannot_be_valued() -> None:
    table = two_kinds(10)
    bare = msgspec.structs.replace(table, answers=tuple(msgspec.structs.replace(a, right=None) for a in table.answers))
    with pytest.raises(ConfigError, match="calibrate again"):
        values.from_table(bare, where="here")
    many = tuple(TableWorker(f"w{i}") for i in range(11))
    answers = tuple(
        msgspec.structs.replace(a, worker=w.name) for a in table.answers if a.worker == "dear" for w in many
    )
    with pytest.raises(ConfigError, match="11 workers"):
        values.from_table(msgspec.structs.replace(table, workers=many, answers=answers), where="here")


# ---- helpers ------------------------------------------------------------------------------------------------


def row_of_classes(number: int, classes: tuple[int, ...], right: tuple[float, ...] = (1.0, 0.0)) -> Row:
    answers = tuple(str(7 + place) for place in range(len(right)))
    return Row(f"How many of {number}?", answers, tuple(role for role, _ in SLOTS), classes, (True,) * 10, right)


def answered(name: str, group: str) -> Answered:
    return Answered(
        id=name,
        set=group,
        text=f"question {name}",
        answers=("7", "8"),
        classes=(0, 1, 0, 0, 1, -1, 0, -1, 1, 0),
        ended=(True,) * 10,
        right=(True, False, True, True, False, False, True, False, False, True),
        cost=(30.0,) * 10,
    )


def write_data(folder: Path, questions: list[tuple[str, str, str, list[str]]], *, grader: str = "number") -> None:
    """Question and role files in which each question's samples say these answers."""
    lines = []
    rows = []
    for name, group, gold, said in questions:
        asked = {"id": name, "task": "made", "question": f"How many of {name}?", "answer": gold, "grader": grader}
        rows.append(json.dumps({**asked, "meta": {}}))
        for (role, k), answer in zip(SLOTS, said, strict=False):
            text = "" if answer in ("", "fail") else f"Let me see.\nAnswer: {answer}"
            run = [1, "", "NameError"] if answer == "fail" else [0, f"working\n{answer}\n", ""]
            reply = {"id": name, "set": group, "role": role, "k": k, "text": text, "tokens": 20, "prompt_tokens": 40}
            lines.append(json.dumps({**reply, "ended": True, "runs": {"run": run} if role == "code" else {}}))
    with gzip.open(folder / "questions_a.jsonl.gz", "wt") as file:
        file.write("\n".join(rows))
    (folder / "roles_a.jsonl").write_text("\n".join(lines))
