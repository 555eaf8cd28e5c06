"""The promises of `parse_plan`: one door, every fault a PlanError, every plan readable in every dialect."""

from __future__ import annotations

import json
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.facts import facts, says
from tests.plans import DIALECTS, LIMITS, NAMES, nasty_text, plans

from dirigent.errors import PlanError
from dirigent.limits import Limits
from dirigent.plan.plan import (
    MAX_SUBTASK_BYTES,
    MAX_TEXT_BYTES,
    Dialect,
    Plan,
    Step,
    critical_path,
    format_plan,
    parse_any,
    parse_plan,
)
from dirigent.workers.pool import Pool
from dirigent.workers.worker import WorkerInfo

TWO_STEPS = Plan((Step("letters", "Count its letters."), Step("math", "Double it.", access=(0,))))

WRITTEN: dict[Dialect, str] = {
    "lists": 'model_id = [0, 1]\nsubtasks = ["Count its letters.", "Double it."]\naccess_list = [[], [0]]',
    "lines": "Count its letters. | letters 0 | -\nDouble it. | math 1 | 0",
    "json": '{"steps":[{"id":"0","models":["letters"],"prompt":"Count its letters.","access_list":[]},'
    '{"id":"1","models":["math"],"prompt":"Double it.","access_list":["0"]}]}',
}

EMPTY: dict[Dialect, str] = {
    "lists": "model_id = []\nsubtasks = []\naccess_list = []",
    "lines": "accept",
    "json": '{"steps":[]}',
}


def refusal(text: str, dialect: Dialect, *, limits: Limits = LIMITS, may_accept: bool = False) -> str:
    with pytest.raises(PlanError) as caught:
        parse_plan(text, NAMES, limits, dialect=dialect, may_accept=may_accept)
    return str(caught.value)


# --- every dialect ---


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_plan_is_written_as_the_design_says(dialect: Dialect) -> None:
    assert format_plan(TWO_STEPS, NAMES, dialect=dialect) == WRITTEN[dialect]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_written_plan_is_read_back(dialect: Dialect) -> None:
    assert parse_plan(WRITTEN[dialect], NAMES, dialect=dialect) == TWO_STEPS


@given(plan=plans(), first=st.sampled_from(DIALECTS), second=st.sampled_from(DIALECTS))
def test_any_plan_survives_any_two_dialects(plan: Plan, first: Dialect, second: Dialect) -> None:
    once = parse_plan(format_plan(plan, NAMES, dialect=first), NAMES, LIMITS, dialect=first)
    assert once == plan
    assert parse_plan(format_plan(once, NAMES, dialect=second), NAMES, LIMITS, dialect=second) == plan


@given(text=st.one_of(st.text(), nasty_text), dialect=st.sampled_from(DIALECTS), may_accept=st.booleans())
def test_any_text_is_a_plan_or_a_plan_error(text: str, dialect: Dialect, may_accept: bool) -> None:
    try:
        plan = parse_plan(text, NAMES, LIMITS, dialect=dialect, may_accept=may_accept)
    except PlanError as error:
        str(error).encode()
        return
    assert plan == parse_plan(format_plan(plan, NAMES), NAMES, LIMITS, may_accept=may_accept)


@given(plan=plans(), dialect=st.sampled_from(DIALECTS), seed=st.integers(0, 2**32))
def test_a_mutated_plan_is_refused_or_within_the_limits(plan: Plan, dialect: Dialect, seed: int) -> None:
    rng = random.Random(seed)
    text = format_plan(plan, NAMES, dialect=dialect)
    for _ in range(3):
        cut, end = sorted(rng.choices(range(len(text) + 1), k=2))
        text = rng.choice([text[:cut] + text[end:], text[:end] + text[cut:]])
    try:
        mutated = parse_plan(text, NAMES, LIMITS, dialect=dialect)
    except PlanError:
        return
    assert 1 <= len(mutated.steps) <= LIMITS.max_steps
    for index, step in enumerate(mutated.steps):
        assert step.worker in NAMES
        assert step.subtask == step.subtask.strip() != ""
        assert len(step.subtask.encode()) <= MAX_SUBTASK_BYTES
        assert step.access == tuple(sorted(set(step.access)))
        assert all(0 <= position < index for position in step.access)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_empty_plan_accepts_an_answer_only_where_there_is_one(dialect: Dialect) -> None:
    assert format_plan(Plan(), NAMES, dialect=dialect) == EMPTY[dialect]
    assert parse_plan(EMPTY[dialect], NAMES, dialect=dialect, may_accept=True) == Plan()
    refusal(EMPTY[dialect], dialect)


