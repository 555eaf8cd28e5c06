"""Sessions: a person who signed in to the console with a key, and whose browser holds a cookie instead of the key.

The cookie's value is random and is stored as a digest only. A session opens what its key opens, and ends when it is
signed out of, when its time is over, or when its key is revoked, rotated or expires. The CSRF token of a session is
derived from the cookie's value, so that a page of another origin, which cannot read the cookie, cannot make it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import timedelta

import msgspec
from sqlalchemy import Connection, delete, insert, select

from dirigent.store import Store
from dirigent.store.keys import Caller, key_row
from dirigent.store.tables import now, sessions, utc_text

SESSION_HOURS = 12.0


class Session(msgspec.Struct, frozen=True):
    """A session that was just begun."""

    cookie: str
    """The value of the cookie: to be sent now, and kept nowhere."""
    expires_at: str

    def __repr__(self) -> str:
        return f"Session(cookie='***', expires_at={self.expires_at!r})"


async def begin_session(store: Store, key_id: str, *, hours: float = SESSION_HOURS) -> Session:
    """Begin a session of this key. Sessions whose time is over are deleted with it."""
    cookie = secrets.token_urlsafe(32)
    at, expires_at = utc_text(now()), utc_text(now() + timedelta(hours=hours))

    def work(connection: Connection, digest: str) -> None:
        connection.execute(delete(sessions).where(sessions.c.expires_at <= at))
        row = {"digest": digest, "key_id": key_id, "created_at": at, "expires_at": expires_at}
        connection.execute(insert(sessions), row)

    await store.write(work, prepare=lambda: _digest(cookie))
    return Session(cookie, expires_at)


async def session_caller(store: Store, cookie: str) -> tuple[Caller, str] | None:
    """The caller whose session this is, and when it ends; None if there is none or it is over."""
    digest, at = _digest(cookie), utc_text(now())

    def find(connection: Connection) -> tuple[Caller, str] | None:
        found = connection.execute(select(sessions).where(sessions.c.digest == digest)).one_or_none()
        if found is None or found.expires_at <= at:
            return None
        row = key_row(connection, found.key_id)
        return (row.caller, found.expires_at) if row is not None and row.usable(at) else None

    return await store.read(find)


async def end_session(store: Store, cookie: str) -> None:
    """Sign out. The cookie opens nothing from now on."""

    def work(connection: Connection, digest: str) -> None:
        connection.execute(delete(sessions).where(sessions.c.digest == digest))

    await store.write(work, prepare=lambda: _digest(cookie))


def csrf_token(cookie: str) -> str:
    """The token that a request which changes something must carry beside the cookie."""
    return hmac.new(cookie.encode(), b"csrf", hashlib.sha256).hexdigest()


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()
