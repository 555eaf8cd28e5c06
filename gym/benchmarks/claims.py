"""The table of claims about a trained conductor, from its adapter in one command.

    python gym/benchmarks/claims.py --conductor runs/gym-gpu [--warm-start ADAPTER] [--limit N]
    python gym/benchmarks/claims.py --add seed1.json --conductor runs/gym-gpu --local 400 --latency 21 --out seed1.json
    python gym/benchmarks/claims.py --add seed1.json --conductor runs/gym-gpu --elsewhere --out seed1.json
    python gym/benchmarks/claims.py --join seed1.json seed2.json seed3.json --out docs/results/claims.json
    python gym/benchmarks/claims.py --add docs/results/claims.json --controls runs/controls.json

The workers answer by table. An ADAPTER is a PEFT folder, a GGUF file, a name of the package (`conductor`), or the
folder of a finished run, which also has the warm start. Controls join with --right-plans, --rejection, --online-
rejection, --format-only, --shuffled and --direct. torch measures everything on any device it finds; --local N and
--latency N add measurements of the files in llama.cpp on this CPU, now or, with --add, to a table that was measured on
another machine. --add also reads figures from the run's folder that the table lacks; with --elsewhere it asks again the
questions that are not the generator's. A missing measurement has a line that says so. Writes JSON and Markdown. --join
makes one table of several training seeds, with mean and spread. --controls replaces the lines of controls by later
measurements, as `controls.py` makes them. --metrics stores a run's curves beside the table, for the docs to draw.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gym.benchmarks.claims_table import (
    RIGHT,
    VALID,
    VALID_FILES,
    Table,
    as_page,
    joined,
    noted,
    read_table,
    shortcut,
    thinned,
    with_controls,
)

from dirigent.errors import ConfigError, DirigentError
from dirigent.evals.record import source_commit
from dirigent.evals.stats import wilson
from dirigent.workers.adapters import packaged
from dirigent_gym.train.claims import (
    PLACED,
    START_SAMPLED,
    Claim,
    Evidence,
    Run,
    Scores,
    claims,
    file_claims,
    missed,
    scores,
)
from dirigent_gym.train.controls import Share, share
from dirigent_gym.train.dataset import Row, held_rows
from dirigent_gym.train.recipe import Recipe, load_recipe

ROOT = Path(__file__).resolve().parents[2]
ROLES = (
    "conductor", "warm-start", "right-plans", "rejection", "online-rejection", "format-only", "shuffled", "direct",
)  # fmt: skip


class Files(msgspec.Struct, frozen=True):
    """The measurements of the shipped files on this CPU. A field that is None was not asked for."""

    scores: Scores | None = None
    valid: Share | None = None
    plan_s: tuple[float, float] | None = None


def main() -> None:
    args = _arguments()
    try:
        found = _asked(args)
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


def _asked(args: argparse.Namespace) -> Table:
    if args.join:
        return joined(args.join)
    if args.controls:
        if args.add is None:
            raise ConfigError("--controls goes with --add TABLE, whose lines of controls it renews")
        return with_controls(args.add, args.controls)
    return added(args) if args.add else measured(args)


def measured(args: argparse.Namespace) -> Table:
    """The table of one trained conductor."""
    from gym.benchmarks.claims_evidence import Sizes, gather, open_bench

    from dirigent_gym.train.run import silence_libraries

    began = time.monotonic()
    silence_libraries()
    recipe = _recipe(args)
    adapters = found_adapters(args)
    sizes = Sizes(seed=args.seed, sampled=args.sampled)
    sizes = sizes.at_most(args.limit) if args.limit else sizes
    bench = open_bench(recipe, adapters)
    evidence = gather(bench, sizes, say=_say)
    files = asyncio.run(_locally(args, recipe, evidence.test.rows, adapters["conductor"]))
    evidence = msgspec.structs.replace(evidence, local=files.scores, plan_s=files.plan_s)
    cut = cut_short(adapters)
    return Table(
        table=noted([*claims(evidence, seed=args.seed), *_own_lines(evidence, files.valid)], cut),
        workers="exact",
        adapters={role: _sha256(path) for role, path in adapters.items()},
        commit=asyncio.run(source_commit()),
        date=datetime.now(UTC).date().isoformat(),
        seconds=round(time.monotonic() - began, 1),
        sizes={name: getattr(sizes, name) for name in sizes.__struct_fields__} | {"local": args.local},
        device=str(bench.base.weights["model.norm.weight"].device),
        right=scores(evidence.test),
        cut=cut,
    )


def added(args: argparse.Namespace) -> Table:
    """A table that was measured elsewhere, with the lines that need this CPU and the figures of the run's folder."""
    table, adapters = read_table(args.add), found_adapters(args)
    if _sha256(adapters["conductor"]) != table.adapters.get("conductor"):
        raise ConfigError(f"{adapters['conductor']} is not the conductor that {args.add} measured")
    own = {role: path for role, path in adapters.items() if _sha256(path) == table.adapters.get(role)}
    recipe, cut = _recipe(args), cut_short(own)
    start = start_line(table, own, recipe)
    if not (args.local or args.latency or args.elsewhere or start or cut):
        raise ConfigError(
            "--add needs something to add: --local N, --latency N, --elsewhere, or a run's folder with figures of its "
            "start and its updates; give one of them, or another folder"
        )
    if args.local and not table.right:
        raise ConfigError(f"{args.add} lacks torch's result on each question: measure it anew, or leave out --local")
    rows = held_rows("test", table.sizes["test"], seed=table.sizes["seed"], settings=recipe.rows)
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


