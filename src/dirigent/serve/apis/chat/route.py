"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from dirigent.serve.apis.chat.reply import ChatWriter
from dirigent.serve.apis.chat.wire import read
from dirigent.serve.apis.exchange import Plain, respond


async def chat(request: Request) -> Any:
    """A completion, whole or as a stream."""
    return await respond(request, lambda body: Plain(read(body), ChatWriter))