def test_accept_may_stand_between_spaces_and_empty_lines() -> None:
    assert parse_plan("\n  accept \n", NAMES, dialect="lines", may_accept=True) == Plan()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("text", ["", "  \n\n", "I accept.", "null", "[]"])
def test_text_without_a_plan_accepts_nothing(dialect: Dialect, text: str) -> None:
    refusal(text, dialect, may_accept=True)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_more_steps_than_the_limit_are_refused(dialect: Dialect) -> None:
    text = format_plan(Plan((Step("math", "go"),) * 7), NAMES, dialect=dialect)
    assert says(refusal(text, dialect), "7 6")
    assert len(parse_plan(text, NAMES, Limits(max_steps=7), dialect=dialect).steps) == 7


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_text_over_64_kib_is_refused_whatever_it_holds(dialect: Dialect) -> None:
    padding = "\n" * (MAX_TEXT_BYTES - len(WRITTEN[dialect]))
    assert parse_plan(WRITTEN[dialect] + padding, NAMES, dialect=dialect) == TWO_STEPS
    assert "bytes" in refusal(WRITTEN[dialect] + padding + "\n", dialect)
    assert "bytes" in refusal("é" * (MAX_TEXT_BYTES // 2 + 1), dialect)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_subtask_may_take_8_kib_and_no_more(dialect: Dialect) -> None:
    largest = Plan((Step("math", "é" * (MAX_SUBTASK_BYTES // 2)),))
    assert parse_plan(format_plan(largest, NAMES, dialect=dialect), NAMES, dialect=dialect) == largest
    larger = Plan((Step("math", "é" * (MAX_SUBTASK_BYTES // 2) + "x"),))
    assert "step 0" in refusal(format_plan(larger, NAMES, dialect=dialect), dialect)


@pytest.mark.parametrize("dialect", ["lines", "json"])
def test_a_plan_that_some_dialect_could_not_write_is_refused(dialect: Dialect) -> None:
    text = format_plan(Plan((Step("math", "`" * 8000),) * 2), NAMES, dialect=dialect)
    assert says(refusal(text, dialect), "lists")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_step_cannot_read_itself_or_a_later_one(dialect: Dialect) -> None:
    for position in (1, 2):
        forward = Plan((Step("math", "go"), Step("math", "go", access=(position,)), Step("math", "go")))
        reason = refusal(format_plan(forward, NAMES, dialect=dialect), dialect)
        assert says(reason, f"step 1 {position}") or says(reason, f"step '1' '{position}'")


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("lists", 'model_id=[0, 0, 0] subtasks=["a", "b", "c"] access_list=[[], [], ["1", 0, 1]]'),
        ("lines", "a | letters | -\nb | letters | -\nc | letters | 1, 0 1"),
        (
            "json",
            '{"steps":[{"models":["letters"],"prompt":"a"},{"models":["letters"],"prompt":"b"},'
            '{"models":["letters"],"prompt":"c","access_list":["1",0,"1"]}]}',
        ),
    ],
)
def test_access_is_sorted_and_without_repeats(dialect: Dialect, text: str) -> None:
    assert parse_plan(text, NAMES, dialect=dialect).steps[2].access == (0, 1)


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("lists", 'model_id=[0, 0, 0] subtasks=["a", "b", "c"] access_list=["all", "ALL", ["All"]]'),
        ("lines", "a | letters | all\nb | letters | ALL\nc | letters | 0 all"),
        (
            "json",
            '{"steps":[{"models":["letters"],"prompt":"a","access_list":"all"},'
            '{"models":["letters"],"prompt":"b","access_list":["ALL"]},'
            '{"models":["letters"],"prompt":"c","access_list":["0","all"]}]}',
        ),
    ],
)
def test_all_means_every_earlier_step_and_nothing_on_the_first(dialect: Dialect, text: str) -> None:
    assert [step.access for step in parse_plan(text, NAMES, dialect=dialect).steps] == [(), (0,), (0, 1)]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("blank", ["", "  ", "\xa0\u2028"])
def test_an_empty_subtask_is_refused(dialect: Dialect, blank: str) -> None:
    text = format_plan(Plan((Step("math", "go"), Step("math", blank))), NAMES, dialect=dialect)
    reason = refusal(text, dialect)
    assert "step 1" in reason
    assert "empty" in reason


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("lists", r'model_id=[0] subtasks=["\ud800 x"] access_list=[[]]'),
        ("lines", "\ud800 x | letters | -"),
        ("json", r'{"steps":[{"models":["letters"],"prompt":"\ud800 x"}]}'),
    ],
)
def test_half_a_surrogate_pair_is_refused(dialect: Dialect, text: str) -> None:
    reason = refusal(text, dialect)
    assert "surrogate" in reason
    assert reason.isprintable()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_empty_pool_refuses_every_plan(dialect: Dialect) -> None:
    with pytest.raises(PlanError):
        parse_plan(WRITTEN[dialect], (), dialect=dialect)


def test_a_pool_gives_its_names_in_the_order_of_its_ids() -> None:
    class Card:
        def __init__(self, name: str) -> None:
            self.info = WorkerInfo(name)

    pool = Pool([Card("math"), Card("letters")])  # type: ignore[list-item]
    assert format_plan(TWO_STEPS, pool, dialect="lines").splitlines()[0] == "Count its letters. | letters 1 | -"
    assert parse_plan("Go. | 0 | -", pool, dialect="lines").steps[0].worker == "math"


def test_a_plan_with_a_stranger_is_not_written() -> None:
    with pytest.raises(PlanError, match=facts("0 maths math")):
        format_plan(Plan((Step("maths", "go"),)), NAMES)


def test_the_critical_path_is_the_longest_chain_of_readers() -> None:
    diamond = Plan((Step("a", "x"), Step("a", "x", (0,)), Step("a", "x", (0,)), Step("a", "x", (1, 2)), Step("a", "x")))
    assert critical_path(diamond) == 3
    assert critical_path(Plan((Step("a", "x"),) * 4)) == 1
    assert critical_path(Plan()) == 0


# --- later rounds ---


def in_a_later_round(plan: Plan, earlier: int) -> Plan:
    """The same plan after so many steps: each step also reads the first and the last of them."""
    steps = [
        Step(step.worker, step.subtask, tuple(sorted({0, earlier - 1, *(j + earlier for j in step.access)})))
        for step in plan.steps
    ]
    return Plan(tuple(steps), earlier)


@given(plan=plans(), dialect=st.sampled_from(DIALECTS), earlier=st.integers(1, 7 * 32))
def test_a_plan_of_a_later_round_is_read_back_with_its_numbers(plan: Plan, dialect: Dialect, earlier: int) -> None:
    later = in_a_later_round(plan, earlier)
    text = format_plan(later, NAMES, dialect=dialect)
    assert parse_plan(text, NAMES, LIMITS, dialect=dialect, earlier=earlier) == later
    with pytest.raises(PlanError):
        parse_plan(text, NAMES, LIMITS, dialect=dialect)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_largest_plan_of_the_last_round_is_read_back(dialect: Dialect) -> None:
    earlier = 7 * 32
    steps = tuple(Step(NAMES[-1], "go", tuple(range(earlier + i))) for i in range(32))
    text = format_plan(Plan(steps, earlier), NAMES, dialect=dialect)
    assert parse_plan(text, NAMES, Limits(max_steps=32), dialect=dialect, earlier=earlier) == Plan(steps, earlier)


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("lists", 'model_id=[0, 0] subtasks=["a", "b"] access_list=["all", "all"]'),
        ("lines", "a | letters | all\nb | letters | all"),
        (
            "json",
            '{"steps":[{"models":["letters"],"prompt":"a","access_list":"all"},'
            '{"models":["letters"],"prompt":"b","access_list":["all"]}]}',
        ),
    ],
)
def test_all_includes_the_steps_of_earlier_rounds(dialect: Dialect, text: str) -> None:
    plan = parse_plan(text, NAMES, dialect=dialect, earlier=2)
    assert plan.first == 2
    assert [step.access for step in plan.steps] == [(0, 1), (0, 1, 2)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_max_steps_is_per_round(dialect: Dialect) -> None:
    later = Plan((Step("math", "go", (0,)),) * LIMITS.max_steps, 10)
    text = format_plan(later, NAMES, dialect=dialect)
    assert parse_plan(text, NAMES, LIMITS, dialect=dialect, earlier=10) == later


def test_an_id_of_an_earlier_round_is_taken() -> None:
    with pytest.raises(PlanError) as refused:
        parse_plan(WRITTEN["json"], NAMES, dialect="json", earlier=3)
    assert all(fact in str(refused.value) for fact in ("step 3", "'0'", "from 3"))


def test_a_plan_by_itself_forgets_the_rounds_before() -> None:
    later = Plan((Step("math", "a", (0, 1)), Step("math", "b", (1, 2))), 2)
    assert later.by_itself() == Plan((Step("math", "a"), Step("math", "b", (0,))))
    assert critical_path(later) == 2


# --- lines ---


def test_escapes_in_a_line_are_bar_newline_and_backslash_alone() -> None:
    plan = parse_plan(r"a \| b\nc \\n \d \ | letters 0 | -", NAMES, dialect="lines")
    assert plan.steps[0].subtask == "a | b\nc \\n \\d \\"


def test_blank_lines_and_carriage_returns_between_steps_do_not_count() -> None:
    text = "\n" + WRITTEN["lines"].replace("\n", "\r\n\r\n") + "\r\n"
    assert parse_plan(text, NAMES, dialect="lines") == TWO_STEPS


@pytest.mark.parametrize("field", ["gpt-5 2", "gpt-5", "2", " 2 ", "gpt-5   2"])
def test_a_line_names_its_worker_by_name_by_id_or_both(field: str) -> None:
    assert parse_plan(f"go|{field}|-", NAMES, dialect="lines").steps[0].worker == "gpt-5"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Let me think.", "1"),
        ("go | math 1", "2"),
        ("go | math 1 | 0 | 1", "4"),
        (r"go \| math 1 | -", "2"),
        ("go | math 2 | -", "math 1 2"),
        ("go | math x | -", "x"),
        ("go | math 1 2 | -", "math 1 2"),
        ("go | | -", "''"),
        ("go | 4 | -", "4 0 3"),
        ("go | ٣ | -", "٣"),
        ("go | Math | -", "Math math"),
        ("go | math 1 |", "access ''"),
        ("go | math 1 | - 0", "access '-'"),
        ("go | math 1 | -1", "access -1"),
        ("go | math 1 | 0.", "access '0.'"),
        ("go | math 1 |" + " 0" * 65, "access 64"),
        ("accept", "1"),
    ],
)
def test_any_other_line_is_refused_and_named(line: str, reason: str) -> None:
    found = refusal(f"First. | letters 0 | -\n\n{line}", "lines")
    assert says(found, f"3 1 {reason}")


# --- json ---


def steps_json(*steps: dict[str, object]) -> str:
    return json.dumps({"steps": [{"models": ["math"], "prompt": "go"} | step for step in steps]})


def test_prose_thoughts_and_fences_around_the_object_are_ignored() -> None:
    text = f"<think>{{not this}}</think>\nHere it is:\n```json\n{WRITTEN['json']}\n```\nDone {{}}."
    assert parse_plan(text, NAMES, dialect="json") == TWO_STEPS


def test_ids_may_be_any_strings_or_ints_and_become_positions() -> None:
    text = steps_json({"id": "find"}, {"id": 7}, {"id": "end", "access_list": [7, "find"]})
    assert parse_plan(text, NAMES, dialect="json").steps[2].access == (0, 1)


def test_other_keys_beside_steps_are_ignored() -> None:
    text = WRITTEN["json"].replace('{"steps"', '{"name": {"deep": [[1]]}, "steps"', 1)
    assert parse_plan(text, NAMES, dialect="json") == TWO_STEPS


def test_a_surrogate_pair_in_json_is_one_character() -> None:
    plan = parse_plan(steps_json({"prompt": "😀"}), NAMES, dialect="json")
    assert plan.steps[0].subtask == "😀"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no object", "no object JSON"),
        ('{"steps": [', "JSON"),
        ('{"steps": "', "JSON"),
        ('{"plan": []}', "steps plan"),
        ('{"steps": {}}', "steps {}"),
        ('{"steps": [], "steps": []}', "steps"),
        ('{"steps": [{"models": ["math"], "prompt": "a", "prompt": "b"}]}', "prompt"),
        ('{"steps": ["go"]}', "0 go"),
        ('{"x": [[[[[[[[1]]]]]]]], "steps": []}', "8"),
        ('{"x": [' + "[]," * 10_000 + '0], "steps": []}', ""),
        (steps_json({}, {"acess": []}), "1 acess access_list"),
        (steps_json({"model": "math"}), "model models"),
        ('{"steps": [{"prompt": "go"}]}', "0 models"),
        ('{"steps": [{"models": ["math"]}]}', "0 prompt"),
        (steps_json({"models": []}), "models []"),
        (steps_json({"models": ["math", "gpt-5"]}), "models math gpt-5"),
        (steps_json({"models": "math"}), "models math"),
        (steps_json({"models": [1]}), "models [1]"),
        (steps_json({"models": ["maths"]}), "maths math"),
        (steps_json({"prompt": 5}), "subtask 5"),
        (steps_json({"id": "a"}, {"id": "a"}), "1 'a' 0"),
        (steps_json({"id": 1}, {}), "1 '1' 0"),
        (steps_json({"id": "All"}), "All"),
        (steps_json({"id": True}), "True"),
        (
            steps_json({"id": "a"}, {"access_list": ["b"]}),
            "'b' 'a'",
        ),
        (steps_json({"access_list": ["0"] * 65}), "access 64"),
        (steps_json({"access_list": None}), "None"),
        (steps_json({"access_list": [0.0]}), "0.0"),
        ('{"steps": [{"id": ' + "9" * 5000 + "}]}", "JSON"),
    ],
)
def test_a_fault_in_json_is_named(text: str, reason: str) -> None:
    assert says(refusal(text, "json"), reason)


