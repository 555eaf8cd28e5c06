"""Read the rows of a table file: JSON lines (gzipped or not), JSON, CSV or Parquet.

Each row is one mapping, in the order of the file. The module does not know what rows mean. JSON lines are read one at a
time, because some sets are larger than memory. Parquet needs pyarrow; nothing else here does, so the module asks for it
only when it reads such a file.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dirigent.errors import ConfigError

ENDINGS = (".jsonl.gz", ".jsonl", ".parquet", ".csv", ".json")
"""Readable endings. If a folder has several files of one name, the first ending in this list wins."""

MOST_CSV_CELL_CHARS = 1 << 24
"""Explanations in published tables are longer than the csv module's own limit."""

Raw = Mapping[str, Any]


def raw_rows(file: Path, *, ending: str = "") -> Iterable[Raw]:
    """Returns the rows of a file; `ending` gives its format if its name does not."""
    match ending or file.suffix:
        case ".parquet":
            return _parquet(file)
        case ".csv":
            csv.field_size_limit(MOST_CSV_CELL_CHARS)
            return csv.DictReader(io.StringIO(_content(file).decode("utf-8-sig", errors="replace"), newline=""))
        case ".json":
            return _json_rows(file)
        case _:
            return (raw for _, raw in decoded(file, dict[str, Any]))


def parquet_is_readable() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def decoded(file: Path, type_: type[Any]) -> Iterator[tuple[int, Any]]:
    """Yields the lines of a file as structs, with their numbers; an error names the line."""
    decoder = msgspec.json.Decoder(type_)
    for number, line in enumerate(_lines(file), start=1):
        if not line.strip():
            continue
        try:
            yield number, decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}, line {number} cannot be read: {error}") from None


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            yield from opened
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None


def _json_rows(file: Path) -> list[Raw]:
    """Returns a list of rows, or the list inside an object: BIG-Bench Hard's files have it under `examples`."""
    try:
        found = json.loads(_content(file))
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from None
    rows = (
        next((value for value in found.values() if isinstance(value, list)), None) if isinstance(found, dict) else found
    )
    if not isinstance(rows, list):
        raise ConfigError(f"{file} holds no list of questions")
    return rows


def _parquet(file: Path) -> list[Raw]:
    try:
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError(f"{file} needs pyarrow to be read: pip install pyarrow, or give JSON lines") from None
    try:
        rows: list[Raw] = pyarrow.parquet.ParquetFile(file).read().to_pylist()
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    return rows


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
