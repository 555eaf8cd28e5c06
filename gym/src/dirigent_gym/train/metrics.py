"""The figures of a training step, and the watch that stops a run whose policy has collapsed.

`step_metrics` is arithmetic over scored rollouts; it smooths nothing and remembers nothing. `Collapse` reads those
figures step after step. In the known collapse, every question gets one generic step on one arbitrary worker. The reward
hardly shows it, because a wrong valid plan scores the same as before; the entropy of worker choice and the number of
steps do. A policy that chooses by position looks varied by name, because ids are permuted, so both entropies are
watched.

The gym's questions need several workers, so choosing one worker everywhere is wrong there, whatever it earns. Over a
user's own tasks and pool, one worker may simply be best, and the right plans are unknown. There the watch reports a
collapse only if the policy chose among workers before, and was then right more often by more than chance.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from dirigent.plan.plan import Plan
from dirigent_gym.questions.compare import Comparison, compare
from dirigent_gym.train.dataset import Row
from dirigent_gym.train.reward import Scored, grouped

Metrics = dict[str, float]

Rollout = tuple[Row, Scored]


def step_metrics(rows: Sequence[Row], scored: Sequence[Scored]) -> Metrics:
    """The figures of one step, given each row once for each of its rollouts. Shares are 0 to 1.

    Dropped rollouts are counted and otherwise left out. A figure that nothing can be measured on is left out too and
    not shown as 0: `steps_over_minimal` while no plan is right, `accuracy_depth_3` while no such question is asked.
    """
    kept = [(row, one) for row, one in zip(rows, scored, strict=True) if not one.dropped]
    figures: dict[str, float | None] = {
        "rollouts": float(len(kept)),
        "dropped": float(len(scored) - len(kept)),
        "valid": _mean(one.valid for _, one in kept),
        "accuracy": _mean(one.correct for _, one in kept),
        "accuracy_given_valid": _mean(one.correct for _, one in kept if one.valid),
        "reward_base": _mean(one.reward_base for _, one in kept if one.reward_base is not None),
        "zero_variance_groups": _mean(
            len({one.reward_base for one in group if not one.dropped}) <= 1 for group in grouped(rows, scored)
        ),
        "questions": float(len({row.id for row, _ in kept})),
        "plans_known": _mean(row.task.sketch is not None for row, _ in kept),
        "cost": _mean(one.cost for _, one in kept if one.valid),
        "cost_usd": _mean(one.cost_usd for _, one in kept if one.valid),
        **_plan_figures(kept),
        **_step_figures(kept),
        **_entropies(kept),
        **_accuracy_by(kept),
    }
    return {name: value for name, value in figures.items() if value is not None}


class CollapseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    patience: int = 3
    """Steps in a row that must look collapsed, so that one odd batch stops nothing."""
    entropy_floor: float = 0.25
    """The least entropy of worker choice; 1 is a choice spread as evenly as the pools offered."""
    accuracy_at_most: float = 0.5
    """A policy that is right more often than this has not collapsed, whatever its plans look like."""
    one_step: float = 1.03
    """The most steps on average that count as one step everywhere."""
    needed_steps: float = 1.3
    """The steps that questions need on average, from which on one step everywhere is a fault."""
    errors: float = 3.0
    """Standard errors by which accuracy must have fallen if the right plans are unknown. The test runs anew after every
    step: two errors would stop one run in four whose one worker is as good as all of them."""
    valid_floor: float = 0.3
    valid_before: float = 0.8
    """The validity that must have been reached once before its loss counts as a collapse."""


DEFAULT_WATCH = CollapseSettings()


class Asked(msgspec.Struct, frozen=True):
    """A number of questions, and the number of right answers among them."""

    questions: float = 0.0
    right: float = 0.0

    def more(self, metrics: Mapping[str, float]) -> Asked:
        questions = metrics.get("questions", 0.0)
        return Asked(self.questions + questions, self.right + questions * metrics.get("accuracy", 0.0))

    def above(self, other: Asked, *, errors: float) -> bool:
        """Whether the share of right answers is higher here by more than chance."""
        if not (self.questions and other.questions):
            return False
        share = (self.right + other.right) / (self.questions + other.questions)
        error = math.sqrt(share * (1 - share) * (1 / self.questions + 1 / other.questions))
        return self.right / self.questions - other.right / other.questions > errors * error


class CollapseState(msgspec.Struct, frozen=True):
    """The state of the watch. Checkpoints hold it."""

    one_worker: int = 0
    one_step: int = 0
    invalid: int = 0
    best_valid: float = 0.0
    varied: Asked = Asked()
    """The questions asked while several workers were chosen."""
    narrow: Asked = Asked()
    """The questions asked in the steps that `one_worker` counts."""


class Collapse:
    """Reads each step's figures and reports, once it is certain, how the policy has collapsed."""

    def __init__(
        self,
        settings: CollapseSettings = DEFAULT_WATCH,
        *,
        state: CollapseState | None = None,
    ) -> None:
        self.settings = settings
        self.state = state or CollapseState()

    def update(self, metrics: Mapping[str, float]) -> str | None:
        """Add one step's figures. Returns the message to stop with, or None."""
        self.state = _next_state(self.state, metrics, self.settings)
        found = _collapse_text(self.state, metrics, self.settings)
        return None if found is None else f"stopped: {found}. Checkpoint kept. See docs/how-it-learns.md#collapse"


