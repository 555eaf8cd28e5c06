"""Overrides: an operator's rules, which apply before the conductor chooses. The rules are `[[override]]` of the
configuration; the first that fits a request counts. Its effect is noted on the
trace and in the audit log. A rule narrows and redirects; it never widens what a key may use.

The kind of a request is the `task_kind` of its metadata; without one it is guessed by plain signs, in this order: an
image, tools, JSON asked for, code (a fence, or words of programming), maths (a formula, or words of mathematics), else
chat. If a wrong guess would matter, let the caller send the label.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import get_args

from dirigent.config.server_settings import Override, TaskKind
from dirigent.serve.runs.asked import Asked
from dirigent.store import Store
from dirigent.store.audit import Entry, record
from dirigent.store.keys import Caller

KIND_FIELD = "task_kind"
"""A label in a request's metadata."""

CODE = re.compile(
    r"```|\b(?:python|javascript|typescript|rust|sql|regex|stack trace|unit test|refactor|compile[rs]?)\b",
    re.IGNORECASE,
)
CODE_WORD = re.compile(r"\b(?:def|class|import|return|function|const|SELECT)\b", re.IGNORECASE)
CODE_SIGN = re.compile(r"[(){};:=]")
"""Searched behind such a word, on its line. One pattern for both would read the rest of a line again for each word."""
MATHS = re.compile(
    r"\d\s*[-+*/^=×÷]\s*\d|\\frac|\\int|\b(?:solve|prove|integral|derivative|equation|theorem|probability|how many)\b",
    re.IGNORECASE,
)


def rule_for(rules: Sequence[Override], asked: Asked, *, caller: Caller) -> Override | None:
    """The first rule that fits the request."""
    if not rules:
        return None
    last = next((message.text for message in reversed(asked.question) if message.role == "user"), "")
    kind = task_kind(asked)
    for rule in rules:
        fits = (
            rule.key in ("", caller.key_id, caller.label)
            and rule.model in ("", asked.model)
            and rule.kind in (None, kind)
            and (not rule.matches or re.search(rule.matches, last, re.IGNORECASE) is not None)
        )
        if fits:
            return rule
    return None


def task_kind(asked: Asked) -> TaskKind:
    """The kind of the request: the caller's own label, else a guess by plain signs."""
    known: tuple[TaskKind, ...] = get_args(TaskKind)
    for kind in known:  # metadata is the caller's own, so a word that is no kind has no effect
        if asked.metadata.get(KIND_FIELD) == kind:
            return kind
    text = "\n".join(message.text for message in asked.question if message.role == "user")
    if any(message.images for message in asked.question):
        return "images"
    if asked.options.tools:
        return "tools"
    if asked.options.schema is not None or asked.options.json_mode:
        return "json"
    if CODE.search(text) or any(map(_is_code, text.split("\n"))):
        return "code"
    return "maths" if MATHS.search(text) else "chat"


def note_of(rule: Override) -> str:
    """The note on the trace."""
    effects = []
    if rule.pin:
        effects.append(f"only {rule.pin}")
    if rule.deny:
        effects.append(f"not {', '.join(rule.deny)}")
    if rule.planner:
        effects.append(f"planned by {rule.planner}")
    if rule.profile:
        effects.append(f"profile {rule.profile}")
    return f"override {rule.name}: {'; '.join(effects)}"


async def recorded(store: Store, rule: Override, *, caller: Caller, model: str, run_id: str) -> None:
    """Write the rule into the audit log, before the run begins."""
    details = {"rule": rule.name, "effect": note_of(rule), "model": model, "run_id": run_id}
    await record(store, Entry(caller.key_id, "override.apply", details))


def _is_code(line: str) -> bool:
    word = CODE_WORD.search(line)
    return word is not None and CODE_SIGN.search(line, word.end()) is not None
