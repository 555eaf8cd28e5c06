"""TOML text -> frozen structs, with errors that name the key, the table, the file and the line.

`decode` walks the text's tables beside the struct's fields, so that every fault is found at the key that
causes it: the error for a misspelt key names the nearest known key, the error for a wrong type says what was expected.
This module does not know what settings mean; the configuration and the recipes pass their structs.

tomllib reports no positions, so `lines` finds them in the text, well enough to point a person at the place.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import types
import typing
from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from dirigent.errors import ConfigError

T = TypeVar("T")
Path = tuple[str | int, ...]
"""The place of a value: ("worker", 0, "price", "input")."""

TABLE = re.compile(r"\s*\[(\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?\Z")
KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+))*)\s*=""")
PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^.\s]+))\s*(?:\.|\Z)""")
SHOWN_CHARS = 60
MISPLACED = "; it belongs at the top of the file, above the first table"


def decode(text: str, type_: type[T], *, file: str) -> T:
    """Returns the struct that this text describes; raises a `ConfigError` that names the place of a fault."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    value = _Reader(file, data, lines(text), top=_plain_keys(type_)).read(data, type_, ())
    return typing.cast(T, value)


def where(file: str, line_of: Mapping[Path, int], path: Path) -> str:
    """`dirigent.toml, line 12`: the key's own line, else that of the nearest table around it."""
    line = next((line_of[path[:n]] for n in range(len(path), 0, -1) if path[:n] in line_of), None)
    return file if line is None else f"{file}, line {line}"


def lines(text: str) -> dict[Path, int]:
    """The 1-based line on which each table and key begins."""
    found: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if fence:  # inside a multi-line string
            fence = "" if line.count(fence) % 2 else fence
            continue
        if header := TABLE.match(line):
            table = _resolve(_parts(header[2]), counts, appends=bool(header[1]))
            for n in range(1, len(table) + 1):  # `[profile.ultra]` is where `profile` begins as well
                found.setdefault(table[:n], number)
        elif key := KEY.match(line):
            found.setdefault((*table, *_parts(key[1])), number)
        fence = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")
    return found


