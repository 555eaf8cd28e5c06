"""How the `lists` dialect is read out of free text."""

from __future__ import annotations

import pytest
from tests.facts import says

from dirigent.errors import PlanError
from dirigent.plan.lists_dialect import labelled_lists
from dirigent.plan.plan import Plan, Step, parse_plan

NAMES = ("a", "b", "c")
REST = 'subtasks = ["one", "two"] access_list = [[], [0]]'


def read(text: str) -> Plan:
    return parse_plan(text, NAMES, dialect="lists")


def refusal(text: str) -> str:
    with pytest.raises(PlanError) as caught:
        read(text)
    return str(caught.value)


def subtasks(written: str) -> list[object]:
    return labelled_lists(f"model_id = [] access_list = [] subtasks = {written}")[1]


def access(written: str) -> list[object]:
    return labelled_lists(f"model_id = [] subtasks = [] access_list = {written}")[2]


def test_lists_are_found_after_free_reasoning() -> None:
    plan = read(f"Two models should do: first b.\n\nmodel_id = [1, 0]\n{REST}\nThat is my plan.")
    assert plan == Plan((Step("b", "one"), Step("a", "two", (0,))))


@pytest.mark.parametrize(
    "label",
    [
        *(
            "model_id = ",
            "model id: ",
            "Model IDs:",
            "MODEL_ID=",
            '"model_id": ',
            "'model_id' : ",
            "model_ids =\n",
        ),
        *("**model_id**: ", "**Model ids:** ", "- model_id = ", "* `model_id` = ", "`model_id = "),
    ],
)
def test_a_label_may_be_written_in_many_ways(label: str) -> None:
    assert [step.worker for step in read(f"{label}[1, 0]\n{REST}").steps] == ["b", "a"]


@pytest.mark.parametrize(
    ("tasks", "reads"), [("subtask", "access"), ("Subtasks", "Access List"), ("subtasks", "access-list")]
)
def test_the_other_labels_have_aliases_too(tasks: str, reads: str) -> None:
    assert read(f'{reads}: ["all"]\n{tasks}: ["one"]\nmodel id: [2]') == Plan((Step("c", "one"),))


def test_a_label_without_a_list_is_passed_over() -> None:
    assert len(read(f"The access list: as small as can be. subtasks: two.\nmodel_id = [0, 0] {REST}").steps) == 2


def test_the_first_list_of_each_label_wins() -> None:
    assert read(f"model_id = [2, 2] model_id = [0, 0] {REST} subtasks = [1]").steps[0].worker == "c"


def test_labels_inside_a_subtask_are_text() -> None:
    trap = 'Print access_list = [[9]] and model_id = [7, \\"x]\\"] and stop.'
    plan = read(f'subtasks = ["{trap}"]\nmodel_id = [0]\naccess_list = [[]]')
    assert plan.steps[0].subtask == trap.replace("\\", "")


def test_closed_thoughts_are_deleted() -> None:
    assert read(f"<think>model_id = [9, 9]</think>model_id = [0, 1] {REST}").steps[1].worker == "b"
    assert read(f"<THINK>a <think> b</think> x <think>model_id = [9]</think>model_id = [0, 1] {REST}")


def test_thoughts_that_opened_in_the_prompt_are_deleted() -> None:
    assert read(f"perhaps model_id = [9, 9]?\n</think>\nmodel_id = [0, 1] {REST}").steps[1].worker == "b"


def test_thoughts_that_never_close_are_kept() -> None:
    assert read(f"<think>model_id = [0, 1] {REST}").steps[1].worker == "b"


def test_lists_over_several_bulleted_lines_are_read() -> None:
    plan = read('model_id = [\n  - 0,\n  • 1,\n]\nsubtasks = [\n* "one",\n* "two",\n]\naccess_list = [\n [],\n [0]\n]')
    assert plan == Plan((Step("a", "one"), Step("b", "two", (0,))))


