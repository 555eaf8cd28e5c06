"""Describe the server in OpenAPI 3.1, from the table of routes and the structs of the wire."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dirigent.serve.http.errors import ErrorBody
from dirigent.version import __version__

STATUSES = {
    400: "a field is wrong or cannot be honoured, and `param` names it; or a worker does not take the request",
    401: "no valid key",
    402: "a cost cap or a budget does not allow it",
    403: "not for this key, or not from there",
    404: "there is no such thing",
    405: "not with this method",
    408: "the body came too slowly",
    409: "already under way, done, or cancelled",
    413: "the body is too large",
    415: "the body is not application/json",
    422: "the Idempotency-Key was used for another request",
    429: "too many requests of this key; see Retry-After",
    431: "the header is too long",
    500: "a bug",
    502: "no usable plan or answer came of it",
    503: "busy, or no worker or store answers; see Retry-After",
    504: "the deadline passed",
}


class Endpoint(msgspec.Struct, frozen=True):
    """One row of the table of routes."""

    method: str
    path: str
    handler: Callable[..., Any]
    takes: type[msgspec.Struct] | None = None
    gives: type[msgspec.Struct] | None = None
    open: bool = False
    """The route needs no key."""
    status: int = 200
    """Of a reply that is no error; 202 if a run was started and goes on."""


def openapi(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the whole description."""
    types: list[type[msgspec.Struct]] = [t for e in endpoints for t in (e.takes, e.gives) if t is not None]
    refs, components = msgspec.json.schema_components([*types, ErrorBody], ref_template="#/components/schemas/{name}")
    shape: dict[type[msgspec.Struct], dict[str, Any]] = dict(zip([*types, ErrorBody], refs, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = re.sub(r":path}", "}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, shape)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Dirigent", "version": __version__},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}],
    }


def _operation(endpoint: Endpoint, shape: dict[type[msgspec.Struct], dict[str, Any]]) -> dict[str, Any]:
    said = (endpoint.handler.__doc__ or "").strip().splitlines()
    good: dict[str, Any] = {"description": "done"}
    if endpoint.gives is not None:
        good["content"] = {"application/json": {"schema": shape[endpoint.gives]}}
    wrong = {"application/json": {"schema": shape[ErrorBody]}}
    operation: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": said[0] if said else "",
        "responses": {str(endpoint.status): good}
        | {str(s): {"description": d, "content": wrong} for s, d in STATUSES.items()},
    }
    if endpoint.takes is not None:
        body = {"application/json": {"schema": shape[endpoint.takes]}}
        operation["requestBody"] = {"required": True, "content": body}
    if names := re.findall(r"{(\w+)", endpoint.path):
        text = {"in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [{"name": name} | text for name in names]
    if endpoint.open:
        operation["security"] = []
    return operation
