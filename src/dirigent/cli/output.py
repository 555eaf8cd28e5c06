"""Output and exit codes of commands: results go to stdout, everything else to stderr, errors on one line.

Every command passes its coroutine to `carry_out`, the one event loop of the command line. Exit codes: 0 done, 1 the run
failed, 2 usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, BinaryIO, TextIO

import typer

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

MAX_PIPED_CHARS = 1_000_000
"""Most characters of a text on stdin, about as many as the longest contexts hold."""
SILENT_S = 3.0
"""Seconds of silence on a pipe after which the program prints that it waits."""

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="The config file. Default: DIRIGENT_CONFIG, else ./dirigent.toml."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else to stdout.")]


def carry_out(
    work: Callable[[], Coroutine[Any, Any, int | None]],
    *,
    as_json: bool = False,
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Runs a command's work, which returns the exit code. An expected failure prints one line, no traceback.

    The code of `work` before its coroutine runs outside the loop, so that Ctrl-C ends a wait for stdin.
    """
    from dirigent.errors import ConfigError, DirigentError, PlanError
    from dirigent.workers.secret import redact

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            code = runner.run(work()) or 0
        sys.stdout.flush()  # an error of this write belongs to the command, not to Python's exit
    except DirigentError as error:
        text = redact(str(error))
        say_error(text)
        if as_json:
            print_json({"error": text, "status": "refused"})
        code = MISUSED if isinstance(error, ConfigError | PlanError) else FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code:
        raise typer.Exit(code)


def say(text: str = "") -> None:
    """Prints a line for the user on stderr; it is never part of the result."""
    print(_encodable(text, sys.stderr), file=sys.stderr, flush=True)


def say_error(text: str) -> None:
    """Prints `error: …` with later lines indented below the first."""
    say("error: " + text.replace("\n", "\n       "))


def print_json(value: Any) -> None:
    """Prints one JSON object on one line of stdout."""
    import msgspec

    sys.stdout.flush()
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")  # UTF-8 for any terminal
    sys.stdout.flush()


def print_text(text: str) -> None:
    """Prints a result. A terminal gets a model's control characters as escapes; a pipe gets them unchanged."""
    if sys.stdout.isatty():
        from dirigent.show import escape

        text = escape(text)
    text = _encodable(text, sys.stdout)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def _encodable(text: str, file: IO[str]) -> str:
    if text.isascii():
        return text
    from dirigent.show import encodable

    return encodable(text, file)


@contextmanager
def open_output(output: Path | None) -> Iterator[BinaryIO]:
    """Yields the named file, else stdout. If the disk fills up, the error names the file."""
    from dirigent.errors import ConfigError, DirigentError

    if output is None:
        yield sys.stdout.buffer
        return
    try:
        file = output.open("wb")
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error}") from None
    try:
        with file:
            yield file
    except OSError as error:
        raise DirigentError(f"{output} could not be written completely: {error.strerror or error}") from None


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Returns columns two spaces apart; those in `right` are flush right, the last one is not padded."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def short(id: str) -> str:
    """Returns the first 8 characters of a trace's id, enough to type."""
    return id[:8]


def read_question(words: Sequence[str]) -> str:
    """Returns the words of the command line, or stdin for `-`. Bytes outside UTF-8 become marks, as wires need."""
    text = " ".join(words)
    if text == "-":
        text = sys.stdin.read()
    if not text.strip():
        from dirigent.errors import ConfigError

        raise ConfigError('there is no question; run  dirigent ask "…"  or pipe one in with  dirigent ask -')
    return text.encode(errors="surrogateescape").decode(errors="replace")


def read_piped(words: Sequence[str]) -> str:
    """Returns the text on stdin that accompanies the question of the command line.

    Returns "" at a terminal, without stdin, and for `-`, which reads the question itself from stdin.
    """
    stdin = sys.stdin
    if stdin is None or stdin.closed or stdin.isatty() or list(words) == ["-"]:
        return ""
    _say_if_silent(stdin)
    text = stdin.read(MAX_PIPED_CHARS + 1)
    if len(text) > MAX_PIPED_CHARS:
        from dirigent.errors import ConfigError

        raise ConfigError(f"the text on stdin is longer than {MAX_PIPED_CHARS:,} characters; pipe in a shorter part")
    return text if text.strip() else ""


def with_piped(question: str, piped: str) -> str:
    return f"{question}\n\n{piped}" if piped else question


def _say_if_silent(stdin: TextIO) -> None:
    """Prints that the program waits, if a pipe stays silent: it would look as if it hung."""
    try:
        ready = select.select([stdin], [], [], SILENT_S)[0]
    except (OSError, ValueError):  # not a file, or Windows, where select takes only sockets
        return
    if not ready:
        say("waiting for text on stdin  (to send none: < /dev/null)")
