"""The table that a trained conductor has to show, from its adapter in one command.

    python benchmarks/claims.py --conductor runs/gym-gpu [--warm-start ADAPTER] [--workers exact|local] [--limit N]
    python benchmarks/claims.py --add seed1.json --conductor runs/gym-gpu --local 400 --latency 21 --out seed1.json
    python benchmarks/claims.py --add seed1.json --conductor runs/gym-gpu --elsewhere --out seed1.json
    python benchmarks/claims.py --join seed1.json seed2.json seed3.json --out docs/results/claims.json

An ADAPTER is a PEFT folder, a GGUF file, a name of the package (`conductor`), or the folder of a finished run, which
brings its warm start along. Controls join with --right-plans, --rejection, --online-rejection, --format-only,
--shuffled and --direct. torch measures everything on whatever device it finds; --local N and --latency N add what the
files do through llama.cpp on this CPU, now or, with --add, to a table that was measured on another machine. --add also
reads what the run's folder says and the table does not; with --elsewhere it asks the questions again that are not the
generator's. What was not measured is a line that says so. Writes JSON and Markdown; --join makes one table of several
training seeds, mean and spread. --metrics keeps a run's curves beside the table, for the docs to draw.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dirigent.errors import ConfigError, DirigentError
from dirigent.evals.commit import source_commit
from dirigent.evals.stats import wilson
from dirigent.tasks.gym.probe import probe_accuracy
from dirigent.tasks.gym.split import generate
from dirigent.tasks.task import Task
from dirigent.train.claim import Claim, as_table, missed, over_seeds
from dirigent.train.claims import PLACED, START_SAMPLED, Evidence, Run, Scores, claims, file_claims, scores
from dirigent.train.controls import Share, share
from dirigent.train.dataset import Row, held_rows
from dirigent.train.recipe import Recipe, load_recipe
from dirigent.weights import packaged

ROOT = Path(__file__).resolve().parents[1]
DRAWN = (
    "kind", "step", "valid", "accuracy", "accuracy_given_valid", "decomposition", "routing_given_decomposition",
    "routing_own_names", "routing_other_names", "access_given_decomposition", "steps", "steps_needed",
    "steps_over_minimal", "steps_1", "steps_2", "steps_3", "steps_4", "steps_5", "plan_tokens", "cost",
    "worker_entropy", "position_entropy", "zero_variance_groups",
)  # fmt: skip
"""Of a run's metrics, what docs/generate.py draws."""
VALID_FILES = "valid plans through llama.cpp, grammar on"
RIGHT, VALID = "right answers", "valid plans, no grammar"
FITTED = 78_000
"""Questions that the shortcut probe learns from: as many as the warm start is shown the cuts of."""
SHORTCUT = "shortcut probe: a bag of words"
FORMERLY = {"warm start: valid plans": "warm start, greedy: valid plans"}
"""Lines that earlier tables have under other names."""
CONTROL_LINES = {
    "direct": "(a)",
    "right-plans": "(b)",
    "rejection": "(c) RL over rejection",
    "online-rejection": "(c) RL over online",
    "format-only": "(d) format-only",
    "shuffled": "(d) shuffled",
}
"""Role -> how its line begins."""
ROLES = (
    "conductor", "warm-start", "right-plans", "rejection", "online-rejection", "format-only", "shuffled", "direct",
)  # fmt: skip


class Table(msgspec.Struct, frozen=True):
    """What is written: the lines, and what it takes to believe them."""

    table: list[Claim]
    workers: str
    """Who carried the plans out: `exact`, by the tables, or `local`, the trained specialists."""
    adapters: dict[str, str]
    """Role -> sha256 of its weights."""
    commit: str
    date: str
    seconds: float
    sizes: dict[str, int]
    device: str
    seeds: int = 1
    """Training seeds that the table is the mean of."""
    right: dict[str, float] = {}
    """What torch got of each test question, for files to be compared with. Of one seed only."""
    cut: dict[str, str] = {}
    """Role -> how far its run came, of those that ended before their last update."""


class Files(msgspec.Struct, frozen=True):
    """What the shipped files did on this CPU. What is None was not asked for."""

    scores: Scores | None = None
    valid: Share | None = None
    plan_s: tuple[float, float] | None = None


