"""Asked: one request in core types, whichever API it came through.

Each API reads its body into an `Asked`; nothing behind it knows the API. Errors that are found later still name the
field of the caller's own body, through `Fields`. A background run stores its `Asked`, so that another process can go
on with the run. The functions at the end check what all three APIs have in common.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dirigent.messages import Image, Message, Part, Request, Text
from dirigent.serve.http.errors import Problem
from dirigent.store.ledger import NO_LABELS, Labels

MAX_LABEL_CHARS = 200

ImageDetail = Literal["auto", "low", "high"]
Tokens = Annotated[int, Meta(ge=1, le=10_000_000)]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a request: an unknown field is an error."""


class PoolChoice(Strict, frozen=True):
    """Which workers this request may use. It can only narrow what the model and the key allow."""

    allow: tuple[str, ...] | None = None
    """Only these."""
    deny: tuple[str, ...] | None = None
    """None of these."""
    pin: str | None = None
    """This one alone."""


class GivenStep(Strict, frozen=True):
    worker: str
    subtask: str
    access: tuple[Annotated[int, Meta(ge=0)], ...] = ()


class GivenPlan(Strict, frozen=True):
    """A plan that the caller wrote, or edited after a dry run."""

    steps: Annotated[tuple[GivenStep, ...], Meta(min_length=1, max_length=32)]
    until: Annotated[float, Meta(gt=0, lt=1)] | None = None
    """Ask the steps in order, and stop when the last one's worker is this sure of an answer."""


class Extension(Strict, frozen=True):
    """The field `dirigent`, for what the APIs' own formats cannot express. Limits can only be narrowed."""

    max_cost_usd: Annotated[float, Meta(ge=0)] | None = None
    deadline_s: Annotated[float, Meta(gt=0)] | None = None
    max_steps: Annotated[int, Meta(ge=1, le=32)] | None = None
    max_rounds: Annotated[int, Meta(ge=1, le=8)] | None = None
    pool: PoolChoice | None = None
    region: str | None = None
    """Only workers served from there."""
    dry_run: bool | None = None
    """Plan and estimate, but ask no worker."""
    trace: bool | None = None
    """Add the plan and each step's cost to the reply."""
    tag: Annotated[str, Meta(max_length=200)] | None = None
    """What the run is for, in the caller's words: spending is added up by it."""
    conversation: Annotated[str, Meta(max_length=200)] | None = None
    """The conversation that the run belongs to; likewise."""
    plan: GivenPlan | None = None
    """Carry out this plan, without a planner. With `dry_run` it is checked and its cost estimated."""

    @property
    def without_labels(self) -> Extension:
        """The part that shapes the run."""
        if self.tag is None and self.conversation is None:
            return self
        return msgspec.structs.replace(self, tag=None, conversation=None)


NOTHING_MORE = Extension()
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
"""The schema of a tool that its caller gave none."""


class Fields(msgspec.Struct, frozen=True, omit_defaults=True):
    """The caller's API's names for the parts of a request."""

    messages: str = "messages"
    response_format: str = "response_format"
    schema: str = "response_format.json_schema.schema"
    stop: str = "stop"
    places: tuple[str, ...] = ()
    """The field that each message came from; empty if message 0 is `messages[0]`, and so on."""

    def message(self, index: int) -> str:
        return self.places[index] if self.places else f"{self.messages}[{index}]"


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. Nothing in it belongs to a process, so it can be stored."""

    model: str
    question: tuple[Message, ...]
    options: Request
    """Sampling settings, tools and the shape of the answer. It has no messages, no deadline and no ledger."""
    dirigent: Extension = NOTHING_MORE
    metadata: dict[str, str] = {}
    """Labels. Only `task_kind` has an effect, on the operator's rules."""
    user: str = ""
    """The caller's own user, for whom the request is."""
    one_call: bool = False
    """A reply may call one tool at most."""
    goes_on_from: tuple[str, ...] = ()
    """Names of its conversation in the caller's API: the run that it goes on from, the key of its cache."""
    background: bool = False
    """No caller waits for the run."""
    stream: bool = False
    stream_usage: bool = False
    """The stream is to end with the usage."""
    fields: Fields = Fields()

    @property
    def labels(self) -> Labels:
        """Whom the run is for: the user, and tag and conversation from the field `dirigent` or the metadata."""
        tag = self.dirigent.tag or self.metadata.get("tag", "")
        conversation = self.dirigent.conversation or self.metadata.get("conversation", "")
        if not (self.user or tag or conversation):
            return NO_LABELS
        texts = (self.user, tag, conversation)
        return Labels(*(text[:MAX_LABEL_CHARS].replace("\0", "\ufffd") for text in texts))


