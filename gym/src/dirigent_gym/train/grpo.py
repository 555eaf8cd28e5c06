"""GRPO on TRL's trainer: sample plans, carry them out, learn from how they compare within their group.

TRL has the optimiser, the loss, processes and checkpoints (`trainer.py` sets it up); ours are the rows, the sampler,
the reward and the watch. Groups are scored as they are sampled, before TRL sees them, so the one async reward function
only hands scores over: None for a rollout that a worker's fault cost its score.

Each step's noise has a seed of its own and everything else that a step depends on is in the checkpoint, so a resumed
run takes the same next step that an unbroken one would have taken.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dirigent_gym.train.checkpoint import PREFIX, prune, seal, sealed_step, write_durably
from dirigent_gym.train.dataset import Row, RowState
from dirigent_gym.train.memory import within_memory
from dirigent_gym.train.metrics import Collapse, CollapseState
from dirigent_gym.train.policy import Policy, measure
from dirigent_gym.train.processes import everyones
from dirigent_gym.train.progress import Progress
from dirigent_gym.train.recipe import Recipe
from dirigent_gym.train.result import Stop
from dirigent_gym.train.reward import lambda_start
from dirigent_gym.train.rollouts import Rollouts
from dirigent_gym.train.rows import Rows
from dirigent_gym.train.scorer import Scorer
from dirigent_gym.train.secondround import Stock
from dirigent_gym.train.sft import plain_inputs
from dirigent_gym.train.spending import CapReached
from dirigent_gym.train.trainer import make_trainer

STATE_FILE = "dirigent.json"
"""The first process's; further ones have their number in it, as each draws rows of its own."""


class TrainState(msgspec.Struct, frozen=True):
    """What a run remembers beside weights, optimiser and noise. Kept in checkpoints."""

    rows: RowState = RowState()
    collapse: CollapseState = CollapseState()
    cost_from_step: int | None = None
    """The step from which cost counts."""
    dev: dict[str, float] = {}
    """The last measurement."""
    second: Stock = Stock()
    """Second rounds in stock."""
    step_usd: float = 0.0
    """What workers cost in the dearest step."""


def train_policy(watch: Watch, *, out: Path, resume_from: Path | None = None) -> TrainState:
    """Train the watched policy, in place, until the recipe's last step or until the watch says that it is to end."""
    policy = watch.policy
    trainer = make_trainer(watch.recipe, policy, watch.rollouts, out=out, callback=watch.callback())
    watch.require_money(0 if resume_from is None else sealed_step(resume_from) or 0)
    with plain_inputs(policy.model):
        trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
    return watch.state()


