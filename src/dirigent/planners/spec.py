"""PlannerSpec: everything that other modules need to know about a planner, in one value.

`table.py` lists the planners of this package; plugins bring others (`dirigent.planners`). Configuration, `dirigent
init`, the command line, evaluations and docs/baselines.md read these values and nothing else, so a planner is added in
one place. `make` serves a configuration, `fit` an evaluation; a planner may have either or both.

Nothing here runs a plan or grades an answer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from dirigent.errors import ConfigError
from dirigent.plan.plan import Dialect
from dirigent.plan.planner import Planner
from dirigent.planners.examples import MAX_SAMPLES, Example, Rollout, SampleCost, mean_costs_usd, ranked
from dirigent.planners.learned import FittedPolicy, Prefer
from dirigent.planners.vote_counter import Same
from dirigent.toml import nearest
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Worker

if TYPE_CHECKING:
    from dirigent.tasks.task import Task

PlannerFor = Callable[["Task", Pool], Planner]
"""The planner for a question of an evaluation, over the pool of that question."""

UNKNOWN_USD = math.inf
"""The cost of a call whose price is unknown: it ranks behind every known cost, so it makes no worker cheaper."""


class PlannerName(msgspec.Struct, frozen=True):
    """A planner as a person writes it: `vote:5` is the kind `vote` with the argument `5`."""

    kind: str
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.argument}" if self.argument else self.kind

    @property
    def number(self) -> int | None:
        """The argument as a number; None without one. Only of a name that was checked."""
        return int(self.argument) if self.argument else None


def parse_name(text: str) -> PlannerName:
    """The only place that takes a planner's name apart."""
    kind, _, argument = text.partition(":")
    return PlannerName(kind, argument)


def kinds_of(names: Collection[str]) -> dict[str, None]:
    """The kinds of these planners, each once, in order."""
    return dict.fromkeys(parse_name(name).kind for name in names)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a profile for its planner."""

    pool: Pool
    """The workers that plans may use."""
    everybody: Pool | None = None
    """All workers, with those that only plan. Default: the pool."""
    worker: str = ""
    """The worker that plans, or that answers alone. Default: the pool's first."""
    dialect: Dialect | None = None
    few_shots: bool = True
    show_names: bool = True
    temperature: float | None = 0.0
    max_output_tokens: int = 4096
    right: Mapping[str, float] = {}
    """The measured share of right answers of each worker, from its card."""
    policy: FittedPolicy | None = None
    """The policy that `dirigent learn` fitted, if the profile names one."""
    selector: str = ""
    """The worker of the pool that selects, in which the policy's plans end."""
    counter: str = ""
    """The worker of the pool that takes a vote."""
    unlike: Planner | None = None
    """The planner for questions unlike all that the policy was fitted on. Default: the policy's own plain plan."""
    explore: float = 0.0
    """The chance with which a policy asks one worker by lot."""
    operating_point: str = ""
    """Of the policy. Default: the one that is active in its folder."""
    prefer: Prefer = "cost"
    """Whether a learned plan asks its workers one after another, or all at once."""


class Fitting(msgspec.Struct, frozen=True):
    """The data that an evaluation gives a planner to learn from."""

    examples: tuple[Example, ...]
    """Questions of the training split with each worker's answer."""
    pool: Pool
    """All workers that may be offered; a question may come with some of them."""
    seed: int = 0
    neighbours: int = 40
    same: Callable[[Task], Same] | None = None
    """How answers to a question are compared, for planners that count votes."""
    rollout: Rollout | None = None
    """Carries out a plan for a training question, for planners that learn from plans."""
    trained: Mapping[str, PlannerFor] = {}
    """Planners that are trained models, by kind."""

    @property
    def ranking(self) -> tuple[str, ...]:
        return ranked(self.examples)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The workers whose cost is unknown."""
        return tuple(name for name, usd in mean_costs_usd(self.examples).items() if usd == UNKNOWN_USD)

    def same_for(self, task: Task) -> Same:
        if self.same is None:
            raise ConfigError("this planner compares answers: give Fitting(same=…), which says when two are the same")
        return self.same(task)


class Sampled(msgspec.Struct, frozen=True):
    """A planner whose number of samples is open, with the expected cost of each number."""

    worker: str
    """The worker that is sampled: the best one."""
    planner_of: Callable[[int], Planner]
    cost: SampleCost
    call_usd: float
    """One call of that worker on the training split."""

    @property
    def why_not(self) -> str:
        """Why no number can be chosen by this cost; empty if one can."""
        if self.call_usd == UNKNOWN_USD:
            return f"the cost of a call of {self.worker} is unknown"
        return "" if self.call_usd > 0 else f"a call of {self.worker} costs nothing"


class Fitted(msgspec.Struct, frozen=True):
    """A planner that is ready to take part in an evaluation."""

    name: str
    planner_for: PlannerFor
    helpers_for: Callable[[Task, Pool], list[Worker]] | None = None
    """Local workers that its plans call; they join the question's pool."""
    max_steps: int = 1
    """Its longest plan, if that is known beforehand; a model's plan is as long as the limits allow."""
    max_rounds: int = 1
    repeats: int = 1
    """How often each question is asked; above 1 if the workers are noisy and the mean is wanted."""
    note: str = ""
    """The choice, for the report."""
    sampled: Sampled | None = None
    """Set if the number of samples is open; `evals/costing.py` chooses it."""


