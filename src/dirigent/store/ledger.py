"""The durable ledger: every attempt is a row before its call is made, and a key's budgets are never overspent.

A reservation holds the worst case. It is checked against all budgets of the key and entered in one transaction that no
other process can come between; settling replaces it by what the call used. Reservations of many callers share a commit,
and a settlement shares that of the run's next write, usually the trace. The day on which a call was reserved
pays for it, however late it ends.

If the store fails for a while, a settlement is written when the store answers again (`mend`), and so is the end of a
reservation that failed so late that its row may exist. No caller waits for these writes, and a second try does no harm.
Those that are missing when the process ends are found at the next start (`reconcile`).

A process that dies leaves reservations behind. `reconcile` closes them as *lost*, **at their worst case**: the call may
have left, and a call without a known end is billed all the same. If its process lives after all, its settlement still
arrives and puts the true sum in its place.

The ledger is the parent of a run's `Budget`. A worker without a known price is refused to a key with a budget.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    bindparam,
    case,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from dirigent.errors import CostError, StoreError
from dirigent.limits import Hold, Quote, affordable_tokens
from dirigent.store import Store
from dirigent.store.audit import Entry, append
from dirigent.store.engine import one_at_a_time
from dirigent.store.keys import Caller, Period
from dirigent.store.postgres_timeouts import none_to_come
from dirigent.store.process_id import is_dead, own_name
from dirigent.store.statement import Statement
from dirigent.store.tables import attempts, now, spending, utc_text

P = TypeVar("P")

NUSD = 1_000_000_000
"""Billionths in a dollar."""

FORGOTTEN_AFTER_S = 24 * 3600.0
"""A reservation this old is closed wherever its process was: no call lasts so long."""


class Spent(msgspec.Struct, frozen=True):
    """What attempts have cost."""

    calls: int
    cost_usd: float
    """Of the calls that have ended."""
    held_usd: float
    """Set aside for calls under way."""
    output_tokens: int
    lost_calls: int
    """Calls without a known end, charged at their worst case."""


class Left(msgspec.Struct, frozen=True):
    """The budget of a key that runs out first."""

    usd: float
    period: Period
    renews_in_s: float | None
    """Seconds until the period ends; None for a total."""


class Labels(msgspec.Struct, frozen=True):
    """Whom a run is for, in the caller's own words. Spending is added up by them, and a key may cap it."""

    end_user: str = ""
    tag: str = ""
    conversation: str = ""


NO_LABELS = Labels()


class StoreLedger:
    """The ledger of one run for one caller; satisfies `dirigent.limits.Ledger`."""

    def __init__(
        self,
        store: Store,
        *,
        caller: Caller,
        run_id: str,
        labels: Labels = NO_LABELS,
        clock: Callable[[], datetime] = now,
    ) -> None:
        self._store = store
        self._caller = caller
        self._run_id = run_id
        self._clock = clock
        self._labels = labels
        self._budgeted = caller.is_capped
        self._settling: list[asyncio.Future[None]] = []

    async def reserve(self, quote: Quote) -> Hold:
        """Commits before it returns. Raises `CostError` if a budget of the key does not allow the call. If the caller
        is cancelled, the reservation is ended afterwards."""
        wanted = _Wanted(quote, self._caller, self._run_id, utc_text(self._clock()), self._labels)
        try:
            if not self._budgeted:  # nothing need be looked up: a row is all
                nusd = to_nusd(quote.input_usd + (quote.max_output_tokens or 0) * quote.output_token_usd)
                row = _row(wanted, day=wanted.at[:10], nusd=nusd)
                number: int = await self._store.write(_RESERVE_FREELY, prepare=lambda: row)
                return Hold(number, nusd / NUSD, quote.max_output_tokens)
            outcome = await self._store.write(_reserve, prepare=lambda: wanted)
        except StoreError:
            mend(self._store, _withdraw, prepare=lambda: wanted)
            raise
        except asyncio.CancelledError:
            self._hand_over(_withdraw, wanted)
            raise
        if isinstance(outcome, CostError):
            raise outcome
        return outcome

    def settle(self, hold: Hold, *, cost_usd: float, output_tokens: int) -> None:
        """Handed over when it returns, and committed before anything that is written later: the next reservation,
        the trace. `settled` waits for it. Settling twice counts once."""
        used = {
            "attempt": hold.id,
            "cost_nusd": to_nusd(cost_usd),
            "output_tokens": output_tokens,
            "settled_at": utc_text(self._clock()),
        }
        self._hand_over(_settle if self._budgeted else _SETTLE_FREELY, used)

    async def settled(self) -> None:
        """Returns when all that was settled is committed; raises what kept it from that."""
        settling, self._settling = self._settling, []
        if late := [one for one in settling if not one.done()]:
            await asyncio.wait(late)
        for error in [one.exception() for one in settling]:
            if error is not None:
                raise error

    def _hand_over(self, work: Callable[[Connection, P], None] | Statement, prepared: P) -> None:
        """Writes it with the next commit, after all earlier writes."""
        settling: asyncio.Future[None] = self._store.write_soon(work, prepare=lambda: prepared)
        mended(settling, self._store, work, prepare=lambda: prepared)
        self._settling.append(settling)


