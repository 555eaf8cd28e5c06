"""The table that a trained conductor has to show, from its adapter in one command.

    python benchmarks/claims.py --conductor runs/gym-gpu [--warm-start ADAPTER] [--workers exact|local] [--limit N]
    python benchmarks/claims.py --join seed1.json seed2.json seed3.json --out docs/results/claims.json

An ADAPTER is a PEFT folder, a GGUF file, a name of the package (`conductor`), or the folder of a finished run, which
brings its warm start along. Controls join with --right-plans, --rejection, --format-only, --shuffled and --direct.
torch measures everything on whatever device it finds; --local N and --latency N add what the files do through llama.cpp
on this CPU. What was not measured is a line that says so. Writes JSON and Markdown; --join makes one table of several
training seeds, mean and spread. --metrics keeps a run's curves beside the table, for the docs to draw.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dirigent.errors import ConfigError, DirigentError
from dirigent.evals.commit import source_commit
from dirigent.tasks.gym.probe import probe_accuracy
from dirigent.tasks.gym.split import generate
from dirigent.train.claim import Claim, as_table, missed, over_seeds
from dirigent.train.claims import Evidence, claims
from dirigent.train.controls import Share, share
from dirigent.train.recipe import Recipe, load_recipe
from dirigent.weights import packaged

ROOT = Path(__file__).resolve().parents[1]
DRAWN = (
    "kind", "step", "valid", "accuracy", "decomposition", "routing_given_decomposition", "access_given_decomposition",
    "steps", "steps_needed", "steps_over_minimal", "worker_entropy", "position_entropy", "zero_variance_groups",
)  # fmt: skip
"""Of a run's metrics, what docs/generate.py draws."""
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


def main() -> None:
    args = _arguments()
    try:
        found = joined(args.join) if args.join else measured(args)
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
    evidence, extra = asyncio.run(_locally(args, recipe, evidence, adapters["conductor"]))
    return Table(
        table=[*claims(evidence, seed=args.seed), *_own_lines(evidence), *extra],
        workers=args.workers,
        adapters={role: _sha256(path) for role, path in adapters.items()},
        commit=asyncio.run(source_commit()),
        date=datetime.now(UTC).date().isoformat(),
        seconds=round(time.monotonic() - began, 1),
        sizes={name: getattr(sizes, name) for name in sizes.__struct_fields__} | {"local": args.local},
        device=device,
    )


def joined(files: list[Path]) -> Table:
    """One table of several seeds'."""
    tables = [msgspec.json.decode(file.read_bytes(), type=Table) for file in files]
    if len({(table.workers, json.dumps(table.sizes, sort_keys=True)) for table in tables}) > 1:
        raise ConfigError("the tables were measured with different workers or sizes; measure them alike")
    return msgspec.structs.replace(
        tables[0],
        table=over_seeds([table.table for table in tables]),
        adapters={f"{role} {i + 1}": sha for i, table in enumerate(tables) for role, sha in table.adapters.items()},
        seconds=sum(table.seconds for table in tables),
        seeds=len(tables),
    )


def thinned(metrics: str) -> str:
    """The lines of a run's metrics with the figures that are drawn, and no others."""
    lines = [json.loads(line) for line in metrics.splitlines()]
    kept = [{key: _short(line[key]) for key in DRAWN if key in line} for line in lines if line.get("kind") == "train"]
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


async def _locally(
    args: argparse.Namespace, recipe: Recipe, evidence: Evidence, conductor: Path
) -> tuple[Evidence, list[Claim]]:
    """The evidence with what llama.cpp adds to it, and lines of its own."""
    valid: Share | None = None
    if args.local or args.latency:
        from benchmarks.claims_evidence import scores
        from benchmarks.claims_local import as_gguf, plan_seconds, run_locally

        with as_gguf(conductor) as file:
            if args.local:
                rows = evidence.test.rows[: args.local]
                _say(f"{len(rows):,} questions through llama.cpp")
                local = await run_locally(rows, file, recipe=recipe, workers=args.workers)
                evidence = msgspec.structs.replace(evidence, local=scores(local.run))
                valid = share(one.valid for one in local.run.scored)
                _say(f"{local.seconds / len(rows):.2f} s a plan, cards changing with every question")
            if args.latency:
                _say("seconds of a plan")
                evidence = msgspec.structs.replace(evidence, plan_s=await plan_seconds(file, questions=args.latency))
    return evidence, [_line("valid plans through llama.cpp, grammar on", valid)]


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
    parser.add_argument("--join", nargs="+", type=Path, default=[], help="tables of several training seeds")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "claims.json")
    args = parser.parse_args()
    if min(args.limit, args.sampled, args.local, args.latency) < 0:
        parser.error("--limit, --sampled, --local and --latency are counts of questions")
    return args


if __name__ == "__main__":
    main()