def _plan_figures(kept: Sequence[Rollout]) -> dict[str, float | None]:
    """How often plans are right: in decomposition, and given that, in their workers and in their access."""
    known: dict[tuple[str, Plan], Comparison] = {}
    compared: list[Comparison | None] = []
    for row, one in kept:
        if one.plan is None:
            compared.append(None)
            continue
        key = (row.id, one.plan)
        if key not in known:
            known[key] = compare(row.task, one.plan.by_itself())
        compared.append(known[key])
    whole = [c for c in compared if c is not None and c.decomposition]
    fans = [c for c, (row, one) in zip(compared, kept, strict=True) if c and one.correct and _shape(row) == "fan"]
    return {
        "decomposition": _mean(c is not None and c.decomposition for c in compared),
        "routing_given_decomposition": _mean(c.routing for c in whole),
        "routing_own_names": _routing(kept, compared, own_names=True),
        "routing_other_names": _routing(kept, compared, own_names=False),
        "access_given_decomposition": _mean(c.access for c in whole),
        "right_plan": _mean(c is not None and c.routing and c.access for c in compared),
        "routed_steps": _mean(c.routed_share for c in compared if c is not None),
        "fans_in_parallel": _mean(c.parallel for c in fans),
        **_decomposition_by_depth(kept, compared),
    }


def _routing(kept: Sequence[Rollout], compared: Sequence[Comparison | None], *, own_names: bool) -> float | None:
    """The share of right routing given a right decomposition, among rows with the workers' own names or without."""
    rows = ((row, c) for (row, _), c in zip(kept, compared, strict=True) if c is not None and c.decomposition)
    return _mean(c.routing for row, c in rows if (row.shown == row.names) == own_names)


def _decomposition_by_depth(kept: Sequence[Rollout], compared: Sequence[Comparison | None]) -> dict[str, float | None]:
    found: dict[str, list[bool]] = {}
    for (row, _), comparison in zip(kept, compared, strict=True):
        whole = comparison is not None and comparison.decomposition
        found.setdefault(f"decomposition_depth_{row.task.depth}", []).append(whole)
    return {name: _mean(hits) for name, hits in sorted(found.items())}


def _step_figures(kept: Sequence[Rollout]) -> dict[str, float | None]:
    lengths = [len(one.plan.steps) for _, one in kept if one.plan is not None]
    counts = Counter(lengths)
    right = [(row, one.plan) for row, one in kept if one.correct and one.plan is not None]
    needed = sum(_minimal_steps(row) for row, _ in right)
    return {
        "steps": _mean(lengths),
        "steps_needed": _mean(_minimal_steps(row) for row, _ in kept),
        "steps_over_minimal": sum(len(plan.steps) for _, plan in right) / needed if needed else None,
        **{f"steps_{n}": count / len(lengths) for n, count in sorted(counts.items())},
    }


def _entropies(kept: Sequence[Rollout]) -> dict[str, float | None]:
    """How evenly workers are chosen, by name and by position, relative to an even choice from the same pools."""
    names: defaultdict[str, float] = defaultdict(float)
    positions: defaultdict[int, float] = defaultdict(float)
    even_names, even_positions = names.copy(), positions.copy()
    for row, one in kept:
        for step in one.plan.steps if one.plan is not None else ():
            names[step.worker] += 1
            positions[row.names.index(step.worker)] += 1
            for position, name in enumerate(row.names):
                even_names[name] += 1 / len(row.names)
                even_positions[position] += 1 / len(row.names)
    return {
        "worker_entropy": _relative_entropy(names.values(), even_names.values()),
        "position_entropy": _relative_entropy(positions.values(), even_positions.values()),
    }


