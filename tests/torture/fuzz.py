"""Requests that no person would write, drawn from the server's own description.

    for case in draw_cases(description, random.Random(7), 5000, models=["worker/alpha"], ids=["resp_1"]):
        ...
    fault = judge(case, status, headers, body, description)      # "" where the reply is as described

Four kinds of case: *fitting* (as the description says), *bent* (fitting, with a few values replaced by others),
*raw* (bytes that are hardly JSON) and *astray* (other methods, paths, parameters and headers). Knows OpenAPI as our
server writes it and nothing of what routes do; the same seed draws the same cases.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import jsonschema_rs
import msgspec

JSON_KIND = "application/json"
SCHEMAS = "#/components/schemas/"
MAX_NESTING = 4

TEXTS = (
    *("", " ", "a", "hello there", "0", "-1", "null", "true", "id", "alpha", "ultra", "worker/alpha", "user", "tool"),
    *("\x00", "\x1f\x7f", "\ud83d\ude00", "é" * 50, "\u202egnp.exe", "\ufeff", "\n\r\n", "a" * 300, "😀" * 40),
    *("../../etc/passwd", "%00", "%2e%2e%2f", "{{7*7}}", "'; DROP TABLE traces; --", "<script>alert(1)</script>"),
    *("resp_0", "call_0", "chatcmpl-0", "msg_0", "https://example.com/a.png", "data:image/png;base64,aGVsbG8="),
    *("data:image/png;base64,***", "2026-01-31", "9999-12-31T23:59:59+23:59", "0001-01-01", "day,model", "1e999"),
)
NUMBERS = (0, -0.0, 1, -1, 2, 0.5, 1.5, 1e-320, 1e308, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30)
ODD: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, {"type": "text"}, *NUMBERS, *TEXTS[:20])
RAW = (
    *(
        b"",
        b" ",
        b"null",
        b"0",
        b"[]",
        b"{}",
        b'""',
        b"{",
        b"}",
        b'{"model"',
        b'{"model":}',
        b"{'model':1}",
        b"\xff\xfe",
    ),
    *(b"\x00", b'{"a":1}{"b":2}', b'{"model":NaN}', b'{"model":1e9999}', b'{"a":"\\ud800"}', b'{"a":"\\x"}'),
    *(b"[" * 2000, b'{"a":' * 2000, b"[" * 200_000, b'{"model":"x","model":"y"}', b"\xef\xbb\xbf{}", b"1" * 5000),
)
KINDS_OF_BODY = (
    "text/plain",
    "application/json; charset=utf-16",
    "multipart/form-data",
    "",
    "application/JSON",
    "x" * 300,
)
HEADERS = {
    "Idempotency-Key": ("a", "b", "c", "x" * 255, "x" * 300, "ü"),
    "X-Dirigent-Max-Steps": ("1", "0", "33", "x", "1e3", "９"),
    "X-Dirigent-Max-Cost-USD": ("1", "nan", "inf", "-1", "1e400", ""),
    "X-Dirigent-Deadline-S": ("30", "0", "nan", "-inf"),
    "X-Dirigent-Pool-Allow": ("alpha", "alpha,beta", ",,,", "nobody"),
    "X-Dirigent-Region": ("eu", "", "moon"),
    "X-Dirigent-Dry-Run": ("true", "false", "maybe"),
    "X-Dirigent-Nothing": ("1",),
    "Dirigent-Hops": ("0", "1", "2", "-1", "x"),
    "Accept": ("text/event-stream", "image/png", ""),
    "Last-Event-ID": ("0", "x"),
}
QUERIES = (
    *("limit", "status", "profile", "since", "search", "from", "to", "group_by", "key", "format", "stream"),
    *("starting_after", "after", "order", "include", "include[]", "include_obfuscation", "colour", ""),
)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE")


class Case(msgspec.Struct, frozen=True):
    """One request, and the operation of the description that it is aimed at."""

    kind: str
    method: str
    target: str
    """Path and query, percent-encoded."""
    template: str
    """The path as the description has it; empty: none."""
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()


def _blank_image() -> Case:
    """Data of an image that has no data: it was let in, and then no worker could be asked."""
    source = {"type": "base64", "media_type": "image/png", "data": "\n\r\n"}
    said = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    body = json.dumps({"model": "worker/alpha", "max_tokens": 1, "messages": said}).encode()
    return Case("fitting", "POST", "/v1/messages", "/v1/messages", body, (("Content-Type", JSON_KIND),))


ENDLESS = "/v1/runs/events"
"""Its stream of events goes on for as long as the client reads it."""
FOUND = (_blank_image(),)
"""What once came back wrong; asked again in every run."""


def draw_cases(
    description: Mapping[str, Any],
    rng: random.Random,
    count: int,
    *,
    models: Sequence[str],
    ids: Sequence[str],
) -> Iterator[Case]:
    """This many cases: those that were found before, then others, spread over all operations and kinds."""
    yield from FOUND[:count]
    draw = Draw(description, rng, models=models, ids=ids)
    operations = [(path, method) for path, methods in description["paths"].items() for method in methods]
    taking = [(path, method) for path, method in operations if "requestBody" in description["paths"][path][method]]
    for _ in range(count - len(FOUND)):
        kind = rng.choices(("fitting", "bent", "raw", "astray"), (35, 40, 10, 15))[0]
        path, method = rng.choice(taking if kind in ("bent", "raw") or rng.random() < 0.5 else operations)
        yield draw.case(kind, path, method)


async def whole_or_first(response: aiohttp.ClientResponse) -> bytes:
    """The body of a reply; of a stream without an end, its first event."""
    endless = response.url.path == ENDLESS and response.status == 200
    return await (response.content.readany() if endless else response.read())


def judge(case: Case, status: int, headers: Mapping[str, str], body: bytes, description: Mapping[str, Any]) -> str:
    """What is wrong with a reply; empty where it is as described."""
    if status >= 500 and not _excused(case, status, body):
        return f"{status} for {shown(case)}: {body[:300]!r}"
    documented = _documented(case, description)
    if str(status) not in documented:
        return f"{status} is documented nowhere for {shown(case)}"
    kind = headers.get("Content-Type", "").partition(";")[0]
    if case.method == "HEAD":
        return ""
    if status >= 400:
        return _wrong_error(case, status, kind, body)
    shape = documented[str(status)].get("content", {}).get(JSON_KIND, {}).get("schema")
    if shape is None or kind != JSON_KIND or b'"object":"dirigent.plan"' in body:
        return ""
    return _misfit(shape, body, description, case)


def shown(case: Case) -> str:
    """A case as a person can send it again."""
    said = (case.body or b"")[:400].decode(errors="replace")
    return f"{case.kind} {case.method} {case.target[:200]} {dict(case.headers)} {said}"


# ---- judging ----------------------------------------------------------------------------------------------


def _excused(case: Case, status: int, body: bytes) -> bool:
    """A 5xx that the request asked for: a deadline that no worker can meet, or a shape that the stub does not write."""
    asked = (case.body or b"") + json.dumps(case.headers).encode()
    if status == 504:
        return b"deadline" in asked.lower()
    wants_shape = any(word in asked for word in (b"json_schema", b"json_object", b"output_config", b"output_format"))
    return status == 503 and wants_shape and b"worker_failed" in body


def _documented(case: Case, description: Mapping[str, Any]) -> Mapping[str, Any]:
    methods = description["paths"].get(case.template, {})
    method = "get" if case.method == "HEAD" else case.method.lower()
    operation = methods.get(method) or (next(iter(methods.values())) if methods else None)
    if operation is None:  # nowhere: any status of an error that is documented anywhere
        operation = next(iter(description["paths"].values()))
        operation = next(iter(operation.values()))
    found: Mapping[str, Any] = operation["responses"]
    return found


def _wrong_error(case: Case, status: int, kind: str, body: bytes) -> str:
    if kind != JSON_KIND:
        return f"{status} came as {kind!r} for {shown(case)}"
    try:
        error = json.loads(body)["error"]
        right = isinstance(error["message"], str) and isinstance(error["type"], str) and bool(error["message"])
    except (ValueError, KeyError, TypeError):
        right = False
    if not right:
        return f"{status} has no error in its body for {shown(case)}: {body[:200]!r}"
    if b"Traceback" in body or b'File "' in body:
        return f"{status} shows a traceback for {shown(case)}"
    return ""


_VALIDATORS: dict[str, Any] = {}


def _misfit(shape: Mapping[str, Any], body: bytes, description: Mapping[str, Any], case: Case) -> str:
    name = json.dumps(shape, sort_keys=True)
    if name not in _VALIDATORS:
        _VALIDATORS[name] = jsonschema_rs.validator_for({**shape, "components": description["components"]})
    for error in _VALIDATORS[name].iter_errors(json.loads(body)):
        return f"a reply does not fit its description ({error.message[:200]}) for {shown(case)}"
    return ""


# ---- drawing ----------------------------------------------------------------------------------------------


class Draw:
    """Draws values of a schema, with one generator of random numbers."""

    def __init__(
        self, description: Mapping[str, Any], rng: random.Random, *, models: Sequence[str], ids: Sequence[str]
    ) -> None:
        self._description = description
        self._rng = rng
        self._models = models
        self._ids = ids

    def case(self, kind: str, path: str, method: str) -> Case:
        operation = self._description["paths"][path][method]
        body = None
        headers: list[tuple[str, str]] = []
        if "requestBody" in operation:
            body = self._body(kind, operation["requestBody"]["content"][JSON_KIND]["schema"])
            headers.append(("Content-Type", JSON_KIND))
        if kind == "astray":
            return self._astray(path, method, body, headers)
        if self._rng.random() < 0.1:
            headers.append(self._header())
        return Case(kind, method.upper(), self._target(path), path, body, tuple(headers))

    def _astray(self, path: str, method: str, body: bytes | None, headers: list[tuple[str, str]]) -> Case:
        rng, template = self._rng, path
        headers = headers + [self._header() for _ in range(rng.randint(0, 3))]
        if rng.random() < 0.3:
            headers = [(n, v) for n, v in headers if n != "Content-Type"]
            headers.append(("Content-Type", rng.choice(KINDS_OF_BODY)))
        if rng.random() < 0.3:
            method = rng.choice(METHODS)
        if rng.random() < 0.2:
            path, template = rng.choice((path + "/", path + "/x", "/v1", "/", path.upper(), "/v1//models", "/.env")), ""
        if method.upper() in ("GET", "HEAD", "TRACE", "OPTIONS"):
            body = None
        return Case("astray", method.upper(), self._target(path), template, body, tuple(dict(headers).items()))

    def _target(self, path: str) -> str:
        rng = self._rng
        for name in ("{id}",):
            wanted = rng.choice(self._ids) if self._ids and rng.random() < 0.4 else rng.choice(TEXTS) or "x"
            path = path.replace(name, quote(wanted.encode(errors="replace"), safe="" if rng.random() < 0.8 else "/"))
        if rng.random() < 0.25:
            asked = {rng.choice(QUERIES): rng.choice(TEXTS) for _ in range(rng.randint(1, 3))}
            path += "?" + urlencode({n: v.encode(errors="replace") for n, v in asked.items()})
        return path

    def _header(self) -> tuple[str, str]:
        name = self._rng.choice(list(HEADERS))
        return name, self._rng.choice(HEADERS[name])

    def _body(self, kind: str, schema: Mapping[str, Any]) -> bytes:
        rng = self._rng
        if kind == "raw" and rng.random() < 0.5:
            return rng.choice(RAW)
        value = self.value(schema)
        if kind == "bent":
            for _ in range(rng.choice((1, 1, 1, 2, 4))):
                value = self._bent(value)
        encoded = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode(errors="replace")
        return self._cut(encoded) if kind == "raw" else encoded

    def _cut(self, encoded: bytes) -> bytes:
        """Bytes lost, doubled or changed."""
        rng, found = self._rng, bytearray(encoded)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(found)) if found else 0
            match rng.randint(0, 3):
                case 0:
                    del found[at:]
                case 1:
                    found[at:at] = bytes([rng.randrange(256)])
                case 2:
                    found[at:at] = found[at : at + 20]
                case _:
                    del found[at : at + rng.randint(1, 9)]
        return bytes(found)

    def _bent(self, value: Any) -> Any:
        """The value with one of its parts, at any depth, replaced, dropped or added."""
        rng = self._rng
        if isinstance(value, dict) and value and rng.random() < 0.85:
            name = rng.choice(list(value))
            if rng.random() < 0.6:
                return value | {name: self._bent(value[name])}
            if rng.random() < 0.5:
                return {n: v for n, v in value.items() if n != name}
            return value | {rng.choice((name + "x", "url", "base_url", "n", "type", "")): rng.choice(ODD)}
        if isinstance(value, list) and value and rng.random() < 0.85:
            at = rng.randrange(len(value))
            return [*value[:at], self._bent(value[at]), *value[at + 1 :]] if rng.random() < 0.8 else value * 3
        if rng.random() < 0.05:
            return json.loads("[" * 70 + "]" * 70)
        return rng.choice(ODD)

    def value(self, schema: Mapping[str, Any], *, name: str = "", depth: int = 0) -> Any:
        """Something that fits the schema."""
        rng = self._rng
        if "$ref" in schema:
            return self.value(self.resolved(schema["$ref"]), name=name, depth=depth)
        if "enum" in schema:
            return rng.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        if "anyOf" in schema:
            return self._any_of(schema["anyOf"], name=name, depth=depth)
        match schema.get("type"):
            case "object":
                return self._object(schema, depth=depth)
            case "array":
                return self._array(schema, depth=depth)
            case "string":
                return self._string(schema, name=name)
            case "integer" | "number":
                return self._number(schema)
            case "boolean":
                return rng.random() < 0.3
            case "null":
                return None
        return self._anything(name)

    def resolved(self, ref: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._description["components"]["schemas"][ref.removeprefix(SCHEMAS)]
        return found

    def _any_of(self, choices: Sequence[Mapping[str, Any]], *, name: str, depth: int) -> Any:
        plain = [one for one in choices if one.get("type") in ("string", "null", "boolean")]
        wanted = plain if plain and depth > MAX_NESTING else choices
        return self.value(self._rng.choice(wanted), name=name, depth=depth)

    def _object(self, schema: Mapping[str, Any], *, depth: int) -> dict[str, Any]:
        rng, properties = self._rng, schema.get("properties", {})
        required = set(schema.get("required", ()))
        share = 0.12 if depth == 0 else 0.3
        found = {
            name: self.value(each, name=name, depth=depth + 1)
            for name, each in properties.items()
            if name in required or rng.random() < share
        }
        if not properties:
            inner = schema.get("additionalProperties")
            inner = inner if isinstance(inner, dict) else {}
            for _ in range(rng.randint(0, 2)):
                found[rng.choice(TEXTS)] = self.value(inner, depth=depth + 1) if inner else self._anything("")
        return found

    def _array(self, schema: Mapping[str, Any], *, depth: int) -> list[Any]:
        least, most = schema.get("minItems", 0), min(schema.get("maxItems", 3), 3)
        size = self._rng.randint(least, max(least, most if depth <= MAX_NESTING else least))
        return [self.value(schema.get("items", {}), name="item", depth=depth + 1) for _ in range(size)]

    def _string(self, schema: Mapping[str, Any], *, name: str) -> str:
        rng = self._rng
        if name == "model" and rng.random() < 0.9:
            return rng.choice(self._models)
        if name.endswith("id") and self._ids and rng.random() < 0.5:
            return rng.choice(self._ids)
        if "pattern" in schema:  # all of ours are names
            return "".join(rng.choices(string.ascii_letters + "_-", k=rng.randint(1, 64)))
        text = rng.choice(TEXTS)
        least, most = schema.get("minLength", 0), schema.get("maxLength", 10_000)
        return (text + "x" * least)[:most]

    def _number(self, schema: Mapping[str, Any]) -> float | int:
        low = schema.get("minimum", schema.get("exclusiveMinimum", -(2**31)))
        high = schema.get("maximum", schema.get("exclusiveMaximum", max(low, 2**31)))
        if schema["type"] == "integer":
            return self._rng.choice((low, high, self._rng.randint(int(low), int(high))))
        drawn = self._rng.choice((low, high, self._rng.uniform(low, high)))
        return high if drawn == low and "exclusiveMinimum" in schema else drawn

    def _anything(self, name: str) -> Any:
        """What a free-form field may hold; in a list of items, mostly the items there are."""
        rng = self._rng
        if name == "item" and rng.random() < 0.8:
            names = [n for n in self._description["components"]["schemas"] if n.endswith("Item")]
            return self.value({"$ref": SCHEMAS + rng.choice(names)}, depth=2) if names else {}
        return rng.choice(ODD)