async def usage(
    store: Store, key_id: str | None = None, *, since: datetime | None = None, until: datetime | None = None
) -> Spent:
    """Returns the cost of a key's calls (or all calls) that were reserved from `since` up to, not including,
    `until`."""
    return await store.read(lambda connection: _usage(connection, key_id, since, until))


async def left(store: Store, caller: Caller, *, at: datetime | None = None) -> Left | None:
    """Returns the money that the caller may still spend; None without a bound. It may shrink before the next
    reservation."""
    return min(await lefts(store, caller, at=at), key=lambda one: one.usd, default=None)


async def lefts(store: Store, caller: Caller, *, at: datetime | None = None) -> list[Left]:
    """Returns what is left of each of the caller's budgets."""
    if not caller.budgets_usd:
        return []
    moment = (at or now()).astimezone(UTC)
    book = await store.read(lambda connection: _book(connection, caller.key_id, day=utc_text(moment)[:10]))
    return [Left(n / NUSD, period, _renews_in_s(period, moment)) for period, n in _left_nusd(caller, book)]


async def reconcile(store: Store, *, at: datetime | None = None) -> int:
    """Closes reservations of dead processes of this place, and those older than a day; returns their number."""
    moment = at or now()
    forgotten = utc_text(moment - timedelta(seconds=FORGOTTEN_AFTER_S))
    return await store.write(_reconcile, prepare=lambda: (utc_text(moment), forgotten))


def to_nusd(usd: float) -> int:
    """Whole billionths, rounded up; the thousandths below them are noise of the arithmetic."""
    return math.ceil(round(min(max(usd, 0.0), 1e9) * NUSD, 3))


class _Wanted(msgspec.Struct, frozen=True):
    quote: Quote
    caller: Caller
    run_id: str
    at: str
    labels: Labels = NO_LABELS


class _Book(msgspec.Struct, frozen=True):
    """A key's spent and reserved money: on this day, in its month, in all."""

    day: str
    day_nusd: int = 0
    month_nusd: int = 0
    total_nusd: int = 0
    kept: bool = False
    """Whether the store has a row for it."""

    def on(self, day: str) -> _Book:
        """The book at a later day. An earlier one (another machine's clock) is taken as this one."""
        if day <= self.day:
            return self
        month_nusd = self.month_nusd if day[:7] == self.day[:7] else 0
        return _Book(day, 0, month_nusd, self.total_nusd, self.kept)

    def plus(self, nusd: int) -> _Book:
        return _Book(self.day, self.day_nusd + nusd, self.month_nusd + nusd, self.total_nusd + nusd, self.kept)


