"""The gym under evaluation, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.evals.samples import RUNNING

from dirigent.evals.evaluate import evaluate
from dirigent.evals.report import Report
from dirigent.planners.spec import PlannerFor
from dirigent_gym.evals.evaluation import GymField
from dirigent_gym.evals.pools import Gym


async def evaluate_gym(
    gym: Gym, planners: Sequence[str], *, factories: Mapping[str, PlannerFor] | None = None, **given: Any
) -> Report:
    """Planners on the gym; the options belong to the field or to the run."""
    running = {name: given.pop(name) for name in RUNNING if name in given}
    return await evaluate(GymField(gym, trained=factories, **given), planners, **running)