def main() -> None:
    args = _arguments()
    try:
        found = joined(args.join) if args.join else added(args) if args.add else measured(args)
    except DirigentError as error:
        sys.exit(f"error: {error}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    args.out.with_suffix(".md").write_text(as_page(found), encoding="utf-8")
    for number, file in enumerate(args.metrics, 1):
        beside = args.out.with_name(f"{args.out.stem}-metrics-{number}.jsonl")
        beside.write_text(thinned(file.read_text(encoding="utf-8")), encoding="utf-8")
    print(as_page(found))
    print(f"table: {args.out}; missed: {len(missed(found.table))}", file=sys.stderr)


def measured(args: argparse.Namespace) -> Table:
    """The table of one trained conductor."""
    from benchmarks.claims_evidence import Sizes, gather, open_bench

    from dirigent.train.run import quieten

    began = time.monotonic()
    quieten()
    recipe = _recipe(args)
    adapters = found_adapters(args)
    sizes = Sizes(seed=args.seed, sampled=args.sampled)
    sizes = sizes.at_most(args.limit) if args.limit else sizes
    with open_bench(recipe, adapters, workers=args.workers) as bench:
        evidence = gather(bench, sizes, say=_say)
        device = str(next(bench.stacked.model.parameters()).device)
    files = asyncio.run(_locally(args, recipe, evidence.test.rows, adapters["conductor"]))
    evidence = msgspec.structs.replace(evidence, local=files.scores, plan_s=files.plan_s)
    cut = cut_short(adapters)
    return Table(
        table=noted([*claims(evidence, seed=args.seed), *_own_lines(evidence, files.valid)], cut),
        workers=args.workers,
        adapters={role: _sha256(path) for role, path in adapters.items()},
        commit=asyncio.run(source_commit()),
        date=datetime.now(UTC).date().isoformat(),
        seconds=round(time.monotonic() - began, 1),
        sizes={name: getattr(sizes, name) for name in sizes.__struct_fields__} | {"local": args.local},
        device=device,
        right=scores(evidence.test),
        cut=cut,
    )


def added(args: argparse.Namespace) -> Table:
    """A table that was measured elsewhere, with the lines that want this CPU, and what the run's folder says."""
    table, adapters = _read(args.add), found_adapters(args)
    if _sha256(adapters["conductor"]) != table.adapters.get("conductor"):
        raise ConfigError(f"{adapters['conductor']} is not the conductor that {args.add} was measured of")
    own = {role: path for role, path in adapters.items() if _sha256(path) == table.adapters.get(role)}
    recipe, cut = _recipe(args), cut_short(own)
    start = start_line(table, own, recipe)
    if not (args.local or args.latency or args.elsewhere or start or cut):
        raise ConfigError(
            "--add adds what --local N, --latency N and --elsewhere measure, and what a run's folder says of its start "
            "and its updates: say one of them, or another folder"
        )
    if args.local and not table.right:
        raise ConfigError(f"{args.add} does not say what torch got of each question: measure it anew, or leave --local")
    rows = held_rows("test", table.sizes["test"], seed=table.sizes["seed"], settings=recipe.rows)
    args.workers = table.workers
    files = asyncio.run(_locally(args, recipe, rows, adapters["conductor"]))
    lines = [*file_claims(table.right, files.scores, files.plan_s, seed=table.sizes["seed"])]
    lines += [_line(VALID_FILES, files.valid), *([start] if start else [])]
    if args.elsewhere:
        lines += _elsewhere(recipe, own["conductor"], table)
    new = {line.name: line for line in lines if line.value is not None}
    return msgspec.structs.replace(
        table,
        table=noted([new.get(line.name, line) for line in table.table], cut),
        sizes=table.sizes | ({"local": args.local} if args.local else {}),
        cut=table.cut | cut,
    )


def joined(files: list[Path]) -> Table:
    """One table of several seeds'. How far a bag of words comes is the gym's doing and no seed's: it is found anew."""
    tables = [_read(file) for file in files]
    if len({(table.workers, json.dumps(table.sizes | {"local": 0}, sort_keys=True)) for table in tables}) > 1:
        raise ConfigError("the tables were measured with different workers or sizes; measure them alike")
    sizes = tables[0].sizes
    shortcut = msgspec.structs.replace(shortcut_line(sizes["test"], seed=sizes["seed"]), seeds=len(tables))
    lines = over_seeds([table.table for table in tables])
    return msgspec.structs.replace(
        tables[0],
        table=[shortcut if line.name == shortcut.name else line for line in lines],
        adapters={f"{role} {i + 1}": sha for i, table in enumerate(tables) for role, sha in table.adapters.items()},
        commit=", ".join(dict.fromkeys(table.commit or "unknown" for table in tables)),
        date=max(table.date for table in tables),
        seconds=sum(table.seconds for table in tables),
        seeds=len(tables),
        right={},
        cut={f"{role} {i + 1}": far for i, table in enumerate(tables) for role, far in table.cut.items()},
    )


def as_now(table: Table) -> Table:
    """A table of an earlier commit with the lines that there are now: what it lacks was not measured. A shortcut probe
    that was fitted on other questions is left out."""
    nothing = Evidence(test=Run((), ()), ceiling={}, by_table=table.workers == "exact")
    had = {FORMERLY.get(line.name, line.name): line for line in table.table}
    lines = []
    for line in (*claims(nothing), Claim(RIGHT), Claim(VALID), Claim(_shortcut_name()), Claim(VALID_FILES)):
        before = had.pop(line.name, line)
        lines.append(msgspec.structs.replace(before, name=line.name, note=before.note or line.note))
    others = [line for name, line in had.items() if not name.startswith(SHORTCUT)]
    return msgspec.structs.replace(table, table=[*lines, *others])


def start_line(table: Table, adapters: Mapping[str, Path], recipe: Recipe) -> Claim | None:
    """How many sampled plans of the warm start are valid, as the run itself found before it began; None where the table
    knows, or the run's folder does not."""
    line = next((line for line in table.table if line.name == START_SAMPLED), None)
    file = adapters["warm-start"].parent / "start.json" if "warm-start" in adapters else None
    if line is None or line.value is not None or file is None or not file.is_file():
        return None
    from dirigent.train.warmstart import SAMPLES, WarmStart

    valid = msgspec.json.decode(file.read_bytes(), type=WarmStart).valid_sampled
    n = recipe.warm_start.measure
    note = f"development questions, {SAMPLES} plans each, when the run began"
    return msgspec.structs.replace(line, value=valid, interval=wilson(valid * n, n), n=n, note=note)


def cut_short(adapters: Mapping[str, Path]) -> dict[str, str]:
    """Role -> how far its run came, of those that ended before their last update."""
    found = {}
    for role, path in adapters.items():
        file = path.parent / "result.json"
        result = msgspec.json.decode(file.read_bytes()) if file.is_file() else {}
        if result.get("step", 0) < result.get("steps", 0):
            found[role] = f"{result['step']} of {result['steps']} updates"
    return found


def noted(lines: Sequence[Claim], cut: Mapping[str, str]) -> list[Claim]:
    """Lines of controls that were cut short say so."""
    said = {CONTROL_LINES[role]: far for role, far in cut.items() if role in CONTROL_LINES}
    found = []
    for line in lines:
        far = next((far for begins, far in said.items() if line.name.startswith(begins)), "")
        found.append(msgspec.structs.replace(line, note=far) if far and line.value is not None else line)
    return found


def _read(file: Path) -> Table:
    try:
        return as_now(msgspec.json.decode(file.read_bytes(), type=Table))
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file} is no table that this program wrote: {error}") from None


