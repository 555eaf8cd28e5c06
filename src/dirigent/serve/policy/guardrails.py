"""Guardrails: which requests are refused, which text may leave for another region, and which replies are accepted.

`check_request` checks a request before any worker is paid. `guarded` wraps every worker of a pool, so that the
guardrails
hold for each step of each plan, for planners, and for a worker that takes a step over:

    Regional    text that leaves the home region goes without personal data, with placeholders in its place
    Bounded     a reply that is too long fails its step
    Answering   a worker whose reply is empty or a refusal is asked once more (json_schema.py)

Personal data is found by plain signs: e-mail addresses, telephone numbers, IBANs with a right checksum, card numbers
with a right checksum. That finds data written in the usual way and nothing else: no names and addresses of people, and
nothing in images, tool definitions or schemas. An operator's own function can replace it. The trace has the request as
it was before masking.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import secrets
from collections.abc import Callable
from functools import partial

import msgspec

from dirigent.config.server_settings import Guardrails
from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Delta, Event, Message, Observe, Part, Reply, Request, Text, ignore
from dirigent.run.step_prompt import placeholder
from dirigent.serve.http.errors import Problem
from dirigent.serve.policy.json_schema import Answering
from dirigent.serve.runs.asked import Asked
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Worker, Wrapper

Redact = Callable[[str], str]
"""Returns the text without data that must not leave."""

EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])")
IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}(?![A-Za-z0-9])")
CARD = re.compile(r"(?<![\d.,-])\d(?:[ -]?\d){12,18}(?![\d-])")
PHONE = re.compile(
    r"(?<![\w.,/-])(?:\+|00)[1-9](?:[ ./()-]{0,2}\d){6,14}(?![\w-])"  # with its country
    r"|(?<![\w.,/-])\(?0\d{1,4}\)?[ /-]\d(?:[ -]?\d){4,9}(?![\w-])"  # with its area
    r"|(?<![\w.,/-])\(?[2-9]\d{2}\)?[ .-]\d{3}[ .-]\d{4}(?![\w-])"  # as in North America
)


def check_request(asked: Asked, rails: Guardrails) -> None:
    """Refuse a request that is too long, or that the operator has blocked."""
    if rails.max_request_chars is not None:
        count = sum(len(message.text) for message in asked.question)
        if count > rails.max_request_chars:
            said = f"the messages hold {count:,} characters; at most {rails.max_request_chars:,} are taken here"
            raise Problem(413, said, code="too_large", param=asked.fields.messages)
    for pattern in rails.block:
        for index, message in enumerate(asked.question):
            texts = (message.text, message.name) if message.name else (message.text,)
            if any(re.search(pattern, text, re.IGNORECASE) for text in texts):
                # The error does not name the rule: that would help only to get around it.
                param = asked.fields.message(index)
                said = f"{param} holds something that this server does not take"
                raise Problem(400, said, code="content_policy", param=param)


def guarded(pool: Pool, rails: Guardrails) -> Pool:
    """The same workers behind the guardrails; the pool itself if there are none."""
    if rails == Guardrails():
        return pool
    redact = redactor(rails)
    return Pool(_guarded(worker, rails, redact) for worker in pool.values())


def redactor(rails: Guardrails) -> Redact | None:
    """The function that removes personal data from a text; None if it is switched off."""
    if rails.redact == "off":
        return None
    return without_personal_data if rails.redact == "personal" else _hook(rails.redact_hook)


def without_personal_data(text: str) -> str:
    """The text with placeholders for personal data. Equal data gets equal placeholders, so the text still reads."""
    for kind, pattern, is_one in KINDS:
        text = pattern.sub(partial(_masked, kind, is_one), text)
    return text


def is_card(text: str) -> bool:
    """Luhn's checksum over 13 to 19 digits."""
    digits = [int(c) for c in text if c.isdecimal()]
    doubled = [d * 2 - 9 if d > 4 else d * 2 for d in digits[-2::-2]]
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def is_iban(text: str) -> bool:
    """ISO 7064's checksum: with the country moved to its end, the number leaves 1 when divided by 97."""
    plain = text.replace(" ", "")
    if not 15 <= len(plain) <= 34 or not plain.isascii():
        return False
    return int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1


