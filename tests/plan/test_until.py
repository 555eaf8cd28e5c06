"""`until`: written, read back and refused alike in every dialect, and offered only if a worker selects."""

from __future__ import annotations

import json
import re

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.test_grammar import ordinary_text, recogniser
from tests.plans import DIALECTS, LIMITS, plans, subtasks

from dirigent.errors import PlanError
from dirigent.limits import Limits
from dirigent.messages import conversation
from dirigent.plan.grammar import plan_grammar, plan_schema
from dirigent.plan.plan import (
    Dialect,
    Plan,
    Step,
    check_plan,
    critical_path,
    format_plan,
    parse_any,
    parse_plan,
)
from dirigent.plan.prompt import prompted_planner_messages
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted

POOL = Pool([Scripted("x", name="quick"), Scripted("x", name="thinker"), Scripted("x", name="select", selects=True)])
PLAN = Plan((Step("quick", "answer"), Step("thinker", "answer"), Step("select", "pick", (0, 1))), until=0.7)

WRITTEN: dict[Dialect, str] = {
    "lists": 'until = 0.7\nmodel_id = [0, 1, 2]\nsubtasks = ["answer", "answer", "pick"]\n'
    "access_list = [[], [], [0, 1]]",
    "lines": "until 70\nanswer | quick 0 | -\nanswer | thinker 1 | -\npick | select 2 | 0 1",
    "json": '{"until":0.7,"steps":[{"id":"0","models":["quick"],"prompt":"answer","access_list":[]},'
    '{"id":"1","models":["thinker"],"prompt":"answer","access_list":[]},'
    '{"id":"2","models":["select"],"prompt":"pick","access_list":["0","1"]}]}',
}


def with_until(plan: Plan, ten_thousandths: int) -> Plan:
    """The plan, with a last step that selects among all others."""
    last = Step("select", "pick", tuple(range(len(plan.steps))))
    workers = [Step("quick", step.subtask, step.access) for step in plan.steps]
    return Plan((*workers, last), until=ten_thousandths / 10_000)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_until_is_written_as_the_design_says_and_read_back(dialect: Dialect) -> None:
    assert format_plan(PLAN, POOL, dialect=dialect) == WRITTEN[dialect]
    assert parse_plan(WRITTEN[dialect], POOL, dialect=dialect) == PLAN
    assert parse_any(WRITTEN[dialect], POOL) == PLAN


@given(
    plan=plans(subtasks, max_steps=4),
    until=st.integers(1, 9_999),
    first=st.sampled_from(DIALECTS),
    second=st.sampled_from(DIALECTS),
)
def test_any_until_survives_any_two_dialects(plan: Plan, until: int, first: Dialect, second: Dialect) -> None:
    wanted = with_until(plan, until)
    once = parse_plan(format_plan(wanted, POOL, dialect=first), POOL, LIMITS, dialect=first)
    assert once == wanted
    assert parse_plan(format_plan(once, POOL, dialect=second), POOL, LIMITS, dialect=second) == wanted


def test_a_plan_of_a_program_keeps_four_decimals_of_until() -> None:
    given = Plan(PLAN.steps, until=0.63337)
    assert check_plan(given, POOL).until == 0.6334


@pytest.mark.parametrize(
    ("text", "dialect", "reason"),
    [
        (WRITTEN["lines"].replace("70", "100"), "lines", "below 1"),
        (WRITTEN["lines"].replace("70", "0"), "lines", "above 0"),
        (WRITTEN["lines"].replace("70", "soon"), "lines", "percentage"),
        (WRITTEN["lines"].replace("until 70", "until"), "lines", "percentage"),
        (WRITTEN["lists"].replace("0.7", "70"), "lists", "until is 70"),
        (WRITTEN["lists"].replace("0.7", "0.7.1"), "lists", "write a number between 0 and 1"),
        (WRITTEN["json"].replace("0.7", "1"), "json", "between 0 and 1"),
        (WRITTEN["json"].replace("0.7", "true"), "json", "between 0 and 1"),
        (WRITTEN["json"].replace("0.7", "NaN"), "json", "above 0"),
        (WRITTEN["json"].replace("0.7", '"0.7"'), "json", "between 0 and 1"),
        ("until 70\npick | select 2 | -", "lines", "steps before it"),
        ("until 70", "lines", "empty"),
        ("until 70\naccept", "lines", "fields"),
        ("until 70\nanswer | quick 0 | -\npick | select 2 | -", "lines", "does not read 0"),
        ("until 70\na | quick 0 | -\nb | quick 0 | 0\npick | select 2 | 1", "lines", "does not read 0"),
        ("until 70\nanswer | quick 0 | -\nagain | thinker 1 | 0", "lines", "these do: select"),
        ("answer | quick 0 | -\nuntil 70\npick | select 2 | 0", "lines", "fields"),
    ],
)
def test_a_fault_of_until_is_refused_with_its_reason(text: str, dialect: Dialect, reason: str) -> None:
    with pytest.raises(PlanError, match=re.escape(reason)):
        parse_plan(text, POOL, dialect=dialect)