def thinned(metrics: str) -> str:
    """The lines of a run's metrics with the figures that are drawn, and no others. Steps that were lost and taken
    again, from a checkpoint before them, are left out."""
    kept: list[dict[str, Any]] = []
    for line in (json.loads(line) for line in metrics.splitlines()):
        if line.get("kind") == "train":
            while kept and kept[-1]["step"] >= line["step"]:
                kept.pop()
            kept.append({key: _short(line[key]) for key in DRAWN if key in line})
    return "".join(json.dumps(line) + "\n" for line in kept)


def _short(value: float | str) -> float | str:
    return value if isinstance(value, str) else round(value, 4)


def as_page(found: Table) -> str:
    who = "specialists that answer by the tables" if found.workers == "exact" else "the trained specialists"
    seeds = f"mean of {found.seeds} training seeds" if found.seeds > 1 else "one training seed"
    head = f"{seeds.capitalize()}, over {who}; commit `{found.commit or 'unknown'}`, {found.date}, {found.device}."
    if found.cut:
        head += f" Cut short: {'; '.join(f'{role} at {far}' for role, far in found.cut.items())}."
    return f"{head}\n\n{as_table(found.table)}"


def found_adapters(args: argparse.Namespace) -> dict[str, Path]:
    """Every adapter that was named, by role; a run's folder brings its warm start along."""
    named = {role: value for role in ROLES if (value := getattr(args, role.replace("-", "_")))}
    if "conductor" not in named:
        raise ConfigError("say which conductor:  --conductor ADAPTER")
    run = Path(named["conductor"])
    if (run / "adapter").is_dir():
        named["conductor"] = str(run / "adapter")
        if (run / "warm-start").is_dir():
            named.setdefault("warm-start", str(run / "warm-start"))
    return {role: _adapter(role, value) for role, value in named.items()}


def _adapter(role: str, value: str) -> Path:
    path = Path(value)
    for candidate in (path, path / "policy", path / "adapter"):
        if (candidate / "adapter_config.json").is_file() or (candidate.suffix == ".gguf" and candidate.is_file()):
            return candidate
    if value in packaged():
        return packaged()[value]
    raise ConfigError(f"--{role} {value}: no PEFT folder, no GGUF file, and no adapter of the package has that name")


