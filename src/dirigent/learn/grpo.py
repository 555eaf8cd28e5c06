"""Train a conductor with GRPO: draw questions, write plans, score them, compare each with its group, step, save.

One loop, read downwards. Questions and rewards are the task's, plans are the sampler's, the model is the decoder's;
this file knows none of them. Every rollout is used once, for one step: the policy that learns is the policy that wrote.

- A reward is compared with the mean of its group and not divided by the group's spread, which would cancel any weight
  on cost: a group that differs in cost alone would count as much as one that differs in right and wrong.
- A rollout whose reward is None met a fault that was not the plan's. It leaves its group.
- The policy is held near the adapter it started from (`beta`), or plans shrink to one step while routing is a guess.

A run writes `metrics.jsonl`, a checkpoint every few steps, and the adapter; started again in the same folder it goes
on from its last checkpoint. Suffixes: P questions, G plans of a question, N tokens of all plans.
"""

# ruff: noqa: N803, N806

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import torch

from dirigent.errors import ConfigError, LimitError
from dirigent.learn.base import Base
from dirigent.learn.decoder import Adapter, Decoder, logprobs
from dirigent.learn.sampler import Sampler
from dirigent.messages import Message


class Asked(msgspec.Struct, frozen=True):
    """One question as a task puts it to the conductor."""

    id: str
    prompt: tuple[Message, ...]
    extra: Any = None
    """The task's own: whatever it needs to score a plan for this question."""
    opening: str = ""
    """How the reply begins: given, not written, and not learned."""


class Rollout(msgspec.Struct, frozen=True):
    """One plan and what it was worth."""

    reward: float | None
    """None: a fault that was not the plan's, so the rollout teaches nothing."""
    facts: Mapping[str, float] = {}
    """What to report, averaged over rollouts: right, cost, steps."""
    advantage: float | None = None
    """Replaces the reward less the mean of its group: for tasks that scale it, or that imitate and do not compare."""


class Task(Protocol):
    """Where questions and rewards come from."""

    def draw(self, count: int, *, step: int, rng: random.Random) -> list[Asked]: ...

    async def score(
        self, asked: Sequence[Asked], plans_PG: Sequence[Sequence[str]], *, step: int
    ) -> list[list[Rollout]]:
        """The worth of every plan. Plans may be carried out or valued on recorded answers."""
        ...

    def measure(self, write: Callable[[Sequence[Asked]], list[str]]) -> dict[str, float]:
        """Measure a policy on development questions. `write` gives its greedy plan for each."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A task that changes as the policy learns, such as one with a curriculum. Checkpoints hold its state."""

    def remembered(self) -> str: ...

    def recall(self, state: str) -> None: ...


class GrpoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    steps: int = 300
    questions: int = 64
    """Questions drawn for a step."""
    rollouts: int = 16
    """Plans written for each question."""
    learning_rate: float = 2e-4
    warmup: float = 0.02
    """Share of the steps in which the rate rises; then it falls along a cosine to a tenth."""
    beta: float = 0.01
    """Weight of the distance from the start, per token."""
    clip_norm: float = 1.0
    rows_at_once: int = 128
    """Rows of one backward pass: what the memory holds."""
    measure_every: int = 50
    save_every: int = 25
    seed: int = 1


MAY_CHANGE = frozenset(("steps", "learning_rate", "rows_at_once", "measure_every", "save_every"))
"""Settings that a resumed run may have other values of: how long and how fast it goes, what memory it takes."""


class _Progress(msgspec.Struct):
    """What a checkpoint holds besides tensors."""

    step: int = 0
    best: float = -math.inf
    seconds: float = 0.0


Observe = Callable[[Mapping[str, float]], None]


