"""From a planner to a plan: drafted, read, and mended while there are tries left.

Every draft is recorded, also one that was refused or never came. Knows nothing of rounds, of the fallback or of what
the plan is for: that is `conduct.py`'s part. What makes a plan of a draft is `read_draft`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

import msgspec

from dirigent.errors import DeadlineError, DirigentError, PlanError
from dirigent.limits import OutOfTime, within
from dirigent.plan.plan import Plan
from dirigent.plan.planner import Brief, Draft, Planner, read_draft
from dirigent.run.trace import DraftRecord
from dirigent.workers.metering import attempts_of

Keep = Callable[[DraftRecord], None]
"""Is given every draft as soon as it is known what became of it."""

_End = Callable[[Draft, str], None]
"""Ends a try: its draft, and why it was refused, if it was."""


async def drafted_plan(planner: Planner, brief: Brief, *, tries: int, started: float, keep: Keep) -> Plan:
    """The planner's plan. A draft that is none goes back to it with its fault; the last try's fault is raised.

    `started` is when the run began (monotonic): what is kept counts its seconds from there.
    """
    for left in range(tries - 1, -1, -1):
        end = partial(_end, planner, keep, started, time.monotonic())
        draft = await _drafted(planner, brief, started, end)
        try:
            plan = read_draft(draft, brief)
        except PlanError as error:
            end(draft, str(error))
            if not left:
                raise
            brief = msgspec.structs.replace(brief, refused=draft.text, fault=str(error))
        else:
            end(draft, "")
            return plan
    raise AssertionError("unreachable: the last try returns or raises")


async def _drafted(planner: Planner, brief: Brief, started: float, end: _End) -> Draft:
    """What the planner writes before the deadline. A planner that writes nothing ends its try here."""
    deadline = float("inf") if brief.deadline is None else brief.deadline
    try:
        return await within(max(0.0, deadline - time.monotonic()), planner.draft(brief))
    except OutOfTime as timeout:
        end(Draft(attempts=attempts_of(timeout.__cause__)), "ran out of time")
        limit = brief.limits.deadline_s
        whose = f"the deadline of {limit:g} s" if deadline == started + limit else "the caller's deadline"
        raise DeadlineError(f"{whose} passed while {planner.name} planned") from timeout
    except asyncio.CancelledError as cancelled:
        end(Draft(attempts=attempts_of(cancelled)), "the run was cancelled")
        raise
    except DirigentError as error:
        end(Draft(attempts=error.attempts), str(error))
        raise
    except Exception as bug:
        end(Draft(attempts=attempts_of(bug)), f"{type(bug).__name__}: {bug}")
        raise


def _end(planner: Planner, keep: Keep, started: float, began: float, draft: Draft, error: str) -> None:
    keep(
        DraftRecord(
            planner=planner.name,
            text=draft.text,
            dialect=draft.dialect,
            messages=draft.messages,
            attempts=draft.attempts,
            started_s=began - started,
            ended_s=time.monotonic() - started,
            error=error,
        )
    )
