"""The command line. Commands only parse, call and print; each imports what it needs when it runs.

`dirigent --help` must answer at once, so nothing here or at the top of the command modules imports more
than typer and the standard library.
"""

from __future__ import annotations

from typing import Annotated

import typer

from dirigent.cli import ask, demo, pool, setup, traces

app = typer.Typer(
    name="dirigent",
    help="One question, all your language models: a conductor plans who does what, and you see everything.",
    epilog='Try it:  dirigent ask "Why is the sky blue?"   No key? It runs a small model on this machine.',
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(setup.init)
app.command()(ask.ask)
app.command()(ask.plan)
app.add_typer(pool.app, name="pool")
app.add_typer(traces.app, name="traces")
app.command()(setup.doctor)
app.command()(demo.demo)
app.command()(setup.version)


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from dirigent.version import __version__

        typer.echo(f"dirigent {__version__}")
        raise typer.Exit


def main() -> None:
    """The entry point of the `dirigent` command."""
    app()
