"""Recipe: everything a training run depends on, as one TOML file.

The file mirrors these structs table for table. Every default runs, and a misspelt key is an error that names its
nearest neighbour. Parsing needs no torch, so recipes can be checked anywhere. The settings of rows, rewards and cost
are in `dataset.py` and `reward.py`.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from dirigent import toml
from dirigent.errors import ConfigError
from dirigent_gym.questions.specialists import ROSTER
from dirigent_gym.train.dataset import RowSettings
from dirigent_gym.train.reward import LambdaSettings, RewardSettings

Lessons = Literal["warm_start", "gym_decompositions", "right_plans", "none"]
Scale = Literal["none", "with_cost"]


class TinySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A random Llama for tests. It knows only what the warm start teaches it."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    words: int = 600
    """The size of its vocabulary, which is learned from the lessons."""
    steps: int = 600
    """Steps in which all its weights learn the lessons, before it gets an adapter."""
    learning_rate: float = 4e-3


class BaseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model under the adapter. Exactly one of the two fields is set."""

    weights: str = ""
    """A GGUF file, or the name of weights that `dirigent pool pull` fetches."""
    tiny: TinySettings | None = None

    def __post_init__(self) -> None:
        if bool(self.weights) == bool(self.tiny):
            raise ValueError('the base needs exactly one of "weights" and "tiny"')


class WorkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The workers that carry plans out."""

    kind: Literal["exact", "config"] = "exact"
    """`exact`: the gym's specialists, which answer by table without a model. `config`: a pool of any kind."""
    misled: float = 0.0
    """For workers that answer by table: the share of subtasks on which a worker fails if it reads results that it does
    not need. The trained workers fail on about 5 of 100. A larger share teaches a policy to hand on what is needed and
    nothing else, long before cost counts."""
    config: str = ""
    """A dirigent.toml whose workers are the pool."""
    profile: str = ""
    """Only the workers of this profile of that file, without the worker that plans for it."""
    max_cost_usd: float | None = None
    """The most that the workers of that file may cost in this run, including its parts before `--resume` and all
    measurements. Every worker needs a price."""

    def __post_init__(self) -> None:
        if (self.kind == "config") != bool(self.config):
            raise ValueError('"config" names the pool\'s file if kind is "config", and only then')
        if not 0.0 <= self.misled <= 1.0:
            raise ValueError(f"misled is a share from 0 to 1, not {self.misled}")
        if self.misled and self.kind != "exact":
            raise ValueError('"misled" is for workers that answer by table: it needs kind "exact"')
        if self.profile and not self.config:
            raise ValueError('"profile" chooses among the workers of "config"; name that file too')
        if self.max_cost_usd is not None:
            if not self.config:
                raise ValueError('"max_cost_usd" is for the workers of "config"; the gym\'s cost nothing')
            if not 0 <= self.max_cost_usd < math.inf:
                raise ValueError(f"max_cost_usd must be 0 or more and finite, not {self.max_cost_usd}")


class TaskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The questions."""

    file: str = ""
    """Tasks as JSON lines; empty: the questions of the gym."""
    dev_file: str = ""
    skills: tuple[str, ...] = ()
    """Only questions of the gym that need no other skills, over pools of their workers alone; empty: all skills."""

    def __post_init__(self) -> None:
        if self.file and self.skills:
            raise ValueError('"skills" choose among the gym\'s questions; leave them out with "file"')
        if bool(self.file) != bool(self.dev_file):
            raise ValueError('"file" and "dev_file" belong together')


class PolicySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The LoRA adapter that is trained, on every linear layer."""

    rank: int = 16
    alpha: int = 32

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"policy.rank must be 1 or more, not {self.rank}")


class WarmStartSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fitting the adapter to the language of plans, before RL."""

    lessons: Lessons = "warm_start"
    adapter: str = ""
    """Start from this adapter and fit nothing (needs lessons = "none"): a PEFT folder, a GGUF file, or the name of an
    adapter that ships."""
    n: int = 40_000
    steps: int = 560
    batch: int = 128
    learning_rate: float = 1e-3
    measure: int = 1000
    """Plans written, greedily and sampled, to measure validity and how evenly workers are chosen."""

    def __post_init__(self) -> None:
        if min(self.n, self.batch) < 1:
            raise ValueError(f"warm_start.n and warm_start.batch must be 1 or more, not {self.n} and {self.batch}")


class GrpoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    steps: int = 360
    """With 0 steps a run ends after its warm start."""
    prompts: int = 64
    """Questions a step."""
    rollouts: int = 16
    """Plans sampled for each question. They form a group."""
    minibatch_rows: int = 1024
    """Rows of one forward and backward pass; the gradients of a step are added up."""
    learning_rate: float = 3e-4
    warmup: float = 0.02
    """Share of the steps in which the rate rises."""
    beta: float = 0.04
    """The weight of the distance from the start, which keeps a policy from giving up what does not pay yet."""
    max_completion_tokens: int = 128
    scale: Scale = "with_cost"
    """The divisor of advantages. `none`: no divisor. `with_cost`: no divisor until cost counts, and from then on the
    group's spread, at least 0.1, because in a group of right plans cost alone tells plans apart, and by very little."""
    oversample: float = 1.0
    """Groups sampled for each group wanted. It applies after the first stage, or from the beginning for a file, which
    has no stages. By then about half of the groups have no variance."""
    save_every_steps: int = 10

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must be 0 or more, not {self.steps}: with 0 a run ends after its warm start")
        for name in ("prompts", "minibatch_rows", "max_completion_tokens", "save_every_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.rollouts < 2:
            raise ValueError(f"rollouts must be 2 or more, not {self.rollouts}: a group is compared with itself")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be above 0, not {self.learning_rate:g}")
        if self.oversample < 1:
            raise ValueError(f"oversample must be 1 or more, not {self.oversample:g}")


class EvalSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The development questions, answered greedily, that drive the curriculum and the weight of cost."""

    every_steps: int = 20
    n: int = 256

    def __post_init__(self) -> None:
        if min(self.every_steps, self.n) < 1:
            raise ValueError(f"eval.every_steps and eval.n must be 1 or more, not {self.every_steps} and {self.n}")


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A conductor: warm start, then reinforcement learning."""

    name: str
    kind: Literal["conductor"] = "conductor"
    about: str = ""
    seed: int = 1
    base: BaseSettings = BaseSettings(weights="smollm2-135m")
    workers: WorkerSettings = WorkerSettings()
    tasks: TaskSettings = TaskSettings()
    policy: PolicySettings = PolicySettings()
    warm_start: WarmStartSettings = WarmStartSettings()
    algorithm: Literal["grpo", "rft", "online_rft"] = "grpo"
    """GRPO, or a control that draws as many rollouts, imitates the right ones and learns nothing from the others. `rft`
    (rejection-sampling fine-tuning) draws them from the start, `online_rft` from the policy of each step."""
    grpo: GrpoSettings = GrpoSettings()
    rows: RowSettings = RowSettings()
    reward: RewardSettings = RewardSettings()
    cost: LambdaSettings = LambdaSettings()
    eval: EvalSettings = EvalSettings()

    def __post_init__(self) -> None:
        if self.base.tiny is not None and self.warm_start.lessons == "none":
            raise ValueError("a tiny base knows nothing; warm_start.lessons must teach it to write")
        if self.warm_start.adapter and self.warm_start.lessons != "none":
            raise ValueError('warm_start.adapter leaves no lessons to learn: set lessons = "none"')
        if self.rows.everyday and (self.tasks.file or self.tasks.skills):
            raise ValueError("everyday words are for questions of the whole gym; set rows.everyday = 0")


class FitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an adapter is fitted to examples."""

    rank: int = 4
    steps: int = 400
    """Steps of one round."""
    batch: int = 128
    rounds: int = 2
    """The most rounds; fitting stops after the round that reaches the goal."""
    learning_rate: float = 2e-3


class FitChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings that differ for one specialist."""

    rank: int | None = None
    steps: int | None = None
    rounds: int | None = None


class SpecialistsRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The gym's workers: fits an adapter for each, judges them, and makes the table of their skills."""

    name: str
    kind: Literal["specialists"] = "specialists"
    about: str = ""
    seed: int = 0
    base: BaseSettings = BaseSettings(weights="smollm2-135m")
    names: tuple[str, ...] = ()
    """The specialists to fit; empty: all of the roster."""
    fit: FitSettings = FitSettings()
    specialist: dict[str, FitChanges] = {}
    goal: float = 0.99
    """The share of its own questions that ends a specialist's fitting early; the noisy one may miss it by its noise."""
    judge: int = 2000
    """Fresh examples on which a round is judged."""
    matrix: int = 200
    """Questions of each skill that every worker is asked at the end."""
    alone: int = 500
    """Test questions that every worker is asked alone at the end."""

    def __post_init__(self) -> None:
        known = [specialist.name for specialist in ROSTER]
        for name in (*self.names, *self.specialist):
            if name not in known:
                raise ValueError(f'there is no specialist "{name}"{toml.nearest(name, known)}')

    def fit_of(self, name: str) -> FitSettings:
        """The settings of one specialist."""
        changes = self.specialist.get(name, FitChanges())
        given = {key: value for key, value in msgspec.structs.asdict(changes).items() if value is not None}
        return msgspec.structs.replace(self.fit, **given)


class DirectRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A control: one adapter of the conductor's size, fitted end to end from question to answer, without workers."""

    name: str
    kind: Literal["direct"] = "direct"
    about: str = ""
    seed: int = 1
    base: BaseSettings = BaseSettings(weights="smollm2-135m")
    policy: PolicySettings = PolicySettings()
    n: int = 200_000
    """Questions of the training split, as many as a conductor's run draws."""
    steps: int = 2000
    batch: int = 128
    learning_rate: float = 1e-3
    measure: int = 1000
    """Questions of the development split and of the test split that it is measured on."""


AnyRecipe = Recipe | SpecialistsRecipe | DirectRecipe
KINDS: dict[str, type[AnyRecipe]] = {
    "conductor": Recipe,
    "specialists": SpecialistsRecipe,
    "direct": DirectRecipe,
}


def load_recipe(path: Path, *, seed: int | None = None) -> AnyRecipe:
    """Read the recipe in this file, with another seed if one is given. A fault raises a ConfigError that names the key
    and the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the recipe {path} cannot be read: {error.strerror or error}") from None
    recipe = parse_recipe(text, file=path.name)
    return recipe if seed is None else msgspec.structs.replace(recipe, seed=seed)


def load_conductor(path: Path) -> Recipe:
    """The same for callers that need a conductor's recipe. Raises ConfigError for a recipe of another kind."""
    recipe = load_recipe(path)
    if not isinstance(recipe, Recipe):
        raise ConfigError(f'{path} is a recipe of kind "{recipe.kind}"; give one of kind "conductor"')
    return recipe


def parse_recipe(text: str, *, file: str = "recipe") -> AnyRecipe:
    try:
        kind = tomllib.loads(text).get("kind", "conductor")
    except tomllib.TOMLDecodeError:
        kind = "conductor"  # the decoder below reports the fault with its place
    if kind not in KINDS:
        raise ConfigError(f"{file}: kind is {kind!r}{toml.nearest(str(kind), KINDS)}")
    return toml.decode(text, KINDS[kind], file=file)
