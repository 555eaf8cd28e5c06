"""One tool call at a time, where a caller asks for that (`parallel_tool_calls: false`, `disable_parallel_tool_use`).

Providers differ in whether they can be told, so it is held to here, for all of them: of several calls in one
reply the first goes on. The worker can make the others when it has seen that one's result.
"""

from __future__ import annotations

import copy

import msgspec

from dirigent.conduct import Conductor
from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Wrapper


def one_call_each(conductor: Conductor) -> Conductor:
    """The same conductor over workers that call one tool at a time."""
    narrowed = copy.copy(conductor)
    narrowed.pool = Pool(OneCall(worker) for worker in conductor.pool.values())
    return narrowed


class OneCall(Wrapper):
    """A worker around a worker."""

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        reply = await self.worker.ask(request, observe=observe)
        if len(reply.tool_calls) <= 1:
            return reply
        return msgspec.structs.replace(reply, tool_calls=reply.tool_calls[:1])
