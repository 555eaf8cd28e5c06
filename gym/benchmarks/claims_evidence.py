"""The evidence for the table of claims, measured on one trained conductor: from adapters to `Evidence`.

All adapters (the conductor's, its warm start's and the controls') have one base, so that PEFT folders and GGUF files
are measured alike. The product's decoder writes plans in batches, greedily by default, and the code of training carries
them out, over workers that answer by table. Nothing is chosen on the test: the ceiling's ways come from the development
split, the best worker from the training split. This is a part of `claims.py`, whose table is arithmetic over the
evidence.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import torch

from dirigent.evals.costing import in_lots, sizes_for
from dirigent.evals.record import Outcome
from dirigent.evals.stats import mean
from dirigent.learn.base import Base
from dirigent.learn.decoder import Adapter, Decoder
from dirigent.learn.export import load_adapter
from dirigent.messages import Message
from dirigent.plan.plan import Plan, Step, format_plan
from dirigent.plan.prompt import next_round_messages
from dirigent.planners.examples import SampleCost
from dirigent.tasks.task import Task, grade, tidy
from dirigent_gym.evals.ceiling import Kind, Way, choose_ways, plan_by, plans_for, stand_in, way_for
from dirigent_gym.evals.test_sets import probe_roster, probe_tasks
from dirigent_gym.questions.specialists import RL_ROSTER, ROSTER, Specialist, find_specialist
from dirigent_gym.questions.split import generate
from dirigent_gym.train.claims import OTHER_SETS, Evidence, Run, Scores, scores
from dirigent_gym.train.controls import (
    Followed,
    PlanShares,
    aliased_rows,
    followed,
    novel_rows,
    plan_pass_at,
    plan_shares,
    reworded_rows,
    swapped_rows,
)
from dirigent_gym.train.dataset import Row, RowSettings, held_rows, make_row
from dirigent_gym.train.direct import asked
from dirigent_gym.train.lessons import SECRET
from dirigent_gym.train.recipe import Recipe
from dirigent_gym.train.reward import Scored, ScoreSettings, score
from dirigent_gym.train.rows import right_plan
from dirigent_gym.train.run import sampler_for, weights_file
from dirigent_gym.train.workers import exact_workers

CONDUCTOR, WARM_START = "conductor", "warm-start"
PLAN_CONTROLS = ("right-plans", "rejection", "online-rejection", "format-only", "shuffled")
"""Controls that write plans."""
DIRECT = "direct"
"""The control that answers questions itself."""
CHECKABLE = ("check",)
"""Shapes of question whose answer a worker can verify."""
CHOOSING_SEED = 10_000
"""Added to the seed of questions that something is chosen on, as in `dirigent_gym/evals/pools.py`."""

Say = Callable[[str], None]


class Sizes(msgspec.Struct, frozen=True):
    """The number of questions of each figure."""

    test: int = 1000
    sampled: int = 200
    """The number of these questions with 16 sampled plans each; with 0 the lines about them are not measured."""
    choosing: int = 300
    noise_seeds: int = 5
    novel: int = 300
    rounds: int = 200
    """Checkable questions that get two rounds."""
    probes: int = 300
    """The most questions of each further set."""
    seed: int = 1

    def at_most(self, limit: int) -> Sizes:
        names = ("test", "sampled", "choosing", "novel", "rounds", "probes")
        return msgspec.structs.replace(self, **{name: min(getattr(self, name), limit) for name in names})


class Bench:
    """The adapters on their base, and the workers."""

    def __init__(self, recipe: Recipe, base: Base, adapters: Mapping[str, Adapter]) -> None:
        self.recipe = recipe
        self.base = base
        self._adapters = dict(adapters)
        self._workers = exact_workers(ROSTER)
        self._scoring = ScoreSettings(recipe.reward, seed=recipe.seed, max_steps=recipe.rows.max_steps)

    @property
    def adapters(self) -> tuple[str, ...]:
        return tuple(self._adapters)

    def write(
        self, adapter: str, rows: Sequence[Row], *, group: int = 1, seed: int | None = None
    ) -> tuple[list[Row], list[str]]:
        """`group` plans for each row, greedy without a seed; also returns each row once for each of its plans."""
        texts = self.texts(adapter, [row.messages for row in rows], group=group, seed=seed)
        return [row for row in rows for _ in range(group)], texts

    def run(self, adapter: str, rows: Sequence[Row]) -> Run:
        """Carries out one greedy plan for each row."""
        _, texts = self.write(adapter, rows)
        return Run(tuple(rows), tuple(self.score(rows, texts)))

    def score(self, rows: Sequence[Row], texts: Sequence[str], *, then: Sequence[str] = ()) -> list[Scored]:
        return asyncio.run(score(rows, texts, self._workers, self._scoring, then=then))

    def texts(
        self,
        adapter: str,
        conversations: Sequence[Sequence[Message]],
        *,
        group: int = 1,
        seed: int | None = None,
    ) -> list[str]:
        base, sampler = self.base, sampler_for(self.recipe, self.base)
        prompts = [self.base.prompt_ids(conversation) for conversation in conversations]
        with torch.no_grad():
            decoder = Decoder(base.weights, base.shape, self._adapters[adapter])
        if seed is None:
            return [base.text(ids) for ids in sampler.greedy(decoder, prompts)]
        groups = sampler.sample(decoder, prompts, group=group, seed=seed)
        return [base.text(ids) for ids_of_prompt in groups for ids in ids_of_prompt]


def open_bench(recipe: Recipe, adapters: Mapping[str, Path]) -> Bench:
    """Opens the recipe's base with these adapters, by role."""
    base = Base.from_gguf(weights_file(recipe.base.weights))
    return Bench(recipe, base, {role: load_adapter(path, base=base) for role, path in adapters.items()})


