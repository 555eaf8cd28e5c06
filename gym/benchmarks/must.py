"""The claims about the shipped conductor, line by line, measured on this CPU from the files in the package.

    python gym/benchmarks/must.py [--n 400] [--controls 100] [--workers exact|local] [--json]
    python gym/benchmarks/must.py --n 400 --record reports/gym-test-1.jsonl

llama.cpp writes the plans on the 4-bit base under the grammar, as for users. `--n` questions of the test give the
shares of the ceiling, the oracle, the held-out combinations, steps, fan-outs and two rounds. The first `--controls` of
them are planned again with reworded cards, with names that say nothing and with two cards swapped. As many questions
each need a skill never met, come from a second seed, are handwritten, or are reasoning-gym's. Last come the seconds of
a plan. `claims.py` has the lines that need training runs (controls a to d) or torch; here they are marked as not
measured. Answers to questions from elsewhere need workers that know other words than the generator's: `elsewhere.py`.

Every outcome is recorded in reports/ at once, so an interrupted run continues when it is started again; `--anew` begins
afresh. `--record` takes over the questions that `dirigent eval --tasks gym` has finished with the same files. Writes
docs/results/must.{json,md}. Needs the extra `local`; 90 minutes on two cores, about 30 with `--record`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gym.benchmarks.results import source_digest

from dirigent.errors import ConfigError, DirigentError
from dirigent.evals.entries import Entry, Evaluated, PoolFor, ask_entries
from dirigent.evals.evaluate import answers_of
from dirigent.evals.record import Outcome, Record, digest, read_outcomes, source_commit
from dirigent.evals.reply_cache import Replies
from dirigent.evals.stats import mean
from dirigent.messages import Event
from dirigent.planners.spec import PlannerFor
from dirigent.tasks.task import Task
from dirigent.workers.adapters import packaged
from dirigent.workers.pool import Pool
from dirigent_gym.evals.evaluation import GymField
from dirigent_gym.evals.pools import Carded, Gym, GymSettings, WorkerFor
from dirigent_gym.evals.workers import adapters_digest, gym_workers
from dirigent_gym.questions.pools import renamed
from dirigent_gym.questions.specialists import ROSTER
from dirigent_gym.train.claims import OTHER_SETS, Claim, Evidence, Run, Scores, as_table, claims, missed
from dirigent_gym.train.controls import Followed, Share, followed, plan_shares, share, swapped_rows
from dirigent_gym.train.dataset import Row
from dirigent_gym.train.reward import Scored
from dirigent_gym.weights import FOLDER

ROOT = Path(__file__).resolve().parents[2]
CONDUCTOR, TWO_ROUNDS, WARM_START = "conductor", "conductor:2", "warm-start"
PLANNERS = (CONDUCTOR, TWO_ROUNDS, WARM_START, "best", "vote", "oracle", "ceiling")
SAMPLED = ("sampled:", "pass@16:", "worker farthest from an even choice")
"""Lines about sampled plans, which do not concern the shipped files; `claims.py` and the training run have them."""


class Must(msgspec.Struct, frozen=True):
    """The content of the file: the lines, and the facts that support them."""

    table: list[Claim]
    workers: str
    n: int
    controls: int
    seed: int
    conductor: str
    """sha256 of its file."""
    commit: str
    date: str
    seconds: float
    """The duration of this start of the program; a resumed one took longer in all."""
    latency: dict[str, Any]
    """The result of `plan_latency.py`; empty if it was left out."""


def main() -> None:
    args = _arguments()
    began = time.monotonic()
    try:
        settings = GymSettings(limit=args.n, seed=args.seed, calibration=min(300, args.n))
        about = about_of(settings, args)
        file = args.work / f"must-{named(about)}.jsonl"
        evidence = asyncio.run(measured(args, settings, about, file))
        latency = latency_of(args, file.with_suffix(".latency.json"))
    except DirigentError as error:
        sys.exit(f"error: {error}")
    if latency:
        evidence = msgspec.structs.replace(evidence, plan_s=(latency["cached"]["p50_s"], latency["cold"]["p50_s"]))
    lines = [line for line in claims(evidence, seed=args.seed) if not any(way in line.name for way in SAMPLED)]
    found = Must(
        table=[*lines, *own_lines(evidence)],
        workers=args.workers,
        n=args.n,
        controls=args.controls,
        seed=args.seed,
        conductor=hashlib.sha256(packaged(args.adapters)[CONDUCTOR].read_bytes()).hexdigest(),
        commit=asyncio.run(source_commit()),
        date=datetime.now(UTC).date().isoformat(),
        seconds=round(time.monotonic() - began, 1),
        latency=latency,
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    args.out.with_suffix(".md").write_text(as_page(found), encoding="utf-8")
    print(args.out.read_text(encoding="utf-8") if args.json else as_page(found))
    _say(f"table: {args.out}; missed: {', '.join(missed(found.table)) or 'nothing'}")


async def measured(args: argparse.Namespace, settings: GymSettings, about: Mapping[str, str], file: Path) -> Evidence:
    """Everything except the seconds of a plan; questions that the record in `file` lacks are asked."""
    replies = Replies()
    trained = (CONDUCTOR, WARM_START)
    opened = gym_workers(args.workers, trained, ROSTER, adapters=args.adapters, replies=replies)
    async with opened as (worker_for, factories):
        resume = not args.anew
        with Record.open(file, about, resume=resume) as record, replies.stored_beside(file, resume=resume):
            if args.record:
                _say(f"{taken_over(record, args.record, about):,} outcomes taken over from {args.record}")
            _say(f"{record.count:,} outcomes are recorded in {file}")
            by_table = args.workers == "exact"
            return await gathered(Bench(settings, worker_for, factories, record, args.controls, by_table))


def about_of(settings: GymSettings, args: argparse.Namespace) -> dict[str, str]:
    """The settings that the outcomes depend on, in the form of an evaluation's record."""
    tasks = Gym(settings, _nobody).tasks
    return {name: str(value) for name, value in msgspec.structs.asdict(settings).items()} | {
        "tasks": "gym",
        "questions": digest(tasks),
        "workers": args.workers,
        "adapters": adapters_digest(args.adapters),
        "source": source_digest(),
    }