def train(
    base: Base,
    start: Adapter,
    task: Task,
    sampler: Sampler,
    settings: GrpoSettings,
    folder: Path,
    *,
    observe: Observe = lambda facts: None,
    stop_after_s: float = math.inf,
    stop: Callable[[], bool] = lambda: False,
    runner: asyncio.Runner | None = None,
) -> Adapter:
    """Train from `start` and return the adapter.

    Ends early, to be resumed, before a step for which `stop()` is true, or that would not end within `stop_after_s`
    seconds if it took as long as the longest so far. A task ends a
    run with a `LimitError`: what was learned before is saved, then the error is raised. `runner` has the event loop on
    which the task's workers live; without it every step has a loop of its own.
    """
    begun = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    policy = start.copy()
    for parameter in policy.parameters():
        parameter.requires_grad_()
    optimiser = torch.optim.AdamW(list(policy.parameters()), lr=settings.learning_rate, weight_decay=0.0)
    progress = _restored(folder / "checkpoint.pt", policy, optimiser, settings, task)
    before, longest_s = progress.seconds, 0.0
    reference = Decoder(base.weights, base.shape, start.copy()) if settings.beta else None

    try:
        while progress.step < settings.steps and not stop():
            step, now = progress.step, time.monotonic()
            if now - begun + longest_s >= stop_after_s:
                break
            clock = _Clock()
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate * rate_factor(step, settings)

            asked = task.draw(settings.questions, step=step, rng=random.Random(f"{settings.seed}-{step}"))
            prompts = [base.prompt_ids(one.prompt, one.opening) for one in asked]
            with torch.no_grad():
                writer = Decoder(base.weights, base.shape, policy)
            tokens_PG = sampler.sample(writer, prompts, group=settings.rollouts, seed=settings.seed * 1_000_003 + step)
            plans_PG = [[base.text(ids) for ids in group] for group in tokens_PG]
            clock.lap("write_s")

            scores = task.score(asked, plans_PG, step=step)
            rollouts_PG = runner.run(scores) if runner is not None else asyncio.run(scores)
            clock.lap("score_s")

            advantages_PG = [group_advantages(group) for group in rollouts_PG]
            taught = [p for p, group in enumerate(advantages_PG) if any(group)]
            facts = _update(base, policy, reference, optimiser, prompts, tokens_PG, advantages_PG, taught, settings)
            clock.lap("update_s")

            progress.step += 1
            progress.seconds = before + time.monotonic() - begun
            facts |= _means(rollouts_PG) | clock.laps | {"step": step, "taught": len(taught) / len(asked)}
            facts["distinct"] = sum(len(set(plans)) for plans in plans_PG) / sum(len(plans) for plans in plans_PG)
            if progress.step % settings.measure_every == 0 or progress.step == settings.steps:
                measured = task.measure(greedy_plans(base, policy, sampler))
                facts |= {f"dev/{name}": value for name, value in measured.items()}
            with (folder / "metrics.jsonl").open("ab") as file:
                file.write(msgspec.json.encode(facts) + b"\n")
            observe(facts)
            if progress.step % settings.save_every == 0 or progress.step == settings.steps:
                _save(folder, policy, optimiser, progress, base, settings, task)
            longest_s = max(longest_s, time.monotonic() - now)
    except LimitError:
        _save(folder, policy, optimiser, progress, base, settings, task)
        raise
    _save(folder, policy, optimiser, progress, base, settings, task)
    return policy.copy()


def steps_taken(folder: Path) -> int:
    """The steps after which the run in this folder would go on."""
    path = folder / "checkpoint.pt"
    return msgspec.convert(_read(path)["progress"], _Progress).step if path.is_file() else 0


def greedy_plans(base: Base, policy: Adapter, sampler: Sampler) -> Callable[[Sequence[Asked]], list[str]]:
    """A function that writes the policy's likeliest plan for each question."""

    def write(asked: Sequence[Asked]) -> list[str]:
        with torch.no_grad():
            decoder = Decoder(base.weights, base.shape, policy)
        prompts = [base.prompt_ids(one.prompt, one.opening) for one in asked]
        return [base.text(ids) for ids in sampler.greedy(decoder, prompts)]

    return write


def group_advantages(rollouts_G: Sequence[Rollout]) -> list[float]:
    """The advantages that the task gave; the difference of each reward from the mean if it gave none."""
    if all(one.advantage is None for one in rollouts_G):
        return advantages([one.reward for one in rollouts_G])
    return [0.0 if one.reward is None else one.advantage or 0.0 for one in rollouts_G]


def advantages(rewards_G: Sequence[float | None]) -> list[float]:
    """How much better each rollout is than the mean of its group; 0 for one that was dropped."""
    known = [reward for reward in rewards_G if reward is not None]
    mean = sum(known) / len(known) if known else 0.0
    found = [0.0 if reward is None else reward - mean for reward in rewards_G]
    return [0.0 if abs(one) < 1e-9 else one for one in found]


def policy_loss(
    logprobs_N: torch.Tensor, advantages_N: torch.Tensor, start_N: torch.Tensor | None, *, beta: float, tokens: int
) -> torch.Tensor:
    """The loss whose gradient is GRPO's for plans used once, summed over these tokens and divided by all of a step's.

    With one use of each rollout the ratio to the policy that wrote it is 1, so its gradient is the advantage times that
    of the log-probability. The distance from the start is the estimator that is never negative (Schulman's k3).
    """
    loss = -(advantages_N * logprobs_N).sum()
    if start_N is not None:
        gap_N = start_N - logprobs_N
        loss = loss + beta * (gap_N.exp() - gap_N - 1).sum()
    return loss / tokens


def rate_factor(step: int, settings: GrpoSettings) -> float:
    """What the learning rate is multiplied by at this step."""
    rise = max(1.0, settings.warmup * settings.steps)
    if step < rise:
        return (step + 1) / rise
    share = (step - rise) / max(1.0, settings.steps - rise)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, share)))