def gather(bench: Bench, sizes: Sizes, *, say: Say) -> Evidence:
    """Everything that torch can measure; `claims_local.py` measures in llama.cpp."""
    rows = held_rows("test", sizes.test, seed=sizes.seed, settings=bench.recipe.rows)
    say(f"{len(rows):,} questions of the test")
    test = bench.run(CONDUCTOR, rows)
    there = bench.adapters
    found: dict[str, Any] = {}
    for role in PLAN_CONTROLS:
        if role in there:
            say(f"control: {role}")
            found[role.replace("-", "_")] = scores(bench.run(role, rows))
    if DIRECT in there:
        say("control: question to answer")
        found[DIRECT] = _direct(bench, rows)
    say("ceiling, oracle, vote")
    ways = find_ways(bench, sizes)
    alone = [Plan((Step(name, row.task.question),)) for row in rows for name in row.names]
    found["oracle"] = _best_of_any(bench, rows, alone)
    found["vote"], found["vote_cost_ratio"] = _vote(bench, rows, test, sizes)
    say("other cards, other questions, two rounds")
    for name, changed in (("reworded", reworded_rows), ("aliased", aliased_rows)):
        found[name] = bench.run(CONDUCTOR, changed(rows, seed=sizes.seed, max_steps=bench.recipe.rows.max_steps))
    found["swapped"] = _swapped(bench, rows, sizes.seed)
    found["novel"] = bench.run(CONDUCTOR, novel_rows(sizes.novel, seed=sizes.seed, settings=bench.recipe.rows))
    found["rounds"] = _two_rounds(bench, sizes)
    found["others"] = other_sets(bench, sizes)
    say("16 plans a question, before and after")
    if WARM_START in there:
        start = found["warm_start"] = bench.run(WARM_START, rows)
        sampled = _sampled(bench, WARM_START, rows, sizes)
        found["before"] = _ways_of_decoding(start, sampled)
        found["warm_start_sampled"] = sampled if sampled.rows else None
    found["after"] = _ways_of_decoding(test, _sampled(bench, CONDUCTOR, rows, sizes))
    return Evidence(test=test, ceiling=_ceiling(bench, rows, ways, sizes), by_table=True, **found)


def carried_out(bench: Bench, rows: Sequence[Row], plans: Sequence[Plan]) -> list[Scored]:
    """The scores of plans that no model wrote; a row appears once for each of its plans."""
    texts = [
        format_plan(row.with_shown_names(plan), row.shown, dialect="lines")
        for row, plan in zip(rows, plans, strict=True)
    ]
    return bench.score(rows, texts)


