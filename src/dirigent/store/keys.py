"""API keys: who may call, as what, and within which bounds.

A key's text is shown once, when it is made. The store has its HMAC under a secret of the server, the pepper: a copy of
the tables is enough neither to use the keys nor to test guesses. A key has no public part to be looked up by, so a key
that never existed and a key that is almost right cost the same work.

    made = await create_key(store, Caller(label="team a", budget_day_usd=5.0))
    caller = await authenticate(store, made.text)  # None: unknown, expired or revoked

Other modules enforce a `Caller`'s bounds: `ledger.py` money, `serve/policy` rates and pools.

The pepper is never in the database. It is `DIRIGENT_PEPPER`, if that is set; else a file under DIRIGENT_HOME that its
owner alone may read, made with the first key. Servers that share a store must share the pepper too: give them the same
variable.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import tempfile
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from sqlalchemy import Connection, Row, delete, insert, select, update

from dirigent.errors import ConfigError, StoreError
from dirigent.paths import home
from dirigent.store import Store
from dirigent.store.audit import Entry, append
from dirigent.store.tables import keys, now, sessions, utc_text

T = TypeVar("T")

Role = Literal["inference", "admin"]
Period = Literal["day", "month", "total"]

PREFIX = "dg_"
MAX_RETENTION_DAYS = 36_500
REMEMBERED_S = 0.8
"""How long an answer is believed without asking the store: a revocation takes effect within a second."""

SILENT_S = 5.0
"""Seconds that a caller waits for a store that hangs."""


class Caller(msgspec.Struct, frozen=True, omit_defaults=True):
    """A caller and its bounds, without a secret."""

    key_id: str = ""
    """Given out when the key is made."""
    role: Role = "inference"
    label: str = ""
    allow: tuple[str, ...] = ()
    """Workers that may be used; empty: all."""
    deny: tuple[str, ...] = ()
    region: str = ""
    """Only workers of this region; empty: any."""
    budget_day_usd: float | None = None
    """Days and months are those of UTC."""
    budget_month_usd: float | None = None
    budget_total_usd: float | None = None
    user_day_usd: float | None = None
    """Most that one end user (the request's `user`) may spend in a day through this key."""
    tag_day_usd: float | None = None
    """Most that one tag may spend in a day through this key."""
    requests_per_minute: int | None = None
    concurrency: int | None = None
    retention_days: int | None = None
    """How long this key's traces are kept; None: as long as others'."""

    @property
    def budgets_usd(self) -> dict[Period, float]:
        """The budgets that are set."""
        every: tuple[tuple[Period, float | None], ...] = (
            ("day", self.budget_day_usd),
            ("month", self.budget_month_usd),
            ("total", self.budget_total_usd),
        )
        return {period: usd for period, usd in every if usd is not None}

    @property
    def is_capped(self) -> bool:
        """Whether any budget bounds what its calls cost."""
        caps = (self.budget_day_usd, self.budget_month_usd, self.budget_total_usd, self.user_day_usd, self.tag_day_usd)
        return caps != (None,) * len(caps)

    @property
    def name(self) -> str:
        """How messages name the caller."""
        return self.label or self.key_id


_CALLER = msgspec.json.Decoder(Caller)
"""Made here for the reason that is given in `traces.py`."""

LOCAL_ADMIN = Caller("local", role="admin", label="local")
"""Who calls a server that has no keys: the person at this machine."""


class KeyRow(msgspec.Struct, frozen=True):
    """A key as a list shows it. Times are UTC, ISO 8601."""

    caller: Caller
    last4: str
    created_at: str
    expires_at: str | None = None
    revoked_at: str | None = None
    pepper_id: str = ""

    def usable(self, at: str) -> bool:
        """Whether it opens anything at this time."""
        return self.revoked_at is None and (self.expires_at is None or at < self.expires_at)


class NewKey(msgspec.Struct, frozen=True):
    """A key that was made."""

    text: str
    """The key itself: to be shown now, and kept nowhere."""
    row: KeyRow

    def __repr__(self) -> str:
        return f"NewKey(text='***', row={self.row!r})"


async def authenticate(store: Store, text: str) -> Caller | None:
    """Returns the caller of a key; None if the key is unknown, expired or revoked."""
    known = _known(store)
    digest = known.pepper().digest(text)
    row, until = known.rows.get(digest, (None, 0.0))

    async def ask() -> KeyRow | None:
        asked_at = time.monotonic()
        found = await store.read(lambda connection: _find(connection, digest))
        known.remember(digest, found, until=asked_at + REMEMBERED_S)
        return found

    if time.monotonic() >= until:
        row = await known.once(digest, ask)
    if row is None or not row.usable(utc_text(now())):
        return None
    return row.caller


async def any_keys(store: Store) -> bool:
    """Whether keys were ever made here. Revoked ones count: revoking the last key must not open the server."""
    known = _known(store)
    if known.any or time.monotonic() < known.none_until:
        return known.any

    async def ask() -> None:
        asked_at = time.monotonic()
        known.any = await store.read(lambda connection: connection.scalar(select(keys.c.id).limit(1))) is not None
        known.none_until = asked_at + REMEMBERED_S

    await known.once("", ask)
    return known.any


async def create_key(store: Store, caller: Caller, *, expires_at: datetime | None = None, actor: str = "cli") -> NewKey:
    """Make a key with these bounds, and write that down in the audit log."""
    _check(caller, expires_at)
    pepper = make_pepper()
    text = PREFIX + secrets.token_urlsafe(32)
    caller = msgspec.structs.replace(caller, key_id=secrets.token_hex(8))
    expires = utc_text(expires_at) if expires_at is not None else None
    row = KeyRow(caller, text[-4:], utc_text(now()), expires_at=expires, pepper_id=pepper.id)
    details = msgspec.to_builtins(caller) | {"last4": row.last4, "expires_at": expires}
    entry = Entry(actor, "key.create", details)

    def work(connection: Connection, digest: str) -> None:
        connection.execute(insert(keys), _values(row, digest))
        append(connection, entry)

    await store.write(work, prepare=lambda: pepper.digest(text))
    return NewKey(text, row)


async def list_keys(store: Store) -> list[KeyRow]:
    """Every key that was ever made, the oldest first."""
    query = select(keys).order_by(keys.c.created_at, keys.c.id)
    return await store.read(lambda connection: [_row(found) for found in connection.execute(query)])


async def revoke_key(store: Store, id_or_prefix: str, *, actor: str = "cli") -> KeyRow:
    """Revokes a key for good, by its id or enough of its beginning. A revoked key does not change."""
    revoked = await store.write(_revoke, prepare=lambda: (id_or_prefix, utc_text(now()), actor))
    if isinstance(revoked, str):
        raise StoreError(revoked)
    _known(store).rows.clear()
    return revoked


async def rotate_key(
    store: Store, id_or_prefix: str, *, expires_at: datetime | None = None, actor: str = "cli"
) -> NewKey:
    """Give a key another text. Its id, bounds, runs and spending stay; the old text opens nothing from now on."""
    _check(Caller(), expires_at)
    pepper = make_pepper()
    text = PREFIX + secrets.token_urlsafe(32)
    expires = utc_text(expires_at) if expires_at is not None else None
    digest = pepper.digest(text)
    fresh = {"digest": digest, "pepper_id": pepper.id, "last4": text[-4:], "expires_at": expires}
    rotated = await store.write(_rotate, prepare=lambda: (id_or_prefix, fresh, actor))
    if isinstance(rotated, str):
        raise StoreError(rotated)
    _known(store).rows.clear()
    return NewKey(text, rotated)


async def keys_of_another_pepper(store: Store) -> list[KeyRow]:
    """Keys that open nothing here, since they were made under another pepper."""
    pepper = find_pepper()
    at = utc_text(now())
    own = pepper.id if pepper is not None else ""
    return [row for row in await list_keys(store) if row.pepper_id != own and row.usable(at)]


class _Known:
    """Recent answers of one open store. Only existing keys are remembered, so guesses fill no memory."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[KeyRow | None, float]] = {}
        self.any = False
        self.none_until = 0.0
        self._asking: dict[str, asyncio.Task[Any]] = {}
        self._pepper: Pepper | None = None

    def pepper(self) -> Pepper:
        if self._pepper is None:
            self._pepper = find_pepper()
        if self._pepper is None:
            raise ConfigError(
                f"this place has no pepper, so no key can be checked: set {PEPPER_VARIABLE} to that of the place "
                "where the keys were made, or make one with `dirigent keys create`"
            )
        return self._pepper

    async def once(self, what: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Of many who come at once, one asks for all: they share the answer, or the failure."""
        asking = self._asking.get(what)
        if asking is None:
            asking = self._asking[what] = asyncio.ensure_future(ask())
            asking.add_done_callback(partial(self._answered, what))
        try:
            async with asyncio.timeout(SILENT_S) as scope:
                answer: T = await asyncio.shield(asking)
        except TimeoutError:
            if not scope.expired():
                raise
            raise StoreError(f"the store has not said within {SILENT_S:g} s which keys there are") from None
        return answer

    def _answered(self, what: str, asking: asyncio.Task[Any]) -> None:
        del self._asking[what]
        if not asking.cancelled():
            asking.exception()  # read here, in case no caller waits for it any more

    def remember(self, digest: str, row: KeyRow | None, *, until: float) -> None:
        if row is not None:
            self.rows[digest] = (row, until)
        else:
            self.rows.pop(digest, None)


_known_of: weakref.WeakKeyDictionary[Store, _Known] = weakref.WeakKeyDictionary()


def _known(store: Store) -> _Known:
    known = _known_of.get(store)
    if known is None:
        known = _known_of[store] = _Known()
    return known


def key_row(connection: Connection, key_id: str) -> KeyRow | None:
    """The key with this id, within the caller's transaction."""
    found = connection.execute(select(keys).where(keys.c.id == key_id)).one_or_none()
    return None if found is None else _row(found)


def _find(connection: Connection, digest: str) -> KeyRow | None:
    found = connection.execute(select(keys).where(keys.c.digest == digest)).one_or_none()
    # The index has compared already, but only HMACs, which no caller can steer; this comparison decides, in constant
    # time.
    if found is None or not hmac.compare_digest(found.digest, digest):
        return None
    return _row(found)


def _revoke(connection: Connection, wanted: tuple[str, str, str]) -> KeyRow | str:
    """Returns the changed key, or the error: an exception would spoil the commit of others."""
    beginning, at, actor = wanted
    row = _the_one(connection, beginning)
    if isinstance(row, str) or row.revoked_at is not None:
        return row
    connection.execute(update(keys).where(keys.c.id == row.caller.key_id).values(revoked_at=at))
    connection.execute(delete(sessions).where(sessions.c.key_id == row.caller.key_id))
    append(connection, Entry(actor, "key.revoke", {"key_id": row.caller.key_id, "label": row.caller.label}))
    return msgspec.structs.replace(row, revoked_at=at)


def _rotate(connection: Connection, wanted: tuple[str, dict[str, Any], str]) -> KeyRow | str:
    """As `_revoke`. A new text must not reopen a revoked key."""
    beginning, fresh, actor = wanted
    row = _the_one(connection, beginning)
    if isinstance(row, str):
        return row
    if row.revoked_at is not None:
        return f"key {row.caller.key_id} was revoked at {row.revoked_at}; make a new one with `dirigent keys create`"
    if fresh["expires_at"] is None:
        fresh = fresh | {"expires_at": row.expires_at}
    connection.execute(update(keys).where(keys.c.id == row.caller.key_id).values(fresh))
    connection.execute(delete(sessions).where(sessions.c.key_id == row.caller.key_id))
    details = {"key_id": row.caller.key_id, "label": row.caller.label, "last4": fresh["last4"]}
    append(connection, Entry(actor, "key.rotate", details | {"expires_at": fresh["expires_at"]}))
    kept = {name: fresh[name] for name in ("last4", "expires_at", "pepper_id")}
    return msgspec.structs.replace(row, **kept)


def _the_one(connection: Connection, beginning: str) -> KeyRow | str:
    """The key whose id begins so, or why there is not one."""
    query = select(keys).where(keys.c.id.startswith(beginning, autoescape=True)).order_by(keys.c.id)
    found = [_row(row) for row in connection.execute(query)] if beginning else []
    if not found:
        return f"no key has the id {beginning!r}; `dirigent keys list` shows them"
    if len(found) > 1:
        ids = ", ".join(row.caller.key_id for row in found[:5])
        return f"{beginning!r} begins several keys: {ids}; give more of the id"
    return found[0]


def _values(row: KeyRow, digest: str) -> dict[str, Any]:
    return {
        "id": row.caller.key_id,
        "digest": digest,
        "pepper_id": row.pepper_id,
        "last4": row.last4,
        "caller": msgspec.json.encode(row.caller).decode(),
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "revoked_at": row.revoked_at,
    }


def _row(found: Row[Any]) -> KeyRow:
    caller = _CALLER.decode(found.caller)
    return KeyRow(caller, found.last4, found.created_at, found.expires_at, found.revoked_at, found.pepper_id)


def _check(caller: Caller, expires_at: datetime | None) -> None:
    if caller.role not in ("inference", "admin"):
        raise ConfigError(f'no role is called "{caller.role}"; a key is for "inference" or "admin"')
    for period, usd in caller.budgets_usd.items():
        if not 0 <= usd < 1e9:
            raise ConfigError(f"the budget for a {period} must be 0 to 1e9 USD, not {usd}")
    for name in ("user_day_usd", "tag_day_usd"):
        value = getattr(caller, name)
        if value is not None and not 0 <= value < 1e9:
            raise ConfigError(f"{name} must be 0 to 1e9 USD, not {value}")
    for name in ("requests_per_minute", "concurrency", "retention_days"):
        value = getattr(caller, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be 1 or more, not {value}")
    if caller.retention_days is not None and caller.retention_days > MAX_RETENTION_DAYS:
        raise ConfigError(f"retention_days must be at most {MAX_RETENTION_DAYS:,}, not {caller.retention_days:,}")
    if both := sorted(set(caller.allow) & set(caller.deny)):
        raise ConfigError(f"{', '.join(both)}: both allowed and denied; choose one")
    if expires_at is not None and utc_text(expires_at) <= utc_text(now()):
        raise ConfigError(f"the key would have expired at {utc_text(expires_at)}, which is past")


# ---- the pepper ----------------------------------------------------------------------------------------------


PEPPER_FILE = "pepper"
PEPPER_VARIABLE = "DIRIGENT_PEPPER"
SHORTEST_PEPPER = 32
"""Characters. A person with the tables could guess a shorter one."""


class Pepper:
    """Digests texts. Does not show its value, in a traceback or anywhere else."""

    def __init__(self, value: str) -> None:
        self._value = value.encode()
        self.id = self.digest("which pepper is this?")[:16]
        """Distinguishes two peppers and reveals nothing else."""

    def digest(self, text: str) -> str:
        return hmac.new(self._value, text.encode(errors="replace"), hashlib.sha256).hexdigest()


def find_pepper(environ: Mapping[str, str] = os.environ) -> Pepper | None:
    """The pepper of this place, if it has one."""
    if value := environ.get(PEPPER_VARIABLE, ""):
        if len(value) < SHORTEST_PEPPER:
            raise ConfigError(
                f"{PEPPER_VARIABLE} has {len(value)} characters and needs {SHORTEST_PEPPER} or more; "
                "`openssl rand -hex 32`"
            )
        return Pepper(value)
    path = home(environ) / PEPPER_FILE
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"others may read the keys' pepper; chmod 600 {path}")
        value = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the keys' pepper {path} cannot be read: {error}") from None
    if len(value) < SHORTEST_PEPPER:
        raise ConfigError(f"the keys' pepper {path} is cut short; restore it from a backup")
    return Pepper(value)


def make_pepper(environ: Mapping[str, str] = os.environ) -> Pepper:
    """Returns the pepper of this place; creates one if there is none."""
    found = find_pepper(environ)
    if found is not None:
        return found
    path = home(environ) / PEPPER_FILE
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_whole(path, secrets.token_hex(32))
    except OSError as error:
        raise ConfigError(f"cannot keep the keys' pepper in {path}: {error.strerror}; set {PEPPER_VARIABLE}") from None
    made = find_pepper(environ)
    assert made is not None  # it was written just now
    return made


def _write_whole(path: Path, text: str) -> None:
    """Writes the file elsewhere and links it: no process sees half of it, and of two writers the first one wins."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".pepper-")  # 0600
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(descriptor)
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        Path(draft).unlink()