class Argument(msgspec.Struct, frozen=True):
    """The argument behind the colon of a planner's name."""

    kind: Literal["number", "worker", "layers"]
    most: int = 0
    """The largest number."""
    required: bool = False


class PlannerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One planner: its name, its plans, the functions that make it, and its needs."""

    name: str
    about: str
    """Its plan, in one sentence without a full stop, for help and documentation."""
    forms: tuple[str, ...] = ()
    """How it is written with an argument: `vote:N`."""
    argument: Argument | None = None
    make: Callable[[Setup], Planner] | None = None
    """The planner of a profile; None if a configuration cannot use it."""
    planned_by: Literal["", "worker", "trained worker"] = ""
    """Whether a worker writes its plans; a trained worker does nothing else and is given no step."""
    by_policy: bool = False
    """Whether a policy of the profile decides; without one it cannot be made."""
    fit: Callable[[PlannerName, Fitting], Awaitable[Fitted]] | None = None
    """The planner of an evaluation; None if an evaluation cannot use it."""
    learns_from: Literal["", "examples", "plans"] = "examples"
    """The needs of `fit`: nothing, each worker's answers on the training split, or also plans that are carried out."""
    extra: str = ""
    """The extra of the package that it needs, such as `eval`."""
    rounds: int = 1
    """How many rounds its plans take."""
    replays: bool = False
    """Whether one recorded answer of each worker is enough for it."""
    compares: bool = False
    """Whether it compares answers; recorded scores are then not enough."""
    default_on: tuple[Literal["live", "recorded", "gym"], ...] = ()
    """The kinds of pool on which it takes part if no planner is named."""

    @property
    def needs(self) -> str:
        """Its needs, in words, for the documentation."""
        learns = {"": "", "examples": "training split", "plans": "training split, plans carried out on it"}
        said = [
            "a policy (`dirigent learn`)" if self.by_policy else "",
            "its weights" if self.planned_by == "trained worker" else learns[self.learns_from] if self.fit else "",
            f"{self.rounds} rounds" if self.rounds > 1 else "",
            f"`dirigent[{self.extra}]`" if self.extra else "",
        ]
        return ", ".join(part for part in said if part) or "–"


def check_argument(name: PlannerName, spec: PlannerSpec, workers: Sequence[str]) -> None:
    """Refuse an argument that this planner does not take."""
    argument = spec.argument
    if argument is None:
        if name.argument:
            raise ConfigError(f"{name.kind!r} takes no {name.argument!r} behind a colon; write  {name.kind}")
        return
    if not name.argument:
        if argument.required:
            raise ConfigError(
                f"{name.kind!r} needs a worker's name: write  {name.kind}:NAME  with one of {', '.join(workers)}"
            )
        return
    match argument.kind:
        case "worker":
            if name.argument not in workers:
                hint = nearest(name.argument, workers)
                raise ConfigError(f"'{name}' asks for the worker {name.argument!r}, which does not exist{hint}")
        case "layers":
            layers_of(name)
        case "number":
            if not name.argument.isdecimal() or not 1 <= int(name.argument) <= argument.most:
                raise ConfigError(
                    f"'{name}': what follows the colon must be a number from 1 to {argument.most}, "
                    f"not {name.argument!r}"
                )


MOA_CALLS = 8
"""The default calls of Mixture-of-Agents, as in the Conductor paper's comparison."""


def layers_of(name: PlannerName) -> tuple[int, int]:
    """Proposers and layers: `8` is the number of calls, the last of which joins the others; `3x2` names both."""
    width, x, depth = (name.argument or str(MOA_CALLS)).partition("x")
    if width.isdecimal() and (depth.isdecimal() if x else True):
        proposers, layers = (int(width), int(depth)) if x else (int(width) - 1, 1)
        if proposers >= 1 and layers >= 1 and proposers * layers <= MAX_SAMPLES:
            return proposers, layers
    raise ConfigError(f"'{name}': write  moa:8  (calls) or  moa:3x2  (proposers x layers), at most 32 calls")


def noise_seed(seed: int, task: Task, repeat: int) -> int:
    """A seed that is the same for every planner, so that a worker's luck with a question favours no planner."""
    text = f"{seed} {task.id} {repeat}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 34  # 30 bits: every server takes those