def start_line(table: Table, adapters: Mapping[str, Path], recipe: Recipe) -> Claim | None:
    """The share of valid sampled plans of the warm start, as the run measured it before it began; None if the table has
    it, or the run's folder does not."""
    line = next((line for line in table.table if line.name == START_SAMPLED), None)
    file = adapters["warm-start"].parent / "start.json" if "warm-start" in adapters else None
    if line is None or line.value is not None or file is None or not file.is_file():
        return None
    from dirigent_gym.train.run import SAMPLES, WarmStart

    valid = msgspec.json.decode(file.read_bytes(), type=WarmStart).valid_sampled
    n = recipe.warm_start.measure
    note = f"development questions, {SAMPLES} plans each, when the run began"
    return msgspec.structs.replace(line, value=valid, interval=wilson(valid * n, n), n=n, note=note)


def cut_short(adapters: Mapping[str, Path]) -> dict[str, str]:
    """Role -> the progress of its run, for runs that ended before their last update."""
    found = {}
    for role, path in adapters.items():
        file = path.parent / "result.json"
        result = msgspec.json.decode(file.read_bytes()) if file.is_file() else {}
        if result.get("step", 0) < result.get("steps", 0):
            found[role] = f"{result['step']} of {result['steps']} updates"
    return found


def found_adapters(args: argparse.Namespace) -> dict[str, Path]:
    """Every named adapter by role; a run's folder also has its warm start."""
    named = {role: value for role in ROLES if (value := getattr(args, role.replace("-", "_")))}
    if "conductor" not in named:
        raise ConfigError("name the conductor:  --conductor ADAPTER")
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
    """The conductor in llama.cpp: its answers to as many rows as were asked for, and the seconds of a plan."""
    if not args.local and not args.latency:
        return Files()
    from gym.benchmarks.claims_local import as_gguf, plan_seconds, run_locally

    files = Files()
    with as_gguf(conductor) as file:
        if args.local:
            asked = rows[: args.local]
            _say(f"{len(asked):,} questions through llama.cpp")
            local = await run_locally(asked, file, recipe=recipe)
            files = Files(scores(local.run), share(one.valid for one in local.run.scored))
            _say(f"{local.seconds / len(asked):.2f} s a plan, cards changing with every question")
        if args.latency:
            _say("seconds of a plan")
            files = msgspec.structs.replace(files, plan_s=await plan_seconds(file, questions=args.latency))
    return files


def _own_lines(evidence: Evidence, valid_files: Share | None) -> list[Claim]:
    """Further lines: right answers, the share of valid plans without any help and with the grammar, and the shortcut
    probe."""
    kept = [one for one in evidence.test.scored if not one.dropped]
    return [
        _line(RIGHT, share(one.correct for one in kept)),
        _line(VALID, share(one.valid for one in kept)),
        shortcut([row.task for row in evidence.test.rows]),
        _line(VALID_FILES, valid_files),
    ]


def _elsewhere(recipe: Recipe, conductor: Path, table: Table) -> list[Claim]:
    """The lines of the sets in other words than the generator's, measured on this machine."""
    from gym.benchmarks.claims_evidence import Sizes, open_bench, other_sets

    from dirigent_gym.train.run import silence_libraries

    silence_libraries()
    sizes = Sizes(probes=table.sizes["probes"], seed=table.sizes["seed"])
    bench = open_bench(recipe, {"conductor": conductor})
    _say("questions from elsewhere")
    others = other_sets(bench, sizes, names=tuple(PLACED))
    return claims(Evidence(test=Run((), ()), ceiling={}, others=others, by_table=table.workers == "exact"))


def _line(name: str, found: Share | None) -> Claim:
    return Claim(name) if found is None else Claim(name, value=found.value, interval=found.interval, n=found.n)


def _recipe(args: argparse.Namespace) -> Recipe:
    recipe = load_recipe(args.recipe)
    if not isinstance(recipe, Recipe) or not recipe.base.weights:
        raise ConfigError(f"{args.recipe} trains no conductor on a GGUF base; take gym/recipes/gym-gpu.toml")
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
    parser.add_argument("--recipe", type=Path, default=ROOT / "gym" / "recipes" / "gym-gpu.toml")
    parser.add_argument("--limit", type=int, default=0, help="the most questions for any figure")
    parser.add_argument("--sampled", type=int, default=200, help="questions that get 16 sampled plans; slow on a CPU")
    parser.add_argument("--local", type=int, default=0, help="questions of the test that go through llama.cpp too")
    parser.add_argument("--latency", type=int, default=0, help="questions that plans are timed on")
    parser.add_argument("--elsewhere", action="store_true", help="with --add: questions that are not the generator's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--metrics", nargs="+", type=Path, default=[], help="metrics.jsonl of the runs")
    parser.add_argument(
        "--add", type=Path, help="a table to fill with measurements of this machine and figures of the run's folder"
    )
    parser.add_argument("--controls", type=Path, help="with --add: a table with new measurements of controls")
    parser.add_argument("--join", nargs="+", type=Path, default=[], help="tables of several training seeds")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "claims.json")
    args = parser.parse_args()
    if min(args.limit, args.sampled, args.local, args.latency) < 0:
        parser.error("--limit, --sampled, --local and --latency are counts of questions")
    return args


if __name__ == "__main__":
    main()
