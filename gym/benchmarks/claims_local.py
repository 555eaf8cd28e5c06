"""The shipped files in llama.cpp on this CPU: plans under the grammar, and the seconds of a plan.

Questions, pools and prompts are those of torch, so that the two can be compared question by question. The base is the
4-bit file that users run. Workers that are adapters answer in llama.cpp too. This is a part of `claims.py`, not a
program. Needs the extra `local`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from gym.benchmarks import plan_latency

from dirigent.learn.export import default_base, export_adapter, read_base
from dirigent.limits import Limits
from dirigent.messages import Request
from dirigent.plan.grammar import plan_grammar
from dirigent.workers.local import Local, LocalModel
from dirigent.workers.worker import Worker
from dirigent_gym.pool import CONDUCTOR, PLAN_TOKENS
from dirigent_gym.questions.specialists import ROSTER
from dirigent_gym.train.claims import Run
from dirigent_gym.train.dataset import Row
from dirigent_gym.train.recipe import Recipe
from dirigent_gym.train.reward import ScoreSettings, score
from dirigent_gym.train.workers import exact_workers


class LocalRun(msgspec.Struct, frozen=True):
    run: Run
    seconds: float
    """The time to write all plans, one after the other."""


@contextmanager
def as_gguf(adapter: Path) -> Iterator[Path]:
    """The adapter in llama.cpp's format: the file itself, or a temporary export of a PEFT folder."""
    if adapter.suffix == ".gguf":
        yield adapter
        return
    with tempfile.TemporaryDirectory() as folder:
        yield export_adapter(adapter, Path(folder) / "conductor.gguf", base=read_base(default_base())).path


async def run_locally(rows: Sequence[Row], conductor: Path, *, recipe: Recipe) -> LocalRun:
    """One plan a row, written by the file under the grammar and carried out."""
    async with LocalModel(recipe.base.weights, merged=conductor) as planner:
        writer = Local(planner, name=CONDUCTOR)
        began = time.monotonic()
        texts = [await _plan(writer, row, recipe=recipe) for row in rows]
        seconds = time.monotonic() - began
    settings = ScoreSettings(recipe.reward, seed=recipe.seed, max_steps=recipe.rows.max_steps)
    scored = await score(rows, texts, exact_workers(ROSTER), settings)
    return LocalRun(Run(tuple(rows), tuple(scored)), seconds)


async def plan_seconds(conductor: Path, *, questions: int) -> tuple[float, float]:
    """The median seconds of a plan, with cached cards and with cold ones."""
    figures = await plan_latency.measure(str(conductor), questions=questions)
    return figures["cached"]["p50_s"], figures["cold"]["p50_s"]


async def _plan(writer: Worker, row: Row, *, recipe: Recipe) -> str:
    limits = Limits(max_steps=recipe.rows.max_steps)
    grammar = plan_grammar(row.shown, limits, dialect="lines")
    request = Request(row.messages, grammar=grammar, temperature=0.0, max_output_tokens=PLAN_TOKENS)
    return (await writer.ask(request)).text