async def _locally(args: argparse.Namespace, recipe: Recipe, rows: Sequence[Row], conductor: Path) -> Files:
    """What llama.cpp makes of the conductor: as many of the rows as are asked for, and the seconds of a plan."""
    if not args.local and not args.latency:
        return Files()
    from benchmarks.claims_local import as_gguf, plan_seconds, run_locally

    files = Files()
    with as_gguf(conductor) as file:
        if args.local:
            asked = rows[: args.local]
            _say(f"{len(asked):,} questions through llama.cpp")
            local = await run_locally(asked, file, recipe=recipe, workers=args.workers)
            files = Files(scores(local.run), share(one.valid for one in local.run.scored))
            _say(f"{local.seconds / len(asked):.2f} s a plan, cards changing with every question")
        if args.latency:
            _say("seconds of a plan")
            files = msgspec.structs.replace(files, plan_s=await plan_seconds(file, questions=args.latency))
    return files


def _own_lines(evidence: Evidence, valid_files: Share | None) -> list[Claim]:
    """Lines beside those of the issue: right answers, how often plans are valid with nothing to help and with the
    grammar, and the shortcut probe."""
    kept = [one for one in evidence.test.scored if not one.dropped]
    return [
        _line(RIGHT, share(one.correct for one in kept)),
        _line(VALID, share(one.valid for one in kept)),
        _shortcut([row.task for row in evidence.test.rows]),
        _line(VALID_FILES, valid_files),
    ]


def shortcut_line(n: int, *, seed: int) -> Claim:
    """The shortcut probe on so many questions of the test. Half a minute."""
    return _shortcut(generate("test", n, seed=seed))


def _shortcut(tasks: Sequence[Task]) -> Claim:
    found = probe_accuracy(generate("train", FITTED, seed=1), tasks)
    return Claim(_shortcut_name(), value=found, interval=wilson(found * len(tasks), len(tasks)), n=len(tasks))


def _shortcut_name() -> str:
    return f"{SHORTCUT}, fitted on {FITTED:,} questions, guesses the sequence of skills"


def _elsewhere(recipe: Recipe, conductor: Path, table: Table) -> list[Claim]:
    """The lines of the sets in other words than the generator's, asked on this machine."""
    from benchmarks.claims_evidence import Sizes, open_bench, other_sets

    from dirigent.train.run import quieten

    quieten()
    sizes = Sizes(probes=table.sizes["probes"], seed=table.sizes["seed"])
    with open_bench(recipe, {"conductor": conductor}, workers=table.workers) as bench:
        _say("questions from elsewhere")
        others = other_sets(bench, sizes, names=tuple(PLACED))
    return claims(Evidence(test=Run((), ()), ceiling={}, others=others, by_table=table.workers == "exact"))


def _line(name: str, found: Share | None) -> Claim:
    return Claim(name) if found is None else Claim(name, value=found.value, interval=found.interval, n=found.n)


def _recipe(args: argparse.Namespace) -> Recipe:
    recipe = load_recipe(args.recipe)
    if not isinstance(recipe, Recipe) or not recipe.base.weights:
        raise ConfigError(f"{args.recipe} is no recipe of a conductor on a GGUF base; take recipes/gym-gpu.toml")
    if args.specialists:
        workers = msgspec.structs.replace(recipe.workers, adapters=tuple(args.specialists))
        recipe = msgspec.structs.replace(recipe, workers=workers)
    return recipe


def _sha256(path: Path) -> str:
    file = path if path.is_file() else path / "adapter_model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _say(text: str) -> None:
    print(f"▸ {text}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for role in ROLES:
        parser.add_argument(f"--{role}", default="", metavar="ADAPTER")
    parser.add_argument("--workers", choices=("exact", "local"), default="exact")
    parser.add_argument("--specialists", nargs="+", default=[], help="folders of the local workers' adapters")
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "gym-gpu.toml")
    parser.add_argument("--limit", type=int, default=0, help="at most so many questions for any figure")
    parser.add_argument("--sampled", type=int, default=200, help="questions that get 16 sampled plans; slow on a CPU")
    parser.add_argument("--local", type=int, default=0, help="questions of the test that go through llama.cpp too")
    parser.add_argument("--latency", type=int, default=0, help="questions that plans are timed on")
    parser.add_argument("--elsewhere", action="store_true", help="with --add: questions that are not the generator's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--metrics", nargs="+", type=Path, default=[], help="metrics.jsonl of the runs")
    parser.add_argument(
        "--add", type=Path, help="a table to fill with what is measured here, or stands in the run's folder"
    )
    parser.add_argument("--join", nargs="+", type=Path, default=[], help="tables of several training seeds")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "claims.json")
    args = parser.parse_args()
    if min(args.limit, args.sampled, args.local, args.latency) < 0:
        parser.error("--limit, --sampled, --local and --latency are counts of questions")
    return args


if __name__ == "__main__":
    main()
