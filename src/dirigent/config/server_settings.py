"""The operator's settings of the server: `[serve]`, `[guardrails]` and `[[override]]` of `dirigent.toml`.

They are frozen structs whose defaults run. `config/file.py` reads them; `serve/` acts on them. Each struct checks its
own values, so that a wrong value is reported with its line before anything is opened. The module knows nothing of HTTP,
workers or requests.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

TaskKind = Literal["code", "maths", "images", "tools", "json", "chat"]
"""The subject of a request, as `serve/policy/routing_rules.py` determines it."""


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[serve]`: the server's address, and its limits towards callers."""

    host: str = "127.0.0.1"
    """The address to listen on. Beyond loopback the server needs a key."""
    port: int = 8000
    """The port; 0 takes a free one."""
    max_in_flight: int = 2000
    """Runs at once; further requests get a 503 with Retry-After."""
    hold_status_s: float = 10.0
    """Seconds a stream may wait for its first token before the server sends headers. A failure before that still has a
    status of its own."""
    keep_alive_s: float = 10.0
    """Seconds of silence after which the server sends a comment on a stream."""
    header_timeout_s: float = 10.0
    """Has no effect: the proxy in front bounds the time of headers. It stays so that older files can be read."""
    max_header_bytes: int = 65_536
    """Most bytes of a request's header, of its body's trailers, and of one chunk's extensions. A longer one gets a 431
    or a 400."""
    body_timeout_s: float = 30.0
    """Seconds a caller may take to send its whole request."""
    send_timeout_s: float = 30.0
    """Seconds a caller may take to accept one piece of the reply."""
    idle_timeout_s: float = 15.0
    """Seconds without a request after which the server closes a connection."""
    failed_tries_per_minute: int = 100
    """Wrong keys from one address; further ones get a 429 unchecked. Behind a proxy all callers share its address."""
    grace_s: float = 30.0
    """Seconds that running requests get to finish after the server receives a stop signal."""
    keys_required: bool = False
    """Every caller needs a key, also from this machine. Always true if the server listens beyond it."""
    retention_days: int | None = None
    """Days after which runs and their rows are deleted; a key may have its own number. Default: never."""
    reports: str = ""
    """A folder whose evaluation reports and training runs the console shows, relative to the configuration's folder."""
    otel: bool = False
    """Send OpenTelemetry spans, even if OTEL_EXPORTER_OTLP_ENDPOINT is not set."""
    otel_content: bool = False
    """Let the spans hold the text of questions, messages and answers."""

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
    """`[guardrails]`: limits on requests, replies and on personal data that leaves the region."""

    max_request_chars: int | None = None
    """Most characters of all messages of a request; a longer request gets a 413."""
    max_reply_chars: int | None = None
    """Most characters of one worker's reply; a longer reply fails its step."""
    block: tuple[str, ...] = ()
    """Regular expressions; a request with a matching message gets a 400 `content_policy`. Case is ignored. They run on
    callers' text, so no expression should nest one repetition in another."""
    home_region: str = ""
    """The region to which text goes unchanged. A worker of another or of no region gets it without personal data."""
    redact: Literal["off", "personal", "hook"] = "off"
    """`personal` removes e-mail addresses, telephone numbers, IBANs and card numbers; `hook` calls `redact_hook`."""
    redact_hook: str = ""
    """`module:function`, which takes and returns a text; it is called with each text that leaves the home region."""
    check_empty: bool = False
    """Ask again after an empty reply; a second empty reply fails its step."""
    check_refusal: bool = False
    """Ask again after a refusal; a second refusal is accepted."""

    def __post_init__(self) -> None:
        for name in ("max_request_chars", "max_reply_chars"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more, not {value}")
        for pattern in self.block:
            _check_pattern(pattern, "block")
        if (self.redact == "hook") != bool(self.redact_hook):
            raise ValueError('redact = "hook" needs redact_hook = "module:function", and redact_hook needs redact')
        if self.redact_hook and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", self.redact_hook):
            raise ValueError(f'redact_hook must be "module:function", not "{self.redact_hook}"')


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """One `[[override]]`: a rule that replaces the conductor's choice.

    It applies to a request that meets all of its conditions; the first matching rule of the file counts. A key's own
    bounds still apply.
    """

    name: str
    """The name in traces and in the audit log."""
    key: str = ""
    """A key's label or id."""
    model: str = ""
    """The model that the request names."""
    kind: TaskKind | None = None
    """The subject of the request: its metadata `task_kind`, else a guess."""
    matches: str = ""
    """A regular expression that must match the last user message. Case is ignored."""
    pin: str = ""
    """Only this worker."""
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
        raise ValueError(f'{key} holds "{pattern}", which is not a regular expression: {error}') from None
