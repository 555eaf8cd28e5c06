"""What the server is told by its operator: `[serve]`, `[guardrails]` and `[[override]]` of `dirigent.toml`.

Frozen structs whose defaults run; `config.py` reads them, `serve/` acts on them. Each checks itself, so that a
wrong value is said with its line before anything is opened. Knows nothing of HTTP, workers or requests.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

TaskKind = Literal["code", "maths", "images", "tools", "json", "chat"]
"""What a request is about, as `serve/policy/routing_rules.py` tells it."""


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[serve]`: where the server listens, and how it behaves towards its callers."""

    host: str = "127.0.0.1"
    """Where to listen. Beyond loopback a key must exist."""
    port: int = 8000
    """0 takes a free one."""
    max_in_flight: int = 2000
    """Runs at once; more get a 503 with Retry-After."""
    hold_status_s: float = 10.0
    """How long a stream waits for its first word before it says 200: until then a failure has a status of its own."""
    keep_alive_s: float = 10.0
    """A comment goes out on a stream that has been silent for this long."""
    header_timeout_s: float = 10.0
    """Has no effect: the proxy in front bounds the time of headers. It stays so that older files can be read."""
    max_header_bytes: int = 65_536
    """Of one request's header, of the trailers of its body, and of one chunk's extensions; more is a 431 or a 400."""
    body_timeout_s: float = 30.0
    """For a caller to send its whole request."""
    send_timeout_s: float = 30.0
    """For a caller to take one piece of the reply."""
    idle_timeout_s: float = 15.0
    """A connection is closed that has had no request for so long."""
    failed_tries_per_minute: int = 100
    """Wrong keys from one address; more are told 429, unlooked-up. Behind a proxy all callers have its address."""
    grace_s: float = 30.0
    """For what is under way when the server is told to stop."""
    keys_required: bool = False
    """Nobody comes in without a key, also from this machine. Always so where the server listens beyond it."""
    retention_days: int | None = None
    """Runs and what belongs to them are deleted after so many days; a key may have days of its own. Default: never."""
    otel: bool = False
    """Send OpenTelemetry spans, also where OTEL_EXPORTER_OTLP_ENDPOINT is not set."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be 0 to 65535, not {self.port}")
        if not self.host:
            raise ValueError('host must be an address such as "127.0.0.1"')
        for name in (name for name in self.__struct_fields__ if name.endswith("_s")):
            if not 0 < getattr(self, name) <= 86_400:
                raise ValueError(f"{name} must be above 0 and at most a day, not {getattr(self, name):g}")
        least = {"max_in_flight": 1, "retention_days": 1, "failed_tries_per_minute": 1, "max_header_bytes": 1024}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ValueError(f"{name} must be {bound} or more, not {value}")


class Guardrails(msgspec.Struct, frozen=True, kw_only=True):
    """`[guardrails]`: what may come in, what may leave, and what a reply must at least be."""

    max_request_chars: int | None = None
    """Characters of a request's messages together; more is a 413."""
    max_reply_chars: int | None = None
    """Characters of one reply of a worker; a longer one fails its step."""
    block: tuple[str, ...] = ()
    """Regular expressions; a request with a message that one of them finds is a 400 `content_policy`. Case counts for
    nothing. They run on callers' text: none should nest one repetition in another."""
    home_region: str = ""
    """Where text may go as it is. To a worker of any other region, or of none, it goes without personal data."""
    redact: Literal["off", "personal", "hook"] = "off"
    """`personal`: e-mail addresses, telephone numbers, IBANs, card numbers. `hook`: what the function below says."""
    redact_hook: str = ""
    """`module:function`, from text to text, called with each text before it leaves the home region."""
    check_empty: bool = False
    """An empty reply is asked for once more; a second one fails its step."""
    check_refusal: bool = False
    """A refusal is asked about once more; a second one stands."""

    def __post_init__(self) -> None:
        for name in ("max_request_chars", "max_reply_chars"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more, not {value}")
        for pattern in self.block:
            _check_pattern(pattern, "block")
        if (self.redact == "hook") != bool(self.redact_hook):
            raise ValueError('redact = "hook" and redact_hook = "module:function" go together')
        if self.redact_hook and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", self.redact_hook):
            raise ValueError(f'redact_hook must be "module:function", not "{self.redact_hook}"')


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """One `[[override]]`: a rule that goes before whatever the conductor would choose.

    It holds for a request that all of its conditions fit; the first such rule of the file is the one that counts. A
    key's own bounds hold all the same.
    """

    name: str
    """What traces and the audit log call it."""
    key: str = ""
    """A key's label or id."""
    model: str = ""
    """The model that was asked for."""
    kind: TaskKind | None = None
    """What the request is about: its metadata `task_kind`, else a guess."""
    matches: str = ""
    """A regular expression that the last user message must hold. Case counts for nothing."""
    pin: str = ""
    """This worker alone."""
    deny: tuple[str, ...] = ()
    """None of these workers."""
    planner: str = ""
    """This planner, as the model `planner/NAME` has it."""
    profile: str = ""
    """This profile."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if not (self.key or self.model or self.kind or self.matches):
            raise ValueError("a rule needs a condition: key, model, kind or matches")
        if not (self.pin or self.deny or self.planner or self.profile):
            raise ValueError("a rule needs an effect: pin, deny, planner or profile")
        if self.planner and self.profile:
            raise ValueError("planner and profile exclude one another")
        if self.pin in self.deny:
            raise ValueError(f'pin names "{self.pin}", which deny forbids')
        if self.matches:
            _check_pattern(self.matches, "matches")


def _check_pattern(pattern: str, key: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f'{key} holds "{pattern}", which is no regular expression: {error}') from None