def find_ways(bench: Bench, sizes: Sizes) -> dict[Kind, Way]:
    """The ceiling's way for each kind of question, found by trying all ways on the development split."""
    rows = held_rows("dev", sizes.choosing, seed=sizes.seed + CHOOSING_SEED, settings=bench.recipe.rows)
    plans = [plans_for(row.task, _offered(row), max_steps=bench.recipe.rows.max_steps) for row in rows]
    tried = [
        (i, way)
        for i, known in enumerate(plans)
        for way in known
        if stand_in(way, known) == way
        for _ in range(sizes.noise_seeds if way.guesses > 1 else 1)
    ]
    scored = carried_out(bench, [rows[i] for i, _ in tried], [plans[i][way] for i, way in tried])
    outcomes: dict[tuple[int, Way], list[Outcome]] = {}
    for key, one in zip(tried, scored, strict=True):
        outcomes.setdefault(key, []).append(_outcome(one))
    return choose_ways(
        (row.task, {way: outcomes.get((i, stand_in(way, plans[i])), []) for way in plans[i]})
        for i, row in enumerate(rows)
    )


def _outcome(one: Scored) -> Outcome:
    return Outcome(planner="way", task="", correct=one.correct, cost_usd=one.cost_usd)


def _offered(row: Row) -> list[Specialist]:
    return [find_specialist(name) for name in row.names]


def _ceiling(bench: Bench, rows: Sequence[Row], ways: Mapping[Kind, Way], sizes: Sizes) -> Scores:
    """The best known plan of each kind, mean of the noise seeds; 0 if the pool has no worker for a step."""
    found = dict.fromkeys((row.task.id for row in rows), 0.0)
    planned = []
    for row in rows:
        plan = plan_by(way_for(row.task, ways), row.task, _offered(row)) or right_plan(row)
        if plan is not None:
            planned += [(row, plan)] * sizes.noise_seeds
    scored = carried_out(bench, [row for row, _ in planned], [plan for _, plan in planned])
    for (row, _), one in zip(planned, scored, strict=True):
        found[row.task.id] += one.correct / sizes.noise_seeds
    return found


def _best_of_any(bench: Bench, rows: Sequence[Row], plans: Sequence[Plan]) -> Scores:
    """Whether any worker of the pool is right alone."""
    asked_rows = [row for row in rows for _ in row.names]
    found = dict.fromkeys((row.task.id for row in rows), 0.0)
    for row, one in zip(asked_rows, carried_out(bench, asked_rows, plans), strict=True):
        found[row.task.id] = max(found[row.task.id], float(one.correct))
    return found


def _vote(bench: Bench, rows: Sequence[Row], test: Run, sizes: Sizes) -> tuple[Scores, float | None]:
    """The scores of a vote: the best worker on the training split, asked as often as the conductor's plans cost. Also
    returns the vote's cost over the conductor's. An invalid plan costs nothing and counts."""
    ranking = _ranking(bench, sizes)
    plans = [Plan((Step(min(row.names, key=ranking.index), row.task.question),)) for row in rows]
    once_usd = [one.cost_usd for one in carried_out(bench, rows, plans)]
    money_usd = mean([one.cost_usd for one in test.scored if not one.dropped]) * len(rows)
    samples = _samples(rows, once_usd, money_usd, seed=sizes.seed)
    asked_rows = [row for row, n in zip(rows, samples, strict=True) for _ in range(n)]
    asked_plans = [plan for plan, n in zip(plans, samples, strict=True) for _ in range(n)]
    scored = carried_out(bench, asked_rows, asked_plans)
    given = iter(scored)
    found: dict[str, float] = {}
    for row, n in zip(rows, samples, strict=True):
        most, _ = Counter(tidy(one.answer) for one in islice(given, n)).most_common(1)[0]
        found[row.task.id] = float(grade(row.task, most).correct)
    return found, math.fsum(one.cost_usd for one in scored) / money_usd if money_usd else None


def _samples(rows: Sequence[Row], once_usd: Sequence[float], money_usd: float, *, seed: int) -> list[int]:
    """The number of samples for each question, n or one more by lot, so that all together cost this much according to
    the cost of one sample."""
    each_usd = mean(list(once_usd))
    if not each_usd:
        return [1] * len(rows)
    weights = {row.id: usd / each_usd for row, usd in zip(rows, once_usd, strict=True)}
    found = sizes_for(in_lots(list(weights), seed), SampleCost(each_usd, each_usd), money_usd, weights=weights)
    return [found[row.id] for row in rows]