def test_a_pool_without_a_selector_refuses_until_and_says_so() -> None:
    pool = POOL.without(["select"])
    plan = Plan((Step("quick", "answer"), Step("thinker", "judge", (0,))), until=0.7)
    with pytest.raises(PlanError, match="no worker of this pool does: leave until out"):
        check_plan(plan, pool)
    with pytest.raises(PlanError, match="the plan is empty"):
        check_plan(Plan(until=0.7), POOL)
    with pytest.raises(PlanError, match="add such steps"):
        check_plan(Plan(until=0.7), POOL, may_accept=True, earlier=2)


def test_in_a_later_round_the_last_step_reads_the_steps_of_its_own_round() -> None:
    text = "until 90\nanswer | quick 0 | 0\npick | select 2 | 2"
    plan = parse_plan(text, POOL, dialect="lines", earlier=2)
    assert (plan.until, plan.first, plan.steps[-1].access) == (0.9, 2, (2,))


def test_a_line_that_begins_with_until_and_has_bars_is_a_step() -> None:
    plan = parse_plan("until 70 words are written | quick 0 | -", POOL, dialect="lines")
    assert (plan.until, plan.steps[0].subtask) == (None, "until 70 words are written")


def test_thoughts_about_until_are_no_until() -> None:
    text = "I would ask until: 3 agree.\nuntil we are = sure\n" + WRITTEN["lists"].removeprefix("until = 0.7\n")
    assert parse_plan(text, POOL, dialect="lists").until is None
    quoted = WRITTEN["lists"].replace("until = 0.7\n", "").replace('"pick"', '"pick\nuntil = 0.3\n"')
    assert parse_plan(quoted, POOL, dialect="lists").until is None, "a subtask is no place for it"


def test_every_step_of_a_plan_with_until_may_have_to_follow_the_others() -> None:
    assert critical_path(PLAN) == 3
    assert critical_path(Plan(PLAN.steps)) == 2


def test_by_itself_a_plan_keeps_until() -> None:
    later = Plan((Step("quick", "a", (0,)), Step("select", "pick", (0, 1))), 1, until=0.7)
    assert later.by_itself() == Plan((Step("quick", "a"), Step("select", "pick", (0,))), until=0.7)


# --- grammars, schema, prompt ---


@given(plan=plans(ordinary_text, max_steps=5), until=st.integers(1, 9_999), dialect=st.sampled_from(DIALECTS))
def test_the_grammar_admits_every_printed_until(plan: Plan, until: int, dialect: Dialect) -> None:
    stopping = with_until(plan, until)
    text = format_plan(stopping, POOL, dialect=dialect)
    grammar = plan_grammar(POOL, LIMITS, dialect=dialect)
    assert recogniser(grammar).fullmatch(text)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "wrong",
    [
        Plan((*PLAN.steps[:2], Step("select", "pick", (0,))), until=0.7),
        Plan((*PLAN.steps[:2], Step("quick", "pick", (0, 1))), until=0.7),
        Plan((Step("select", "pick"),), until=0.7),
        Plan(PLAN.steps, until=1.5),
        Plan(PLAN.steps, until=0.0),
    ],
)
def test_the_grammar_admits_no_until_that_would_be_refused(wrong: Plan, dialect: Dialect) -> None:
    text = format_plan(wrong, POOL, dialect=dialect)
    with pytest.raises(PlanError):
        parse_plan(text, POOL, LIMITS, dialect=dialect)
    assert not recogniser(plan_grammar(POOL, LIMITS, dialect=dialect)).fullmatch(text)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_grammar_of_a_later_round_counts_on(dialect: Dialect) -> None:
    later = Plan((Step("quick", "a", (0,)), Step("select", "pick", (3,))), 3, until=0.25)
    text = format_plan(later, POOL, dialect=dialect)
    grammar = plan_grammar(POOL, LIMITS, dialect=dialect, may_accept=True, earlier=3)
    assert recogniser(grammar).fullmatch(text)
    assert parse_plan(text, POOL, LIMITS, dialect=dialect, earlier=3) == later


@pytest.mark.parametrize("dialect", DIALECTS)
def test_until_is_offered_only_where_a_worker_selects_and_two_steps_fit(dialect: Dialect) -> None:
    assert "until" in plan_grammar(POOL, LIMITS, dialect=dialect)
    assert "until" not in plan_grammar(POOL, Limits(max_steps=1), dialect=dialect)
    assert "until" not in plan_grammar(POOL.without(["select"]), LIMITS, dialect=dialect)

    def prompt(pool: Pool, limits: Limits = LIMITS) -> str:
        asked = conversation("Why?")
        messages = prompted_planner_messages(asked, pool.infos, limits=limits, dialect=dialect, secret="s")
        return messages[-1].text

    assert "70% sure" in prompt(POOL)
    assert "70% sure" not in prompt(POOL.without(["select"]))
    assert "70% sure" not in prompt(POOL, Limits(max_steps=1))


def test_the_schema_takes_until_or_null_where_a_worker_selects() -> None:
    schema = plan_schema(POOL, LIMITS)
    written = json.loads(WRITTEN["json"])
    assert schema["required"] == ["until", "steps"]
    assert jsonschema_rs.is_valid(schema, written)
    assert jsonschema_rs.is_valid(schema, written | {"until": None})
    assert parse_plan(json.dumps(written | {"until": None}), POOL, dialect="json") == Plan(PLAN.steps)
    assert list(plan_schema(POOL.without(["select"]), LIMITS)["properties"]) == ["steps"]