def nearest(word: str, known: typing.Iterable[str]) -> str:
    """`; did you mean "max_steps"?`, or the list of choices if no name is near."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f'; did you mean "{near[0]}"?'
    return f"; there are: {', '.join(names)}" if names else ""


class _Reader:
    """One pass over the tables of one file."""

    def __init__(self, file: str, data: Mapping[str, Any], line_of: Mapping[Path, int], *, top: Container[str]) -> None:
        self._file = file
        self._data = data
        self._lines = line_of
        self._top = top

    def read(self, value: Any, type_: Any, path: Path) -> Any:
        type_ = _unwrap(type_)
        if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
            return self._struct(self._expect(value, dict, "a table", path), type_, path)
        origin, arguments = typing.get_origin(type_), typing.get_args(type_)
        if origin is dict and _is_struct(arguments[1]):
            tables = self._expect(value, dict, "a table of tables", path)
            return {key: self.read(item, arguments[1], (*path, key)) for key, item in tables.items()}
        if origin is tuple and _is_struct(arguments[0]):
            items = self._expect(value, list, f"written as [[{path[-1]}]]", path)
            return tuple(self.read(item, arguments[0], (*path, i)) for i, item in enumerate(items))
        return self._plain(value, type_, path)

    def _struct(self, table: dict[str, Any], type_: type[msgspec.Struct], path: Path) -> Any:
        fields = {field.encode_name: field for field in msgspec.structs.fields(type_)}
        hints = typing.get_type_hints(type_)
        advice: Mapping[str, str] = getattr(type_, "REFUSED_KEYS", {})
        for key in table:
            if key in advice:
                raise self._error(f'"{key}" in {self.place(path)} is refused: {advice[key]}', (*path, key))
            if key not in fields:
                hint = MISPLACED if path and key in self._top else nearest(key, fields)
                raise self._error(f'unknown key "{key}" in {self.place(path)}{hint}', (*path, key))
        for key, field in fields.items():
            if field.required and key not in table:
                raise self._error(f'{self.place(path)} has no "{key}"', path)
        values = {
            fields[key].name: self.read(item, hints[fields[key].name], (*path, key)) for key, item in table.items()
        }
        whole: Mapping[str, Sequence[str]] = getattr(type_, "WHOLE_TABLES", {})
        for key, item in table.items():
            if isinstance(item, dict) and (missing := [part for part in whole.get(key, ()) if part not in item]):
                raise self._error(f'"{key}" in {self.place(path)} has no "{missing[0]}"', (*path, key))
        try:
            return type_(**values)
        except ValueError as error:
            raise self._error(f"{error}, in {self.place(path)}", self._named_in(str(error), table, path)) from None

    def _plain(self, value: Any, type_: Any, path: Path) -> Any:
        if type_ is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        try:
            return msgspec.convert(value, type_)
        except msgspec.ValidationError:
            raise self._wrong(value, _words(type_), path) from None

    def _expect(self, value: Any, type_: type, words: str, path: Path) -> Any:
        if isinstance(value, type_):
            return value
        raise self._wrong(value, words, path)

    def _wrong(self, value: Any, words: str, path: Path) -> ConfigError:
        return self._error(f'"{path[-1]}" in {self.place(path[:-1])} must be {words}, not {shown(value)}', path)

    def _error(self, message: str, path: Path) -> ConfigError:
        return ConfigError(f"{message} ({where(self._file, self._lines, path)})")

    def _named_in(self, message: str, table: Mapping[str, Any], path: Path) -> Path:
        """The path of the key that a value error names, so that the message shows its line."""
        words = set(re.findall(r"[a-z_]+", message))
        return next(((*path, key) for key in table if key in words), path)

    def place(self, path: Path) -> str:
        """How a person would name the table: `[profile.ultra]`, `[[worker]] "gpt-5"`."""
        if not path:
            return "the top of the file"
        for i, part in enumerate(path):
            if isinstance(part, int):
                item = typing.cast(Any, self._data)[path[i - 1]][part]
                name = item.get("name") or item.get("preset") if isinstance(item, dict) else None
                label = f'[[{path[i - 1]}]] "{name}"' if isinstance(name, str) else f"[[{path[i - 1]}]] {part + 1}"
                inner = ".".join(str(p) for p in path[i + 1 :])
                return f"{inner} of {label}" if inner else label
        return f"[{'.'.join(str(part) for part in path)}]"


def shown(value: Any) -> str:
    """A value as the file writes it, shortened."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, dict):
        text = "a table"
    else:
        text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


def _parts(name: str) -> tuple[str, ...]:
    return tuple(double or single or bare for double, single, bare in PART.findall(name))


def _resolve(parts: tuple[str, ...], counts: dict[Path, int], *, appends: bool) -> Path:
    """A header's path with the position in each array of tables: [[worker]] the second -> ("worker", 1)."""
    if appends:
        counts[parts] = counts.get(parts, -1) + 1
    path: Path = ()
    for i, part in enumerate(parts, start=1):
        path = (*path, part)
        if parts[:i] in counts:
            path = (*path, counts[parts[:i]])
    return path


def _unwrap(type_: Any) -> Any:
    """`X | None` -> X: TOML has no null, so an absent key is the only None."""
    if isinstance(type_, types.UnionType) or typing.get_origin(type_) is typing.Union:
        kept = [argument for argument in typing.get_args(type_) if argument is not types.NoneType]
        if len(kept) == 1:
            return kept[0]
    return type_


def _plain_keys(type_: Any) -> frozenset[str]:
    """The keys that belong at the top of a file: below the header of a table they would be read as its keys."""
    plain = (str, int, float, types.NoneType)
    return frozenset(f.encode_name for f in msgspec.structs.fields(type_) if isinstance(f.default, plain))


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


def _words(type_: Any) -> str:
    """The values that a type accepts, in words."""
    if typing.get_origin(type_) is typing.Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in typing.get_args(type_))
    if typing.get_origin(type_) is tuple:
        return f"a list, each item {_words(typing.get_args(type_)[0])}"
    plain = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    return plain.get(type_, "a table")