def taken_over(record: Record, file: Path, about: Mapping[str, str]) -> int:
    """Adds an evaluation's outcomes to the record and returns their number. Raises ConfigError for other questions or
    files."""
    outcomes = read_outcomes(file)
    head, _, _ = file.read_text(encoding="utf-8").partition("\n")
    if not head:
        raise ConfigError(f"{file} holds no outcomes; leave --record out")
    theirs = json.loads(head)["about"]
    for name in ("questions", "workers", "adapters", "seed", "cards", "pool_sizes", "calibration", "noise_seeds"):
        if theirs.get(name) != about[name]:
            raise ConfigError(
                f"{file} has {name} = {theirs.get(name, '')!r}, not {about[name]!r}; "
                "leave --record out, or evaluate the same questions with the same files"
            )
    wanted = (o for o in outcomes if o.planner in PLANNERS or o.planner.startswith("single:"))
    new = [o for o in wanted if not o.failed and record.finished(*o.key) is None]
    for outcome in new:
        record.add(outcome)
    return len(new)


class Bench(msgspec.Struct, frozen=True):
    """The questions, the workers and planner, and the recorded outcomes."""

    settings: GymSettings
    worker_for: WorkerFor
    factories: Mapping[str, PlannerFor]
    record: Record
    controls: int
    by_table: bool
    """Whether the workers answer by table."""

    def gym(self, **changes: Any) -> Gym:
        return Gym(msgspec.structs.replace(self.settings, **changes), self.worker_for)

    async def asked_set(self, name: str) -> Run:
        gym = self.gym(sets=(name,), limit=self.controls)
        return await self.asked(name, gym.tasks, gym.pool_for)

    async def asked(self, name: str, tasks: Sequence[Task], pool_for: PoolFor) -> Run:
        """The conductor on these questions over these pools; `name` identifies the outcomes in the record."""
        entries, seed = [Entry(name, self.factories[CONDUCTOR])], self.settings.seed
        done = await ask_entries(
            entries, tasks, pool_for=pool_for, record=self.record, seed=seed, observe=progress_printer()
        )
        return run_of(tasks, done, pool_for)


