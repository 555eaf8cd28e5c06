"""HTTP failures as `WorkerError`s: which fault each failure is, and what the operator can do about it.

A call fails before its reply begins (aiohttp raises an exception) or with a reply whose status is not 200. The fault
decides what happens next: a retry, another worker, or an error for the operator. `http.py` handles replies that begin
well and fail later.
"""

from __future__ import annotations

import contextlib
import email.utils
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dirigent.errors import RETRYABLE, Fault, WorkerError
from dirigent.workers.dns_pinning import Rebound
from dirigent.workers.wire import quote, unreadable

if TYPE_CHECKING:
    import aiohttp


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
