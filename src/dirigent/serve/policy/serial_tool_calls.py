"""One tool call at a time, if the caller asks for that (`parallel_tool_calls: false`, `disable_parallel_tool_use`).

Not every provider has such a setting, so it is done here for all of them: of several calls in one reply the first is
kept. The worker can make the others when it has seen the result.
"""

from __future__ import annotations

import msgspec

from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.workers.worker import Wrapper


class OneCall(Wrapper):
    """A worker of whose tool calls only the first counts."""

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        reply = await self.worker.ask(request, observe=observe)
        if len(reply.tool_calls) <= 1:
            return reply
        return msgspec.structs.replace(reply, tool_calls=reply.tool_calls[:1])