def _ranking(bench: Bench, sizes: Sizes) -> list[str]:
    """The workers from best to worst on whole training questions; of equals, the cheaper first."""
    rows = held_rows("train", sizes.choosing, seed=sizes.seed + CHOOSING_SEED, settings=bench.recipe.rows)
    found: dict[str, list[Scored]] = {specialist.name: [] for specialist in ROSTER}
    pairs = [(row, name) for row in rows for name in row.names]
    plans = [Plan((Step(name, row.task.question),)) for row, name in pairs]
    for (_, name), one in zip(pairs, carried_out(bench, [row for row, _ in pairs], plans), strict=True):
        found[name].append(one)

    def rank(name: str) -> tuple[float, float]:
        return -mean([float(one.correct) for one in found[name]]), mean([one.cost_usd for one in found[name]])

    return sorted(found, key=rank)


def _direct(bench: Bench, rows: Sequence[Row]) -> Scores:
    replies = bench.texts(DIRECT, [asked(row.task) for row in rows])
    return {row.task.id: float(grade(row.task, reply).correct) for row, reply in zip(rows, replies, strict=True)}


def _swapped(bench: Bench, rows: Sequence[Row], seed: int) -> Followed | None:
    swapped = swapped_rows(rows, seed=seed, max_steps=bench.recipe.rows.max_steps)
    run = bench.run(CONDUCTOR, [one.row for one in swapped]) if swapped else None
    return followed(swapped, run.scored) if run else None


def _two_rounds(bench: Bench, sizes: Sizes) -> tuple[Scores, Scores]:
    """Checkable questions after one round and after two. If the later round gives no answer, the answer before it
    stays, as in a user's run."""
    rng = random.Random(f"rounds {sizes.seed}")
    rows = _rows(rounds_tasks(sizes), rng, settings=bench.recipe.rows)
    _, texts = bench.write(CONDUCTOR, rows)
    first = bench.score(rows, texts)
    again = [i for i, one in enumerate(first) if one.valid and not one.dropped]
    conversations = [
        (*rows[i].messages, *next_round_messages(texts[i], first[i].steps, dialect="lines", secret=SECRET))
        for i in again
    ]
    then = bench.texts(CONDUCTOR, conversations)
    second = bench.score([rows[i] for i in again], [texts[i] for i in again], then=then)
    before = {row.task.id: float(one.correct) for row, one in zip(rows, first, strict=True) if not one.dropped}
    after = {rows[i].task.id: float(one.correct) for i, one in zip(again, second, strict=True) if not one.dropped}
    return before, before | after


def rounds_tasks(sizes: Sizes) -> list[Task]:
    """Checkable questions: a tenth of the questions drawn."""
    tasks = generate("test", 12 * sizes.rounds, seed=sizes.seed + CHOOSING_SEED)
    return [task for task in tasks if task.tags.get("shape") in CHECKABLE][: sizes.rounds]


def other_sets(bench: Bench, sizes: Sizes, *, names: Sequence[str] = tuple(OTHER_SETS)) -> dict[str, Run]:
    """The conductor's runs on the sets that are reported beside the test."""
    found = {}
    for name in names:
        rng = random.Random(f"probe rows {name} {sizes.seed}")
        tasks = probe_tasks(name, limit=sizes.probes, seed=sizes.seed)
        found[name] = bench.run(CONDUCTOR, _rows(tasks, rng, settings=bench.recipe.rows, roster=probe_roster(name)))
    return found


def _rows(
    tasks: Sequence[Task], rng: random.Random, *, settings: RowSettings, roster: Sequence[Specialist] = RL_ROSTER
) -> list[Row]:
    """Rows over pools of every size."""
    return [
        make_row(task, rng, size=rng.randint(*settings.large_pool), max_steps=settings.max_steps, roster=roster)
        for task in tasks
    ]


def _sampled(bench: Bench, adapter: str, rows: Sequence[Row], sizes: Sizes) -> Run:
    """Sixteen sampled plans for each of the first rows."""
    if not sizes.sampled:
        return Run((), ())
    many, texts = bench.write(adapter, rows[: sizes.sampled], group=16, seed=sizes.seed)
    return Run(tuple(many), tuple(bench.score(many, texts)))


def _ways_of_decoding(greedy: Run, sampled: Run) -> dict[str, PlanShares]:
    """The shares that are right in each respect: of the greedy plan, of a random sample, of the best of sixteen."""
    found = {"greedy": plan_shares(greedy.rows, greedy.scored)}
    if not sampled.rows:
        return found
    best = plan_pass_at(sampled.rows, sampled.scored, k=16)
    return found | {"sampled": plan_shares(sampled.rows, sampled.scored), "pass@16": best}
