"""How commands end and what they print where: results to stdout, everything else to stderr, errors in one
line.

Every command hands its coroutine to `carry_out`, the one event loop of the command line. Exit codes: 0
done, 1 the run failed, 2 usage or configuration, 130 interrupted.
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
"""Of a text that is piped in beside a question: about what the longest contexts hold."""
SILENT_S = 3.0
"""Seconds after which a person is told that a pipe is waited for."""

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="The config file. Default: DIRIGENT_CONFIG, else ./dirigent.toml."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout, and nothing else there.")]


def carry_out(
    work: Callable[[], Coroutine[Any, Any, int | None]],
    *,
    as_json: bool = False,
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run a command's work, which returns the exit code. Expected failures are one line, no traceback.

    What `work` does before it gives its coroutine is done before the loop runs: Ctrl-C ends a wait for stdin there.
    """
    from dirigent.errors import ConfigError, DirigentError, PlanError
    from dirigent.workers.secret import redact

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            code = runner.run(work()) or 0
        sys.stdout.flush()  # what it was held up by is an error of the command, not of Python's last breath
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
    """For the person watching: never part of the result."""
    print(_fitting(text, sys.stderr), file=sys.stderr, flush=True)


def say_error(text: str) -> None:
    """`error: …`, later lines indented below the first."""
    say("error: " + text.replace("\n", "\n       "))


def print_json(value: Any) -> None:
    """One JSON object on one line of stdout."""
    import msgspec

    sys.stdout.flush()
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")  # UTF-8, whatever the terminal speaks
    sys.stdout.flush()


def print_text(text: str) -> None:
    """A result. On a terminal a model's control characters are written out; a pipe gets them as they are."""
    if sys.stdout.isatty():
        from dirigent.show import escape

        text = escape(text)
    text = _fitting(text, sys.stdout)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def _fitting(text: str, file: IO[str]) -> str:
    if text.isascii():
        return text
    from dirigent.show import fitting

    return fitting(text, file)


@contextmanager
def opened_for_writing(output: Path | None) -> Iterator[BinaryIO]:
    """The file that was named, else stdout. A disk that fills up meanwhile is an error that names the file."""
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
        raise DirigentError(f"{output} could not be written to its end: {error.strerror or error}") from None


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Columns two spaces apart, these ones flush right; the last is as long as it is."""
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
    """As much of a trace's id as a person types."""
    return id[:8]


def read_question(words: Sequence[str]) -> str:
    """The words of the command line, or stdin for `-`. Bytes that are no UTF-8 become marks: no wire carries them."""
    text = " ".join(words)
    if text == "-":
        text = sys.stdin.read()
    if not text.strip():
        from dirigent.errors import ConfigError

        raise ConfigError('there is no question; say  dirigent ask "…"  or pipe one in with  dirigent ask -')
    return text.encode(errors="surrogateescape").decode(errors="replace")


def read_piped(words: Sequence[str]) -> str:
    """Returns the text that was piped in beside the question of the command line.

    Returns "" at a terminal, without stdin, and for `-`, which reads the question itself from stdin.
    """
    stdin = sys.stdin
    if stdin is None or stdin.closed or stdin.isatty() or list(words) == ["-"]:
        return ""
    _say_if_silent(stdin)
    text = stdin.read(MAX_PIPED_CHARS + 1)
    if len(text) > MAX_PIPED_CHARS:
        from dirigent.errors import ConfigError

        raise ConfigError(f"the text on stdin is longer than {MAX_PIPED_CHARS:,} characters; pipe in a part of it")
    return text if text.strip() else ""


def with_piped(question: str, piped: str) -> str:
    return f"{question}\n\n{piped}" if piped else question


def _say_if_silent(stdin: TextIO) -> None:
    """Says so if the program waits for a pipe that nobody writes to: it would look as if it hung."""
    try:
        ready = select.select([stdin], [], [], SILENT_S)[0]
    except (OSError, ValueError):  # no file, or Windows, where only sockets can be asked
        return
    if not ready:
        say("waiting for the text that is piped into stdin  (without any: < /dev/null)")