# ---- checks that the three APIs share ---------------------------------------------------------------------


DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]{1,40});base64,(\s*[A-Za-z0-9+/=][A-Za-z0-9+/=\s]*)\Z", re.IGNORECASE)


def checked_messages(messages: Sequence[Message], fields: Fields, *, call_id: str) -> tuple[Message, ...]:
    """The messages, once every tool result answers an earlier call and the last message can be answered.

    `call_id` is the API's name for the id in a tool result. Results get the name of the tool that was called.
    """
    called: dict[str, str] = {}
    checked = []
    for index, message in enumerate(messages):
        if message.role == "tool":
            id = message.tool_call_id
            if id not in called:
                made = ", ".join(called) or "none"
                param = _part_of(fields.message(index), call_id)
                raise Problem(400, f"{id!r} answers no tool call made before it; there are: {made}", param=param)
            if message.name and message.name != called[id]:
                said = f"{id!r} is a call of {called[id]!r}, not of {message.name!r}"
                raise Problem(400, said, param=_part_of(fields.message(index), "name"))
            message = msgspec.structs.replace(message, name=called[id])
        for call in message.tool_calls:
            called[call.id] = call.name
        checked.append(message)
    if (last := messages[-1].role) not in ("user", "tool"):
        param = _part_of(fields.message(len(messages) - 1), "role")
        raise Problem(400, f"the last message is from {last}: there is nothing to answer", param=param)
    return tuple(checked)


def message_content(parts: Iterable[Part], *, may_show_images: bool) -> str | tuple[Part, ...]:
    """A message's parts, as plain text if it has no image."""
    parts = tuple(parts)
    if may_show_images and any(isinstance(part, Image) for part in parts):
        return parts
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def image_part(url: str, *, param: str, detail: ImageDetail | None = None) -> Image:
    """An image by its address, which is passed on unchanged: the server fetches no address that a caller names."""
    closeness: Literal["", "low", "high"] = "low" if detail == "low" else "high" if detail == "high" else ""
    if match := DATA_URL.match(url):
        return Image(data="".join(match[2].split()), media_type=match[1].lower(), detail=closeness)
    if not re.match(r"https?://[^/\s]", url, re.IGNORECASE):
        raise Problem(400, "an image is an http(s) URL or data:image/…;base64,…", param=param)
    return Image(url=url, detail=closeness)


def chosen_tool(choice: str | None, names: Sequence[str], *, param: str, named: bool = False) -> str:
    """`auto`, `none`, `required` or the name of a tool. `param` is a tool's name field, with `{}` for its index."""
    if len(set(names)) < len(names):
        second = next(i for i, name in enumerate(names) if name in names[:i])
        raise Problem(400, f"two tools are called {names[second]!r}", param=param.format(second))
    if choice is None or (not named and choice in ("auto", "none") and not names):
        return "auto"
    if not names:
        raise Problem(400, f"tool_choice asks for {choice!r}, but there are no tools", param="tool_choice")
    if named and choice not in names:
        raise Problem(400, f"no tool is called {choice!r}; there are: {', '.join(names)}", param="tool_choice")
    return choice


def _part_of(place: str, field: str) -> str:
    """A field of a message; a message from an earlier response has no field of its own in this request."""
    return f"{place}.{field}" if place.endswith("]") else place