def _accuracy_by(kept: Sequence[Rollout]) -> dict[str, float | None]:
    """Accuracy by depth, by shape, and by whether training shows the question's wording."""
    found: dict[str, list[bool]] = {}
    for row, one in kept:
        names = [f"accuracy_depth_{row.task.depth}", f"accuracy_{_shape(row)}"]
        if wording := row.task.tags.get("wording"):
            names.append(f"accuracy_{wording}_wording")
        for name in names:
            found.setdefault(name, []).append(one.correct)
    return {name: _mean(hits) for name, hits in sorted(found.items())}


def _shape(row: Row) -> str:
    return row.task.tags.get("shape", "other")


def _minimal_steps(row: Row) -> int:
    return len(row.task.sketch.steps) if row.task.sketch is not None else 1


def _relative_entropy(chosen: Collection[float], even: Collection[float]) -> float | None:
    most = _entropy(even)
    if not chosen or most <= 0:
        return None
    return min(1.0, _entropy(chosen) / most)


def _entropy(weights: Iterable[float]) -> float:
    counted = [weight for weight in weights if weight > 0]
    total = sum(counted)
    return sum(weight / total * math.log(total / weight) for weight in counted)


def _mean(values: Iterable[float]) -> float | None:
    counted = list(values)
    return sum(counted) / len(counted) if counted else None


def _next_state(state: CollapseState, metrics: Mapping[str, float], settings: CollapseSettings) -> CollapseState:
    poor = metrics.get("accuracy", 0.0) <= settings.accuracy_at_most
    one_worker = poor and _least_entropy(metrics) < settings.entropy_floor
    one_step = (
        poor
        and metrics.get("steps", math.inf) <= settings.one_step
        and metrics.get("steps_needed", 0.0) >= settings.needed_steps
    )
    valid = metrics.get("valid", 1.0)
    invalid = valid < settings.valid_floor and state.best_valid >= settings.valid_before
    varied = _least_entropy(metrics) >= settings.entropy_floor
    return CollapseState(
        one_worker=state.one_worker + 1 if one_worker else 0,
        one_step=state.one_step + 1 if one_step else 0,
        invalid=state.invalid + 1 if invalid else 0,
        best_valid=max(state.best_valid, valid),
        varied=state.varied.more(metrics) if varied else state.varied,
        narrow=state.narrow.more(metrics) if one_worker else Asked(),
    )


def _collapse_text(state: CollapseState, metrics: Mapping[str, float], settings: CollapseSettings) -> str | None:
    """The message that describes the collapse, or None while it has not lasted long enough."""
    entropy, accuracy = _least_entropy(metrics), metrics.get("accuracy", 0.0)
    steps = f"(steps {metrics.get('steps', 0.0):.2f}{' everywhere' if state.one_step else ''})"
    if state.invalid >= settings.patience:
        return (
            f"validity fell to {metrics.get('valid', 0.0):.0%} after {state.best_valid:.0%}: "
            "the policy lost the language of plans"
        )
    # One worker may be the right choice, unless the right plans are known to need others.
    lost = metrics.get("plans_known", 1.0) > 0 or state.varied.above(state.narrow, errors=settings.errors)
    if state.one_worker >= settings.patience and lost:
        by_position = metrics.get("position_entropy", 1.0) < metrics.get("worker_entropy", 1.0)
        favourite = "one position in the pool" if by_position else "one worker"
        ending = "one generic step" if state.one_step else favourite
        return (
            f"worker entropy fell to {entropy:.2f} while accuracy was {accuracy:.0%} {steps}: "
            f"the policy collapsed to {ending}"
        )
    if state.one_step >= settings.patience:
        return (
            f"questions need {metrics['steps_needed']:.2f} steps and accuracy was {accuracy:.0%} {steps}: "
            "the policy collapsed to one step a question"
        )
    return None


def _least_entropy(metrics: Mapping[str, float]) -> float:
    return min(metrics.get("worker_entropy", 1.0), metrics.get("position_entropy", 1.0))
