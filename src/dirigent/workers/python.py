"""Python: the local worker that runs a program which another worker wrote, or which its subtask holds.

It runs the last code block of its subtask; if there is none, that of the newest result that it may read. It calls no
model and costs nothing.
"""

from __future__ import annotations

import time

from dirigent.errors import DirigentError, WorkerError
from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.workers.role import RunsPrograms, last_program, said_by
from dirigent.workers.scripted import stream_words
from dirigent.workers.worker import Price, WorkerInfo


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
        reply = Reply(said_by(ran), ran=ran, model=self.info.name, seconds=time.monotonic() - started)
        await stream_words(reply.text, observe)
        return reply

    def _program(self, request: Request) -> str:
        """Returns the program to run: that of the subtask, of the newest result, or behind it if it ran already."""
        for result in reversed(request.results):
            if found := last_program(result.text) or (result.ran.program if result.ran is not None else ""):
                return found
        return last_program(request.messages[-1].text) if request.messages else ""
