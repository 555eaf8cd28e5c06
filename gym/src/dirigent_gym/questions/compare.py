"""Compare a plan with a task's cheapest right one: decomposition, routing, access, length, parallelism.

It reads subtasks with `recognition.recognise`, so a plan in other words than the sketch is still right if it asks for
the same operations on the same things. Steps that do not depend on one another may have any order. The grader scores
the answer; this module only locates the fault of a wrong plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dirigent.plan.plan import Plan, Step
from dirigent.tasks.task import Sketch, SketchStep, Task
from dirigent_gym.questions.recognition import recognise
from dirigent_gym.questions.skills import CHECK_SKILL, PUZZLE_SKILL
from dirigent_gym.questions.specialists import ROSTER, Specialist, able

LEAST_GUESSES = 2
"""A check over fewer candidates than this selects nothing."""


class Comparison(msgspec.Struct, frozen=True):
    decomposition: bool
    """Whether the plan has the right operations, on the right things, each after the steps that it needs."""
    routing: bool
    """Whether the decomposition is right and each step goes to a worker that can do it."""
    access: bool
    """Whether the decomposition is right and each step reads exactly the results that it needs."""
    routed_share: float
    """The share of recognised steps whose worker can do them; 0 if no step was recognised."""
    steps: int
    minimal_steps: int
    minimal: bool
    """Whether the plan is no longer than the cheapest right plan."""
    parallel: bool
    """Whether its longest chain is no longer than the cheapest right plan's."""


def compare(task: Task, plan: Plan, *, roster: Sequence[Specialist] = ROSTER) -> Comparison:
    """Compares a plan with the task's sketch. The roster has the skill of each worker, by name."""
    workers = {specialist.name: specialist for specialist in roster}
    sketch = task.sketch or Sketch(())
    match = _match(plan.steps, sketch.steps)
    matched = set(match.values())
    # Only guesses at a puzzle may be missing.
    missing = [step for j, step in enumerate(sketch.steps) if j not in matched and step.skill != PUZZLE_SKILL]
    complete = bool(sketch.steps) and len(match) == len(plan.steps) and not missing
    chosen = [(workers.get(plan.steps[i].worker), sketch.steps[j]) for i, j in match.items()]
    good = [specialist is not None and able(specialist, step) for specialist, step in chosen]
    access = all(
        {match[k] for k in plan.steps[i].access} == {j for j in sketch.steps[want].access if j in matched}
        for i, want in match.items()
        if complete
    )
    return Comparison(
        decomposition=complete,
        routing=complete and all(good),
        access=complete and access,
        routed_share=sum(good) / len(good) if good else 0.0,
        steps=len(plan.steps),
        minimal_steps=len(sketch.steps),
        minimal=len(plan.steps) <= len(sketch.steps),
        parallel=_depth(plan.steps) <= sketch.depth,
    )


def _match(steps: Sequence[Step], wanted: Sequence[SketchStep]) -> dict[int, int]:
    """Plan step -> sketch step, in order; each sketch step is used once."""
    found: dict[int, int] = {}
    for i, step in enumerate(steps):
        for j, want in enumerate(wanted):
            if j not in found.values() and _asks_for(step, want) and _ready(want, found):
                found[i] = j
                break
    return found


def _asks_for(step: Step, want: SketchStep) -> bool:
    checking = want.skill == CHECK_SKILL
    if (want.skill == PUZZLE_SKILL or checking) and bool(step.access) != checking:
        return False
    for reading in recognise(step.subtask):
        if reading.operation != want.operation:
            continue
        if not reading.refers:
            return reading.key == want.key and (not want.access or checking)
        return bool(want.access) and (not reading.parameter or reading.parameter == want.key[-1])
    return False


def _ready(want: SketchStep, found: Mapping[int, int]) -> bool:
    """Returns whether the steps that the sketch step needs were matched before; of several guesses two are enough."""
    matched = sum(j in found.values() for j in want.access)
    return matched >= (LEAST_GUESSES if want.skill == CHECK_SKILL else len(want.access))


def _depth(steps: Sequence[Step]) -> int:
    depths: list[int] = []
    for step in steps:
        depths.append(1 + max((depths[j] for j in step.access), default=0))
    return max(depths, default=0)
