"""Planner: anything that writes a plan. Its Draft is text; `parse_plan` alone makes a Plan of it.

`LanguagePlanner` turns any worker into a planner, prompted or trained. Fixed and published planners are in
`planners/`; they write drafts too, so that every plan goes through the same door.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from dirigent.limits import Ledger, Limits
from dirigent.messages import Attempt, Message, Observe, Request, Schema, ignore
from dirigent.plan.grammar import plan_grammar, plan_schema
from dirigent.plan.plan import Dialect
from dirigent.plan.prompt import (
    next_round_messages,
    prompted_planner_messages,
    repair_messages,
    trained_planner_messages,
)
from dirigent.workers.metering import metered
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Worker


class Previous(msgspec.Struct, frozen=True):
    """The round before: what the planner wrote and what came of it."""

    draft: str
    answer: str


class Brief(msgspec.Struct, frozen=True):
    """What a planner is given."""

    question: tuple[Message, ...]
    pool: Pool
    limits: Limits
    secret: str = ""
    """Of the run; the marks around data are derived from it."""
    previous: Previous | None = None
    """Set from the second round on: the planner may accept, or plan anew."""
    refused: str = ""
    """Set when its last draft was no plan: that draft."""
    fault: str = ""
    """Why that draft was refused."""
    deadline: float | None = None
    ledger: Ledger | None = None
    tenant: str = ""


class Draft(msgspec.Struct, frozen=True):
    """What a planner wrote."""

    text: str
    dialect: Dialect
    messages: tuple[Message, ...] = ()
    """What it was shown, where it is a model."""
    attempts: tuple[Attempt, ...] = ()


class Planner(Protocol):
    @property
    def name(self) -> str: ...

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        """Write a plan, or raise `WorkerError` where the model behind it fails."""
        ...


class LanguagePlanner:
    """A planner whose drafts are written by a worker.

    Where the worker can decode under a grammar or a schema, it does, and its drafts are valid by construction.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        dialect: Dialect = "lists",
        few_shots: bool = True,
        show_names: bool = True,
        trained: bool = False,
        temperature: float | None = 0.0,
        max_output_tokens: int = 1024,
        name: str = "",
    ) -> None:
        self.worker = worker
        self.name = name or f"language:{worker.info.name}"
        self._dialect: Dialect = dialect
        self._few_shots = few_shots
        self._show_names = show_names
        self._trained = trained
        self._temperature = temperature
        self._max_output_tokens = max_output_tokens

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        messages = self._messages(brief)
        abilities = self.worker.info.abilities
        may_accept = brief.previous is not None
        grammar, schema = "", None
        if "grammar" in abilities:
            grammar = plan_grammar(brief.pool, brief.limits, dialect=self._dialect, may_accept=may_accept)
        elif self._dialect == "json" and "schema" in abilities:
            schema = Schema(plan_schema(brief.pool, brief.limits, may_accept=may_accept), name="plan")
        reply = await metered(self.worker).ask(
            Request(
                messages=messages,
                grammar=grammar,
                schema=schema,
                temperature=self._temperature,
                max_output_tokens=self._max_output_tokens,
                deadline=brief.deadline,
                ledger=brief.ledger,
                tenant=brief.tenant,
            ),
            observe=observe,
        )
        return Draft(reply.text, self._dialect, messages=messages, attempts=reply.attempts)

    def _messages(self, brief: Brief) -> tuple[Message, ...]:
        if self._trained:
            messages = trained_planner_messages(brief.question, brief.pool.infos, limits=brief.limits)
        else:
            messages = prompted_planner_messages(
                brief.question,
                brief.pool.infos,
                limits=brief.limits,
                dialect=self._dialect,
                secret=brief.secret,
                few_shots=self._few_shots,
                show_names=self._show_names,
            )
        if brief.previous is not None:
            messages += next_round_messages(
                brief.previous.draft, brief.previous.answer, dialect=self._dialect, secret=brief.secret
            )
        if brief.fault:
            messages += repair_messages(brief.refused, brief.fault)
        return messages