class Watch:
    """Follows a run from outside: records it, measures it, turns what was measured into what is asked next.

    It ends the run at its deadline (on the monotonic clock), at its cost cap, at a collapse, and where somebody else
    has set `stop`. With a checkpoint to resume from, it and its rollouts go on where they were. Every process has one.
    """

    def __init__(
        self,
        recipe: Recipe,
        policy: Policy,
        scorer: Scorer,
        *,
        rows: Rows,
        dev: Sequence[Row],
        ceiling: float,
        progress: Progress,
        stop: Stop,
        deadline: float | None = None,
        resume_from: Path | None = None,
        process: int = 0,
    ) -> None:
        state = TrainState() if resume_from is None else load_state(resume_from, process=process)
        self.recipe = recipe
        self.policy = policy
        self.scorer = scorer
        self.rollouts = Rollouts(recipe, policy, scorer, rows=rows, process=process)
        if resume_from is not None:
            self.rollouts.restore(state.rows, cost_from_step=state.cost_from_step, stock=state.second)
        self.progress = progress
        self.stop = stop
        self._dev = dev
        self._ceiling = ceiling
        self._deadline = deadline
        self._process = process
        self._collapse = Collapse(state=state.collapse)
        self._last_dev = dict(state.dev)
        self._step_began = time.monotonic()
        self._step_seconds = 0.0
        self._dev_seconds = 0.0
        self._step_usd = state.step_usd
        self._cost_before = self._dev_usd = 0.0

    def state(self) -> TrainState:
        rollouts = self.rollouts
        return TrainState(
            rollouts.rows.state,
            self._collapse.state,
            rollouts.cost_from_step,
            self._last_dev,
            rollouts.second.stock,
            self._step_usd,
        )

    def require_money(self, step: int) -> None:
        """`CapReached` where the cap leaves no room for another step after this one, if one is to be taken."""
        spending, left = self.scorer.spending, step < self.recipe.grpo.steps
        short = left and spending is not None and not spending.covers(self._step_usd)
        if reason := agreed(spending.reached if spending is not None and short else ""):
            raise CapReached(reason)

    def begin_step(self) -> None:
        self._step_began = time.monotonic()
        self._cost_before = self._paid_usd()

    def check_gradients(self, model: Any) -> None:
        """Keep one gradient that is no number from turning every weight into none: such an update changes nothing."""
        import torch

        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        # The largest of each: asked for one by one, hundreds of answers would be waited for.
        largest = torch._foreach_norm(gradients, float("inf")) if gradients else [torch.zeros(())]
        bad = not bool(torch.stack(largest).isfinite().all())
        if bad:
            for parameter in model.parameters():
                parameter.grad = None  # with a gradient of 0 the optimiser would still move on by what it remembers
        note_gradients(self.rollouts.metrics, bad=bad)

    def end_step(self, step: int) -> None:
        """Look at the step that was just taken; `stop` says afterwards whether it was the last."""
        if (collapsed := self._collapse.update(self.rollouts.metrics)) is not None:
            self.stop.reason = collapsed
        self._step_usd = max(self._step_usd, self._paid_usd() - self._cost_before)
        spending = self.scorer.spending
        # All processes measure, or none does: they divide the questions.
        capped = agreed(spending.reached if spending is not None and spending.refused else "")
        if not capped and self._measured_after(step):
            try:
                self.measure_dev(step)
            except CapReached as error:
                capped = str(error)
        seconds = time.monotonic() - self._step_began
        self._step_seconds = seconds if not self._step_seconds else 0.8 * self._step_seconds + 0.2 * seconds
        if step >= self.recipe.grpo.steps:
            # Whoever else asked for an end has it: there is nothing to go on with.
            self.stop.reason = collapsed or (f"the last figures on dev are old: {capped}" if capped else "")
            return
        if not capped and spending is not None and not spending.covers(self._next_usd(step + 1)):
            capped = spending.reached
        if capped and not self.stop.reason:
            self.stop.reason = f"stopped: {capped}. Checkpoint kept. Go on with --resume"
        # Room for two more steps, one of them measured, and the checkpoint, so that the limit is never run into.
        needed = 2 * max(seconds, self._step_seconds + self._dev_seconds / 2)
        if self._deadline is not None and time.monotonic() + needed > self._deadline:
            self.stop.reason = self.stop.reason or "stopped: out of time. Go on with --resume"

    def _measured_after(self, step: int) -> bool:
        return step % self.recipe.eval.every_steps == 0 or step == self.recipe.grpo.steps

    def _paid_usd(self) -> float:
        return 0.0 if self.scorer.spending is None else self.scorer.spending.spent_usd

    def _next_usd(self, step: int) -> float:
        """What a step may cost: as much as the dearest so far, and what is measured after it."""
        return self._step_usd + (self._dev_usd if self._measured_after(step) else 0.0)

    def _costs(self) -> dict[str, float]:
        return {} if self.scorer.spending is None else {"spent_usd": self.scorer.spending.total_usd}

    def measure_dev(self, step: int) -> None:
        """The development questions, greedily; they open stages of the curriculum and start the cost."""
        n, began, paid = self.recipe.eval.n, time.monotonic(), self._paid_usd()
        with within_memory("while development questions were answered", advice=f"lower eval.n, which is {n}"):
            figures = measure(self.policy, self.scorer, self._dev)
        depths = {row.task.depth: f"accuracy_depth_{row.task.depth}" for row in self._dev}
        self.rollouts.rows.note_dev({depth: figures[name] for depth, name in depths.items() if name in figures})
        self.rollouts.cost_from_step = lambda_start(
            self.rollouts.cost_from_step,
            step=step,
            accuracy=figures.get("accuracy", 0.0),
            ceiling=self._ceiling,
            settings=self.recipe.cost,
        )
        self._last_dev = figures
        self._dev_seconds = time.monotonic() - began
        self._dev_usd = self._paid_usd() - paid
        told = {"stage": float(self.rollouts.rows.state.stage), **self._costs()}
        self.progress.record("dev", step, figures | told)

    def log(self, step: int, logs: dict[str, Any]) -> None:
        figures = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        figures |= {"step_seconds": time.monotonic() - self._step_began, **self._costs()}
        self.progress.record("train", step, figures)
        left = (self.recipe.grpo.steps - step) * self._step_seconds
        self.progress.show(step, self.rollouts.metrics | {"step_seconds": self._step_seconds}, seconds_left=left)

    def save(self, folder: Path, step: int) -> None:
        """Make the checkpoint that was just written count, once every process has added what it remembers; only then
        do older ones go."""
        write_durably(state_file(folder, self._process), msgspec.json.encode(self.state()))
        agreed("")  # comes back once all of them have written
        if self._process:
            return
        seal(folder, step=step)
        prune(folder.parent, keep=self.recipe.grpo.keep_checkpoints)

    def callback(self) -> Any:
        """This watch as transformers wants it, which counts updates: nothing ends between those of one draw."""
        from transformers import TrainerCallback

        watch, updates = self, self.recipe.grpo.updates

        class Following(TrainerCallback):  # type: ignore[misc]
            def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                # How often to save is read from the checkpoint; the recipe may have changed since.
                state.compute_steps(args, state.max_steps)

            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step % updates == 0:
                    watch.begin_step()

            def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
                watch.check_gradients(model)

            def on_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
                # DeepSpeed keeps gradients to itself, looks at them itself, and steps over bad ones.
                note_gradients(watch.rollouts.metrics, bad=bool(optimizer.step_was_skipped))

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
                if state.global_step % updates:
                    return control
                watch.end_step(state.global_step // updates)
                watch.stop.reason = agreed(watch.stop.reason)
                if watch.stop.reason or state.global_step >= state.max_steps:
                    control.should_training_stop = True
                    control.should_save = True
                return control

            def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
                if "loss" in logs and state.is_world_process_zero:
                    watch.log(state.global_step // updates, logs)

            def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                step = state.global_step // updates
                watch.save(Path(args.output_dir) / f"{PREFIX}{step}", step)

        return Following()


def agreed(reason: str) -> str:
    """Why the run is to end, for all of its processes: the first of them that has a reason gives it. One that ended by
    itself would leave the others waiting for it in the next update."""
    return next((one for one in everyones(reason) if one), "")


def note_gradients(metrics: dict[str, float], *, bad: bool) -> None:
    """In the metrics of a draw, which are new with every one: whether those of any of its updates were bad."""
    metrics["bad_gradients"] = max(metrics.get("bad_gradients", 0.0), float(bad))


def state_file(folder: Path, process: int) -> Path:
    return folder / (STATE_FILE if not process else STATE_FILE.replace(".", f"-{process}."))


def load_state(folder: Path, *, process: int = 0) -> TrainState:
    """What a process remembered; one that was not there goes on from what the first did."""
    file = state_file(folder, process)
    return msgspec.json.decode((file if file.exists() else folder / STATE_FILE).read_bytes(), type=TrainState)
