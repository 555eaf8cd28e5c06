"""The table that a trained conductor has to show, from its adapter in one command.

    python benchmarks/claims.py --conductor runs/gym-gpu [--warm-start ADAPTER] [--workers exact|local] [--limit N]
    python benchmarks/claims.py --add seed1.json --conductor runs/gym-gpu --local 400 --latency 21 --out seed1.json
    python benchmarks/claims.py --join seed1.json seed2.json seed3.json --out docs/results/claims.json

An ADAPTER is a PEFT folder, a GGUF file, a name of the package (`conductor`), or the folder of a finished run, which
brings its warm start along. Controls join with --right-plans, --rejection, --format-only, --shuffled and --direct.
torch measures everything on whatever device it finds; --local N and --latency N add what the files do through llama.cpp
on this CPU, now or, with --add, to a table that was measured on another machine. What was not measured is a line that
says so. Writes JSON and Markdown; --join makes one table of several training seeds, mean and spread. --metrics keeps a
run's curves beside the table, for the docs to draw.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dirigent.errors import ConfigError, DirigentError
from dirigent.evals.commit import source_commit
from dirigent.tasks.gym.probe import probe_accuracy
from dirigent.tasks.gym.split import generate
from dirigent.train.claim import Claim, as_table, missed, over_seeds
from dirigent.train.claims import Evidence, Scores, claims, file_claims, scores
from dirigent.train.controls import Share, share
from dirigent.train.dataset import Row, held_rows
from dirigent.train.recipe import Recipe, load_recipe
from dirigent.weights import packaged

ROOT = Path(__file__).resolve().parents[1]
DRAWN = (
    "kind", "step", "valid", "accuracy", "decomposition", "routing_given_decomposition", "access_given_decomposition",
    "steps", "steps_needed", "steps_over_minimal", "worker_entropy", "position_entropy", "zero_variance_groups",
)  # fmt: skip
"""Of a run's metrics, what docs/generate.py draws."""
VALID_FILES = "valid plans through llama.cpp, grammar on"
ROLES = ("conductor", "warm-start", "right-plans", "rejection", "format-only", "shuffled", "direct")


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
    return Table(
        table=[*claims(evidence, seed=args.seed), *_own_lines(evidence), _line(VALID_FILES, files.valid)],
        workers=args.workers,
        adapters={role: _sha256(path) for role, path in adapters.items()},
        commit=asyncio.run(source_commit()),
        date=datetime.now(UTC).date().isoformat(),
        seconds=round(time.monotonic() - began, 1),
        sizes={name: getattr(sizes, name) for name in sizes.__struct_fields__} | {"local": args.local},
        device=device,
        right=scores(evidence.test),
    )


def added(args: argparse.Namespace) -> Table:
    """A table that was measured elsewhere, with the lines that want this CPU."""
    table = _read(args.add)
    conductor = found_adapters(args)["conductor"]
    if not args.local and not args.latency:
        raise ConfigError("--add adds what --local N and --latency N measure: say one of them")
    if _sha256(conductor) != table.adapters.get("conductor"):
        raise ConfigError(f"{conductor} is not the conductor that {args.add} was measured of")
    if args.local and not table.right:
        raise ConfigError(f"{args.add} does not say what torch got of each question: measure it anew, or leave --local")
    recipe = _recipe(args)
    rows = held_rows("test", table.sizes["test"], seed=table.sizes["seed"], settings=recipe.rows)
    args.workers = table.workers
    files = asyncio.run(_locally(args, recipe, rows, conductor))
    lines = [*file_claims(table.right, files.scores, files.plan_s, seed=table.sizes["seed"])]
    new = {line.name: line for line in (*lines, _line(VALID_FILES, files.valid)) if line.value is not None}
    return msgspec.structs.replace(
        table,
        table=[new.get(line.name, line) for line in table.table],
        sizes=table.sizes | ({"local": args.local} if args.local else {}),
    )


def joined(files: list[Path]) -> Table:
    """One table of several seeds'."""
    tables = [_read(file) for file in files]
    if len({(table.workers, json.dumps(table.sizes | {"local": 0}, sort_keys=True)) for table in tables}) > 1:
        raise ConfigError("the tables were measured with different workers or sizes; measure them alike")
    return msgspec.structs.replace(
        tables[0],
        table=over_seeds([table.table for table in tables]),
        adapters={f"{role} {i + 1}": sha for i, table in enumerate(tables) for role, sha in table.adapters.items()},
        seconds=sum(table.seconds for table in tables),
        seeds=len(tables),
        right={},
    )


def _read(file: Path) -> Table:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Table)
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


def _own_lines(evidence: Evidence) -> list[Claim]:
    """Lines beside those of the issue: how often plans are valid with nothing to help, and the shortcut probe."""
    tasks = [row.task for row in evidence.test.rows]
    shortcut = probe_accuracy(generate("train", 3000, seed=1), tasks)
    return [
        _line("right answers", share(one.correct for one in evidence.test.scored if not one.dropped)),
        _line("valid plans, no grammar", share(one.valid for one in evidence.test.scored if not one.dropped)),
        Claim("shortcut probe: a bag of words guesses the sequence of skills", value=shortcut, n=len(tasks)),
    ]


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
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--metrics", nargs="+", type=Path, default=[], help="metrics.jsonl of the runs")
    parser.add_argument("--add", type=Path, help="a table to fill with what --local and --latency measure here")
    parser.add_argument("--join", nargs="+", type=Path, default=[], help="tables of several training seeds")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "claims.json")
    args = parser.parse_args()
    if min(args.limit, args.sampled, args.local, args.latency) < 0:
        parser.error("--limit, --sampled, --local and --latency are counts of questions")
    return args


if __name__ == "__main__":
    main()