class Regional(Wrapper):
    """A worker of another region, which sees no personal data."""

    def __init__(self, worker: Worker, redact: Redact) -> None:
        super().__init__(worker)
        self._redact = redact

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        messages = tuple(self._without(message) for message in request.messages)
        return await self.worker.ask(msgspec.structs.replace(request, messages=messages), observe=observe)

    def _without(self, message: Message) -> Message:
        content: str | tuple[Part, ...]
        if isinstance(message.content, str):
            content = self._checked(message.content)
        else:
            parts = message.content
            content = tuple(Text(self._checked(p.text)) if isinstance(p, Text) else p for p in parts)
        calls = tuple(
            msgspec.structs.replace(call, arguments=self._checked(call.arguments)) for call in message.tool_calls
        )
        # No wire accepts a placeholder as a name, so a name that may not leave is left out.
        name = message.name if self._checked(message.name) == message.name else ""
        return msgspec.structs.replace(message, content=content, tool_calls=calls, name=name)

    def _checked(self, text: str) -> str:
        """If the operator's function fails, nothing is sent."""
        try:
            found = self._redact(text)
        except Exception as error:
            raise self._refused(f"redact_hook failed: {type(error).__name__}") from error
        if not isinstance(found, str):
            raise self._refused(f"redact_hook gave {type(found).__name__}, not a text")
        return found

    def _refused(self, said: str) -> WorkerError:
        said = f"nothing was sent to {self.info.name}: {said}"
        return WorkerError(said, said=said, worker=self.info.name, fault="request")


class Bounded(Wrapper):
    """A worker whose reply is bounded in length. Words beyond the bound are not streamed either."""

    def __init__(self, worker: Worker, *, max_chars: int) -> None:
        super().__init__(worker)
        self._max_chars = max_chars

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        reply = await self.worker.ask(request, observe=self._up_to_bound(observe))
        if len(reply.text) > self._max_chars:
            said = f"{self.info.name} wrote {len(reply.text):,} characters; max_reply_chars is {self._max_chars:,}"
            raise WorkerError(said, said=said, worker=self.info.name, fault="reply", attempts=reply.attempts)
        return reply

    def _up_to_bound(self, observe: Observe) -> Observe:
        if observe is ignore:
            return ignore
        seen = 0

        def pass_on(event: Event) -> None:
            nonlocal seen
            if isinstance(event, Delta):
                seen += len(event.text)
                if seen > self._max_chars:
                    return
            observe(event)

        return pass_on


def _guarded(worker: Worker, rails: Guardrails, redact: Redact | None) -> Worker:
    if redact is not None and (not rails.home_region or worker.info.region != rails.home_region):
        worker = Regional(worker, redact)
    if rails.max_reply_chars is not None:
        worker = Bounded(worker, max_chars=rails.max_reply_chars)
    if rails.check_empty or rails.check_refusal:
        worker = Answering(worker, empty=rails.check_empty, refusal=rails.check_refusal)
    return worker


def _hook(where: str) -> Redact:
    module, _, name = where.partition(":")
    try:
        hook = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f'redact_hook = "{where}" cannot be loaded: {error}') from None
    if not callable(hook):
        raise ConfigError(f'redact_hook = "{where}" is no function')
    found: Redact = hook
    return found


def _masked(kind: str, is_one: Callable[[str], bool], found: re.Match[str]) -> str:
    """The same mark for the same number in every step, keyed with a secret so that it does not give the number away."""
    if not is_one(found[0]):
        return found[0]
    plain = found[0].lower() if kind == "email" else re.sub(r"[\s./()-]", "", found[0])
    return placeholder(kind, hashlib.blake2s(plain.encode(errors="replace"), digest_size=3, key=_KEY).hexdigest())


_KEY = secrets.token_bytes(32)

KINDS: tuple[tuple[str, re.Pattern[str], Callable[[str], bool]], ...] = (
    ("email", EMAIL, lambda _: True),
    ("iban", IBAN, is_iban),
    ("card", CARD, is_card),
    ("phone", PHONE, lambda _: True),
)
