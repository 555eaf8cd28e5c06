"""The time that the conductor takes to write a plan on this CPU: a new question, with cached cards and with cold ones.

    python gym/benchmarks/plan_latency.py [--adapter NAME|FILE] [--questions 21] [--threads 2] [--beside] [--json]

The default pool is the packaged specialists, as `dirigent ask` offers them. *Cached*: the server has read these cards
for an earlier question; between two plans specialists answer, as in real runs, so that a slot that loses its prefix
would show. *Cold*: the same cards in an order that the server has not read. The server runs in both; its start is
reported apart.

The conductor is merged into its base, as in the default pool; `--beside` leaves it an adapter among the others. Without
a conductor in the package any adapter will do as a stand-in, because it costs the same a token. A stand-in writes no
plans, so it writes freely, exactly as many tokens as the question's right plan has. Only a conductor shows the cost of
the grammar of plans: if a model is about to write something else, the grammar is tried on the whole vocabulary, token
after token. Every figure comes with the server's own CPU seconds, which a busy machine changes less than the clock.
Needs the extra `local`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dirigent.errors import ConfigError
from dirigent.limits import Limits
from dirigent.messages import Request, conversation
from dirigent.plan.grammar import plan_grammar
from dirigent.plan.plan import format_plan
from dirigent.plan.prompt import trained_planner_messages
from dirigent.tasks.task import Task
from dirigent.workers.adapters import packaged
from dirigent.workers.local import MERGED_SLOTS, Local, LocalModel
from dirigent.workers.local_server import writing_threads
from dirigent.workers.worker import WorkerInfo
from dirigent_gym.pool import CONDUCTOR, PLAN_TOKENS
from dirigent_gym.questions import ROSTER, generate, plan_for
from dirigent_gym.questions.specialists import Specialist

BASE = "smollm2-135m"
LIMITS = Limits(max_steps=5)


class Plan(msgspec.Struct, frozen=True):
    """One plan and its times."""

    seconds: float
    read_tokens: int
    """The tokens of the prompt that were not cached."""
    prompt_tokens: int
    written_tokens: int
    cpu_s: float
    """The server's CPU seconds, over all its threads."""


def main() -> None:
    args = _arguments()
    figures = asyncio.run(
        measure(args.adapter, questions=args.questions, threads=args.threads, seed=args.seed, beside=args.beside)
    )
    if not args.json:
        for name in ("cached", "cold"):
            row = figures[name]
            print(
                f"{name:<8} p50 {row['p50_s']:.2f} s   p95 {row['p95_s']:.2f} s   reads {row['read_tokens']:.0f} of "
                f"{row['prompt_tokens']:.0f} tokens   writes {row['written_tokens']:.0f}   CPU {row['cpu_p50_s']:.2f} s"
            )
    print(json.dumps(figures))


async def measure(
    adapter: str = "", *, questions: int, threads: int = 2, seed: int = 1, beside: bool = False
) -> dict[str, Any]:
    """The seconds of a plan, cached and cold, with the settings used. `adapter` as on the command line."""
    name, adapters = _chosen(adapter, packaged())
    specialists = [s for s in ROSTER if s.name in adapters]
    tasks = _tasks(questions, specialists, seed=seed)
    began = time.perf_counter()
    async with (
        LocalModel(BASE, adapters=adapters, threads=threads) as model,
        LocalModel(BASE, merged=adapters[name], slots=MERGED_SLOTS, threads=threads) as merged_model,
    ):
        merges = name == CONDUCTOR and not beside
        planning = merged_model if merges else model
        bench = Bench(planning, name, (await planning.running()).process.pid, merged=merges)
        start_s = time.perf_counter() - began
        lengths = {task.id: 0 for task in tasks} if bench.conducts else await right_lengths(bench, tasks, specialists)
        cached = []
        for task in tasks:
            cached.append(await bench.write(task, specialists, tokens=lengths[task.id]))
            await carry_out(model, task, specialists)
        cold = []
        for i, task in enumerate(tasks):
            order = random.Random(i).sample(specialists, len(specialists))
            cold.append(await bench.write(task, order, tokens=lengths[task.id]))
    return {
        "adapter": name,
        "stand_in": not bench.conducts,
        "merged": merges,
        "workers": len(specialists),
        "questions": len(tasks),
        "threads": threads,
        "writing_threads": writing_threads(threads),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "start_s": round(start_s, 2),
        "cached": _summary(cached),
        "cold": _summary(cold),
    }


