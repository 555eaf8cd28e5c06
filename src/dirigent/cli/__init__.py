"""The command line. Commands only parse, call and print; each imports what it needs when it runs.

`dirigent --help` must answer at once, so nothing here or at the top of the command modules imports more
than typer and the standard library.
"""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from dirigent.cli import ask, audit, demo, keys, pool, serve, setup, traces, train
from dirigent.cli import eval as evaluation

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
app.command()(serve.serve)
app.add_typer(pool.app, name="pool")
app.add_typer(traces.app, name="traces")
app.add_typer(keys.app, name="keys")
app.add_typer(audit.app, name="audit")
app.command("eval")(evaluation.evaluate)
app.command()(train.train)
app.command()(setup.doctor)
app.command()(demo.demo)
app.command()(setup.version)


def _print_version(wanted: bool) -> None:
    if wanted:
        from dirigent.version import __version__

        typer.echo(f"dirigent {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
]


@app.callback()
def _root(version: VersionOption = False) -> None:
    """Options before the command."""


def main() -> None:
    """The entry point of the `dirigent` command."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what one side cannot read or show becomes marks, no crash
    app()
