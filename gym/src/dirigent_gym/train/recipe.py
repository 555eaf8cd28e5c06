"""Recipe: everything a training run depends on, as one TOML file.

The file mirrors these structs table for table; every default runs, a misspelt key is an error that names its
neighbour. Parsing needs no torch, so recipes can be checked anywhere. What the settings mean to the optimiser is in
`grpo.py`; what they mean to the gym in `rows.py`, `dataset.py` and `reward.py`, whose settings stand here as they are.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from dirigent import toml
from dirigent.errors import ConfigError
from dirigent.plan.plan import Dialect
from dirigent_gym.questions.specialists import ROSTER
from dirigent_gym.train.dataset import RowSettings
from dirigent_gym.train.reward import LambdaSettings, RewardSettings

Lessons = Literal["warm_start", "gym_decompositions", "right_plans", "none"]
Loss = Literal["grpo", "bnpo", "dr_grpo", "dapo"]
Scale = Literal["none", "floored_std", "with_cost", "group"]
Loop = Literal["learn", "trl"]
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
    adapters: tuple[str, ...] = ("packaged",)
    """Folders with an adapter a specialist, a PEFT folder or a GGUF file; the first that has it counts. `packaged` are
    those that ship."""
    misled: float = 0.0
    """Of workers by table: the share of subtasks on which one goes wrong if it reads results that it does not need. The
    trained ones do on about 5 of 100. More of it teaches a policy to hand on what is needed and nothing else, long
    before cost may count."""
    config: str = ""
    """A dirigent.toml whose workers are the pool."""
    profile: str = ""
    """Only the workers of this profile of that file: those it names, and never the one that plans for it."""
    max_cost_usd: float | None = None
    """Most that the workers of that file may cost the run, its parts before `--resume` and all that is measured
    included. Needs a price for every worker."""

    def __post_init__(self) -> None:
        if (self.kind == "config") != bool(self.config):
            raise ValueError('"config" names the pool\'s file where kind is "config", and only there')
        if not 0.0 <= self.misled <= 1.0:
            raise ValueError(f"misled is a share from 0 to 1, not {self.misled}")
        if self.misled and self.kind != "exact":
            raise ValueError('"misled" is of workers by table: it wants kind "exact"')
        if self.profile and not self.config:
            raise ValueError('"profile" chooses among the workers of "config"; name that file too')
        if self.max_cost_usd is not None:
            if not self.config:
                raise ValueError('"max_cost_usd" is for the workers of "config"; the gym\'s cost nothing')
            if not 0 <= self.max_cost_usd < math.inf:
                raise ValueError(f"max_cost_usd must be 0 or more and finite, not {self.max_cost_usd}")


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
        if self.prompt == "prompted" and not self.file:
            raise ValueError('the gym\'s questions are put in the prompt "trained"; "prompted" wants a "file"')
        if self.prompt == "trained" and self.dialect != "lines":
            raise ValueError(f'the prompt "trained" asks for lines, not {self.dialect}; set prompt = "prompted"')


class PolicySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rank: int = 16
    """Of the LoRA adapter; 0 trains all weights."""
    alpha: int = 32
    targets: tuple[str, ...] = ALL_LINEAR


class WarmStartSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fitting the adapter to the language of plans, before RL."""

    lessons: Lessons = "warm_start"
    adapter: str = ""
    """Start from this adapter and fit nothing (lessons "none"): a PEFT folder, a GGUF file, or the name of one that
    ships."""
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
    """With none a run ends after its warm start."""
    prompts: int = 64
    """Questions a step, over all processes."""
    rollouts: int = 16
    """Plans sampled for each question: a group."""
    updates: int = 1
    """Optimiser steps for each draw of rollouts, each over its share of the groups; several are held near the policy
    that drew them by the clipped ratio (`epsilon`). A step, wherever steps are counted, is one draw with all of its
    updates; only the rate moves with each of them."""
    minibatch_rows: int = 1024
    """Rows of one forward and backward pass on one process; gradients add up over a whole update."""
    share_prompts: bool = True
    """Read a prompt once for all rows of a pass that have it; whole groups want `minibatch_rows` of whole groups."""
    learning_rate: float = 3e-4
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    warmup: float = 0.02
    """Share of the steps in which the rate rises."""
    clip_norm: float = 1.0
    epsilon: float = 0.2
    beta: float = 0.04
    """Weight of the KL term against the start: it keeps a policy from giving up what does not pay yet."""
    entropy_target: float = 0.0
    """Nats a token, on average, below which entropy is rewarded, so that a policy does not settle on what pays first.
    The weight grows by `entropy_step` an update while entropy is below, up to `entropy_most`. 0: never."""
    entropy_step: float = 0.002
    entropy_most: float = 0.03
    temperature: float = 1.0
    max_completion_tokens: int = 128
    loss: Loss = "dapo"
    scale: Scale = "with_cost"
    """What advantages are divided by: nothing, the group's spread but at least 0.1, or the spread whatever it is, which
    cancels the weight of cost (docs/how-it-learns.md). `with_cost` is nothing until cost counts and the floored spread
    from then on: where all of a group is right, cost alone tells its plans apart, and by very little."""
    oversample: float = 1.0
    """Groups sampled at once for each one wanted, once the first stage is passed; of a file, which has no stages, from
    the beginning. By then about half of them have no variance, and twice the rows take little longer to write than one
    draw after another."""
    refills: int = 1
    """How often groups without variance are replaced by newly drawn ones within a step."""
    refill_below: float = 0.6
    """Share of the groups that suffices: with so many that have variance, none are replaced. Sampling is most of a
    step, so a smaller batch now is often worth more than a full one later."""
    gradient_checkpointing: bool = False
    sampler: Literal["torch", "vllm"] = "torch"
    cache: Literal["auto", "dynamic", "static", "graphs"] = "auto"
    """What the torch sampler reads from while it writes; `auto` takes CUDA graphs on a GPU, a growing cache else."""
    merge: bool = True
    """On a GPU the torch sampler writes with the adapter merged into its base: quicker, and rounded otherwise."""
    vllm_memory: float = 0.5
    """Share of each GPU's memory that a colocated vLLM takes."""
    save_every_steps: int = 10
    keep_checkpoints: int = 2

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must be 0 or more, not {self.steps}: with 0 a run ends after its warm start")
        for name in ("prompts", "updates", "minibatch_rows", "max_completion_tokens", "save_every_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.rollouts < 2:
            raise ValueError(f"rollouts must be 2 or more, not {self.rollouts}: a group is compared with itself")
        if self.prompts % self.updates:
            raise ValueError(f"updates must divide prompts, so that groups stay whole: {self.prompts} / {self.updates}")
        if self.keep_checkpoints < 2:
            raise ValueError(
                f"keep_checkpoints must be 2 or more, not {self.keep_checkpoints}: one may be half written"
            )
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be above 0, not {self.learning_rate:g}")
        if self.refills < 0:
            raise ValueError(f"refills must be 0 or more, not {self.refills}")
        if self.oversample < 1:
            raise ValueError(f"oversample must be 1 or more, not {self.oversample:g}")
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature:g}: equal plans teach nothing")


class EvalSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The development questions that drive curriculum and cost, answered greedily."""

    every_steps: int = 20
    n: int = 256
    ceiling: float | None = None
    """Accuracy of the right plans; measured where tasks know theirs."""

    def __post_init__(self) -> None:
        if min(self.every_steps, self.n) < 1:
            raise ValueError(f"eval.every_steps and eval.n must be 1 or more, not {self.every_steps} and {self.n}")


class SecondRoundSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Accept-or-repair rows: a checkable question with a plan of the policy's own and the answer it got."""

    share: float = 0.0
    """Of a step's rows; 0: none."""
    from_stage: int = 2
    """The stage of the curriculum that opens them: they come last."""
    every_steps: int = 10
    """How often they are written anew by the policy as it is then."""
    tries: int = 256
    """First rounds run each time to choose from."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.share < 1.0:
            raise ValueError(f"second_round.share must be from 0 up to 1, not {self.share:g}")
        if self.every_steps < 1 or self.tries < 2:
            raise ValueError("second_round.every_steps must be 1 or more and second_round.tries 2 or more")


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
    loop: Loop = "trl"
    """`learn` trains with the product's loop (`dirigent.learn.grpo`) on one machine, an adapter on a small model over
    workers that answer by table; `trl` with TRL's trainer, which also shares large models out over several GPUs."""
    algorithm: Literal["grpo", "rft", "online_rft"] = "grpo"
    """GRPO, or a control: of as many rollouts the right ones are imitated, and nothing is learned from the others.
    They are drawn from the start (rejection-sampling fine-tuning, RFT) or from the policy as it is by then (online)."""
    grpo: GrpoSettings = GrpoSettings()
    rows: RowSettings = RowSettings()
    second_round: SecondRoundSettings = SecondRoundSettings()
    reward: RewardSettings = RewardSettings()
    cost: LambdaSettings = LambdaSettings()
    eval: EvalSettings = EvalSettings()

    def __post_init__(self) -> None:
        if self.base.tiny is not None and self.warm_start.lessons == "none":
            raise ValueError("a tiny base knows nothing; warm_start.lessons must teach it to write")
        if self.warm_start.adapter and (self.warm_start.lessons != "none" or not self.policy.rank):
            raise ValueError('warm_start.adapter is a start of its own: set lessons = "none" and policy.rank')
        if self.policy.rank == 0 and self.workers.kind == "adapters":
            raise ValueError("policy.rank = 0 trains the base itself, under the workers that are adapters on it")
        if self.algorithm == "rft" and self.grpo.sampler == "vllm":
            raise ValueError('rft draws from its start, which vLLM does not keep: set grpo.sampler = "torch"')
        if self.loop == "learn" and (fault := self._unfit_for_learn()):
            raise ValueError(f'loop = "learn" does not know {fault}; set loop = "trl"')
        if self.second_round.share and self.tasks.file:
            raise ValueError("second_round rows are the gym's; set second_round.share = 0")
        if self.rows.everyday and (self.tasks.file or self.tasks.skills):
            raise ValueError("everyday words are for questions of the whole gym; set rows.everyday = 0")

    def _unfit_for_learn(self) -> str:
        """The setting that the product's loop does not know; empty if it knows all of them."""
        if self.workers.kind != "exact":
            return f'workers.kind = "{self.workers.kind}"'
        if self.base.model:
            return f'base.model = "{self.base.model}"'
        if self.policy.rank == 0 or set(self.policy.targets) != set(ALL_LINEAR):
            return "a policy that is not an adapter on every linear layer"
        if self.grpo.sampler != "torch":
            return f'grpo.sampler = "{self.grpo.sampler}"'
        if self.tasks.prompt != "trained":
            return f'tasks.prompt = "{self.tasks.prompt}"'
        return ""


class FitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an adapter is fitted to examples."""

    rank: int = 4
    steps: int = 400
    """Of one round."""
    batch: int = 128
    rounds: int = 2
    """At most; fitting stops after the round that reaches the goal."""
    learning_rate: float = 2e-3


class FitChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one specialist has different."""

    rank: int | None = None
    steps: int | None = None
    batch: int | None = None
    rounds: int | None = None
    learning_rate: float | None = None


class SpecialistsRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The gym's workers: an adapter each, judged, and the table of who can do what."""

    name: str
    kind: Literal["specialists"] = "specialists"
    about: str = ""
    seed: int = 0
    base: BaseSettings = BaseSettings(weights="smollm2-135m")
    names: tuple[str, ...] = ()
    """Which specialists; empty: all of the roster."""
    fit: FitSettings = FitSettings()
    specialist: dict[str, FitChanges] = {}
    goal: float = 0.99
    """Share of its own questions that ends a specialist's fitting early; less its noise for the noisy one."""
    processes: int = 1
    """Specialists fitted at the same time, each in a process with a copy of the base."""
    judge: int = 2000
    """Fresh examples that a round is judged on."""
    matrix: int = 200
    """Questions of each skill put to every worker at the end."""
    alone: int = 500
    """Test questions put to every worker alone at the end."""

    def __post_init__(self) -> None:
        known = [specialist.name for specialist in ROSTER]
        for name in (*self.names, *self.specialist):
            if name not in known:
                raise ValueError(f'there is no specialist "{name}"{toml.nearest(name, known)}')
        if self.processes < 1:
            raise ValueError(f"processes must be 1 or more, not {self.processes}")

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
    """Questions of the training split: as many as a conductor's run draws."""
    steps: int = 2000
    batch: int = 128
    learning_rate: float = 1e-3
    max_answer_tokens: int = 32
    measure: int = 1000
    """Questions of the development and of the test split that it is tried on."""


AnyRecipe = Recipe | SpecialistsRecipe | DirectRecipe
KINDS: dict[str, type[AnyRecipe]] = {
    "conductor": Recipe,
    "specialists": SpecialistsRecipe,
    "direct": DirectRecipe,
}


def load_recipe(path: Path, *, seed: int | None = None, loop: Loop | None = None) -> AnyRecipe:
    """The recipe in this file, with another seed or loop if one is given; any fault is a `ConfigError` that names the
    key and the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the recipe {path} cannot be read: {error.strerror or error}") from None
    recipe = parse_recipe(text, file=path.name)
    if seed is not None:
        recipe = msgspec.structs.replace(recipe, seed=seed)
    if loop is None:
        return recipe
    if not isinstance(recipe, Recipe):
        raise ConfigError(f'{path} is a recipe of kind "{recipe.kind}"; only one of kind "conductor" has a loop')
    try:
        return msgspec.structs.replace(recipe, loop=loop)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def load_conductor(path: Path) -> Recipe:
    """The same where only a conductor's recipe will do."""
    recipe = load_recipe(path)
    if not isinstance(recipe, Recipe):
        raise ConfigError(f'{path} is a recipe of kind "{recipe.kind}"; one of kind "conductor" is wanted')
    return recipe


def parse_recipe(text: str, *, file: str = "recipe") -> AnyRecipe:
    try:
        kind = tomllib.loads(text).get("kind", "conductor")
    except tomllib.TOMLDecodeError:
        kind = "conductor"  # said with its place by the decoder below
    if kind not in KINDS:
        raise ConfigError(f"{file}: kind is {kind!r}{toml.nearest(str(kind), KINDS)}")
    return toml.decode(text, KINDS[kind], file=file)
