"""Planner: anything that writes a plan, as a Draft.

A planner that is a model writes text, which `parse_plan` reads. A planner that is a program puts its Plan into the
draft, which `check_plan` checks in the same way. `LanguagePlanner` turns any worker into a planner, prompted or
trained; fixed and published planners are in `planners/`.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from dirigent.errors import PlanError
from dirigent.limits import Ledger, Limits
from dirigent.messages import Attempt, Message, Observe, Request, Schema, Warm, ignore
from dirigent.plan.grammar import plan_grammar, plan_schema
from dirigent.plan.plan import Dialect, EarlierStep, Plan, Reason, check_plan, format_plan, parse_plan
from dirigent.plan.prompt import (
    next_round_messages,
    prompted_planner_messages,
    repair_messages,
    trained_planner_messages,
)
from dirigent.workers.metering import metered
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Ability, Worker

REPAIR_TEMPERATURE = 0.7
"""Of a planner that writes at temperature 0: a repair without any chance would repeat the same fault."""


class Previous(msgspec.Struct, frozen=True):
    """The round before."""

    draft: str
    """The planner's text; empty if its draft carried a plan."""
    answer: str
    plan: Plan = Plan()
    steps: tuple[EarlierStep, ...] = ()
    """Every step of the run so far, in the order of their numbers. A new plan's steps may read them."""


class Brief(msgspec.Struct, frozen=True):
    """All that a planner gets: question, pool, limits, and in later rounds the run so far."""

    question: tuple[Message, ...]
    pool: Pool
    limits: Limits
    secret: str = ""
    """A secret of the run. The marks around data are derived from it."""
    previous: Previous | None = None
    """Set from the second round on: the planner may accept the answer, or write a new plan."""
    refused: str = ""
    """The planner's last draft, if it was no valid plan."""
    fault: str = ""
    """Why that draft was refused."""
    deadline: float | None = None
    ledger: Ledger | None = None
    tenant: str = ""
    needs: frozenset[Ability] = frozenset()
    """The abilities that a worker must have to answer the caller's request as it is."""
    warm: Warm | None = None
    """The workers that read the beginning of this conversation a short time ago."""

    @property
    def earlier(self) -> int:
        """How many steps the earlier rounds have: the number of the new plan's first step."""
        return 0 if self.previous is None else len(self.previous.steps)


class Draft(msgspec.Struct, frozen=True):
    """A planner's output: a text in a dialect, or a plan."""

    text: str = ""
    dialect: Dialect = "lists"
    messages: tuple[Message, ...] = ()
    """The prompt, if the planner is a model."""
    attempts: tuple[Attempt, ...] = ()
    plan: Plan | None = None
    """The plan, from a planner that is a program. `text` is not read then."""
    reason: Reason | None = None
    cut_at_tokens: int | None = None
    """The limit at which the text was cut; None if it ended by itself."""


def read_draft(draft: Draft, brief: Brief) -> Plan:
    """The plan in a draft, within the brief's pool and limits; raises `PlanError` if the draft has no plan."""
    may_accept, earlier = brief.previous is not None, brief.earlier
    if draft.plan is not None:
        return check_plan(draft.plan, brief.pool, brief.limits, may_accept=may_accept, earlier=earlier)
    try:
        return parse_plan(
            draft.text, brief.pool, brief.limits, dialect=draft.dialect, may_accept=may_accept, earlier=earlier
        )
    except PlanError as error:
        if draft.cut_at_tokens is None:
            raise
        raise PlanError(f"{error} (the draft was cut at planner_output_tokens = {draft.cut_at_tokens})") from None


class Planner(Protocol):
    @property
    def name(self) -> str: ...

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        """Returns a draft; raises `WorkerError` if the model behind the planner fails."""
        ...


class Shape:
    """A planner that makes its plan without a model. In a later round it accepts the answer."""

    name: str

    def plan(self, brief: Brief) -> Plan:
        """The plan of the first round."""
        raise NotImplementedError

    def at_once(self, brief: Brief) -> Draft:
        """The draft, without waiting: the conductor needs no timer for it."""
        return Draft(plan=self.plan(brief) if brief.previous is None else Plan())

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        return self.at_once(brief)


class LanguagePlanner:
    """A planner whose drafts a worker writes.

    If the worker can decode under a grammar or a schema, it does, so that its drafts are valid by construction.
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
            grammar = plan_grammar(
                brief.pool, brief.limits, dialect=self._dialect, may_accept=may_accept, earlier=brief.earlier
            )
        elif self._dialect == "json" and "schema" in abilities:
            shape = plan_schema(brief.pool, brief.limits, may_accept=may_accept, earlier=brief.earlier)
            schema = Schema(shape, name="plan")
        reply = await metered(self.worker).ask(
            Request(
                messages=messages,
                grammar=grammar,
                schema=schema,
                temperature=REPAIR_TEMPERATURE if brief.fault and self._temperature == 0 else self._temperature,
                max_output_tokens=self._max_output_tokens,
                drafts=True,
                deadline=brief.deadline,
                ledger=brief.ledger,
                tenant=brief.tenant,
            ),
            observe=observe,
        )
        cut_at = self._max_output_tokens if reply.finish == "length" else None
        return Draft(reply.text, self._dialect, messages=messages, attempts=reply.attempts, cut_at_tokens=cut_at)

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
            before = brief.previous
            draft = before.draft or format_plan(before.plan, brief.pool, dialect=self._dialect)
            messages += next_round_messages(draft, before.steps, dialect=self._dialect, secret=brief.secret)
        if brief.fault:
            messages += repair_messages(brief.refused, brief.fault)
        return messages
