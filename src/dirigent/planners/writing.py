"""What the planners of this package share: steps, the question as text, and the workers that can be asked.

A worker that never sees the question (`subtask_only`) is given it in its subtask: asked alone, it must be asked at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from dirigent.errors import ConfigError
from dirigent.plan.plan import Plan, Step
from dirigent.plan.planner import Brief, Draft
from dirigent.run.step_prompt import ANSWER
from dirigent.workers.pool import Pool


def once(plan: Plan, brief: Brief) -> Draft:
    """The plan in the first round; in a later round the empty plan, which accepts the answer."""
    return Draft(plan=Plan() if brief.previous is not None else plan)


def question_text(brief: Brief) -> str:
    return "\n".join(message.text for message in brief.question)


def step(brief: Brief, worker: str, words: str = ANSWER, access: Sequence[int] = ()) -> Step:
    """A step of this worker; where it would not see the question, its subtask brings it along."""
    if brief.pool[brief.pool.require(worker)].info.subtask_only:
        words = question_text(brief) if words == ANSWER else f"{question_text(brief)}\n{words}"
    return Step(worker, words, tuple(access))


def answering(pool: Pool) -> tuple[str, ...]:
    """The workers that can be asked a question, in pool order; readers of results (`workers/reader.py`) cannot."""
    return tuple(info.name for info in pool.infos if not info.reads_results)


def named(pool: Pool, worker: str | Sequence[str]) -> str:
    """The worker wanted: by name, the first of several that the pool has, or with none named the pool's first."""
    if isinstance(worker, str):
        return pool.require(worker) if worker else answering(pool)[0]
    there = [name for name in worker if name in pool]
    if not there:
        raise ConfigError(f"the pool has none of {', '.join(worker)}; it has {', '.join(pool.names)}")
    return there[0]