def _update(
    base: Base,
    policy: Adapter,
    reference: Decoder | None,
    optimiser: torch.optim.Optimizer,
    prompts: Sequence[list[int]],
    tokens_PG: Sequence[Sequence[list[int]]],
    advantages_PG: Sequence[Sequence[float]],
    taught: Sequence[int],
    settings: GrpoSettings,
) -> dict[str, float]:
    """One optimiser step over the groups that teach something, in passes that the memory holds."""
    optimiser.zero_grad(set_to_none=True)
    total = sum(len(ids) for p in taught for ids in tokens_PG[p])
    if not total:
        return {"loss": 0.0}
    loss_sum = gap_sum = surprise_sum = 0.0
    at_once = max(1, settings.rows_at_once // settings.rollouts)
    ordered = sorted(taught, key=lambda p: len(prompts[p]))
    for at in range(0, len(ordered), at_once):
        places = ordered[at : at + at_once]
        rows = [tokens_PG[p] for p in places]
        repeats = torch.tensor([len(ids) for group in rows for ids in group])
        advantages_N = torch.tensor([a for p in places for a in advantages_PG[p]]).repeat_interleave(repeats)
        # The weights with the adapter added are made anew for every pass, so that its graph is freed with it.
        logprobs_N = logprobs(Decoder(base.weights, base.shape, policy), [prompts[p] for p in places], rows)
        start_N = None
        if reference is not None:
            with torch.no_grad():
                start_N = logprobs(reference, [prompts[p] for p in places], rows)
        loss = policy_loss(logprobs_N, advantages_N.to(logprobs_N.device), start_N, beta=settings.beta, tokens=total)
        loss.backward()
        loss_sum += float(loss.detach())
        surprise_sum -= float(logprobs_N.detach().sum())
        gap_sum += float((logprobs_N.detach() - start_N).sum()) if start_N is not None else 0.0
    norm = torch.nn.utils.clip_grad_norm_(list(policy.parameters()), settings.clip_norm)
    optimiser.step()
    return {
        "loss": loss_sum,
        "entropy": surprise_sum / total,
        "from_start": gap_sum / total,
        "gradient": float(norm),
        "plan_tokens": total / sum(len(tokens_PG[p]) for p in taught),
    }


class _Clock:
    """Seconds of each part of a step."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now


def _means(rollouts_PG: Sequence[Sequence[Rollout]]) -> dict[str, float]:
    """The mean reward and the mean of every fact, over the rollouts that have it."""
    values: dict[str, list[float]] = {}
    for rollout in (one for group in rollouts_PG for one in group):
        if rollout.reward is not None:
            values.setdefault("reward", []).append(rollout.reward)
        for name, value in rollout.facts.items():
            values.setdefault(name, []).append(value)
    return {name: sum(found) / len(found) for name, found in values.items()}


def _save(
    folder: Path,
    policy: Adapter,
    optimiser: torch.optim.Optimizer,
    progress: _Progress,
    base: Base,
    settings: GrpoSettings,
    task: Task,
) -> None:
    """Write the adapter and the checkpoint; a run that is killed in between finds the last whole one."""
    policy.save(folder / "adapter", base=base.name)
    beside = folder / "checkpoint.pt.tmp"
    state = {
        "a": policy.a,
        "b": policy.b,
        "optimiser": optimiser.state_dict(),
        "progress": msgspec.to_builtins(progress),
        "settings": msgspec.to_builtins(settings),
        "task": task.remembered() if isinstance(task, Remembering) else "",
    }
    torch.save(state, beside)
    beside.replace(folder / "checkpoint.pt")


def _restored(
    path: Path, policy: Adapter, optimiser: torch.optim.Optimizer, settings: GrpoSettings, task: Task
) -> _Progress:
    """Put the last checkpoint's state into policy, optimiser and task; a fresh run's progress if there is none."""
    if not path.is_file():
        return _Progress()
    state = _read(path)
    now = msgspec.to_builtins(settings)
    changed = {name: old for name, old in state["settings"].items() if name not in MAY_CHANGE and now[name] != old}
    if changed:
        told = ", ".join(f"{name} was {old} and is {now[name]}" for name, old in changed.items())
        raise ConfigError(f"{path} was written with other settings ({told}); change them back or use another folder")
    with torch.no_grad():
        for mine, theirs in ((policy.a, state["a"]), (policy.b, state["b"])):
            for name, matrix in mine.items():
                matrix.copy_(theirs[name])
    optimiser.load_state_dict(state["optimiser"])
    if isinstance(task, Remembering) and state.get("task"):
        task.recall(state["task"])
    return msgspec.convert(state["progress"], _Progress)


def _read(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its unpickler meets
        raise ConfigError(f"{path} cannot be read: {error}; bring the file back, or delete it to begin anew") from None
    return state
