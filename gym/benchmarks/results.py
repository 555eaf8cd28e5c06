"""The gym's results with every planner that can work there: writes docs/results/gym.{json,md,html,outcomes.jsonl.gz}.

    python gym/benchmarks/results.py [--limit 1000] [--out FILE] [--workers exact] [--resume] [--keep F]
    python gym/benchmarks/results.py --page                the pages again, from the existing figures

Carries out gym/recipes/eval-gym.toml. The trained planners, `conductor` in one round and in two and `warm-start`, join
if their weights are in the package, first in the table; `--language` adds the same base untrained, which is slow on a
CPU. The claims on the cards of the weights are printed under the table.

If another conductor ships, `conductor-language` follows it: the earlier conductor, which started from the language of
plans alone. Its weights are gone, so its row comes from docs/results/gym-language.json, the report of that time. If
that report has other questions, the row is left out and stderr gives the reason. `--stay language` does the same for
rows of the present report, which are then not asked again.

Outcomes are kept in a hidden file beside --out until the report is written. `--resume` continues with them if commit,
source, adapters and settings are the same; otherwise it begins anew and says so. The file's name holds a digest of all
four, so that no run can take up another's outcomes. `--keep` leaves a copy of them, for `must.py --record`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

import dirigent
from dirigent.cli.evaluating import carried_out
from dirigent.errors import ConfigError
from dirigent.evals.page import as_html
from dirigent.evals.recipe import EvalRecipe, load_recipe
from dirigent.evals.record import OUTCOMES, source_commit
from dirigent.evals.report import Report, as_json, as_markdown, as_table
from dirigent.planners import parse_name
from dirigent.workers.adapters import packaged
from dirigent_gym.evals.carried_rows import carry_fault, read_report, with_carried_row
from dirigent_gym.evals.workers import adapters_digest
from dirigent_gym.weights import FOLDER

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(dirigent.__file__).parent
RECIPE = ROOT / "gym" / "recipes" / "eval-gym.toml"
OUT = ROOT / "docs" / "results" / "gym.json"
"""Not the recipe's `out`: a run of the recipe alone would lack the trained planners' rows."""
TRAINED = ("conductor", "conductor:2", "warm-start")
"""With two rounds, an answer may be accepted or planned for again."""
EARLIER = ROOT / "docs" / "results" / "gym-language.json"
CONDUCTOR, CONDUCTOR_THEN = "conductor", "conductor-language"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=None, help="questions in place of the recipe's number")
    parser.add_argument("--workers", default=None, help="exact workers, or local adapters on this CPU")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--resume", action="store_true", help="continue this very run after an interruption")
    parser.add_argument("--keep", type=Path, default=None, help="a copy of the outcomes, for must.py --record")
    parser.add_argument(
        "--taken-over", nargs="*", default=[], metavar="PLANNER=COMMIT",
        help="rows whose outcomes come from a run at another commit; the report names them",
    )  # fmt: skip
    parser.add_argument("--language", action="store_true", help="add the prompted, untrained base")
    parser.add_argument(
        "--stay", nargs="*", default=[], metavar="PLANNER", help="rows of the report at --out that are not asked again"
    )
    parser.add_argument("--page", action="store_true", help="ask nothing; write the pages again from the JSON")
    args = parser.parse_args()
    recipe = load_recipe(RECIPE)
    out = args.out or OUT
    there = [name for name in TRAINED if parse_name(name).kind in packaged()]
    try:
        # Read before anything is asked: a file that cannot be read must not cost a run.
        earlier = read_earlier()
        if args.page:
            page_again(out, earlier)
            return
        recipe = msgspec.structs.replace(
            recipe,
            planners=(
                *(name for name in there if name not in args.stay),
                *(("language",) if args.language else ()),
                *recipe.planners,
            ),
            limit=args.limit or recipe.limit,
            workers=args.workers or recipe.workers,
        )
        present = read_report(out) if args.stay else None
        source = source_of(language=args.language)
        report = evaluated(
            recipe, out, earlier, resume=args.resume, keep=args.keep, taken_over=named(args.taken_over), source=source,
            stay=rows_that_stay(present, args.stay),
        )  # fmt: skip
        print(as_table(report))
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
    for name in TRAINED:
        if name not in there:
            print(f"not in the table: {name}, whose weights are not in the package yet")


def source_of(*, language: bool) -> str:
    """The command that reproduces the report."""
    recipe = str(RECIPE.relative_to(ROOT))
    return f"gym/benchmarks/results.py --language ({recipe})" if language else recipe


def named(pairs: Sequence[str]) -> dict[str, str]:
    """The pairs `PLANNER=COMMIT` as a dict."""
    if wrong := next((pair for pair in pairs if not all(pair.partition("="))), None):
        raise ConfigError(f"--taken-over {wrong}: write PLANNER=COMMIT, e.g. conductor=1a2b3c4")
    return dict(pair.split("=", 1) for pair in pairs)


def evaluated(
    recipe: EvalRecipe,
    out: Path,
    earlier: Report | None,
    *,
    resume: bool,
    keep: Path | None = None,
    taken_over: Mapping[str, str] | None = None,
    source: str = "gym/recipes/eval-gym.toml",
    stay: Mapping[str, Report] | None = None,
) -> Report:
    """Writes the report and returns it; only then deletes the outcomes that it was made of. `keep` gets a copy."""
    scratch = scratch_of(out, recipe, commit=asyncio.run(source_commit()))
    if resume:
        say_if_anew(out, scratch)
    report = asyncio.run(carried_out(recipe, scratch, resume=resume, traces=False, source=source))
    for planner, present in (stay or {}).items():
        behind = TRAINED[-1] if TRAINED[-1] in report.planners else CONDUCTOR
        report = with_row(report, present, planner=planner, name=planner, behind=behind)
    report = with_earlier(report, earlier)
    if taken_over:
        report = msgspec.structs.replace(report, taken_over=dict(taken_over))
    out.write_bytes(as_json(report))
    write_pages(report, out)
    shutil.copyfile(scratch.with_suffix(OUTCOMES), out.with_suffix(OUTCOMES))
    if keep:
        keep.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(scratch.with_suffix(".jsonl"), keep)
    if report.complete:
        for file in kept_in(out, f"{scratch.stem}.*"):
            file.unlink()
    else:
        print(f"some runs are missing; {scratch.stem}.jsonl has the finished ones for --resume", file=sys.stderr)
    return report


def scratch_of(out: Path, recipe: EvalRecipe, *, commit: str) -> Path:
    """The file for the outcomes of this very run. The source counts beside the commit, because `+changes` does not name
    the changes."""
    settings = {name: of for name, of in msgspec.to_builtins(recipe).items() if name not in ("name", "about", "out")}
    adapters = adapters_digest(Path(recipe.adapters) if recipe.adapters else FOLDER)
    told = msgspec.json.encode((commit, source_digest(), adapters, settings))
    return out.with_name(f".{out.stem}-{hashlib.blake2b(told, digest_size=6).hexdigest()}.json")


def source_digest() -> str:
    """A digest of the package's files without the adapters."""
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(PACKAGE.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".gguf":
            digest.update(str(file.relative_to(PACKAGE)).encode() + hashlib.blake2b(file.read_bytes()).digest())
    return digest.hexdigest()


def say_if_anew(out: Path, scratch: Path) -> None:
    """Print a note if the outcomes of an interrupted run cannot be continued, because they are not of this run."""
    others = [file.name for file in kept_in(out, f".{out.stem}-*.jsonl") if file.stem != scratch.stem]
    if others and not scratch.with_suffix(".jsonl").exists():
        print(
            f"beginning anew: {', '.join(others)} in {out.parent} is of another commit, source or other settings; "
            "it stays there and may be deleted",
            file=sys.stderr,
        )


def kept_in(out: Path, pattern: str) -> list[Path]:
    return sorted(out.parent.glob(pattern))


def read_earlier(path: Path = EARLIER) -> Report | None:
    """The report of the earlier conductor; None if there is no such report."""
    return read_report(path) if path.exists() else None


def page_again(out: Path, earlier: Report | None) -> None:
    """Writes the pages from the existing figures. A new row is added to the JSON too, so that all three agree."""
    there = read_report(out)
    report = with_earlier(there, earlier)
    if report != there:
        out.write_bytes(as_json(report))
    write_pages(report, out)


def with_earlier(report: Report, earlier: Report | None) -> Report:
    """The report with the earlier conductor's row, or without it if that has other questions."""
    if earlier is None:
        return report
    return with_row(report, earlier, planner=CONDUCTOR, name=CONDUCTOR_THEN, behind=CONDUCTOR)


def with_row(report: Report, other: Report, *, planner: str, name: str, behind: str) -> Report:
    """The report with another report's row, or unchanged if that has other questions; stderr then gives the reason."""
    if why := carry_fault(report, other, planner=planner):
        left = "kept as it was" if name in report.planners else "not in the table"
        print(f"{left}: {name}, as measured at {other.commit[:7]}: {why}", file=sys.stderr)
        return report
    return with_carried_row(report, other, planner=planner, name=name, behind=behind)


def rows_that_stay(present: Report | None, planners: Sequence[str]) -> dict[str, Report]:
    """Planner -> the report of its row. A row that was taken over from another commit keeps that commit."""
    if present is None:
        return {}
    if missing := next((planner for planner in planners if planner not in present.planners), None):
        raise ConfigError(f"--stay {missing}: the report has no such row, only {', '.join(present.planners)}")
    elsewhere = present.taken_over or {}
    return {
        planner: msgspec.structs.replace(present, commit=elsewhere.get(planner, present.commit)) for planner in planners
    }


def write_pages(report: Report, out: Path) -> None:
    out.with_suffix(".md").write_text(as_markdown(report), encoding="utf-8")
    out.with_suffix(".html").write_text(as_html(report), encoding="utf-8")


if __name__ == "__main__":
    main()
