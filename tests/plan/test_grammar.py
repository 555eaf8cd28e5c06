"""The grammars admit what the printers print and nothing that the parser refuses.

The grammars are not recursive, so a small translation to a regular expression stands in for llama.cpp.
"""

from __future__ import annotations

import json
import random
import re
from functools import cache
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plans import DIALECTS, LIMITS, NAMES, nasty_text, plans

from dirigent.limits import Limits
from dirigent.plan.grammar import LINE_CHARS, plan_grammar, plan_schema
from dirigent.plan.plan import Dialect, Plan, Step, format_plan, parse_plan

TOKEN = re.compile(
    r"""\s*(?:
        (?P<literal>"(?:[^"\\\n]|\\["\\nrt])*")
      | (?P<set>\[\^?(?:[^\]\\\n]|\\[\]\[\\"nrt-]|\\x[0-9a-f]{2}|\\u[0-9a-f]{4})+\])
      | (?P<rule>[a-zA-Z0-9-]+)
      | (?P<repeat>[?*+]|\{\d+(?:,\d+)?\})
      | (?P<mark>[()|])
    )""",
    re.VERBOSE,
)


@cache
def recogniser(grammar: str) -> re.Pattern[str]:
    """The language of a GBNF text, read by llama.cpp's rules; an error in the grammar is an assertion."""
    rules = dict(line.split(" ::= ", 1) for line in grammar.strip().split("\n"))
    used: set[str] = {"root"}

    @cache
    def translate(name: str) -> str:
        parts = []
        position, body = 0, rules[name]
        while position < len(body):
            token = TOKEN.match(body, position)
            assert token, f"{name}: {body[position:]!r} is not GBNF"
            position = token.end()
            text = token[token.lastgroup or 0]
            if token.lastgroup == "literal":
                parts.append(f"(?:{re.escape(json.loads(text))})")
            elif token.lastgroup == "rule":
                used.add(text)
                parts.append(f"(?:{translate(text)})")
            else:
                parts.append("(?:" if text == "(" else text)
        return "".join(parts)

    pattern = re.compile(translate("root"))
    assert used == set(rules), "a rule is never used"
    return pattern


def admits(text: str, dialect: Dialect, *, limits: Limits = LIMITS, may_accept: bool = False, earlier: int = 0) -> bool:
    grammar = plan_grammar(NAMES, limits, dialect=dialect, may_accept=may_accept, earlier=earlier)
    return recogniser(grammar).fullmatch(text) is not None