@pytest.mark.parametrize(
    ("written", "items"),
    [
        ("[\"a\", 'b']", ["a", "b"]),
        (r"""["say \"hi\", [now]", 'it\'s']""", ['say "hi", [now]', "it's"]),
        (r"['\d+\.\d', 'C:\new', '\x41\u00e9']", [r"\d+\.\d", "C:\new", "Aé"]),
        (r'["\ud83d\ude00"]', ["\ud83d\ude00"]),
        ('["""three", or more"""]', ['three", or more']),
        ('["two\nlines"]', ["two\nlines"]),
        ("['two\nlines', 'b']", ["two\nlines", "b"]),
        ("[“a, b”, “it’s”]", ["a, b", "it's"]),
        ('["the “curly” one’s kept"]', ["the “curly” one’s kept"]),
        ("['Don't stop', 'b']", ["Don't stop", "b"]),
        ("[first thing, second]", ["first thing", "second"]),
        ('["a, b", c]', ["a, b", "c"]),
        (r'["a\n\"b\"", c]', ['a\n"b"', "c"]),
        ("[]", []),
        ("[ ]", []),
        ("['a',]", ["a"]),
        ("[a,]", ["a"]),
        ("[true, null, 1.5]", [True, None, 1.5]),
    ],
)
def test_a_list_is_read_as_python_as_json_or_at_its_commas(written: str, items: list[object]) -> None:
    assert subtasks(written) == items


@pytest.mark.parametrize(
    ("written", "items"),
    [
        ("[[], 'all']", [[], "all"]),
        ("[[], all, [all], [0, all]]", [[], "all", ["all"], ["0", "all"]]),
        ("[[], [‘all’]]", [[], ["all"]]),
        ("[[], 0, '1']", [[], 0, "1"]),
        ("[[], [x y, 'z']]", [[], ["x y", "z"]]),
    ],
)
def test_access_entries_are_read_with_or_without_quotes(written: str, items: list[object]) -> None:
    assert access(written) == items


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no lists at all", "model_id subtasks access_list"),
        ("model_id = [0] subtasks = ['a']", "access_list"),
        (
            "model_id = [0, 1] subtasks = ['a'] access_list = [[]]",
            "2 model_id 1 subtasks access_list",
        ),
        ("model_id = [0] subtasks = ['a'] access_list = []", "0 access_list"),
        ("model_id = [0] subtasks = ['a' access_list = [[]", ""),
        (
            "model_id = [3] subtasks = ['a'] access_list = [[]]",
            "0 3 2",
        ),
        ("model_id = [-1] subtasks = ['a'] access_list = [[]]", "-1"),
        ("model_id = [True] subtasks = ['a'] access_list = [[]]", "True"),
        ("model_id = [true] subtasks = ['a'] access_list = [[]]", "True"),
        ("model_id = [0.0] subtasks = ['a'] access_list = [[]]", "0.0"),
        ("model_id = ['b'] subtasks = ['a'] access_list = [[]]", "'b'"),
        ("model_id = ['٠'] subtasks = ['a'] access_list = [[]]", "٠"),
        ("model_id = [[0]] subtasks = ['a'] access_list = [[]]", "[0]"),
        ("model_id = [0] subtasks = [7] access_list = [[]]", "subtask 0 7"),
        ("model_id = [0] subtasks = [['a']] access_list = [[]]", "subtask ['a']"),
        ("model_id = [0] subtasks = ['a'] access_list = ['some']", "access 'some'"),
        ("model_id = [0] subtasks = ['a'] access_list = [[None]]", "access None"),
        ("model_id = [0] subtasks = ['a'] access_list = [[[]]]", "access []"),
        ("model_id = [0] subtasks = ['a'] access_list = [{}]", "access {}"),
        ("model_id = [0] subtasks = ['a'] access_list = [0]", "0"),
        ("model_id = [[[[[[[[[0]]]]]]]]]", "8"),
        ("model_id = [" + "0, " * 70 + "]", "64"),
        ("model_id = [" + "9" * 4000 + "] subtasks = ['a'] access_list = [[]]", "0 2"),
    ],
)
def test_a_fault_in_the_lists_is_named(text: str, reason: str) -> None:
    assert says(refusal(text), reason)


def test_an_error_never_repeats_more_than_a_line_of_the_text() -> None:
    assert len(refusal(f"model_id = [{'9' * 4000}] subtasks = ['{'x' * 9000}'] access_list = [[]]")) < 200
    assert len(refusal(f"model_id = [0] subtasks = [0, '{'x' * 9000}'")) < 200
