"""`dirigent init`, `doctor` and `version`: set up Dirigent and find faults."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dirigent.cli.calibrate import LimitOption, MaxCostOption, QuestionsOption, YesOption
from dirigent.cli.output import FAILED, ConfigOption, JsonOption, carry_out, print_json, print_text, say

if TYPE_CHECKING:
    from dirigent.config.file import Loaded


def init(
    path: Annotated[Path, typer.Option(help="The file to write.")] = Path("dirigent.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Then ask every worker graded questions, and learn whom to ask.")
    ] = False,
    questions: QuestionsOption = None,
    limit: LimitOption = None,
    max_cost: MaxCostOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write dirigent.toml from this machine's API keys (environment), local model servers and local weights.

    The file may name these kinds of workers: {kinds}.

    Example:  dirigent init
    """

    async def work() -> int:
        from dirigent.config.discovery import choices, discover, small_pool_reason, toml_of
        from dirigent.config.file import config_path, parse_config
        from dirigent.errors import ConfigError
        from dirigent.show.words import count_text

        if path.exists() and not force:
            raise ConfigError(f"{path} exists already; --force overwrites it, --path names another")
        machine = await discover()
        text = f"{toml_of(machine)}\n{choices()}"
        loaded = parse_config(text, path=path)
        learned = machine.has_models and await policy_fits(loaded)
        if learned:
            text = f"{toml_of(machine, policy=POLICY)}\n{choices()}"
        if not machine.has_models:
            await _check_local(loaded)
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error}") from None
        names = [worker.name for worker in loaded.config.worker]
        facts = {
            "path": str(path),
            "keys": machine.keys,
            "servers": {server.name: server.base_url for server in machine.servers},
            "workers": names,
        }
        if as_json and not calibrate:
            print_json(facts)
            return 0
        for provider, variable in machine.keys.items():
            say(f"found  {variable} ({provider})")
        for server in machine.servers:
            say(f"found  {server.name} at {server.base_url}: {', '.join(server.models)}")
        if not machine.has_models:
            say("found  no key and no model server: the pool is one model on this machine's CPU")
            if reason := small_pool_reason(machine):
                say(f"note: {reason}")
        if learned:
            say(f"found  a learned policy for this pool in {path.parent / POLICY}: the profile mini uses it")
        wrote = f"wrote {path} with {count_text(len(names), 'worker')}: {', '.join(names)}"
        (say if as_json else print_text)(wrote)
        named = "" if config_path() == path else f" --config {path}"
        if calibrate:
            measured = await _calibrate_and_learn(path, questions, limit, max_cost, yes=yes, as_json=as_json)
            if measured is None:
                return FAILED
            done, told = measured
            learned = machine.has_models and await policy_fits(loaded)
            right = measured_right(parse_config(f"{text}\n{CARDS}", path=path))
            text = toml_of(machine, policy=POLICY if learned else "", right=right)
            path.write_text(f"{text}\n{CARDS}\n{choices()}", encoding="utf-8")
            if as_json:
                print_json({**facts, **done, "policy": told, "mini": "learned" if learned else "single"})
            else:
                say(f"wrote {path}: planners read the measured figures" + ("; mini uses the policy" if learned else ""))
        say(f'next:  dirigent pool check{named}   then   dirigent ask "…"{named}')
        return 0

    carry_out(work, as_json=as_json)


POLICY = "policy"
"""The folder beside the file in which `init` looks for a policy."""
TABLE = "table"
"""The folder beside the file in which `init --calibrate` puts the table."""

CARDS = f"""\
# The figures that `dirigent calibrate` measured of each worker follow its `about`.
[cards]
table = "{POLICY}"
"""


def measured_right(loaded: Loaded) -> dict[str, float]:
    """The share of right answers of each worker that was measured by labels and has not changed since."""
    from dirigent.config.runtime import measured_cards

    cards = measured_cards(loaded).items()
    return {name: card.right.right for name, card in cards if card.right is not None and not card.estimated}


async def _calibrate_and_learn(
    config: Path,
    questions: Path | None,
    limit: int | None,
    max_cost: float | None,
    *,
    yes: bool,
    as_json: bool,
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Asks the workers of the new file and learns from their answers; None if the user declined."""
    from dirigent.cli.calibrate import calibrated, chosen_questions, report, tell
    from dirigent.cli.learn import facts, fitted, told
    from dirigent.learn.calibrate import Settings

    rows = chosen_questions(questions, None, limit, 1)
    table, policy = config.parent / TABLE, config.parent / POLICY
    done = await calibrated(rows, Settings(), out=table, max_cost=max_cost, yes=yes, config=config)
    if done is None:
        return None
    tell(done, table, as_json=as_json)
    found = await fitted(table, policy)
    say(told(found, policy))
    return {"table": str(table), **report(done)}, facts(found, policy)


async def policy_fits(loaded: Loaded) -> bool:
    """Whether the folder `policy` beside the file holds a policy that is on, for workers of this pool as they are."""
    folder = loaded.folder / POLICY
    if not (folder / "policy.json").is_file():
        return False
    from dirigent.config.runtime import open_runtime
    from dirigent.learn.policy import Policy
    from dirigent.planners.learned import measured

    policy = Policy.load(folder)
    async with open_runtime(loaded) as runtime:
        known = measured(policy, runtime.pool.infos)
    missing = sorted(set(policy.workers) - set(known))
    if not policy.on:
        say(f"the policy in {folder} is off: {policy.why}")
    elif missing:
        say(f"the policy in {folder} is not used: it was fitted on other workers ({', '.join(missing)})")
    return policy.on and not missing


async def _check_local(loaded: Loaded) -> None:
    """Raises ConfigError if the machine has no key and no server, and the small local pool cannot run either."""
    from dirigent.config.runtime import open_runtime
    from dirigent.errors import ConfigError

    async with open_runtime(loaded) as runtime:
        if runtime.problem:
            raise ConfigError(
                f"found no key and no model server, and {runtime.problem}\n"
                "or set a provider's key, such as OPENAI_API_KEY, or start a model server; "
                "then run `dirigent init` again. Nothing was written"
            )


def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check everything that a run needs, and print what is wrong and how to fix it. Costs nothing.

    Example:  dirigent doctor
    """

    async def work() -> int:
        from dirigent.cli.doctor import examine

        checks = await examine(config)
        healthy = all(check.ok or not check.needed for check in checks)
        if as_json:
            print_json({"ok": healthy, "checks": checks})
        else:
            width = max(len(check.what) for check in checks)
            for check in checks:
                word = "ok" if check.ok else "problem" if check.needed else "note"
                text = check.found if check.ok else f"{check.found}; {check.fix}"
                print_text(f"{check.what.ljust(width)}  {word:7}  {text}")
        return 0 if healthy else FAILED

    carry_out(work, as_json=as_json)


def version(as_json: JsonOption = False) -> None:
    """Print the version.

    Example:  dirigent version
    """
    from dirigent.version import __version__

    python = ".".join(map(str, sys.version_info[:3]))
    if as_json:
        print_json({"version": __version__, "python": python})
    else:
        print_text(f"dirigent {__version__} (Python {python})")
