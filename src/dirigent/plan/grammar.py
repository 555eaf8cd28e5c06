"""Hold a model to a dialect: GBNF grammars for llama.cpp and a JSON schema for providers that take one.

A grammar admits what `format_plan` prints for subtasks of ordinary length without control characters, and
nothing that `parse_plan` refuses: workers of this pool, access to earlier steps only, ascending and without
repeats, as many steps as the limits allow. The schema cannot say which steps are earlier, so a plan written
under it can still be refused.

llama.cpp shapes the rules: it keeps a parse state for each way in which the text so far can be read, so there
is one way (optional steps nest, `a (b (c)?)?`); a bounded repetition costs it a rule a turn and may not pass
2,000; rule names are letters, digits and dashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dirigent.limits import Limits
from dirigent.plan.dialects import STEP_KEYS
from dirigent.plan.plan import MAX_TEXT_BYTES, Dialect, worker_names
from dirigent.workers.pool import Pool

LINE_CHARS = 400
"""Longest subtask in `lines`: small planners write a sentence, and one that runs on should be stopped."""
STRING_CHARS = 1000
"""Longest subtask in `lists` and `json`."""

_CONTROL = r"\x00-\x1f\x7f-\x9f"
_SPACE = r" \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def plan_grammar(pool: Pool | Sequence[str], limits: Limits, *, dialect: Dialect, may_accept: bool = False) -> str:
    """The plans of one dialect over this pool, as GBNF. `may_accept`: the empty plan too."""
    rules = {"lists": _lists_rules, "lines": _lines_rules, "json": _json_rules}[dialect]
    accept = {
        "lists": r"model_id = []\nsubtasks = []\naccess_list = []",
        "lines": "accept",
        "json": r"{\"steps\":[]}",
    }
    root = f'root ::= plan | "{accept[dialect]}"' if may_accept else "root ::= plan"
    return "\n".join([root, *rules(worker_names(pool), limits.max_steps)]) + "\n"


def plan_schema(pool: Pool | Sequence[str], limits: Limits, *, may_accept: bool = False) -> dict[str, Any]:
    """The `json` dialect as a JSON schema.

    It keeps to what the strict structured output of every large provider takes: all keys required, no others,
    enums, and of the bounds only "at least one". The other bounds stand in the descriptions.
    """
    positions = [str(position) for position in range(limits.max_steps)]
    step = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "enum": positions, "description": "The step's position, from 0."},
            "models": {
                "type": "array",
                "items": {"type": "string", "enum": list(worker_names(pool))},
                "minItems": 1,
                "description": "Exactly one worker.",
            },
            "prompt": {"type": "string", "description": "The subtask. Never empty."},
            "access_list": {
                "type": "array",
                "items": {"type": "string", "enum": [*positions[:-1], "all"]},
                "description": "Earlier steps whose replies this step may read; all = every one.",
            },
        },
        "required": list(STEP_KEYS),
        "additionalProperties": False,
    }
    steps = {
        "type": "array",
        "items": step,
        "minItems": 0 if may_accept else 1,
        "description": f"In order, at most {limits.max_steps}. The last step's reply is the answer."
        + (" Empty: accept the last answer." if may_accept else ""),
    }
    return {
        "type": "object",
        "properties": {"steps": steps},
        "required": ["steps"],
        "additionalProperties": False,
    }


def _lines_rules(names: tuple[str, ...], max_steps: int) -> list[str]:
    steps = [f'subtask " | " worker " | " access-{index}' for index in range(max_steps)]
    return [
        "plan ::= " + _nested(steps, separator=_literal("\n")),
        _alternatives("worker", [f"{name} {index}" for index, name in enumerate(names)]),
        f"subtask ::= first char{{0,{_most_chars(LINE_CHARS, max_steps) - 1}}}",
        rf'first ::= [^|\\{_CONTROL}{_SPACE}] | "\\" [\\|]',
        rf'char ::= [^|\\{_CONTROL}] | "\\" [\\|n]',
        *_access_rules(max_steps, nothing="-", opening="", separator=" ", closing="", number="{}"),
    ]


def _lists_rules(names: tuple[str, ...], max_steps: int) -> list[str]:
    # The number of steps is chosen with the ids: after the n-th either another follows or `rest-n` does.
    ids = f'", " id rest-{max_steps}'
    for count in range(max_steps - 1, 1, -1):
        ids = f'", " id (rest-{count} | {ids})'
    ids = f"id (rest-1 | {ids})" if max_steps > 1 else "id rest-1"
    return [
        f'plan ::= "model_id = [" {ids}',
        *[_lists_rest(count) for count in range(1, max_steps + 1)],
        _alternatives("id", [str(index) for index in range(len(names))]),
        # The reader of `lists` deletes backticks and think blocks, so those come as escapes only.
        rf'string ::= "\"" first char{{0,{_most_chars(STRING_CHARS, max_steps) - 1}}} "\""',
        rf'first ::= [^"\\<`{_CONTROL}{_SPACE}] | less | "\\" (["\\] | code)',
        rf'char ::= [^"\\<`{_CONTROL}] | less | "\\" (["\\nt] | code)',
        rf'less ::= "<" [^/tT"\\<`{_CONTROL}]',
        'code ::= "u0060" | "u003c"',
        *_access_rules(
            max_steps, nothing="[]", everything='"all"', opening="[", separator=", ", closing="]", number="{}"
        ),
    ]


def _lists_rest(count: int) -> str:
    subtasks = "string" + (f' (", " string){{{count - 1}}}' if count > 1 else "")
    access = ' ", " '.join(f"access-{index}" for index in range(count))
    return rf'rest-{count} ::= "]\nsubtasks = [" {subtasks} "]\naccess_list = [" {access} "]"'


def _json_rules(names: tuple[str, ...], max_steps: int) -> list[str]:
    steps = [
        _literal(f'{{"id":"{index}","models":["')
        + " worker "
        + _literal('"],"prompt":')
        + " string "
        + _literal(',"access_list":')
        + f" access-{index} "
        + _literal("}")
        for index in range(max_steps)
    ]
    return [
        " ".join(["plan ::=", _literal('{"steps":['), _nested(steps, separator='","'), _literal("]}")]),
        _alternatives("worker", names),
        rf'string ::= "\"" first char{{0,{_most_chars(STRING_CHARS, max_steps) - 1}}} "\""',
        rf'first ::= [^"\\{_CONTROL}{_SPACE}] | "\\" ["\\]',
        rf'char ::= [^"\\{_CONTROL}] | "\\" ["\\nt]',
        *_access_rules(
            max_steps,
            nothing="[]",
            everything='["all"]',
            opening="[",
            separator=",",
            closing="]",
            number='"{}"',
        ),
    ]


def _access_rules(
    max_steps: int,
    *,
    nothing: str,
    opening: str,
    separator: str,
    closing: str,
    number: str,
    everything: str = "",
) -> list[str]:
    """`access-k`: what step k may read: nothing, everything, or positions below k in ascending order."""
    rules = [f"access-0 ::= {_literal(nothing)}"]
    for step in range(1, max_steps):
        choices = [_literal(word) for word in (nothing, everything) if word]
        choices += [
            " ".join([_literal(opening + number.format(first)), *(f"also-{j}" for j in range(first + 1, step))])
            + (f" {_literal(closing)}" if closing else "")
            for first in range(step)
        ]
        rules.append(f"access-{step} ::= {' | '.join(choices)}")
    also = [f"also-{j} ::= ({_literal(separator + number.format(j))})?" for j in range(1, max_steps - 1)]
    return rules + also


def _nested(parts: list[str], *, separator: str) -> str:
    """The first part, or the first two, or the first three: `a (", " b (", " c)?)?`."""
    nested = parts[-1]
    for part in reversed(parts[:-1]):
        nested = f"{part} ({separator} {nested})?"
    return nested


def _alternatives(name: str, words: Sequence[str]) -> str:
    return f"{name} ::= {' | '.join(_literal(word) for word in words)}"


def _literal(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _most_chars(wanted: int, max_steps: int) -> int:
    """As many characters as keep a plan within the bound on text in every dialect, at 6 bytes a character."""
    return min(wanted, (MAX_TEXT_BYTES - 512 * max_steps) // (6 * max_steps))
