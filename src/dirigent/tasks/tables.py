"""Rows of a file, whatever table it is: JSON lines (gzipped or not), JSON, CSV or Parquet.

Rows come as they stand, one mapping each, in the order of the file. Knows nothing of what they mean. JSON lines are
read one at a time, as some sets are larger than memory. Parquet needs pyarrow, which nothing else here does, so it is
asked for only where such a file is read.
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
"""What can be read; where a folder has several of a name, the first."""

MOST_CSV_CELL_CHARS = 1 << 24
"""Explanations in published tables are longer than the csv module takes by itself."""

Raw = Mapping[str, Any]


def raw_rows(file: Path, *, ending: str = "") -> Iterable[Raw]:
    """The rows of a file; `ending` tells what it is where its name does not."""
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
    """The lines of a file as structs, with their numbers; an error names the line."""
    decoder = msgspec.json.Decoder(type_)
    for number, line in enumerate(_lines(file), start=1):
        if not line.strip():
            continue
        try:
            yield number, decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}, line {number} is not a question: {error}") from None


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            yield from opened
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"questions cannot be read from {file}: {error}") from None


def _json_rows(file: Path) -> list[Raw]:
    """A list of rows, or an object that holds one, as BIG-Bench Hard's files do under `examples`."""
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
        raise ConfigError(f"questions cannot be read from {file}: {error}") from None
    return rows


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"questions cannot be read from {file}: {error}") from None
