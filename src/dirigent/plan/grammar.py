"""Hold a model to a dialect: GBNF grammars for llama.cpp, and a JSON schema for providers that accept one.

A grammar admits what `format_plan` prints for subtasks of ordinary length without control characters, and
nothing that `parse_plan` refuses: workers of this pool, access to earlier steps only (those of earlier rounds
included), ascending and without repeats, as many steps as the limits allow. The schema cannot say which steps
are earlier, so a plan written under it can still be refused.

llama.cpp decides the form of the rules. It keeps a parse state for each way to read the text so far, so each text
can be read in one way only (optional steps nest, `a (b (c)?)?`). A bounded repetition costs it one rule a turn and
may not pass 2,000. Rule names are letters, digits and dashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dirigent.limits import Limits
from dirigent.plan.dialects import STEP_KEYS
from dirigent.plan.plan import MAX_TEXT_BYTES, Dialect, worker_names
from dirigent.workers.pool import Pool

LINE_CHARS = 400
"""Longest subtask in `lines`: small planners write a sentence, and a planner that rambles should be stopped."""
STRING_CHARS = 1000
"""Longest subtask in `lists` and `json`."""

_CONTROL = r"\x00-\x1f\x7f-\x9f"
_SPACE = r" \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def plan_grammar(
    pool: Pool | Sequence[str], limits: Limits, *, dialect: Dialect, may_accept: bool = False, earlier: int = 0
) -> str:
    """The plans of one dialect over this pool, as GBNF; with `may_accept` the empty plan too.

    `earlier` is the number of steps in earlier rounds. Plans may hold `until` if a worker of the pool selects.
    """
    rules = {"lists": _lists_rules, "lines": _lines_rules, "json": _json_rules}[dialect]
    accept = {
        "lists": r"model_id = []\nsubtasks = []\naccess_list = []",
        "lines": "accept",
        "json": r"{\"steps\":[]}",
    }
    stops = may_stop(pool) and limits.max_steps > 1
    starts = ["plan", *(["until"] if stops else []), *([f'"{accept[dialect]}"'] if may_accept else [])]
    numbers = range(earlier, earlier + limits.max_steps)
    root = "root ::= " + " | ".join(starts)
    return "\n".join([root, *rules(worker_names(pool), numbers, _selectors(pool) if stops else ())]) + "\n"


def may_stop(pool: Pool | Sequence[str]) -> bool:
    """Whether a plan over this pool may hold `until`: whether a worker says how sure it is."""
    return bool(_selectors(pool))


def _selectors(pool: Pool | Sequence[str]) -> tuple[str, ...]:
    return tuple(info.name for info in pool.infos if info.selects) if isinstance(pool, Pool) else ()


def plan_schema(
    pool: Pool | Sequence[str], limits: Limits, *, may_accept: bool = False, earlier: int = 0
) -> dict[str, Any]:
    """The `json` dialect as a JSON schema.

    It keeps to what the strict structured output of every large provider takes: all keys required, no others,
    enums, and of the bounds only "at least one". The descriptions say the other bounds.
    """
    positions = [str(position) for position in range(earlier + limits.max_steps)]
    step = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "enum": positions[earlier:], "description": f"The step's number, from {earlier}."},
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
    until = {
        "type": ["number", "null"],
        "description": "Null, or a confidence above 0 and below 1: ask the steps in order and stop once the last step, "
        "by a worker that selects and reads all others, is so sure.",
    }
    steps = {
        "type": "array",
        "items": step,
        "minItems": 0 if may_accept else 1,
        "description": f"In order, at most {limits.max_steps}. The last step's reply is the answer."
        + (" Empty: accept the last answer." if may_accept else ""),
    }
    properties = {"until": until, "steps": steps} if may_stop(pool) else {"steps": steps}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _lines_rules(names: tuple[str, ...], numbers: range, selectors: Sequence[str]) -> list[str]:
    steps = [f'subtask " | " worker " | " access-{index}' for index in numbers]
    return [
        "plan ::= " + _nested(steps, separator=_literal("\n")),
        _alternatives("worker", [f"{name} {index}" for index, name in enumerate(names)]),
        f"subtask ::= first char{{0,{_most_chars(LINE_CHARS, numbers) - 1}}}",
        rf'first ::= [^|\\{_CONTROL}{_SPACE}] | "\\" [\\|]',
        rf'char ::= [^|\\{_CONTROL}] | "\\" [\\|n]',
        *_access_rules(numbers, nothing="-", opening="", separator=" ", closing="", number="{}"),
        *_lines_until(names, numbers, steps, selectors),
    ]


def _lines_until(names: tuple[str, ...], numbers: range, steps: list[str], selectors: Sequence[str]) -> list[str]:
    if not selectors:
        return []
    lasts = [f'subtask " | " selector " | " {_literal(" ".join(map(str, numbers[:i])))}' for i in range(len(numbers))]
    return [
        'until ::= "until " percent ' + _literal("\n") + " " + _stopping(steps, lasts, separator=_literal("\n")),
        'percent ::= [1-9] [0-9]? ("." [0-9]? [1-9])? | "0." [0-9]? [1-9]',
        _alternatives("selector", [f"{name} {names.index(name)}" for name in selectors]),
    ]


def _lists_rules(names: tuple[str, ...], numbers: range, selectors: Sequence[str]) -> list[str]:
    max_steps = len(numbers)
    # The number of steps is chosen with the ids: after the n-th either another follows or `rest-n` does.
    ids = f'", " id rest-{max_steps}'
    for count in range(max_steps - 1, 1, -1):
        ids = f'", " id (rest-{count} | {ids})'
    ids = f"id (rest-1 | {ids})" if max_steps > 1 else "id rest-1"
    return [
        f'plan ::= "model_id = [" {ids}',
        *[_lists_rest(numbers[:count]) for count in range(1, max_steps + 1)],
        _alternatives("id", [str(index) for index in range(len(names))]),
        # The reader of `lists` deletes backticks and think blocks, so those come as escapes only.
        rf'string ::= "\"" first char{{0,{_most_chars(STRING_CHARS, numbers) - 1}}} "\""',
        rf'first ::= [^"\\<`{_CONTROL}{_SPACE}] | less | "\\" (["\\] | code)',
        rf'char ::= [^"\\<`{_CONTROL}] | less | "\\" (["\\nt] | code)',
        rf'less ::= "<" [^/tT"\\<`{_CONTROL}]',
        'code ::= "u0060" | "u003c"',
        *_access_rules(
            numbers, nothing="[]", everything='"all"', opening="[", separator=", ", closing="]", number="{}"
        ),
        *_lists_until(names, numbers, selectors),
    ]


def _lists_until(names: tuple[str, ...], numbers: range, selectors: Sequence[str]) -> list[str]:
    if not selectors:
        return []
    max_steps = len(numbers)
    ids = f'", " selector stop-{max_steps}'
    for count in range(max_steps - 1, 1, -1):
        ids = f'", " (selector stop-{count} | id {ids})'
    return [
        f'until ::= "until = " fraction "\\nmodel_id = [" id {ids}',
        *[_lists_rest(numbers[:count], stops=True) for count in range(2, max_steps + 1)],
        _FRACTION,
        _alternatives("selector", [str(names.index(name)) for name in selectors]),
    ]


_FRACTION = 'fraction ::= "0." [0-9]{0,3} [1-9]'


def _lists_rest(numbers: range, *, stops: bool = False) -> str:
    """The part after the ids of so many steps. With `stops` the last step reads every step before it."""
    count = len(numbers)
    subtasks = "string" + (f' (", " string){{{count - 1}}}' if count > 1 else "")
    entries = [f"access-{index}" for index in numbers]
    if stops:
        entries[-1] = _literal(str(list(numbers[:-1])))
    access = ' ", " '.join(entries)
    name = "stop" if stops else "rest"
    return rf'{name}-{count} ::= "]\nsubtasks = [" {subtasks} "]\naccess_list = [" {access} "]"'


def _json_rules(names: tuple[str, ...], numbers: range, selectors: Sequence[str]) -> list[str]:
    steps = [_json_step(index, "worker", f"access-{index}") for index in numbers]
    return [
        " ".join(["plan ::=", _literal('{"steps":['), _nested(steps, separator='","'), _literal("]}")]),
        _alternatives("worker", names),
        rf'string ::= "\"" first char{{0,{_most_chars(STRING_CHARS, numbers) - 1}}} "\""',
        rf'first ::= [^"\\{_CONTROL}{_SPACE}] | "\\" ["\\]',
        rf'char ::= [^"\\{_CONTROL}] | "\\" ["\\nt]',
        *_access_rules(
            numbers,
            nothing="[]",
            everything='["all"]',
            opening="[",
            separator=",",
            closing="]",
            number='"{}"',
        ),
        *_json_until(numbers, steps, selectors),
    ]


def _json_until(numbers: range, steps: list[str], selectors: Sequence[str]) -> list[str]:
    if not selectors:
        return []
    every = [_literal("[" + ",".join(f'"{j}"' for j in numbers[:i]) + "]") for i in range(len(numbers))]
    lasts = [_json_step(index, "selector", read) for index, read in zip(numbers, every, strict=True)]
    return [
        " ".join(
            [
                "until ::=",
                _literal('{"until":'),
                "fraction",
                _literal(',"steps":['),
                _stopping(steps, lasts, separator='","'),
                _literal("]}"),
            ]
        ),
        _FRACTION,
        _alternatives("selector", selectors),
    ]


def _json_step(index: int, worker: str, access: str) -> str:
    return (
        _literal(f'{{"id":"{index}","models":["')
        + f" {worker} "
        + _literal('"],"prompt":')
        + " string "
        + _literal(',"access_list":')
        + f" {access} "
        + _literal("}")
    )


def _access_rules(
    numbers: range,
    *,
    nothing: str,
    opening: str,
    separator: str,
    closing: str,
    number: str,
    everything: str = "",
) -> list[str]:
    """`access-k`: what step k may read: nothing, everything, or numbers below k in ascending order.

    `upto-j` is one number or more, ascending, none above j; so the rules grow with the number of steps, not its square.
    """
    rules = []
    for step in numbers:
        choices = [_literal(nothing)]
        if step:
            choices += [_literal(everything)] if everything else []
            choices.append(
                " ".join(
                    _literal(text) if text != "upto" else f"upto-{step - 1}"
                    for text in (opening, "upto", closing)
                    if text
                )
            )
        rules.append(f"access-{step} ::= {' | '.join(choices)}")
    for j in range(numbers[-1]):
        alone = _literal(number.format(j))
        more = f" | upto-{j - 1} ({_literal(separator + number.format(j))})?" if j else ""
        rules.append(f"upto-{j} ::= {alone}{more}")
    return rules


def _nested(parts: list[str], *, separator: str) -> str:
    """The first part, or the first two, or the first three: `a (", " b (", " c)?)?`."""
    nested = parts[-1]
    for part in reversed(parts[:-1]):
        nested = f"{part} ({separator} {nested})?"
    return nested


def _stopping(steps: list[str], lasts: list[str], *, separator: str) -> str:
    """At least two steps, of which the last is one of `lasts`: `a "," (B | b "," (C | c "," D))`."""
    nested = lasts[-1]
    for step, last in zip(steps[-2:0:-1], lasts[-2:0:-1], strict=True):
        nested = f"({last} | {step} {separator} {nested})"
    return f"{steps[0]} {separator} {nested}"


def _alternatives(name: str, words: Sequence[str]) -> str:
    return f"{name} ::= {' | '.join(_literal(word) for word in words)}"


def _literal(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _most_chars(wanted: int, numbers: range) -> int:
    """As many characters as keep a plan within the bound on text in every dialect, at 6 bytes a character."""
    rest_bytes = 320 + 6 * numbers.stop  # of a step: its worker, its marks, and every earlier step that it reads
    return min(wanted, (MAX_TEXT_BYTES - rest_bytes * len(numbers)) // (6 * len(numbers)))