# --- plans written by hand ---


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_plan_by_hand_may_be_in_any_dialect(dialect: Dialect) -> None:
    assert parse_any(WRITTEN[dialect], NAMES) == TWO_STEPS
    assert parse_any(EMPTY[dialect], NAMES, may_accept=True) == Plan()


def test_a_json_plan_by_hand_that_quotes_lists_is_read_as_json() -> None:
    text = steps_json({"models": ["math"], "prompt": "Explain: model_id = [0] subtasks = ['x'] access_list = [[]]"})
    assert parse_any(text, NAMES).steps[0].worker == "math"
    assert parse_plan(text, NAMES).steps == (Step("letters", "x"),), "lists alone would read the quoted text"


def test_a_plan_by_hand_that_no_dialect_reads_says_why_in_each() -> None:
    with pytest.raises(PlanError) as caught:
        parse_any("Count its letters. | leters | -" + "\n" * 500, NAMES)
    reason = str(caught.value)
    assert says(reason, "json lists model_id lines 1 0 leters letters")
    assert len(reason) < 800


# --- hostile texts ---

BOMBS = {
    "brackets": "[" * MAX_TEXT_BYTES,
    "braces": '{"a":' * 13_000,
    "labels": "access:[" * 8_000,
    "labels and quotes": 'access:["' * 7_000,
    "escaped quotes": 'access:["' + '\\"' * 32_000,
    "escaped curly quotes": "access:[“" + "\\”" * 16_000 + "]",
    "escaped quotes in json": '{"a":"' + '\\"' * 32_000,
    "repeated lists": ("access=[" + "[]," * 60 + "] ") * 300,
    "one long list": "model_id=[" + "1," * 32_000 + "]",
    "one long number": "model_id=[" + "1" * 65_000 + "]",
    "odd escapes": "model_id=[0] subtasks=['" + "\\d" * 32_000 + "'] access=[[]]",
    "open thoughts": "<think>" * 9_000,
    "bullets": "- " * 32_000,
    "spaces after a label": "access" + " " * 65_000,
    "bars": "|" * MAX_TEXT_BYTES,
    "backslashes": "\\" * MAX_TEXT_BYTES,
    "lines": "x|math|-\n" * 7_000,
    "strings in json": '{"steps":[{"models":["math"],"prompt":' + '""' * 32_000 + "}]}",
    "access in a line": "x|math|" + "} " * 32_000,
    "access in json": '{"steps":[{"models":["math"],"prompt":"x","access_list":[' + "1," * 32_000 + "1]}]}",
    "keys": "{" + ",".join(f'"{i}":1' for i in range(6_000)) + ',"1":2}',
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_plan_bomb_is_refused_in_no_time(dialect: Dialect, bomb: str) -> None:
    started = time.process_time()
    refusal(BOMBS[bomb][:MAX_TEXT_BYTES], dialect)
    # The bound is 50 ms; the slack is for slow machines. Quadratic work would take seconds.
    assert time.process_time() - started < 0.5
