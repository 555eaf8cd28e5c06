"""`dirigent gym demo`: shows the gym's own pool, a trained conductor over specialists of 135 million parameters.

It needs no key and ignores any config file. `dirigent gym pool` prints the pool as a configuration.
"""

from __future__ import annotations

from typing import Annotated

import typer

from dirigent.cli.output import carry_out, print_text

app = typer.Typer(
    help="The gym's own pool: a trained conductor and its specialists.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def _group() -> None:
    """Keeps `demo` a subcommand."""


@app.command()
def demo(
    ask: Annotated[bool, typer.Option(help="Take your own questions afterwards, on a terminal.")] = True,
) -> None:
    """Answer a few questions with the gym's conductor and specialists on this CPU, then yours. Needs no key.

    Example:  dirigent gym demo
    """

    async def work() -> int:
        from dirigent_gym.cli.demonstration import demonstrate

        return await demonstrate(interactive=ask)

    carry_out(work)


@app.command()
def pool() -> None:
    """Print the gym's pool as a configuration: dirigent gym pool > dirigent.toml

    Example:  dirigent gym pool
    """

    async def work() -> None:
        from dirigent_gym.pool import toml_text

        print_text(toml_text().rstrip())

    carry_out(work)
