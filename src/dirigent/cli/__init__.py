"""The command line. Commands only parse, call and print; each imports its modules when it runs.

`dirigent --help` must answer at once, so this module and the top of the command modules import only typer and the
standard library.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from dirigent.cli import ask, audit, calibrate, demo, feedback, keys, learn, pool, serve, setup, table, traces
from dirigent.cli import eval as evaluation
from dirigent.cli.output import FAILED, MISUSED, say_error


class Commands(TyperGroup):
    """The commands of Dirigent and of installed plugins.

    A plugin is imported when its command is typed or the help is printed. A broken plugin prints an error, and the help
    omits its line.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        from dirigent import plugins

        return list(dict.fromkeys([*super().list_commands(ctx), *plugins.entries("commands")]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        from dirigent import plugins
        from dirigent.errors import ConfigError

        if cmd_name not in plugins.entries("commands") and ("commands", cmd_name) not in plugins.BROUGHT_BY:
            return None
        try:
            brought = plugins.load("commands", cmd_name)
        except ConfigError as error:
            say_error(str(error))
            if ctx.resilient_parsing or "--help" in sys.argv or "-h" in sys.argv:
                return None
            sys.exit(MISUSED)
        return _command_of(brought, cmd_name)


class Listing(TyperCommand):
    """A command whose help names planners, benchmarks or kinds of workers.

    The names are looked up when the help is printed, because plugins may bring some.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from dirigent.cli.choices import listed

        self.help = listed(self.help or "")
        for option in self.params:
            if isinstance(text := getattr(option, "help", None), str):
                option.help = listed(text)  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


def _command_of(brought: object, name: str) -> Any:
    """Returns the command of a plugin's entry: a function with Typer's annotations, or a Typer of several commands."""
    if isinstance(brought, typer.Typer):
        return typer.main.get_command(brought)
    single = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode=None)
    single.command(name)(cast("Callable[..., Any]", brought))
    return typer.main.get_command(single)


app = typer.Typer(
    name="dirigent",
    cls=Commands,
    help="Answer a question with all your language models: a conductor plans the steps, and you see every one.",
    epilog='Try it; no key is needed:  dirigent ask "How many letters has the capital of Norway?"',
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=Listing)(setup.init)
app.command(cls=Listing)(ask.ask)
app.command(cls=Listing)(ask.plan)
app.command()(serve.serve)
app.command()(demo.demo)
app.add_typer(pool.app, name="pool")
app.add_typer(traces.app, name="traces")
app.add_typer(keys.app, name="keys")
app.add_typer(audit.app, name="audit")
app.add_typer(table.app, name="table")
app.add_typer(learn.app, name="learn")
app.command()(learn.prove)
app.command("eval", cls=Listing)(evaluation.evaluate)
app.command()(calibrate.calibrate)
app.add_typer(feedback.app, name="feedback")
app.command()(setup.doctor)
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
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it is closed (`2>&-`), and Python would print its text to stdout
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - until the end
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # undecodable bytes become marks instead of a crash
    try:
        app()
    except OSError:
        if why := _write_error():
            say_error(f"the result cannot be written to stdout: {why}")
            sys.exit(FAILED)
        raise


def _write_error() -> str:
    """Returns why stdout cannot be written, such as a full disk, or "". Drops the text that is still unwritten."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python would try to write again at its exit, and complain
        return error.strerror or str(error)
    return ""
