"""Role: a model with an instruction, sampling settings of its own and, if it writes programs, a sandbox for them.

One model in four roles is a pool of four. The instruction comes after the question, or after the subtask: a small
model follows the last words best, all roles of a model share the beginning of their prompts, and a grammar leaves the
place alone. A role was measured with its sampling, so that wins over the caller's.

A role that runs programs takes the last code block of the model's reply and runs it; its own reply is the last line
that the program printed, or the error. If the request asks for a list, every printed line is an item of the reply. A
reply without a code block is the answer unchanged. `Reply.ran` says what happened.

`Python` is the local worker that runs a program which another worker wrote, or which its subtask holds: the last code
block of the newest result that it may read, or of its subtask. It calls no model and costs nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from dirigent.errors import DirigentError, WorkerError
from dirigent.messages import Attempt, Message, Observe, Ran, Reply, Request, Text, ignore
from dirigent.workers.metering import attempts_of, note_attempts
from dirigent.workers.scripted import stream_words
from dirigent.workers.wire import uncarried
from dirigent.workers.worker import Ability, Price, Worker, WorkerInfo, Wrapper

CODE_BLOCK = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)
"""A block whose end was cut off counts too: the sandbox reports its error."""
PYTHON = ("python", "py", "python3")
ASKS_LIST = re.compile(
    r"\b(?:lists?|sort|order|rank|reverse|divisors|factors)\b|\b(?:what|which|name|give|find|write|print) (?:are|all)\b"
    r"|\bwhich \w+s are\b|\balphabetical|\beach of\b"
    r"|\bthe (?:first|next|last) (?:two|three|four|five|six|seven|eight|nine|ten|\d+)\b",
    re.IGNORECASE,
)
LOST: frozenset[Ability] = frozenset(("schema", "json_mode", "grammar", "tools", "stop"))
"""Abilities that a role loses if its reply is what a program printed."""
MOST_ERROR_CHARS = 300


class RoleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`role = { … }`: what makes a role of a model."""

    instruction: str
    """The words after the question or the subtask."""
    temperature: float | None = None
    """Sampling temperature of this role; it wins over the caller's. Default: the model's."""
    max_output_tokens: int | None = None
    """Most tokens that the role may write. Default: the model's."""
    runs: Literal["python"] | None = None
    """`python`: run the program in the reply, and reply with its last printed line."""

    def __post_init__(self) -> None:
        if not self.instruction.strip():
            raise ValueError('instruction is empty; say what the role does, such as "Think step by step."')
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ValueError(f"temperature must be 0 to 2, not {self.temperature:g}")
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise ValueError(f"max_output_tokens must be above 0, not {self.max_output_tokens}")


class RunsPrograms(Protocol):
    """The part of the sandbox that a role needs (`dirigent.sandbox.programs`)."""

    def start(self) -> None:
        """Starts to open the sandbox, without waiting for it."""
        ...

    async def run(self, source: str) -> Ran:
        """Returns how the program ended; raises `DirigentError` if it could not be run."""
        ...


class Role(Wrapper):
    """A worker in one of its roles. Its card is its own; limits, price and breaker are those of the worker inside."""

    def __init__(
        self, worker: Worker, settings: RoleSettings, *, info: WorkerInfo, programs: RunsPrograms | None = None
    ) -> None:
        super().__init__(worker)
        self.settings = settings
        self._programs = programs
        caps = [cap for cap in (settings.max_output_tokens, info.output_tokens) if cap is not None]
        self.info = msgspec.structs.replace(
            info,
            output_tokens=min(caps, default=None),
            abilities=info.abilities - LOST if settings.runs else info.abilities,
        )

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        if self._programs is None:
            return await self._asked(request, observe)
        for field, wanted in (
            ("schema", request.schema is not None or request.json_mode),
            ("grammar", bool(request.grammar)),
            ("tools", bool(request.tools)),
        ):
            if wanted:
                raise uncarried(field, f"{self.info.name} replies with what a program prints; ask another worker")
        self._programs.start()
        reply = await self._asked(request, ignore)  # a program is not streamed: the reply is what it prints
        if program := last_program(reply.text):
            try:
                ran = await self._programs.run(program)
            except DirigentError as error:
                raise WorkerError(
                    f"{self.info.name}: {error}", worker=self.info.name, attempts=reply.attempts
                ) from error
            except BaseException as error:
                note_attempts(error, reply.attempts)
                raise
            reply = msgspec.structs.replace(reply, text=said_by(ran, asked=_last_words(request)), ran=ran)
        await stream_words(reply.text, observe)
        return reply

    async def _asked(self, request: Request, observe: Observe) -> Reply:
        settings = self.settings
        changes: dict[str, Any] = {"messages": instructed(request.messages, settings.instruction)}
        if settings.temperature is not None:
            changes["temperature"] = settings.temperature
        asked, most = request.max_output_tokens, self.info.output_tokens
        if most is not None and (asked is None or asked > most) and not request.drafts:
            changes["max_output_tokens"] = most
        try:
            reply = await self.worker.ask(msgspec.structs.replace(request, **changes), observe=observe)
        except BaseException as error:
            if attempts := attempts_of(error):
                note_attempts(error, self._own(attempts))
            raise
        return msgspec.structs.replace(reply, attempts=self._own(reply.attempts))

    def _own(self, attempts: Sequence[Attempt]) -> tuple[Attempt, ...]:
        """Enters the calls under the role's name: the trace and the bill distinguish roles of one model."""
        return tuple(msgspec.structs.replace(attempt, worker=self.info.name) for attempt in attempts)