async def gathered(bench: Bench) -> Evidence:
    gym = bench.gym()
    field = GymField(gym, trained=bench.factories)
    await answers_of(field, PLANNERS, record=bench.record, observe=progress_printer())

    def of(planner: str) -> list[Outcome]:
        found = (bench.record.finished(planner, task.id) for task in gym.tasks)
        return [outcome for outcome in found if outcome is not None]

    test = run_of(gym.tasks, of(CONDUCTOR), gym.pool_for)
    warm = run_of(gym.tasks, of(WARM_START), gym.pool_for)
    offered = {task.id: gym.offered(task) for task in gym.tasks}
    alone = [o for s in gym.roster for o in of(f"single:{s.name}") if s in offered[o.task]]
    first = gym.tasks[: bench.controls]
    return Evidence(
        test=test,
        ceiling=_ceiling(bench, gym),
        oracle={task: max(o.value for o in alone if o.task == task) for task in {o.task for o in alone}},
        vote=_scores(of("vote")),
        vote_cost_ratio=_cost_ratio(of("vote"), of(CONDUCTOR)),
        rounds=(_scores(of(CONDUCTOR)), _scores(of(TWO_ROUNDS))),
        warm_start=warm,
        before={"greedy": plan_shares(warm.rows, warm.scored)},
        after={"greedy": plan_shares(test.rows, test.scored)},
        reworded=await bench.asked("reworded", first, bench.gym(cards="held_out").pool_for),
        aliased=await bench.asked("aliased", first, _under_aliases(gym)),
        swapped=await _swapped(bench, gym, first),
        novel=await bench.asked_set("novel"),
        others={name: await bench.asked_set(name) for name in OTHER_SETS},
        by_table=bench.by_table,
    )


def run_of(tasks: Sequence[Task], outcomes: Sequence[Outcome], pool_for: PoolFor) -> Run:
    """Outcomes in the form that the claims read; runs that the infrastructure spoilt do not count."""
    by_task = {outcome.task: outcome for outcome in outcomes}
    answered = [task for task in tasks if task.id in by_task]
    return Run(
        tuple(row_of(task, pool_for(task, 0)) for task in answered),
        tuple(scored(by_task[task.id]) for task in answered),
    )


def row_of(task: Task, pool: Pool) -> Row:
    return Row(task.id, task, infos=pool.infos, names=pool.names, messages=(), kind=task.kind)


def scored(outcome: Outcome) -> Scored:
    return Scored(
        valid=outcome.valid,
        correct=outcome.correct,
        reward_base=None if outcome.failed else outcome.value,
        cost_usd=outcome.cost_usd,
        plan=outcome.plan,
        answer=outcome.answer,
        error=outcome.error,
    )


def own_lines(evidence: Evidence) -> list[Claim]:
    """Further lines: the share of right answers, without regard to the ceiling."""
    runs = {"conductor": evidence.test, "warm start": evidence.warm_start}
    return [
        Claim(f"{name}: right answers", value=found.value, interval=found.interval, n=found.n)
        for name, run in runs.items()
        if (found := _right(run)) is not None
    ]


def as_page(found: Must) -> str:
    who = "specialists that answer by the tables" if found.workers == "exact" else "the trained specialists"
    lost = missed(found.table)
    open_lines = sum(claim.verdict == "not measured" for claim in found.table)
    head = (
        f"# What the shipped conductor must show\n\n{found.n:,} questions of the test, {found.controls:,} for each "
        f"control, seed {found.seed}, over {who}. Plans by llama.cpp on the 4-bit base, greedy, under the grammar; one "
        f"training seed, `conductor.gguf` with sha256 `{found.conductor[:12]}`. Commit `{found.commit or 'unknown'}`, "
        f"{found.date}; made by `python gym/benchmarks/must.py`.\n\n"
        f"**Missed:** {'; '.join(lost) or 'nothing'}. **Not measured here:** {open_lines} lines, which need training "
        "runs or torch; `gym/benchmarks/claims.py` measures them. All plans here are greedy. How evenly the warm start "
        "chooses workers, and how many of its sampled plans are valid, is in the table of claims.\n"
    )
    return f"{head}\n{as_table(found.table)}{_latency_note(found.latency)}"


def progress_printer(every: int = 25) -> Callable[[Event], None]:
    """Returns an observer that prints each planner's progress; single workers and ways are quick and print nothing."""
    done: dict[tuple[str, str], list[float]] = {}

    def tell(event: Event) -> None:
        if not isinstance(event, Evaluated) or event.outcome.planner.startswith(("single:", "way: ")):
            return
        name, split = event.outcome.planner, event.outcome.tags.get("split", "")
        values = done.setdefault((name, split), [])
        values.append(event.outcome.value)
        if len(values) % every == 0 or len(values) == event.total:
            _say(f"{name}, {split or 'other'} questions: {len(values):,} of {event.total:,}, right {mean(values):.1%}")

    return tell


