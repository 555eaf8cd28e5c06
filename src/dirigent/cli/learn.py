"""`dirigent learn`: fit a policy to a table, switch its operating point, go back. `dirigent prove`: test one."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from dirigent.cli.calibrate import MaxCostOption, QuestionsOption, YesOption
from dirigent.cli.output import FAILED, ConfigOption, JsonOption, carry_out, print_json, print_text, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dirigent.evals.prove import Proof
    from dirigent.learn.policy import Policy


class ByDefault(TyperGroup):
    """Words that are no command are the arguments of `fit`: `dirigent learn TABLE` is `dirigent learn fit TABLE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["fit", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ByDefault,
    help="Fit a policy to a table of graded answers:  dirigent learn TABLE --out FOLDER",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

FolderArgument = Annotated[Path, typer.Argument(help="The policy's folder.", show_default=False)]


@app.command()
def fit(
    table: Annotated[Path, typer.Argument(help="The folder of a table.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The policy's folder; an earlier version is kept.", show_default=False)],
    at: Annotated[str, typer.Option(help="Operating point: same, best, 'max-cost X', 'price X' or off.")] = "same",
    seed: Annotated[int, typer.Option(help="Of the folds and the fits.")] = 1,
    from_traffic: Annotated[
        bool, typer.Option("--from-traffic", help="Learn from judged runs of the store too.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a policy, and show accuracy against cost on questions that it did not learn from.

    It is switched on only if the table shows that it is at most a point worse than the best single worker.

    Example:  dirigent learn reports/table --out reports/policy
    """

    async def work() -> None:
        policy = await fitted(table, out, at=at, seed=seed, traffic=from_traffic, config=config)
        if as_json:
            print_json(facts(policy, out))
        else:
            print_text(told(policy, out))
        if policy.points:
            say(f"next:  dirigent prove {out} --live --questions OTHERS.jsonl")
            say(f'and in a profile of dirigent.toml:  planner = "learned", policy = "{out}"')

    carry_out(work, as_json=as_json)


async def fitted(
    table: Path, out: Path, *, at: str = "same", seed: int = 1, traffic: bool = False, config: Path | None = None
) -> Policy:
    """Fits a policy to a table, and to judged runs of the store if they count too; writes it with its
    picture and the workers' cards."""
    from dirigent.cli.storage import configured_store
    from dirigent.learn.cards import cards_of, write_cards
    from dirigent.learn.policy import next_version
    from dirigent.learn.policy_fit import PolicySettings, fit_policy
    from dirigent.learn.table import Table
    from dirigent.learn.traffic import traffic_table, with_traffic
    from dirigent.learn.traffic_fit import REFIT, earlier_stops, refitted

    fitting = rows = Table.load(table)
    joined = None
    if traffic:
        async with configured_store(config) as store:
            joined = with_traffic(rows, await traffic_table(store))
        for sentence in joined.left_out:
            say(sentence)
        fitting, rows = joined.table, joined.rows
    found = fit_policy(
        fitting, where=str(table), settings=PolicySettings(seed=seed), version=next_version(out), say=say
    )
    policy, selector = found.policy, found.selector
    if joined is not None and selector is not None:
        selector, why = refitted(selector, rows, traffic=joined.live, settings=REFIT, seed=seed)
        say(why)
        for stop in earlier_stops(selector, rows, traffic=joined.live)[:1]:
            say(
                f"stopping at {stop.until:.0%} sure would cost {stop.cost:.0%} of what it cost and be right "
                f"{stop.right:.1%} of the time in place of {stop.was:.1%} ({stop.questions:,} questions of traffic)"
            )
    if at != "same":
        policy = _at(policy, at)
    policy.save(out, selector)
    write_cards(out, cards_of(rows))
    if policy.points:
        (out / "front.svg").write_text(_picture(policy), encoding="utf-8")
    for sentence in policy.left_out:
        say(sentence)
    return policy


@app.command()
def switch(
    to: Annotated[str, typer.Argument(help="same, best, 'max-cost X', 'price X' or off.", show_default=False)],
    folder: FolderArgument,
    as_json: JsonOption = False,
) -> None:
    """Switch a policy to another operating point; one that the evidence does not support is refused.

    Example:  dirigent learn switch best reports/policy
    """

    async def work() -> None:
        from dirigent.learn.policy import Policy
        from dirigent.learn.selector import Selector

        policy = Policy.load(folder)
        changed = policy.switched(to)
        changed.save(folder, Selector.load(folder) if policy.points else None)
        _say_state(changed, folder, as_json=as_json)

    carry_out(work, as_json=as_json)


@app.command()
def rollback(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Go back to the version before the last `learn` or `switch`.

    Example:  dirigent learn rollback reports/policy
    """

    async def work() -> None:
        from dirigent.learn.policy import roll_back

        _say_state(roll_back(folder), folder, as_json=as_json)

    carry_out(work, as_json=as_json)


class Planner(StrEnum):
    """What `prove` tests."""

    learned = "learned"
    conductor = "conductor"


def prove(
    folder: Annotated[
        Path | None,
        typer.Argument(help="The policy's folder. Default with --live: that of the first profile that uses one."),
    ] = None,
    *,
    on: Annotated[
        Path | None, typer.Option(help="The folder of a table of other questions.", show_default=False)
    ] = None,
    planner: Annotated[
        Planner, typer.Option(help="On a table: a learned policy, or a trained conductor.")
    ] = Planner.learned,
    adapter: Annotated[
        Path | None, typer.Option(help="The conductor's folder; default: the one that ships.", show_default=False)
    ] = None,
    base: Annotated[
        Path | None, typer.Option(help="The conductor's base model, a GGUF file.", show_default=False)
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Ask the pool --questions, and its planners too.")] = False,
    questions: QuestionsOption = None,
    planners: Annotated[
        str, typer.Option(help="With --live: planners that answer as they would be served; by commas.")
    ] = "learned,language",
    samples: Annotated[int, typer.Option(min=1, max=16, help="With --live: answers of each worker.")] = 2,
    max_cost: MaxCostOption = None,
    out: Annotated[Path, typer.Option(help="With --live: the folder of its table and its runs.")] = Path("proof"),
    yes: YesOption = False,
    limit: Annotated[int | None, typer.Option(help="At most so many questions, drawn by lot.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write one HTML page.", show_default=False)] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Test a policy, or a trained conductor, on questions that nothing was learned from: does it pay?

    On a table, every plan is replayed. With --live, the workers and planners are asked; the same command continues a
    run that was cut, and pays nothing twice.

    Example:  dirigent prove reports/policy --on reports/test-table --page reports/proof.html
    Example:  dirigent prove --planner conductor --on reports/test-table --limit 50 --json
    """

    async def work() -> int:
        from dirigent.errors import ConfigError
        from dirigent.evals.prove import as_page
        from dirigent.evals.prove import prove as compare
        from dirigent.learn.table import Table

        if limit is not None and limit < 1:
            raise ConfigError(f"--limit must be 1 or more, not {limit}")
        if live == (on is not None) or live != (questions is not None):
            raise ConfigError("say  --on TABLE  to replay a table, or  --live --questions FILE  to ask your pool")
        if live and planner == "conductor":
            raise ConfigError("a conductor is replayed on a table: say  --planner conductor --on TABLE")
        if planner == "conductor" and on is not None:
            name = "conductor"
            found = _proved_conductor(adapter or folder, on, base=base, limit=limit)
        elif on is not None:
            if folder is None:
                raise ConfigError("name the policy's folder, or --planner conductor:  dirigent prove FOLDER --on TABLE")
            name = folder.name
            found = compare(folder, Table.load(on), where=str(on), limit=limit)
        else:
            proved = folder or await _profile_policy(config)
            name = proved.name
            asked = await proved_live(
                proved,
                questions,
                planners=[name.strip() for name in planners.split(",") if name.strip()],
                samples=samples,
                limit=limit,
                max_cost=max_cost,
                out=out,
                yes=yes,
                config=config,
            )
            if asked is None:
                return FAILED
            found = asked
        if page is not None:
            page.write_text(as_page(found, name=name), encoding="utf-8")
            say(f"written to {page}")
        if as_json:
            print_json(found)
        else:
            print_text(_proof_text(found))
            for note in found.notes:
                say(note)
            print_text(f"{found.questions:,} questions. {found.verdict}")
        return 0

    carry_out(work, as_json=as_json)


async def _profile_policy(config: Path | None) -> Path:
    from dirigent.config.runtime import load
    from dirigent.errors import ConfigError
    from dirigent.learn.policy import policy_folder

    loaded = await load(config)
    for profile in loaded.config.profile.values():
        if profile.policy:
            return policy_folder(profile.policy, loaded.folder)
    raise ConfigError("no profile uses a policy; name one's folder:  dirigent prove FOLDER --live --questions FILE")


async def proved_live(
    folder: Path,
    questions: Path | None,
    *,
    planners: Sequence[str],
    samples: int,
    limit: int | None,
    max_cost: float | None,
    out: Path,
    yes: bool,
    config: Path | None,
) -> Proof | None:
    """Asks every worker, then the planners, and compares them; None if the user declined or the cost cap ended it."""
    from dirigent.cli.calibrate import calibrated, chosen_questions
    from dirigent.cli.progress import progress
    from dirigent.config.runtime import load, open_runtime
    from dirigent.evals.prove import prove as compare
    from dirigent.evals.prove_live import checked, expected_usd, run_live
    from dirigent.learn.calibrate import Settings
    from dirigent.learn.policy import Policy
    from dirigent.show.words import count_text, usd_text

    rows = checked(chosen_questions(questions, None, limit, 1), Policy.load(folder), planners)
    say(f"first every worker answers, then {', '.join(planners)} answer the same {count_text(len(rows), 'question')}:")
    done = await calibrated(rows, Settings(samples=samples), out=out, max_cost=max_cost, yes=yes, config=config)
    if done is None:
        return None
    if done.stopped:
        say(f"stopped: {done.stopped}\nThe same command with a higher --max-cost continues.")
        return None
    more = expected_usd(planners, done.table)
    say(f"{', '.join(planners)}: {'free' if not more else f'about {usd_text(more)} more'}")
    async with open_runtime(await load(config)) as runtime:
        with progress(planners) as observe:
            live = await run_live(
                planners,
                done.table,
                runtime,
                folder=folder,
                out=out,
                spent_usd=done.spent_usd,
                max_cost_usd=max_cost,
                observe=observe,
            )
    return compare(folder, done.table, where=str(out), live=live)


def _proof_text(found: Proof) -> str:
    from dirigent.cli.output import table as columns

    best = found.best_single
    rows = [[f"best single: {best.name}", "", f"{100 * best.accuracy:.1f}", f"{best.cost:.4g}", "1.00x", "1.0", "", ""]]
    for row in (*found.front, *found.equal_cost_vote):
        rows.append(
            [
                row.planner,
                f"{row.price:g}" if row.planner in ("learned", "fixed", "conductor") else "",
                f"{100 * row.accuracy:.1f}",
                f"{row.cost:.4g}",
                f"{row.cost / max(best.cost, 1e-12):.2f}x",
                f"{row.calls:.1f}",
                "" if row.seconds is None else f"{row.seconds:.1f} s",
                f"{100 * row.diff:+.1f} [{100 * row.low:+.1f} to {100 * row.high:+.1f}]",
            ]
        )
    header = ["planner", "price", "right", f"cost ({found.unit})", "", "calls", "median", "against the best single"]
    if all(row.seconds is None for row in found.front):
        rows = [[*row[:6], row[7]] for row in rows]
        header.remove("median")
    return columns(header, rows, right=range(1, len(header) - 1))


def _proved_conductor(folder: Path | None, on: Path, *, base: Path | None, limit: int | None) -> Proof:
    """The proof of the conductor in the folder, or of the one that ships."""
    from dirigent.errors import ConfigError
    from dirigent.learn.saved_conductor import packaged_conductor
    from dirigent.learn.table import Table

    folder = folder or packaged_conductor()
    table = Table.load(on)
    try:
        from dirigent.evals.prove_conductor import prove_conductor
        from dirigent.learn.base import Base
    except ModuleNotFoundError as error:
        raise ConfigError(f"a conductor is replayed with {error.name}: pip install 'dirigent[learn]'") from None
    model = None if base is None else Base.load(base) if base.is_dir() else Base.from_gguf(base)
    return prove_conductor(folder, table, where=str(on), base=model, limit=limit)


def _at(policy: Policy, at: str) -> Policy:
    """The policy at the named operating point. A point without enough evidence stays off, with the reason."""
    import msgspec

    from dirigent.errors import ConfigError

    try:
        if at != "off":
            policy.point(at)
    except ConfigError as error:
        say(f"not switched to {at!r}: {error}")
        return msgspec.structs.replace(policy, active="off")
    return msgspec.structs.replace(policy, active=at)


def facts(policy: Policy, folder: Path) -> dict[str, Any]:
    """What `learn --json` prints."""
    return {
        "policy": str(folder),
        "version": policy.version,
        "on": policy.on,
        "active": policy.active,
        "why": policy.why,
        "more_labels": policy.more_labels,
        "unit": policy.unit,
        "questions": policy.questions,
        "labels": policy.labels,
        "best_single": {
            "name": policy.baseline,
            "accuracy": policy.baseline_accuracy,
            "cost": policy.baseline_cost,
        },
        "points": {name: policy.points[place].price for name, place in policy.named.items()},
        "front": [
            {
                "price": point.price,
                "accuracy": point.accuracy,
                "cost": point.cost,
                "calls": point.calls,
                "diff": point.diff,
                "low": point.low,
                "high": point.high,
            }
            for point in policy.points
        ],
        "left_out": policy.left_out,
    }


def _picture(policy: Policy) -> str:
    from dirigent.evals.front import Mark, svg_front

    title = f"{policy.questions:,} graded questions, cross-fitted"
    return svg_front(_marks(policy), [_single(policy, Mark)], title=title, unit=policy.unit)


def _marks(policy: Policy) -> list[Any]:
    from dirigent.evals.front import Mark

    return [
        Mark("learned", p.cost, p.accuracy, policy.baseline_accuracy + p.low, policy.baseline_accuracy + p.high)
        for p in policy.points
    ]


def _single(policy: Policy, mark: Any) -> Any:
    return mark(policy.baseline, policy.baseline_cost, policy.baseline_accuracy)


def told(policy: Policy, folder: Path) -> str:
    """The front as a picture, and the decision."""
    if not policy.points:
        return f"not switched on: {policy.why}\nabout {policy.more_labels} more graded questions would help."
    from dirigent.evals.front import Mark, text_front

    unit = policy.baseline_cost
    notes = [
        f"best single: {policy.baseline} ({100 * policy.baseline_accuracy:.1f}, {unit:.4g} {policy.unit} a question)"
    ]
    if "same" in policy.named:
        same = policy.points[policy.named["same"]]
        notes.append(f"same accuracy: {same.cost:.4g} ({same.cost / unit:.2f}x, {100 * same.diff:+.1f} points)")
    best = max(policy.points, key=lambda point: point.accuracy)
    confirmed = "" if "best" in policy.named else "; not confirmed"
    notes.append(f"best: {100 * best.accuracy:.1f} at {best.cost / unit:.2f}x{confirmed}")
    notes.append(f"evidence: {policy.labels:,} graded questions, cross-fitted")
    lines = [text_front(_marks(policy), [_single(policy, Mark)], notes=notes)]
    if policy.on:
        lines.append(f"switched on: {policy.active}: {policy.why}")
        lines.append(f"dirigent learn switch best {folder} · dirigent learn rollback {folder}")
    else:
        lines.append(f"not switched on: {policy.why}.")
        if policy.more_labels is not None:
            lines.append(f"about {policy.more_labels:,} more graded questions would.")
        lines.append(f"Until then {policy.baseline} is asked once.")
    return "\n".join(lines)


def _say_state(policy: Policy, folder: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(facts(policy, folder))
    else:
        print_text(f"version {policy.version}: {policy.active if policy.on else 'off'}")
