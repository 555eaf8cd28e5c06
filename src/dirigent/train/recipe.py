"""Recipe: everything a training run depends on, as one TOML file.

The file mirrors these structs table for table; every default runs, a misspelt key is an error that names its
neighbour. Parsing needs no torch, so recipes can be checked anywhere. What the settings mean to the optimiser is in
`grpo.py`; what they mean to the gym in `rows.py`, `dataset.py` and `reward.py`, whose settings stand here as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from dirigent import toml
from dirigent.errors import ConfigError
from dirigent.plan import Dialect
from dirigent.train.dataset import RowSettings
from dirigent.train.reward import LambdaSettings, RewardSettings

Lessons = Literal["warm_start", "gym_decompositions", "right_plans", "none"]
Loss = Literal["grpo", "bnpo", "dr_grpo", "dapo"]
Scale = Literal["none", "floored_std", "group"]
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class TinySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A random Llama for tests; the warm start teaches it all it knows."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    words: int = 600
    """Entries of its vocabulary, learned from the lessons."""
    max_tokens: int = 512
    steps: int = 600
    """Steps in which all its weights learn the lessons, before any adapter is put on."""
    learning_rate: float = 4e-3


class BaseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model that is trained: exactly one of the three."""

    weights: str = ""
    """A GGUF file, or the name of weights that `dirigent pool pull` brings."""
    model: str = ""
    """A model of the Hugging Face hub, or a folder in its format."""
    tiny: TinySettings | None = None

    def __post_init__(self) -> None:
        if sum(map(bool, (self.weights, self.model, self.tiny))) != 1:
            raise ValueError('the base needs exactly one of "weights", "model" and "tiny"')


class WorkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who carries plans out."""

    kind: Literal["adapters", "exact", "config"] = "adapters"
    """The gym's specialists as adapters on the base; the same by table, without a model; or a pool of any kind."""
    adapters: str = "adapters"
    """Folder with one PEFT folder a specialist."""
    config: str = ""
    """A dirigent.toml whose workers are the pool."""

    def __post_init__(self) -> None:
        if (self.kind == "config") != bool(self.config):
            raise ValueError('"config" names the pool\'s file where kind is "config", and only there')


class TaskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked."""

    file: str = ""
    """Tasks as JSON lines; empty: the gym."""
    dev_file: str = ""
    skills: tuple[str, ...] = ()
    """Of the gym, only questions that need no others, with only their workers offered; empty: all."""
    prompt: Literal["trained", "prompted"] = "trained"
    """Cards and question alone, or the long prompt with examples for a model that was never warm-started."""
    dialect: Dialect = "lines"

    def __post_init__(self) -> None:
        if self.file and self.skills:
            raise ValueError('"skills" choose among the gym\'s questions; leave them out with "file"')
        if bool(self.file) != bool(self.dev_file):
            raise ValueError('"file" and "dev_file" belong together')


class PolicySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rank: int = 16
    """Of the LoRA adapter; 0 trains all weights."""
    alpha: int = 32
    targets: tuple[str, ...] = ALL_LINEAR


class WarmStartSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fitting the adapter to the language of plans, before RL."""

    lessons: Lessons = "warm_start"
    n: int = 20_000
    steps: int = 300
    batch: int = 128
    learning_rate: float = 1e-3
    measure: int = 1000
    """Plans written, greedily and sampled, to measure validity and how evenly workers are chosen."""


class GrpoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    steps: int = 250
    prompts: int = 64
    """Questions a step, over all processes."""
    rollouts: int = 16
    """Plans sampled for each question: a group."""
    minibatch_rows: int = 256
    """Rows of one forward and backward pass on one process; gradients add up over a whole step."""
    learning_rate: float = 4e-4
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup: float = 0.0
    """Share of the steps in which the rate rises."""
    clip_norm: float = 1.0
    epsilon: float = 0.2
    beta: float = 0.0
    """Weight of the KL term against the start."""
    temperature: float = 1.0
    max_completion_tokens: int = 96
    loss: Loss = "dapo"
    scale: Scale = "none"
    """What advantages are divided by. `group` cancels the weight of cost: see docs/how-it-learns.md."""
    refills: int = 1
    """How often groups without variance are replaced by newly drawn ones within a step."""
    gradient_checkpointing: bool = False
    sampler: Literal["torch", "vllm"] = "torch"
    vllm_memory: float = 0.5
    """Share of each GPU's memory that a colocated vLLM takes."""
    save_every_steps: int = 10
    keep_checkpoints: int = 2

    def __post_init__(self) -> None:
        for name in ("steps", "prompts", "minibatch_rows", "max_completion_tokens", "save_every_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.rollouts < 2:
            raise ValueError(f"rollouts must be 2 or more, not {self.rollouts}: a group is compared with itself")
        if self.keep_checkpoints < 2:
            raise ValueError(
                f"keep_checkpoints must be 2 or more, not {self.keep_checkpoints}: one may be half written"
            )
        if self.refills < 0:
            raise ValueError(f"refills must be 0 or more, not {self.refills}")


class EvalSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The development questions that drive curriculum and cost, answered greedily."""

    every_steps: int = 10
    n: int = 256
    ceiling: float | None = None
    """Accuracy of the right plans; measured where tasks know theirs."""


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    about: str = ""
    seed: int = 1
    base: BaseSettings = BaseSettings(weights="smollm2-135m")
    workers: WorkerSettings = WorkerSettings()
    tasks: TaskSettings = TaskSettings()
    policy: PolicySettings = PolicySettings()
    warm_start: WarmStartSettings = WarmStartSettings()
    grpo: GrpoSettings = GrpoSettings()
    rows: RowSettings = RowSettings()
    reward: RewardSettings = RewardSettings()
    cost: LambdaSettings = LambdaSettings()
    eval: EvalSettings = EvalSettings()

    def __post_init__(self) -> None:
        if self.base.tiny is not None and self.warm_start.lessons == "none":
            raise ValueError("a tiny base knows nothing; warm_start.lessons must teach it to write")
        if self.policy.rank == 0 and self.workers.kind == "adapters":
            raise ValueError("policy.rank = 0 trains the base itself, under the workers that are adapters on it")


def load_recipe(path: Path) -> Recipe:
    """The recipe in this file; any fault is a `ConfigError` that names the key and the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the recipe {path} cannot be read: {error.strerror or error}") from None
    return parse_recipe(text, file=path.name)


def parse_recipe(text: str, *, file: str = "recipe") -> Recipe:
    return toml.decode(text, Recipe, file=file)


class Batching(msgspec.Struct, frozen=True):
    """A step's rows as every process sees them."""

    rows: int
    """Of one process."""
    minibatch: int
    accumulation: int


def batching(settings: GrpoSettings, *, processes: int) -> Batching:
    """How a step is divided. Groups must not straddle processes: each grades and ranks only its own rows."""
    if settings.prompts % processes:
        raise ConfigError(
            f"{settings.prompts} prompts do not divide over {processes} processes; make grpo.prompts a multiple of it"
        )
    rows = settings.prompts // processes * settings.rollouts
    minibatch = min(settings.minibatch_rows, rows)
    if rows % minibatch:
        raise ConfigError(
            f"{rows} rows a process do not divide into minibatches of {minibatch}; change grpo.minibatch_rows"
        )
    return Batching(rows, minibatch, rows // minibatch)