async def _swapped(bench: Bench, gym: Gym, tasks: Sequence[Task]) -> Followed | None:
    """Two workers exchange the texts of their cards; names, ids and the workers behind them stay."""
    swapped = swapped_rows([row_of(task, gym.pool_for(task, 0)) for task in tasks], seed=bench.settings.seed)
    cards = {one.row.task.id: one.row.infos for one in swapped}

    def pool_for(task: Task, repeat: int) -> Pool:
        workers = gym.pool_for(task, repeat).values()
        return Pool(Carded(worker, card) for worker, card in zip(workers, cards[task.id], strict=True))

    run = await bench.asked("swapped", [one.row.task for one in swapped], pool_for)
    answered = {row.task.id for row in run.rows}
    return followed([one for one in swapped if one.row.task.id in answered], run.scored) if answered else None


def _under_aliases(gym: Gym) -> PoolFor:
    """The same workers and cards under names that say nothing."""

    def pool_for(task: Task, repeat: int) -> Pool:
        pool = gym.pool_for(task, repeat)
        cards = renamed(pool.infos, random.Random(f"alias {gym.settings.seed} {task.id}"))
        return Pool(Carded(worker, card) for worker, card in zip(pool.values(), cards, strict=True))

    return pool_for


def _ceiling(bench: Bench, gym: Gym) -> Scores:
    found = {}
    for task in gym.tasks:
        runs = [bench.record.finished("ceiling", task.id, repeat) for repeat in range(bench.settings.noise_seeds)]
        found[task.id] = mean([run.value for run in runs if run is not None])
    return found


def _scores(outcomes: Sequence[Outcome]) -> Scores:
    return {outcome.task: outcome.value for outcome in outcomes}


def _cost_ratio(outcomes: Sequence[Outcome], others: Sequence[Outcome]) -> float | None:
    """The ratio of the mean costs; None if the others cost nothing."""
    mine_usd, theirs_usd = (mean([outcome.cost_usd for outcome in some]) for some in (outcomes, others))
    return mine_usd / theirs_usd if outcomes and theirs_usd else None


def _right(run: Run | None) -> Share | None:
    return share(one.correct for one in run.scored if not one.dropped) if run else None


def latency_of(args: argparse.Namespace, file: Path) -> dict[str, Any]:
    """The seconds of a plan; an earlier measurement is not repeated."""
    if not args.latency:
        return {}
    if file.exists() and not args.anew:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    from gym.benchmarks.plan_latency import measure

    _say(f"seconds of a plan, {args.latency} questions")
    conductor = str(packaged(args.adapters)[CONDUCTOR])
    found: dict[str, Any] = asyncio.run(measure(conductor, questions=args.latency, seed=args.seed))
    file.write_text(json.dumps(found), encoding="utf-8")
    return found


def _latency_note(latency: Mapping[str, Any]) -> str:
    if not latency:
        return ""
    return (
        f"\nPlans were timed on {latency['questions']} questions over all {latency['workers']} specialists, one at a "
        f"time, {latency['threads']} threads of {latency['cores']} cores, with a load of {latency['load']} at the end: "
        "other programs on the machine are in these seconds.\n"
    )


def _nobody(specialist: Any, seed: int) -> Any:
    raise ConfigError("only the questions are looked at")


def named(about: Mapping[str, str]) -> str:
    return hashlib.blake2b(msgspec.json.encode(about, order="deterministic"), digest_size=6).hexdigest()


def _say(text: str) -> None:
    print(f"▸ {text}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=400, help="questions of the test")
    parser.add_argument("--controls", type=int, default=100, help="questions for each control")
    parser.add_argument("--latency", type=int, default=21, help="questions that plans are timed on; 0 times no plan")
    parser.add_argument("--workers", choices=("exact", "local"), default="exact")
    parser.add_argument("--adapters", type=Path, default=FOLDER, help="a folder in place of the package's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, help="outcomes of `dirigent eval --tasks gym` to take over")
    parser.add_argument("--work", type=Path, default=ROOT / "reports", help="folder for outcomes and times")
    parser.add_argument("--anew", action="store_true", help="ask everything again")
    parser.add_argument("--json", action="store_true", help="print the JSON in place of the table")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "must.json")
    args = parser.parse_args()
    if min(args.n, args.controls) < 1 or args.latency < 0:
        parser.error("--n and --controls are counts of questions, 1 or more; --latency may be 0")
    return args


if __name__ == "__main__":
    main()
