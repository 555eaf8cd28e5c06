"""The HTTP client of all providers, and the Worker that calls a provider through it.

`HttpWorker` speaks any `Wire`. It asks the provider to stream only if the caller observes. Every failure ends as a
`WorkerError` with its fault, within the time-outs; the fault decides what happens next: a retry, another worker, or an
error for the operator. Nothing is followed (no redirect, no proxy from the environment, no cookie) and nothing is
trusted: replies are bounded, checked, and either whole or an error. Retries, metering and rate limits belong to
`wrappers.py`.

Cancelling the task that asks closes its connection at once, so that the provider stops working and charging.

Every call carries the number of Dirigent servers that its request has passed through, so that a loop of servers ends. A
worker's address may lead back to this server: through a proxy, under another name, or through a second server that has
this one in its pool. Neither end can see that. The server that would exceed the limit refuses the call
(`serve/http/bounds.py`). The number is not signed: a caller that sends too large a number is refused, and a caller
that sends too small a number could as well send none.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import email.utils
import functools
import io
import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import msgspec

from dirigent.concurrency import PerLoop
from dirigent.errors import RETRYABLE, ConfigError, Fault, WorkerError
from dirigent.messages import CHARS_PER_TOKEN, Delta, Observe, Reply, Request, Usage, estimate_tokens, ignore
from dirigent.workers.dns_pinning import Kind, Rebound, SteadyResolver
from dirigent.workers.metering import input_tokens
from dirigent.workers.secret import MASK, Secret, redact
from dirigent.workers.wire import EventParser, HttpCall, Wire, error_text, quote, unreadable, unusable
from dirigent.workers.worker import WorkerInfo

if TYPE_CHECKING:
    import aiohttp


MAX_REPLY_BYTES = 8 * 1024 * 1024
"""After decompression. The longest answer of a model is a tenth of it."""
MAX_ERROR_BYTES = 64 * 1024
LARGE_BODY_BYTES = 1024 * 1024
"""aiohttp writes a larger request body in pieces, so that the event loop is not blocked."""
LINGER_S = 0.2
"""Seconds a finished stream may take to end, so that its connection can be used again."""
ERROR_BODY_S = 5.0
"""Seconds to wait for the body of an error. Its status is known already."""
MOST_CHARS_PER_TOKEN = 8
"""Ordinary text has about four. A stream with more than this for every token it may have is cut: its provider ignores
the limit, and its bill would be higher than the sum that was reserved."""
SPARE_CHARS = 256
"""Added to the limit, since a few tokens may all be long."""


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds a call may take, by phase. The request's own deadline applies too; the sooner one ends the call."""

    connect_s: float = 5.0
    """Name look-up, TCP and TLS."""
    first_byte_s: float = 60.0
    """From the start of the call to the first byte of the reply's body. A provider writes a reply that is not streamed
    before it sends the first byte, so models that think for minutes need more."""
    chunk_s: float = 30.0
    """Between two chunks of the body."""
    total_s: float = 300.0
    """The whole call."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")


DEFAULT_TIMEOUTS = Timeouts()


class HttpClient:
    """The connections of a process: one session for each event loop, opened on first use.

    Share one client, and close it in every loop that used it: with `async with` or `close()`.
    """

    def __init__(self) -> None:
        kinds: dict[str, Kind] = {}  # shared by all loops: a name keeps its kind of address in each
        self._sessions = PerLoop(lambda: _open_session(kinds))

    def session(self) -> aiohttp.ClientSession:
        """Return the session of the running event loop."""
        return self._sessions.get()

    async def close(self) -> None:
        """Close the running loop's session. A later call opens a new one."""
        if (session := self._sessions.pop()) is not None:
            await session.close()

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _open_session(kinds: dict[str, Kind]) -> aiohttp.ClientSession:
    import aiohttp

    resolver = cast("aiohttp.abc.AbstractResolver", SteadyResolver(aiohttp.DefaultResolver(), kinds))
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, resolver=resolver),  # the rate limiter bounds concurrency
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        timeout=aiohttp.ClientTimeout(total=None),  # `_Timer` has the time-outs
    )


