"""Conversation: the conversation that a request belongs to, and the workers that have read it a short time ago.

A provider keeps the beginning of a conversation in its prompt cache for some minutes and reads it again at a tenth of
the price. So the next turn of a conversation should go to a worker that has read it. A conversation is known by the
name that its caller gives it (the field or header `conversation`), by the response that it goes on from, by its
`prompt_cache_key`, or else by its system message, its tools and its first user message.

This is kept in the memory of one process, for as long as providers keep their caches. After that, or in another
process, a conversation is a new one: that costs money, never the answer.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from dirigent.messages import Warm
from dirigent.run.trace import Trace
from dirigent.serve.runs.asked import Asked

KEPT_S = 300.0
"""Providers keep a prompt for five minutes after it was last read, if not for longer."""
MOST_CONVERSATIONS = 10_000


def conversation_names(asked: Asked, *, key_id: str) -> tuple[str, ...]:
    """The names under which the request's conversation may be known to its key, the most certain first."""
    names = [f"name:{asked.dirigent.conversation}"] if asked.dirigent.conversation else []
    names += [*asked.goes_on_from, f"text:{_digest(asked)}"]
    return tuple(f"{key_id}/{name}" for name in names)


def run_name(run_id: str) -> str:
    """The name of the conversation that a run belongs to."""
    return f"run:{run_id}"


def cache_names(key: str | None) -> tuple[str, ...]:
    """The name that a `prompt_cache_key` gives to a conversation, if there is one."""
    return (f"cache:{key}",) if key else ()


class Conversations:
    """The conversations of this process whose prompts providers may still hold."""

    def __init__(self, *, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._known: OrderedDict[str, tuple[float, Warm]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def warm(self, names: Sequence[str]) -> Warm | None:
        """The workers that have read this conversation, by the first name that is known."""
        for name in names:
            found = self._known.get(name)
            if found is not None and time.monotonic() < found[0] + self._kept_s:
                return found[1]
        return None

    def note(self, names: Sequence[str], trace: Trace, *, key_id: str) -> None:
        """Remembers the workers of a run that read the conversation as it is, under every name of it."""
        read = {
            step.worker: tokens
            for step in trace.steps
            if step.status in ("done", "waiting")
            and (tokens := step.usage.input_tokens)
            and step.messages == trace.question
        }
        if not read:
            return
        workers = list(read)
        if len(workers) > 1:
            workers.sort(key=lambda worker: worker != trace.answered_by)
        warm = Warm(tuple(workers), max(read.values()))
        for name in (*names, f"{key_id}/{run_name(trace.id)}"):
            self._known[name] = (time.monotonic(), warm)
            self._known.move_to_end(name)
        while len(self._known) > MOST_CONVERSATIONS:
            self._known.popitem(last=False)


def _digest(asked: Asked) -> str:
    system = [message.text for message in asked.question if message.role == "system"]
    first = next((message.text for message in asked.question if message.role == "user"), "")
    tools = [(tool.name, tool.parameters) for tool in asked.options.tools]
    text = msgspec.json.encode([asked.model, system, tools, first])
    return hashlib.blake2b(text, digest_size=16).hexdigest()
