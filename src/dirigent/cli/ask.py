"""`dirigent ask` answers a question; `dirigent plan` only plans it.

The answer goes to stdout; plan, progress, cost and the trace's id go to stderr. Every run is stored, even a failed or
interrupted one. A store that fails prints a warning and never loses the answer.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dirigent.cli.output import (
    FAILED,
    ConfigOption,
    JsonOption,
    carry_out,
    print_json,
    print_text,
    read_piped,
    read_question,
    say,
    say_error,
    short,
    with_piped,
)

if TYPE_CHECKING:
    from dirigent.conduct import Conductor
    from dirigent.config.runtime import Runtime
    from dirigent.plan.plan import Plan
    from dirigent.run.trace import Trace

QuestionArgument = Annotated[list[str], typer.Argument(help="The question; `-` reads it from stdin.")]
ProfileOption = Annotated[str, typer.Option(help="The profile: mini, ultra, or one of yours.")]
PlannerOption = Annotated[str, typer.Option(help="{planners}.")]
WorkerOption = Annotated[str, typer.Option(help="The worker that plans (language, conductor) or answers (the others).")]
StepsOption = Annotated[int | None, typer.Option(help="Most steps in a plan.")]


def ask(
    question: QuestionArgument,
    profile: ProfileOption = "",
    planner: PlannerOption = "",
    worker: WorkerOption = "",
    plan: Annotated[Path | None, typer.Option(help="A file with the plan to run (json, lists or lines).")] = None,
    no_reassign: Annotated[
        bool, typer.Option("--no-reassign", help="Do not give a failed step to another worker.")
    ] = False,
    max_cost: Annotated[float | None, typer.Option(help="Most the run may cost, in USD.")] = None,
    deadline: Annotated[float | None, typer.Option(help="Most seconds for the whole run.")] = None,
    max_steps: StepsOption = None,
    rounds: Annotated[int | None, typer.Option(help="Most rounds of planning.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    trace: Annotated[bool, typer.Option("--trace", help="Also draw the trace, on stderr.")] = False,
) -> None:
    """Answer a question with the workers of the pool.

    Text piped to stdin is added after the question.

    Example:  dirigent ask "Why does this test fail?" --max-cost 0.20 < test.log
    """
    changes = set_options(
        planner=planner,
        planner_worker=worker,
        reassign=False if no_reassign else None,
        max_cost_usd=max_cost,
        deadline_s=deadline,
        max_steps=max_steps,
        max_rounds=rounds,
    )

    async def work(text: str, piped: str) -> int:
        from dirigent.cli.running import open_pool, watched_run

        async with open_pool(config) as runtime:
            fixed = _plan_in(plan, runtime, profile, changes) if plan is not None else None
            conductor = runtime.conductor(profile, changes=changes, plan=fixed)
            if piped:
                conductor.notes += (f"read {len(piped):,} characters from stdin, after the question",)
            run = await watched_run(conductor, with_piped(text, piped), config=runtime.config)
            return report(run, as_json=as_json, draw=trace)

    carry_out(lambda: work(read_question(question), read_piped(question)), as_json=as_json)


def plan(
    question: QuestionArgument,
    profile: ProfileOption = "",
    planner: PlannerOption = "",
    worker: WorkerOption = "",
    max_steps: StepsOption = None,
    dialect: Annotated[str, typer.Option(help="Print the plan as text: json, lists or lines.")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan a question without running the plan: prints the plan, its critical path and its estimated cost.

    Example:  dirigent plan "Compare these two contracts: …" --dialect json > plan.json
    """
    changes = set_options(planner=planner, planner_worker=worker, max_steps=max_steps)

    async def work(text: str) -> None:
        from dirigent.cli.running import open_pool

        _check_dialect(dialect)
        async with open_pool(config) as runtime:
            await _draft(runtime.conductor(profile, changes=changes), text, dialect=dialect, as_json=as_json)

    carry_out(lambda: work(with_piped(read_question(question), read_piped(question))), as_json=as_json)


def set_options(**options: Any) -> dict[str, Any]:
    """Returns the options that the user set, by the profile's name for them."""
    return {name: value for name, value in options.items() if value is not None and value != ""}