ordinary_text = (
    st.one_of(nasty_text, st.text("ab `<>/tT\\|\"'[]{}.,é😀", max_size=60))
    .map(lambda text: re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", "", text).strip()[:120].strip())
    .filter(bool)
)


@given(plan=plans(ordinary_text), dialect=st.sampled_from(DIALECTS))
def test_the_grammar_admits_every_printed_plan(plan: Plan, dialect: Dialect) -> None:
    assert admits(format_plan(plan, NAMES, dialect=dialect), dialect)


@given(plan=plans(ordinary_text, max_steps=4), dialect=st.sampled_from(DIALECTS), seed=st.integers(0, 2**32))
def test_every_text_that_the_grammar_admits_is_a_plan(plan: Plan, dialect: Dialect, seed: int) -> None:
    rng = random.Random(seed)
    text = format_plan(plan, NAMES, dialect=dialect)
    for _ in range(rng.randint(1, 2)):
        start, end = sorted(rng.choices(range(len(text) + 1), k=2))
        edits = [
            text[:start] + text[end:],
            text[:start] + rng.choice('01-|\\" \n[],`<tn') + text[start + 1 :],
        ]
        text = rng.choice([*edits, text[:end] + text[start:]])
    if admits(text, dialect):
        parse_plan(text, NAMES, LIMITS, dialect=dialect)


THREE = Plan((Step("letters", "One."), Step("math", "Two."), Step("gpt-5", "Three.", access=(0, 1))))


@pytest.mark.parametrize(
    ("dialect", "old", "new"),
    [
        ("lines", "| 0 1", "| 1 0"),
        ("lines", "| 0 1", "| 0 0"),
        ("lines", "| 0 1", "| 0 2"),
        ("lines", "| 0 1", "| 2"),
        ("lines", "| 0 1", "|"),
        ("lines", "letters 0", "letters 1"),
        ("lines", "letters 0", "stranger 0"),
        ("lines", "One.", ""),
        ("lines", "One.", " "),
        ("lines", "One.", "\\n"),
        ("lines", "One.", "\xa0"),
        ("lines", "One.", "a\\"),
        ("lines", "One.", "a\\x"),
        ("lines", "One.", "a\tb"),
        ("lines", "One.", "a | b"),
        ("lines", "One.", "x" * (LINE_CHARS + 1)),
        ("lists", "[0, 1]]", "[1, 0]]"),
        ("lists", "[0, 1]]", "[2]]"),
        ("lists", "[0, 1]]", "]"),
        ("lists", "[0, 1, 2]", "[0, 1]"),
        ("lists", "[0, 1, 2]", "[0, 1, 4]"),
        ("lists", '"One."', '""'),
        ("lists", '"One."', '"One.", "More."'),
        ("lists", "One.", "`"),
        ("lists", "One.", "a <think> b"),
        ("lists", "One.", "a </think> b"),
        ("lists", "One.", "\\ud800"),
        ("json", '["0","1"]', '["1","0"]'),
        ("json", '["0","1"]', '["2"]'),
        ("json", '["0","1"]', '["all","0"]'),
        ("json", '"id":"1"', '"id":"2"'),
        ("json", '["math"]', '["math","math"]'),
        ("json", '["math"]', '["stranger"]'),
        ("json", "One.", ""),
        ("json", "One.", "\\u0020"),
    ],
)
def test_a_wrong_plan_is_not_admitted(dialect: Dialect, old: str, new: str) -> None:
    text = format_plan(THREE, NAMES, dialect=dialect)
    assert admits(text, dialect)
    assert old in text
    assert not admits(text.replace(old, new), dialect)


@pytest.mark.parametrize(
    ("dialect", "old", "new"),
    [("lists", "[0, 1]]", '"all"]'), ("json", '["0","1"]', '["all"]')],
)
def test_all_is_admitted_where_the_prompt_teaches_it(dialect: Dialect, old: str, new: str) -> None:
    text = format_plan(THREE, NAMES, dialect=dialect).replace(old, new)
    assert admits(text, dialect)
    assert parse_plan(text, NAMES, LIMITS, dialect=dialect) == THREE


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_empty_plan_is_admitted_only_where_there_is_an_answer(dialect: Dialect) -> None:
    empty = format_plan(Plan(), NAMES, dialect=dialect)
    assert admits(empty, dialect, may_accept=True)
    assert admits(format_plan(THREE, NAMES, dialect=dialect), dialect, may_accept=True)
    assert not admits(empty, dialect)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("max_steps", [1, 2, 3])
def test_no_more_steps_are_admitted_than_the_limits_allow(dialect: Dialect, max_steps: int) -> None:
    for count in range(1, 5):
        plan = Plan(tuple(Step("math", "go", tuple(range(index))) for index in range(count)))
        text = format_plan(plan, NAMES, dialect=dialect)
        assert admits(text, dialect, limits=Limits(max_steps=max_steps)) == (count <= max_steps)


@given(plan=plans(ordinary_text, max_steps=3), dialect=st.sampled_from(DIALECTS), data=st.data())
def test_a_later_round_may_read_every_earlier_step(plan: Plan, dialect: Dialect, data: st.DataObject) -> None:
    earlier = 12
    steps = []
    for number, step in enumerate(plan.steps, earlier):
        access = data.draw(st.sets(st.integers(0, number - 1)))
        steps.append(Step(step.worker, step.subtask, tuple(sorted(access))))
    text = format_plan(Plan(tuple(steps), earlier), NAMES, dialect=dialect)
    assert admits(text, dialect, earlier=earlier)
    assert parse_plan(text, NAMES, LIMITS, dialect=dialect, earlier=earlier).steps == tuple(steps)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("read", [(3,), (4,), (1, 0), (0, 0)])
def test_a_later_round_admits_no_later_step_and_no_other_order(dialect: Dialect, read: tuple[int, ...]) -> None:
    text = format_plan(Plan((Step("math", "go", read),), 3), NAMES, dialect=dialect)
    assert not admits(text, dialect, earlier=3)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_grammar_of_the_last_round_grows_with_the_number_of_steps(dialect: Dialect) -> None:
    assert len(plan_grammar(NAMES, Limits(max_steps=32), dialect=dialect, earlier=7 * 32)) < 64_000


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_longest_admitted_plan_is_within_every_bound(dialect: Dialect) -> None:
    limits = Limits(max_steps=32)
    grammar = plan_grammar(NAMES, limits, dialect=dialect)
    assert len(grammar) < 64_000
    repeats = re.search(r"first char\{0,(\d+)\}", grammar)
    assert repeats
    subtask = "😀" * (int(repeats[1]) + 1)
    plan = Plan(tuple(Step(NAMES[-1], subtask, tuple(range(index))) for index in range(32)))
    assert parse_plan(format_plan(plan, NAMES, dialect=dialect), NAMES, limits, dialect=dialect) == plan


def test_the_grammar_of_the_small_planner_stays_small() -> None:
    assert len(plan_grammar(NAMES, Limits(), dialect="lines")) < 1_000


# --- the schema ---


@given(plan=plans())
def test_the_schema_admits_every_printed_plan(plan: Plan) -> None:
    jsonschema_rs.validate(plan_schema(NAMES, LIMITS), json.loads(format_plan(plan, NAMES, dialect="json")))


def test_the_schema_of_a_later_round_counts_on() -> None:
    schema = plan_schema(NAMES, LIMITS, earlier=2)
    step = {"id": "2", "models": ["math"], "prompt": "go", "access_list": ["0", "1"]}
    assert jsonschema_rs.is_valid(schema, {"steps": [step]})
    assert not jsonschema_rs.is_valid(schema, {"steps": [step | {"id": "1"}]})


def test_the_schema_is_fit_for_strict_structured_output() -> None:
    allowed = {
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "description",
        "minItems",
    }
    stack: list[Any] = [plan_schema(NAMES, LIMITS)]
    while stack:
        part = stack.pop()
        assert set(part) <= allowed
        if part["type"] == "object":
            assert part["additionalProperties"] is False
            assert part["required"] == list(part["properties"])
            stack.extend(part["properties"].values())
        elif part["type"] == "array":
            assert part.get("minItems", 0) in (0, 1)
            stack.append(part["items"])


@pytest.mark.parametrize(
    "change",
    [
        {"models": []},
        {"models": ["stranger"]},
        {"id": "6"},
        {"access_list": ["5"]},
        {"prompt": None},
        {"extra": 1},
    ],
)
def test_the_schema_refuses_faults_that_it_can_express(change: dict[str, object]) -> None:
    step = {"id": "0", "models": ["math"], "prompt": "go", "access_list": []}
    schema = plan_schema(NAMES, LIMITS)
    assert jsonschema_rs.is_valid(schema, {"steps": [step]})
    assert not jsonschema_rs.is_valid(schema, {"steps": [step | change]})


def test_the_schema_admits_no_steps_only_where_there_is_an_answer() -> None:
    assert jsonschema_rs.is_valid(plan_schema(NAMES, LIMITS, may_accept=True), {"steps": []})
    assert not jsonschema_rs.is_valid(plan_schema(NAMES, LIMITS), {"steps": []})
