"""Overrides: an operator's rules that go before whatever the conductor would choose.

The rules stand in `[[override]]` of the configuration; the first that fits a request counts. What it does is put on
the trace as a note and in the audit log. A rule narrows and redirects; it never widens what a key may use.

What a request is about (`kind`) is its metadata's `task_kind` where the caller says it, else a guess by plain signs,
in this order: an image, tools, JSON asked for, code (a fence, or words of programming), maths (a formula, or words of
mathematics), else chat. A guess is a guess: where it matters, let the caller say it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import get_args

from dirigent.config.server_settings import Override, TaskKind
from dirigent.messages import Message, Request
from dirigent.store import Store
from dirigent.store.audit import Entry, record
from dirigent.store.keys import Caller

KIND_FIELD = "task_kind"
"""Of a request's metadata."""

CODE = re.compile(
    r"```|\b(?:python|javascript|typescript|rust|sql|regex|stack trace|unit test|refactor|compile[rs]?)\b",
    re.IGNORECASE,
)
CODE_WORD = re.compile(r"\b(?:def|class|import|return|function|const|SELECT)\b", re.IGNORECASE)
CODE_SIGN = re.compile(r"[(){};:=]")
"""After such a word, on its line. Two patterns, since one would read the rest of a line again for each of its words."""
MATHS = re.compile(
    r"\d\s*[-+*/^=×÷]\s*\d|\\frac|\\int|\b(?:solve|prove|integral|derivative|equation|theorem|probability|how many)\b",
    re.IGNORECASE,
)


def rule_for(
    rules: Sequence[Override],
    *,
    caller: Caller,
    model: str,
    question: tuple[Message, ...],
    options: Request,
    metadata: Mapping[str, str] | None = None,
) -> Override | None:
    """The first rule that fits the request."""
    if not rules:
        return None
    last = next((message.text for message in reversed(question) if message.role == "user"), "")
    kind = task_kind(question, options, metadata=metadata)
    for rule in rules:
        fits = (
            rule.key in ("", caller.key_id, caller.label)
            and rule.model in ("", model)
            and rule.kind in (None, kind)
            and (not rule.matches or re.search(rule.matches, last, re.IGNORECASE) is not None)
        )
        if fits:
            return rule
    return None


def task_kind(
    question: tuple[Message, ...], options: Request, *, metadata: Mapping[str, str] | None = None
) -> TaskKind:
    """What the request is about: as the caller says, else by plain signs."""
    if (said := _said_kind(metadata)) is not None:
        return said
    text = "\n".join(message.text for message in question if message.role == "user")
    if any(message.images for message in question):
        return "images"
    if options.tools:
        return "tools"
    if options.schema is not None or options.json_mode:
        return "json"
    if CODE.search(text) or any(map(_is_code, text.split("\n"))):
        return "code"
    return "maths" if MATHS.search(text) else "chat"


def note_of(rule: Override) -> str:
    """What the trace says of it."""
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
    """In the audit log, before the run begins."""
    details = {"rule": rule.name, "effect": note_of(rule), "model": model, "run_id": run_id}
    await record(store, Entry(caller.key_id, "override.apply", details))


def _is_code(line: str) -> bool:
    word = CODE_WORD.search(line)
    return word is not None and CODE_SIGN.search(line, word.end()) is not None


def _said_kind(metadata: Mapping[str, str] | None) -> TaskKind | None:
    """Metadata is the caller's own: a word of theirs that is none of ours says nothing, and is no mistake."""
    said = (metadata or {}).get(KIND_FIELD)
    known: tuple[TaskKind, ...] = get_args(TaskKind)
    return next((kind for kind in known if kind == said), None)