class HttpWorker:
    """A model behind HTTP. Its replies have no cost and no attempts: `Metered` adds them."""

    def __init__(
        self,
        info: WorkerInfo,
        wire: Wire,
        client: HttpClient,
        *,
        base_url: str,
        key: Secret | None = None,
        timeout: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self.info = info
        self.base_url = _usable(base_url)
        self.timeout = timeout
        self._wire = wire
        self._client = client
        self._key = key

    def __repr__(self) -> str:
        return f"HttpWorker({self.info.name!r}, {type(self._wire).__name__}, {self.base_url!r})"

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        started = time.monotonic()
        try:
            call = self._wire.build(request, info=self.info, base_url=self.base_url, stream=observe is not ignore)
            reply = await self._call(call, request, observe)
            if reply.tool_calls and not request.may_call and not reply.text.strip():
                raise unusable("the reply is a tool call, but the request allows none", reply.usage)
        except WorkerError as error:
            raise self._named(error, request) from error.__cause__
        usage = _counted(request, reply)
        return msgspec.structs.replace(reply, usage=usage, seconds=time.monotonic() - started)

    async def _call(self, call: HttpCall, request: Request, observe: Observe) -> Reply:
        timer = _Timer(self.timeout, deadline=request.deadline)
        response: aiohttp.ClientResponse | None = None
        try:
            async with timer.scope:
                response = await self._post(call)
                body = _Body(response, timer)
                if response.status != 200:
                    raise refused(response, explanation=error_text(await body.beginning(MAX_ERROR_BYTES)))
                if observe is ignore:
                    await body.require("application/json")
                    return self._wire.parse(await body.whole())
                await body.require("text/event-stream")
                return await self._read_stream(body, request, observe)
        except TimeoutError:
            if not timer.scope.expired():  # a time-out of the caller's own
                raise
            raise WorkerError(timer.message, fault="timeout") from None
        finally:
            if response is not None and not response.closed:  # its whole body has not come
                response.close()

    async def _post(self, call: HttpCall) -> aiohttp.ClientResponse:
        """Send the call. Returns when the reply's header has come."""
        import aiohttp

        key_headers: Mapping[str, str] = self._wire.key_headers(self._key.reveal()) if self._key else {}
        try:
            # aiohttp repeats only idempotent methods on a connection that was closed, so this POST is sent once.
            return await self._client.session().post(
                call.url,
                data=call.body if len(call.body) < LARGE_BODY_BYTES else io.BytesIO(call.body),
                headers={"Content-Type": "application/json", **hop_headers(), **call.headers, **key_headers},
                allow_redirects=False,
                timeout=_to_connect(self.timeout.connect_s),
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise not_reached(error, call.url, connect_s=self.timeout.connect_s) from None

    async def _read_stream(self, body: _Body, request: Request, observe: Observe) -> Reply:
        most_chars = float("inf")
        if request.max_output_tokens is not None:
            most_chars = SPARE_CHARS + MOST_CHARS_PER_TOKEN * request.max_output_tokens
        parser, decoder = EventParser(), self._wire.decoder()
        texts: list[str] = []
        while chunk := await body.next_chunk():
            for event in parser.feed(chunk):
                text = decoder.feed(event)
                if text:
                    texts.append(text)
                    observe(Delta(text))
                if decoder.done:
                    await body.drain(LINGER_S)
                    return decoder.finish()
                if decoder.written_chars > most_chars:
                    # The provider has not sent its count yet, so the count is estimated.
                    usage = Usage(output_tokens=-(-decoder.written_chars // CHARS_PER_TOKEN))
                    return Reply("".join(texts), finish="length", usage=usage)
        return decoder.finish()

    def _named(self, error: WorkerError, request: Request) -> WorkerError:
        """Return the error with this worker's name, without keys, and with its usage counted."""
        named = WorkerError(
            redact(f"{self.info.name}: {error}"),
            said=error.said and redact(f"{self.info.name}: {error.said}"),
            worker=self.info.name,
            fault=error.fault,
            status=error.status,
            retry_after_s=error.retry_after_s,
        )
        if error.usage is not None:
            named.usage = _counted(request, Reply("", usage=error.usage))
        return named


def _usable(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    except ValueError:
        usable = False
    if not usable:
        shown = re.sub(r"//[^/]*@", f"//{MASK}@", base_url)
        raise ConfigError(f"base_url {shown!r} is not usable: write http(s)://host[:port][/path], without a key")
    return base_url.rstrip("/")


@functools.lru_cache
def _to_connect(seconds: float) -> aiohttp.ClientTimeout:
    """Return aiohttp's limit on connecting; `_Timer` has the others."""
    import aiohttp

    return aiohttp.ClientTimeout(total=None, connect=seconds, sock_connect=seconds)


class _Timer:
    """The one timer of a call, set anew in each phase. One timer for each phase would cost more."""

    def __init__(self, limits: Timeouts, *, deadline: float | None) -> None:
        limit_s, name = limits.total_s, "total_s"
        if deadline is not None and deadline - time.monotonic() < limit_s:
            limit_s, name = deadline - time.monotonic(), "the request's deadline"
            if limit_s <= 0:
                raise WorkerError("the request's deadline passed before the call", fault="timeout")
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._whole = limit_s, name
        self._whole_at = self._loop.time() + limit_s
        self._size: int | None = None
        """Bytes that had come when the present wait began. None: the wait is for the first byte."""
        self._at = min(self._whole_at, self._loop.time() + limits.first_byte_s)
        self.scope = asyncio.timeout_at(self._at)

    def until_next_chunk(self, size: int) -> None:
        self._size = size
        self._at = min(self._whole_at, self._loop.time() + self._limits.chunk_s)
        self.scope.reschedule(self._at)

    @property
    def message(self) -> str:
        """The error message after the time has run out: which limit it was, and its value."""
        if self._at >= self._whole_at:
            limit_s, name = self._whole
            return f"no whole reply within {limit_s:.3g} s ({name})"
        if self._size is None:
            return f"no first byte of the reply within {self._limits.first_byte_s:g} s (first_byte_s)"
        return f"no further byte within {self._limits.chunk_s:g} s (chunk_s) after {self._size} bytes of the reply"


class _Body:
    """The body of one reply, with its type checked, its size bounded and a time-out for each chunk."""

    def __init__(self, response: aiohttp.ClientResponse, timer: _Timer) -> None:
        self._response = response
        self._timer = timer
        self._size = 0

    async def require(self, content_type: str) -> None:
        found = self._response.headers.get("Content-Type", "none").partition(";")[0].strip().lower()
        if found != content_type:
            text = error_text(await self.beginning(MAX_ERROR_BYTES))
            raise unreadable(f"expected content type {content_type}, got {quote(found)}: {text}")

    async def whole(self) -> bytes:
        content, chunks = self._response.content, []
        while chunk := await self.next_chunk():
            chunks.append(chunk)
            if content.at_eof():
                break  # a short reply has come whole: no second read is needed
        return b"".join(chunks)

    async def beginning(self, max_bytes: int) -> bytes:
        """Returns the beginning of an error's body, at most this long. Failures while reading it are ignored."""
        found = b""
        with contextlib.suppress(WorkerError, TimeoutError):
            async with asyncio.timeout(ERROR_BODY_S):
                while len(found) < max_bytes and (chunk := await self.next_chunk()):
                    found += chunk
        return found[:max_bytes]

    async def next_chunk(self) -> bytes:
        """Return the next chunk; empty at the end."""
        import aiohttp

        content = self._response.content
        if self._size and not content.at_eof():
            self._timer.until_next_chunk(self._size)
        try:
            chunk = await content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise unreadable(f"the reply was cut after {self._size} bytes: {quote(str(error))}") from None
        self._size += len(chunk)
        if self._size > MAX_REPLY_BYTES:
            raise unreadable(f"the reply is larger than {MAX_REPLY_BYTES} bytes")
        return chunk

    async def drain(self, limit_s: float) -> None:
        """Wait for the end of a stream whose reply is complete, but no longer than this."""
        with contextlib.suppress(TimeoutError, WorkerError):
            async with asyncio.timeout(limit_s):
                while await self.next_chunk():
                    pass


def _counted(request: Request, reply: Reply) -> Usage:
    """Return the usage that the provider reported. Missing counts are estimated: an uncounted call is not free."""
    usage = reply.usage
    if not usage.input_tokens:
        usage = msgspec.structs.replace(usage, input_tokens=input_tokens(request))
    if not usage.output_tokens:
        calls = "".join(call.name + call.arguments for call in reply.tool_calls)
        written = estimate_tokens(reply.text + reply.reasoning + calls)
        usage = msgspec.structs.replace(usage, output_tokens=written)
    if not (usage.cached_input_tokens or usage.cache_write_input_tokens or usage.reasoning_tokens):
        return usage
    cached = min(usage.cached_input_tokens, usage.input_tokens)
    return msgspec.structs.replace(
        usage,  # a part that exceeds its whole would give the rest of the input a negative cost
        cached_input_tokens=cached,
        cache_write_input_tokens=min(usage.cache_write_input_tokens, usage.input_tokens - cached),
        reasoning_tokens=min(usage.reasoning_tokens, usage.output_tokens),
    )


# ---- how many servers a request has passed -------------------------------------------------------------------


HOPS_HEADER = "Dirigent-Hops"
MAX_HOPS = 2
"""Servers that one request may pass through. A worker that leads back here is called at most this often a request."""

_passed: contextvars.ContextVar[int] = contextvars.ContextVar("dirigent_hops", default=0)
"""Servers that the present request passed before this one; 0 if it came from a client."""


def hop_headers() -> dict[str, str]:
    """Returns the header with the number for the next server."""
    return {HOPS_HEADER: str(_passed.get() + 1)}


@contextlib.contextmanager
def after_hops(count: int) -> Iterator[None]:
    """Set the number for all calls made inside, including those of tasks that start inside."""
    token = _passed.set(count)
    try:
        yield
    finally:
        _passed.reset(token)


# ---- failures as errors --------------------------------------------------------------------------------------


def not_reached(error: Exception, url: str, *, connect_s: float) -> WorkerError:
    """Return the error of a call whose reply never began."""
    import aiohttp

    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return WorkerError(f"no connection within {connect_s:g} s (connect_s) to {url}", fault="timeout")
    if isinstance(error, aiohttp.ClientResponseError):
        return unreadable(f"{url} does not speak HTTP: {quote(error.message)}")
    if isinstance(error, aiohttp.InvalidURL) or not isinstance(error, aiohttp.ClientError | OSError):
        return WorkerError(f"{url!r} cannot be called ({error}): check base_url", fault="request")
    if isinstance(error, aiohttp.ClientConnectorError):
        where = f"{error.host}:{error.port}"
        if isinstance(error.os_error, Rebound):
            return WorkerError(str(error.os_error), fault="connect")
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return WorkerError(f"the host name {error.host!r} has no address: check base_url", fault="connect")
        if isinstance(error.os_error, ConnectionRefusedError):
            return WorkerError(f"refused at {where}: is the server up?", fault="connect")
        return WorkerError(f"cannot connect to {where}: {quote(str(error.os_error))}", fault="connect")
    return WorkerError(f"{url} closed the connection before it replied: {quote(repr(error))}", fault="connect")


def refused(response: aiohttp.ClientResponse, *, explanation: str) -> WorkerError:
    """Return the error of a reply whose status is not 200. `explanation` is the text of its body."""
    status, hint = response.status, ""
    if 300 <= status < 400:
        hint = " (redirects are not followed: set base_url to their target)"
    elif status in (401, 403):
        hint = " (check the key)"
    elif status == 404:
        hint = " (check base_url and model)"
    fault = fault_of(status)
    # OpenAI's clients obey this header as well: the provider says that a retry is of no use.
    if fault in RETRYABLE and response.headers.get("x-should-retry", "").strip().lower() == "false":
        fault = "failed"
    return WorkerError(
        f"HTTP {status} {response.reason or ''}".rstrip() + hint + (f": {explanation}" if explanation else ""),
        fault=fault,
        status=status,
        retry_after_s=retry_after_s(response.headers, now_s=time.time()),
    )


def fault_of(status: int) -> Fault:
    """Return the fault of an HTTP status other than 200."""
    if status in (401, 403):
        return "auth"
    if status == 429:
        return "rate_limited"
    if status in (408, 409) or status >= 500:
        return "overloaded"
    return "request" if status >= 300 else "reply"


def retry_after_s(headers: Mapping[str, str], *, now_s: float) -> float | None:
    """Return the wait that the provider asks for: `retry-after-ms`, or `Retry-After` in seconds or as a date."""
    for name, unit_s in (("retry-after-ms", 0.001), ("Retry-After", 1.0)):
        value = headers.get(name, "")
        with contextlib.suppress(ValueError):
            seconds = float(value) * unit_s
            if 0 <= seconds < float("inf"):
                return seconds
    with contextlib.suppress(ValueError, TypeError, OverflowError):  # raised for an impossible year or zone
        return max(0.0, email.utils.parsedate_to_datetime(headers.get("Retry-After", "")).timestamp() - now_s)
    return None