def _reserve(connection: Connection, wanted: _Wanted) -> Hold | CostError:
    """Returns the hold, or the reason why there is none: an exception would spoil the commit that others share."""
    quote, caller = wanted.quote, wanted.caller
    one_at_a_time(connection)
    book = _book(connection, caller.key_id, day=wanted.at[:10])
    try:
        tokens, most_nusd = _granted(quote, caller, _lefts(connection, wanted, book))
    except CostError as refused:
        return refused
    # A billionth over, by rounding up, is not worth a refusal.
    nusd = min(to_nusd(quote.input_usd + (tokens or 0) * quote.output_token_usd), most_nusd)
    _keep(connection, caller.key_id, book.plus(nusd))
    primary_key = connection.execute(_RESERVE, _row(wanted, day=book.day, nusd=nusd)).inserted_primary_key
    assert primary_key is not None
    return Hold(primary_key[0], nusd / NUSD, tokens)


def _row(wanted: _Wanted, *, day: str, nusd: int) -> dict[str, Any]:
    """The attempt as it is before its call."""
    return {
        "run_id": wanted.run_id,
        "key_id": wanted.caller.key_id,
        "worker": wanted.quote.worker,
        "owner": own_name(),
        "state": "open",
        "reserved_at": wanted.at,
        "charged_day": day,
        "hold_nusd": nusd,
        "end_user": wanted.labels.end_user or None,
        "tag": wanted.labels.tag or None,
        "conversation": wanted.labels.conversation or None,
    }


def _granted(quote: Quote, caller: Caller, lefts: Sequence[_Cap]) -> tuple[int | None, int]:
    """Returns the output tokens that every budget allows, and the rest of the tightest budget."""
    if not quote.priced:
        raise CostError(
            f"key {caller.name} has a budget, and no price is known for {quote.worker}; "
            "set its price in dirigent.toml, { input = 0, output = 0 } if it costs nothing"
        )
    for cap in lefts:
        tokens = affordable_tokens(quote, max_cost_usd=cap.usd, left_usd=cap.left_nusd / NUSD, what=cap.what)
        quote = msgspec.structs.replace(quote, max_output_tokens=tokens)
    return quote.max_output_tokens, min(cap.left_nusd for cap in lefts)


class _Cap(msgspec.Struct, frozen=True):
    """A budget that a call must stay within."""

    what: str
    usd: float
    left_nusd: int


def _lefts(connection: Connection, wanted: _Wanted, book: _Book) -> list[_Cap]:
    """What is left of every budget that the call counts towards: the key's, its end user's and its tag's.

    Calls without a user, or without a tag, count as those of one user, or tag, of their own: leaving the label out is
    no way around the cap.
    """
    caller = wanted.caller
    caps = [
        _Cap(f"key {caller.name} {_WHEN[period]}", caller.budgets_usd[period], left_nusd)
        for period, left_nusd in _left_nusd(caller, book)
    ]
    charge = func.coalesce(attempts.c.cost_nusd, attempts.c.hold_nusd)
    labels: tuple[tuple[str, ColumnElement[str], str, float | None], ...] = (
        ("user", attempts.c.end_user, wanted.labels.end_user, caller.user_day_usd),
        ("tag", attempts.c.tag, wanted.labels.tag, caller.tag_day_usd),
    )
    for name, column, label, usd in labels:
        if usd is None:
            continue
        same = column == label if label else column.is_(None)
        today = (attempts.c.key_id == caller.key_id, same, attempts.c.charged_day == book.day)
        spent = connection.scalar(select(func.coalesce(func.sum(charge), 0)).where(*today))
        caps.append(_Cap(f"{name} {label or '(none)'} today (UTC)", usd, round(usd * NUSD) - int(spent or 0)))
    return caps


_WHEN: dict[Period, str] = {"day": "today (UTC)", "month": "this month (UTC)", "total": "in all"}


def _left_nusd(caller: Caller, book: _Book) -> list[tuple[Period, int]]:
    spent: dict[Period, int] = {"day": book.day_nusd, "month": book.month_nusd, "total": book.total_nusd}
    return [(period, round(usd * NUSD) - spent[period]) for period, usd in caller.budgets_usd.items()]