class Bench:
    """The adapter that writes plans, and the server it runs on."""

    def __init__(self, model: LocalModel, adapter: str, pid: int, *, merged: bool) -> None:
        self.conducts = adapter == CONDUCTOR
        self._pid = pid
        beside = None if merged else adapter
        self._writer = Local(model, name=CONDUCTOR, adapter=beside)
        self._rambling = Local(model, name=CONDUCTOR, adapter=beside, extra={"ignore_eos": True})

    async def write(self, task: Task, specialists: Sequence[Specialist], *, tokens: int) -> Plan:
        """A plan for a question: the conductor's own under the grammar, or so many tokens of a stand-in's text."""
        names = [specialist.name for specialist in specialists]
        grammar = plan_grammar(names, LIMITS, dialect="lines") if self.conducts else ""
        return await self.ask(task, specialists, grammar=grammar, max_tokens=tokens or PLAN_TOKENS)

    async def ask(self, task: Task, specialists: Sequence[Specialist], *, grammar: str, max_tokens: int) -> Plan:
        infos = [WorkerInfo(s.name, about=s.about, price=s.price) for s in specialists]
        messages = trained_planner_messages(conversation(task.question), infos, limits=LIMITS)
        request = Request(messages, grammar=grammar, temperature=0.0, max_output_tokens=max_tokens)
        began, spent_s = time.perf_counter(), _cpu_s(self._pid)
        usage = (await (self._writer if grammar else self._rambling).ask(request)).usage
        return Plan(
            seconds=time.perf_counter() - began,
            read_tokens=usage.input_tokens - usage.cached_input_tokens,
            prompt_tokens=usage.input_tokens,
            written_tokens=usage.output_tokens,
            cpu_s=_cpu_s(self._pid) - spent_s,
        )


async def right_lengths(bench: Bench, tasks: Sequence[Task], specialists: Sequence[Specialist]) -> dict[str, int]:
    """The tokens of each question's right plan, which a grammar that allows nothing else dictates once."""
    names = [specialist.name for specialist in specialists]
    found = {}
    for task in tasks:
        right = format_plan(plan_for(task, specialists), names, dialect="lines")
        grammar = f"root ::= {json.dumps(right)}"
        found[task.id] = (await bench.ask(task, specialists, grammar=grammar, max_tokens=PLAN_TOKENS)).written_tokens
    return found


async def carry_out(model: LocalModel, task: Task, specialists: Sequence[Specialist]) -> None:
    """Let the question's own specialists answer their subtasks, so that they compete for the server's slots."""
    for step in plan_for(task, specialists).steps:
        worker = Local(model, name=step.worker, adapter=step.worker, subtask_only=True)
        await worker.ask(Request(conversation(step.subtask), max_output_tokens=24, temperature=0.0))


def _cpu_s(pid: int) -> float:
    """The user and system seconds of a process so far (proc(5): fields 14 and 15, after the name in brackets)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _chosen(adapter: str, adapters: dict[str, Path]) -> tuple[str, dict[str, Path]]:
    """The adapter that writes, by name or as a file, and all that are loaded."""
    if not adapter:
        adapter = CONDUCTOR if CONDUCTOR in adapters else next(iter(adapters), "")
    if adapter.endswith(".gguf"):
        return CONDUCTOR, {**adapters, CONDUCTOR: Path(adapter)}
    if adapter not in adapters:
        raise ConfigError(f"the package has no adapter {adapter!r}; there are: {', '.join(adapters)}")
    return adapter, adapters


def _tasks(count: int, specialists: Sequence[Specialist], *, seed: int) -> list[Task]:
    """Test questions that these specialists can answer; the first one is for warming up."""
    able = {skill for specialist in specialists for skill in specialist.skills}
    tasks = generate("test", 4 * count, seed=seed)
    fit = [task for task in tasks if task.sketch and set(task.sketch.skills) <= able]
    if not fit[:count]:
        raise ConfigError(f"there is no question for {len(specialists)} specialists; are the adapters in the package?")
    return fit[:count]


def _summary(plans: Sequence[Plan]) -> dict[str, float]:
    seconds = sorted(plan.seconds for plan in plans)
    return {
        "p50_s": round(statistics.median(seconds), 3),
        "p95_s": round(seconds[min(len(seconds) - 1, round(0.95 * len(seconds)))], 3),
        "cpu_p50_s": round(statistics.median(plan.cpu_s for plan in plans), 3),
        "read_tokens": statistics.median(plan.read_tokens for plan in plans),
        "prompt_tokens": statistics.median(plan.prompt_tokens for plan in plans),
        "written_tokens": statistics.median(plan.written_tokens for plan in plans),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", default="", help="a packaged adapter, or a .gguf file taken as the conductor")
    parser.add_argument("--questions", type=int, default=21)
    parser.add_argument(
        "--threads", type=int, default=2, help="threads that read prompts; one fewer writes, at least one"
    )
    parser.add_argument("--beside", action="store_true", help="do not merge the conductor into its base")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    return parser.parse_args()


if __name__ == "__main__":
    main()
