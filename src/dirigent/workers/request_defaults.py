"""Defaults: what a configured worker adds to requests that leave it open.

The outermost wrapper of a configured worker: a system line, a temperature, an effort, a cap on what it
writes. What a request says itself is kept, but for the cap, where the smaller counts, and for sampling
settings that the model refuses.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dirigent.messages import Effort, Message, Observe, Reply, Request, ignore
from dirigent.workers.worker import Worker, WorkerInfo


class Defaults:
    """A worker whose requests are completed before they are asked."""

    def __init__(
        self,
        worker: Worker,
        *,
        system: str = "",
        temperature: float | None = None,
        effort: Effort | None = None,
        max_output_tokens: int | None = None,
        sampling: bool = True,
    ) -> None:
        self.worker = worker
        self._system = system
        self._temperature = temperature
        self._effort: Effort | None = effort
        self._max_output_tokens = max_output_tokens
        self._sampling = sampling
        """False: the model refuses temperature and top_p, so they are left out."""

    @property
    def info(self) -> WorkerInfo:
        return self.worker.info

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        return await self.worker.ask(self._completed(request), observe=observe)

    def _completed(self, request: Request) -> Request:
        changes: dict[str, Any] = {}
        if self._system and not request.grammar:  # a line about style must not argue with a grammar
            changes["messages"] = (Message("system", self._system), *request.messages)
        if not self._sampling:
            changes |= {"temperature": None, "top_p": None}
        elif request.temperature is None and self._temperature is not None:
            changes["temperature"] = self._temperature
        if request.effort is None and self._effort is not None:
            changes["effort"] = self._effort
        asked, most = request.max_output_tokens, self._max_output_tokens
        if most is not None and (asked is None or asked > most):
            changes["max_output_tokens"] = most
        return msgspec.structs.replace(request, **changes) if changes else request