def report(trace: Trace, *, as_json: bool, draw: bool) -> int:
    """Prints the result of a run; returns the exit code."""
    from dirigent.show import cost_text, draw_summary, draw_trace, print_drawing, width_of
    from dirigent.show.confirmation import confirmation, is_unmeasured

    if draw:
        print_drawing(draw_trace(trace, width=width_of(sys.stderr)), file=sys.stderr)
    if as_json:
        print_json(summary(trace))
    elif trace.status == "done":
        print_text(trace.answer or _tool_calls(trace))
    if trace.status == "done":
        print_drawing(draw_summary(trace), file=sys.stderr)
        if is_unmeasured(trace):
            say(confirmation(trace))
        return 0
    id = short(trace.id)
    say_error(f"{trace.error}\nspent {cost_text(trace)} · trace {id} · `dirigent traces show {id}`")
    return FAILED


def summary(trace: Trace) -> dict[str, Any]:
    """Returns the object that `ask --json` prints."""
    usage = trace.usage
    plan = trace.plan
    result: dict[str, Any] = {
        "answer": trace.answer,
        "trace_id": trace.id,
        "plan": steps_of(plan) if plan is not None else [],
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "orchestration_input_tokens": usage.orchestration_input_tokens,
            "orchestration_output_tokens": usage.orchestration_output_tokens,
            "calls": usage.calls,
        },
        "cost_usd": trace.cost_usd,
        "notional_usd": trace.notional_usd,
        "seconds": trace.seconds,
    }
    if plan is not None and plan.until is not None:
        result["until"] = plan.until
    if trace.status != "done":
        result |= {"error": trace.error, "status": trace.status}
    return result


def steps_of(plan: Plan) -> list[dict[str, Any]]:
    return [{"worker": s.worker, "subtask": s.subtask, "access": list(s.access)} for s in plan.steps]


def _plan_in(file: Path, runtime: Runtime, profile: str, changes: dict[str, Any]) -> Plan:
    """Returns the plan in a file, checked against the pool and the limits before any call."""
    from dirigent.errors import ConfigError
    from dirigent.plan.plan import parse_any

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the plan {file} cannot be read: {error}") from None
    conductor = runtime.conductor(profile, changes=changes)
    return parse_any(text, conductor.pool, conductor.limits)


def _tool_calls(trace: Trace) -> str:
    return "\n".join(f"{call.name}({call.arguments})" for call in trace.tool_calls)


def _check_dialect(dialect: str) -> None:
    from dirigent.errors import ConfigError
    from dirigent.toml import nearest

    known = ("json", "lists", "lines")
    if dialect and dialect not in known:
        raise ConfigError(f'no dialect is called "{dialect}"{nearest(dialect, known)}')


async def _draft(conductor: Conductor, question: str, *, dialect: Any, as_json: bool) -> None:
    from dirigent.plan.plan import critical_path, format_plan
    from dirigent.run.trace import total_usage
    from dirigent.show import draw_plan, print_drawing, usd_text, width_of

    drafted = await conductor.draft(question)
    assert drafted.plan is not None  # `draft` raises if there is no plan
    cost = _estimate(conductor, drafted.plan, question)
    attempts = [attempt for draft in drafted.drafts for attempt in draft.attempts]
    text = format_plan(drafted.plan, conductor.pool, dialect=dialect or "json")
    reason = drafted.drafts[-1].reason
    if as_json:
        usage = total_usage(attempts)
        result: dict[str, Any] = {
            "plan": steps_of(drafted.plan),
            "text": text,
            "fallback": drafted.fallback,
            "critical_path": critical_path(drafted.plan),
            "estimate_usd": {"low": cost[0], "high": cost[1]} if cost else None,
            "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
            "cost_usd": sum(attempt.cost_usd for attempt in attempts),
        }
        if drafted.plan.until is not None:
            result["until"] = drafted.plan.until
        if reason is not None:
            result["why"] = reason.why
        print_json(result)
        return
    if dialect:
        print_text(text)
    else:
        print_drawing(draw_plan(drafted.plan, conductor.pool.infos, width=width_of()))
    if reason is not None:
        say(f"why  {reason.why}")
    known = f"estimate {usd_text(cost[0])}–{usd_text(cost[1])}" if cost else "estimate –: a price is unknown"
    if cost and cost[1] and all(conductor.pool[step.worker].info.kind == "local" for step in drafted.plan.steps):
        known += " (notional: local models)"
    say(f"{conductor.planner.name}{', fell back' if drafted.fallback else ''} · {known}")


def _estimate(conductor: Conductor, plan: Plan, question: str) -> tuple[float, float] | None:
    from dirigent.errors import ConfigError
    from dirigent.run.cost_estimate import estimate

    try:
        found = estimate(plan, conductor.pool, question, limits=conductor.limits)
    except ConfigError:
        return None  # a worker without a price
    return found.low_usd, found.high_usd