def _book(connection: Connection, key_id: str, *, day: str) -> _Book:
    """Returns the key's book on this day; adds it up from the attempts if there is none yet."""
    found = connection.execute(_FIND_BOOK, {"of_key": key_id}).one_or_none()
    if found is not None:
        return _Book(*found, kept=True).on(day)
    charge = func.coalesce(attempts.c.cost_nusd, attempts.c.hold_nusd)
    sums = (
        func.coalesce(func.sum(case((attempts.c.charged_day >= first, charge), else_=0)), 0)
        for first in (day, f"{day[:7]}-01", "")
    )
    totals = connection.execute(select(*sums).where(attempts.c.key_id == key_id)).one()
    return _Book(day, int(totals[0]), int(totals[1]), int(totals[2]))  # PostgreSQL adds up into decimals


def _keep(connection: Connection, key_id: str, book: _Book) -> None:
    values = {
        "of_key": key_id,
        "day": book.day,
        "day_nusd": book.day_nusd,
        "month_nusd": book.month_nusd,
        "total_nusd": book.total_nusd,
    }
    connection.execute(_RENEW_BOOK if book.kept else _START_BOOK, values)


def _settle(connection: Connection, used: dict[str, Any]) -> None:
    one_at_a_time(connection)
    settled = connection.execute(_SETTLE, used).one_or_none()
    if settled is None:
        return
    key_id, hold_nusd, charged_day = settled
    change = {
        "of_key": key_id,
        "change": used["cost_nusd"] - hold_nusd,
        "charged_day": charged_day,
        "charged_month": charged_day[:7],
    }
    connection.execute(_AMEND_BOOK, change)


def _withdraw(connection: Connection, wanted: _Wanted) -> None:
    """Ends a reservation whose commit no caller heard of: its call was not made, so it cost nothing."""
    none_to_come(connection)
    this = (
        attempts.c.run_id == wanted.run_id,
        attempts.c.worker == wanted.quote.worker,
        attempts.c.owner == own_name(),
        attempts.c.reserved_at == wanted.at,
        attempts.c.state == "open",
    )
    for number in connection.scalars(select(attempts.c.id).where(*this)).all():
        _settle(connection, {"attempt": number, "cost_nusd": 0, "output_tokens": 0, "settled_at": wanted.at})


def _reconcile(connection: Connection, when: tuple[str, str]) -> int:
    at, forgotten = when
    one_at_a_time(connection)
    is_open = attempts.c.state == "open"
    dead = [name for name in connection.scalars(select(attempts.c.owner).where(is_open).distinct()) if is_dead(name)]
    given_up = or_(attempts.c.owner.in_(dead), attempts.c.reserved_at < forgotten)
    # Their sum is in the key's book already, as a hold: only their state changes.
    closing = update(attempts).where(is_open, given_up)
    values = {"state": "lost", "settled_at": at, "cost_nusd": attempts.c.hold_nusd, "output_tokens": 0}
    count = connection.execute(closing.values(values)).rowcount
    if count:
        append(connection, Entry("ledger", "ledger.reconcile", {"lost_attempts": count}))
    return count


def _usage(connection: Connection, key_id: str | None, since: datetime | None, until: datetime | None) -> Spent:
    is_open = attempts.c.state == "open"
    query = select(
        func.count(),
        func.coalesce(func.sum(attempts.c.cost_nusd), 0),
        func.coalesce(func.sum(case((is_open, attempts.c.hold_nusd), else_=0)), 0),
        func.coalesce(func.sum(attempts.c.output_tokens), 0),
        func.coalesce(func.sum(case((attempts.c.state == "lost", 1), else_=0)), 0),
    ).select_from(attempts)
    if key_id is not None:
        query = query.where(attempts.c.key_id == key_id)
    if since is not None:
        query = query.where(attempts.c.reserved_at >= utc_text(since))
    if until is not None:
        query = query.where(attempts.c.reserved_at < utc_text(until))
    calls, cost_nusd, held_nusd, output_tokens, lost = connection.execute(query).one()
    return Spent(calls, int(cost_nusd) / NUSD, int(held_nusd) / NUSD, int(output_tokens), int(lost))


