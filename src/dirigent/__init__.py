"""Dirigent: one endpoint over all your language models, conducted by a small trained one.

    conductor = Conductor(LanguagePlanner(worker), Pool([worker, other]))
    trace = await conductor.run("question")

Importing this does no network and loads next to nothing: each name is fetched from its module on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dirigent.version import __version__

if TYPE_CHECKING:
    from dirigent.conduct import Conductor
    from dirigent.errors import (
        ConfigError,
        CostError,
        DeadlineError,
        DirigentError,
        GradeError,
        LimitError,
        PlanError,
        StoreError,
        WorkerError,
    )
    from dirigent.limits import Budget, Ledger, Limits
    from dirigent.messages import Image, Message, Reply, Request, Schema, Text, Tool, ToolCall, Usage
    from dirigent.plan.grammar import plan_grammar, plan_schema
    from dirigent.plan.plan import Plan, Step, format_plan, parse_any, parse_plan
    from dirigent.plan.planner import Brief, Draft, LanguagePlanner, Planner
    from dirigent.planners.fixed import FanOut, Fixed, Reflect, Single, Vote
    from dirigent.run.cost_estimate import Estimate, estimate
    from dirigent.run.execution import Execution, execute
    from dirigent.run.trace import StepRecord, Trace
    from dirigent.workers.metering import Metered
    from dirigent.workers.pool import Pool
    from dirigent.workers.scripted import FromFunction, Scripted
    from dirigent.workers.worker import Price, Worker, WorkerInfo

__all__ = [
    "Brief",
    "Budget",
    "Conductor",
    "ConfigError",
    "CostError",
    "DeadlineError",
    "DirigentError",
    "Draft",
    "Estimate",
    "Execution",
    "FanOut",
    "Fixed",
    "FromFunction",
    "GradeError",
    "Image",
    "LanguagePlanner",
    "Ledger",
    "LimitError",
    "Limits",
    "Message",
    "Metered",
    "Plan",
    "PlanError",
    "Planner",
    "Pool",
    "Price",
    "Reflect",
    "Reply",
    "Request",
    "Schema",
    "Scripted",
    "Single",
    "Step",
    "StepRecord",
    "StoreError",
    "Text",
    "Tool",
    "ToolCall",
    "Trace",
    "Usage",
    "Vote",
    "Worker",
    "WorkerError",
    "WorkerInfo",
    "__version__",
    "estimate",
    "execute",
    "format_plan",
    "parse_any",
    "parse_plan",
    "plan_grammar",
    "plan_schema",
]

_MODULES = {
    "dirigent.conduct": "Conductor",
    "dirigent.errors": "ConfigError CostError DeadlineError DirigentError GradeError LimitError PlanError "
    "StoreError WorkerError",
    "dirigent.run.cost_estimate": "Estimate estimate",
    "dirigent.run.execution": "Execution execute",
    "dirigent.plan.grammar": "plan_grammar plan_schema",
    "dirigent.limits": "Budget Ledger Limits",
    "dirigent.messages": "Image Message Reply Request Schema Text Tool ToolCall Usage",
    "dirigent.workers.metering": "Metered",
    "dirigent.plan.plan": "Plan Step format_plan parse_any parse_plan",
    "dirigent.plan.planner": "Brief Draft LanguagePlanner Planner",
    "dirigent.planners.fixed": "FanOut Fixed Reflect Single Vote",
    "dirigent.workers.pool": "Pool",
    "dirigent.run.trace": "StepRecord Trace",
    "dirigent.workers.worker": "Price Worker WorkerInfo",
    "dirigent.workers.scripted": "FromFunction Scripted",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'dirigent' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