def instructed(messages: Sequence[Message], instruction: str) -> tuple[Message, ...]:
    """Returns the messages with the instruction after the user's last words; as a system line if those are not last."""
    if not messages or messages[-1].role != "user":
        return (Message("system", instruction), *messages)
    *before, last = messages
    if isinstance(last.content, str):
        return (*before, msgspec.structs.replace(last, content=f"{last.content}\n\n{instruction}"))
    return (*before, msgspec.structs.replace(last, content=(*last.content, Text(instruction))))


def last_program(text: str) -> str:
    """Returns the last code block that is marked as Python, else the last block; empty if there is none."""
    blocks = CODE_BLOCK.findall(text)
    marked: list[str] = [body for language, body in blocks if language.lower() in PYTHON]
    return (marked or [body for _, body in blocks] or [""])[-1].strip("\n")


def _last_words(request: Request) -> str:
    return request.messages[-1].text if request.messages else ""


def said_by(ran: Ran, *, asked: str = "") -> str:
    """Returns a program's last printed line, or what went wrong in one short line.

    If the request asks for a list, all lines are returned as one, with commas: programs often print one item a line.
    """
    if ran.exit_code == 0:
        lines = [line.strip() for line in ran.output.strip().splitlines()]
        if not lines:
            return "The program printed nothing."
        return ", ".join(filter(None, lines)) if ASKS_LIST.search(asked) else lines[-1]
    lines = ran.error.strip().splitlines()
    why = lines[-1].strip() if lines else f"it ended with code {ran.exit_code}"
    return f"The program failed: {why[:MOST_ERROR_CHARS]}"


# ---- the worker that runs programs of others -----------------------------------------------------------------


class Python:
    """Replies with the last line that the program prints, or with what went wrong."""

    keeps_book = True
    """No call leaves and nothing is billed: there is nothing to meter."""

    def __init__(self, programs: RunsPrograms, *, name: str = "python", about: str = "") -> None:
        self._programs = programs
        self.info = WorkerInfo(
            name,
            about=about or "runs the Python program in its subtask or in a result that it reads",
            kind="python",
            price=Price(),
            subtask_only=True,
            reads_results=True,
        )

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        started = time.monotonic()
        program = self._program(request)
        if not program:
            raise WorkerError(
                f"{self.info.name} found no program: its subtask, or a result that it reads, must hold a code block",
                worker=self.info.name,
                fault="request",
            )
        try:
            ran = await self._programs.run(program)
        except DirigentError as error:
            raise WorkerError(f"{self.info.name}: {error}", worker=self.info.name) from error
        reply = Reply(
            said_by(ran, asked=_last_words(request)), ran=ran, model=self.info.name, seconds=time.monotonic() - started
        )
        await stream_words(reply.text, observe)
        return reply

    def _program(self, request: Request) -> str:
        """Returns the program to run: that of the subtask, of the newest result, or behind it if it ran already."""
        for result in reversed(request.results):
            if found := last_program(result.text) or (result.ran.program if result.ran is not None else ""):
                return found
        return last_program(_last_words(request))
