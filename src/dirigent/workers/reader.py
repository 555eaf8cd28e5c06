"""Reader: the base of local workers that read the results of earlier steps: a vote, a selector, a program that is run.

A reader is a program on this machine. It gets its step as data (`Request.step`): every result on its access list with
its worker, its text and how the program behind it ended. It calls no model, costs nothing and writes no tokens.
"""

from __future__ import annotations

import time

import msgspec

from dirigent.errors import WorkerError
from dirigent.messages import Observe, Reply, Request, StepData, ignore
from dirigent.workers.scripted import stream_words
from dirigent.workers.worker import Price, WorkerInfo


class Reader:
    """A free local worker. A subclass has a card and `read`, which returns the reply for a step."""

    keeps_book = True
    """No call leaves and nothing is billed: there is nothing to meter."""

    def __init__(self, name: str, *, about: str, kind: str, subtask_only: bool = True) -> None:
        self.info = WorkerInfo(name, about=about, kind=kind, price=Price(), subtask_only=subtask_only, reads_data=True)

    async def read(self, step: StepData, request: Request) -> Reply:
        """Returns the reply; raises `WorkerError` if the results do not allow one."""
        raise NotImplementedError

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        started = time.monotonic()
        step = request.step or StepData(0, request.messages[-1].text if request.messages else "")
        reply = await self.read(step, request)
        await stream_words(reply.text, observe)
        return msgspec.structs.replace(reply, model=self.info.name, seconds=time.monotonic() - started)

    def nothing_to_read(self) -> WorkerError:
        """The error for a step without results."""
        return WorkerError(
            f"{self.info.name} reads the results of earlier steps and was shown none; let its step read them",
            worker=self.info.name,
            fault="request",
        )