def _renews_in_s(period: Period, moment: datetime) -> float | None:
    if period == "total":
        return None
    today = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        return (today + timedelta(days=1) - moment).total_seconds()
    return ((today.replace(day=1) + timedelta(days=32)).replace(day=1) - moment).total_seconds()


# The statements of every call are put together once: doing so takes longer than carrying them out.

_RESERVE = insert(attempts)
_RESERVE_FREELY = Statement(
    insert(attempts),
    names=(
        *("run_id", "key_id", "worker", "owner", "state", "reserved_at", "charged_day", "hold_nusd"),
        *Labels.__struct_fields__,
    ),
)

_IS_SETTLED: ColumnElement[str] = literal_column("'settled'")
_SETTLED = (
    update(attempts)
    .where(attempts.c.id == bindparam("attempt"), attempts.c.state != _IS_SETTLED)
    .values(
        state=_IS_SETTLED,
        settled_at=bindparam("settled_at"),
        cost_nusd=bindparam("cost_nusd"),
        output_tokens=bindparam("output_tokens"),
    )
)
_SETTLE = _SETTLED.returning(attempts.c.key_id, attempts.c.hold_nusd, attempts.c.charged_day)
_SETTLE_FREELY = Statement(_SETTLED, names=("settled_at", "cost_nusd", "output_tokens"))

_FIND_BOOK = select(spending.c.day, spending.c.day_nusd, spending.c.month_nusd, spending.c.total_nusd).where(
    spending.c.key_id == bindparam("of_key")
)

_BOOK: dict[str, Any] = {name: bindparam(name) for name in ("day", "day_nusd", "month_nusd", "total_nusd")}
_START_BOOK = insert(spending).values(key_id=bindparam("of_key"), **_BOOK)
_RENEW_BOOK = update(spending).where(spending.c.key_id == bindparam("of_key")).values(**_BOOK)

_CHANGE = bindparam("change", type_=BigInteger)
_SAME_DAY = spending.c.day == bindparam("charged_day")
_SAME_MONTH = func.substr(spending.c.day, 1, 7) == bindparam("charged_month")
_AMEND_BOOK = (
    update(spending)
    .where(spending.c.key_id == bindparam("of_key"))
    .values(
        total_nusd=spending.c.total_nusd + _CHANGE,
        month_nusd=spending.c.month_nusd + case((_SAME_MONTH, _CHANGE), else_=0),
        day_nusd=spending.c.day_nusd + case((_SAME_DAY, _CHANGE), else_=0),
    )
)


# ---- writes that are tried again until they are kept ---------------------------------------------------------


FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 10.0

Work = Callable[[Any, Any], Any] | Statement


def mended(write: asyncio.Future[Any], store: Store, work: Work, *, prepare: Callable[[], Any]) -> None:
    """Watch a write that was handed in; where the store fails it, hand it in again until it is kept."""
    write.add_done_callback(partial(_look, store, work, prepare, FIRST_WAIT_S))


def mend(store: Store, work: Work, *, prepare: Callable[[], Any]) -> None:
    """Hands in a write without a waiting caller, and retries it until it is stored."""
    try:
        mended(store.write_soon(work, prepare=prepare), store, work, prepare=prepare)
    except StoreError:  # closed
        return


def _look(store: Store, work: Work, prepare: Callable[[], Any], wait_s: float, done: asyncio.Future[Any]) -> None:
    if not done.cancelled() and isinstance(done.exception(), StoreError):
        asyncio.get_running_loop().call_later(wait_s, _again, store, work, prepare, min(2 * wait_s, LONGEST_WAIT_S))


def _again(store: Store, work: Work, prepare: Callable[[], Any], wait_s: float) -> None:
    try:
        done = store.write_soon(work, prepare=prepare)
    except StoreError:  # it was closed: the next start sees to it
        return
    done.add_done_callback(partial(_look, store, work, prepare, wait_s))
