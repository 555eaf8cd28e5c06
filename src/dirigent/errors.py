"""Every expected failure, as one small tree.

    DirigentError
    ├── ConfigError      a setting, key or file is wrong; nothing was run
    ├── PlanError        a text is not a plan this pool and these limits allow
    ├── WorkerError      a worker could not answer (after its retries)
    ├── LimitError       a limit of the run was reached
    │   ├── DeadlineError
    │   └── CostError
    ├── GradeError       an answer could not be judged
    └── StoreError       a trace or ledger row could not be kept or found

Expected failures are recorded on the trace, and the class decides what happens next: in training a `PlanError` earns
the format penalty, and the rollout of a `WorkerError` leaves its group, so that a policy is never punished for
infrastructure. Any other exception is a bug and propagates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dirigent.messages import Attempt, Usage


class DirigentError(Exception):
    """Base of every expected failure. Its text is for a person and names the fix."""

    attempts: tuple[Attempt, ...] = ()
    """The calls that were made, and perhaps paid, before the failure."""

    @property
    def for_caller(self) -> str:
        """The text that the caller may read. The whole text is for the trace, which its owner may read."""
        return str(self)


class ConfigError(DirigentError):
    """A setting, key or file is wrong; nothing was run."""


class PlanError(DirigentError):
    """A text is not a plan that this pool and these limits allow."""


Fault = Literal[
    "connect",  # refused, unreachable, reset before a reply
    "timeout",  # connect, first byte, between chunks or total
    "rate_limited",  # 429
    "overloaded",  # 408, 409, 5xx, 529
    "auth",  # 401, 403
    "request",  # other 4xx: the request itself is wrong
    "reply",  # garbage, an error body with status 200, a cut stream, too large
    "open",  # the circuit breaker is open: not called
    "unanswerable",  # a recorded or scripted worker has no answer for this
    "failed",  # any other failure that a worker reports
]

RETRYABLE: frozenset[Fault] = frozenset({"connect", "timeout", "rate_limited", "overloaded", "reply"})

SAID: Mapping[Fault, str] = {
    "connect": "could not be reached; ask again",
    "timeout": "did not answer in time; ask again",
    "rate_limited": "is asked too often; ask again later",
    "overloaded": "is overloaded or out of order; ask again later",
    "auth": "does not accept its key; tell the operator of this server",
    "request": "does not take this request; change it or ask another model",
    "reply": "gave a reply that cannot be used; ask again",
    "open": "rests after failures and was not asked; ask again later",
    "unanswerable": "has no answer for this; ask another model",
    "failed": "failed; ask again or ask another model",
}
"""The message for each fault, with what to do about it."""


class WorkerError(DirigentError):
    """A worker could not answer. `fault` is the kind of failure, `attempts` are the calls that were made and paid.

    The error's text may quote a provider and name an address of the operator's. Callers read `said` in its place, or
    the message for the fault if `said` is empty.
    """

    usage: Usage | None = None
    """The provider's count for a reply that came whole but cannot be used: it is billed all the same."""

    def __init__(
        self,
        message: str,
        *,
        said: str = "",
        worker: str = "",
        fault: Fault = "failed",
        status: int | None = None,
        retry_after_s: float | None = None,
        attempts: tuple[Attempt, ...] = (),
    ) -> None:
        super().__init__(message)
        self.said = said
        self.worker = worker
        self.fault: Fault = fault
        self.status = status
        self.retry_after_s = retry_after_s
        self.attempts = attempts

    @property
    def retryable(self) -> bool:
        """Whether asking the same worker again may help."""
        return self.fault in RETRYABLE

    @property
    def for_caller(self) -> str:
        status = "" if self.status is None else f" (HTTP {self.status})"
        return self.said or f"the worker {self.worker or 'that was asked'}{status} {SAID[self.fault]}"


class LimitError(DirigentError):
    """A limit of the run was reached."""


class DeadlineError(LimitError):
    """The run or step ran out of time."""


class CostError(LimitError):
    """The run or step would cost more than its cap allows."""


class GradeError(DirigentError):
    """An answer could not be judged."""


class StoreError(DirigentError):
    """A trace or ledger row could not be kept or found."""
