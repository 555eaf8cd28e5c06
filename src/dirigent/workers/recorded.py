"""Recorded: a model that answers from a file of its earlier answers.

With recorded answers, a pool of expensive models can be evaluated offline and often at no cost. A file has one JSON
object a line (gzipped or not): `question`, and `outputs` with one entry for each model: its `text`, and, if known,
`input_tokens`, `output_tokens` (or an estimate, `est_tokens`) and `cost_usd`. Other fields are ignored.

The match of questions is exact: the user's last turn is a recorded question, or contains one (a step's prompt adds text
around it). If it contains several, the longest counts. A question that is not recorded is an error, never a guess.
"""

from __future__ import annotations

import difflib
import functools
import gzip
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Observe, Reply, Request, Usage, estimate_tokens, ignore
from dirigent.workers.scripted import stream_words
from dirigent.workers.worker import Price, WorkerInfo


class Output(msgspec.Struct, frozen=True):
    """The answer of one model."""

    text: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    est_tokens: int | None = None
    cost_usd: float = 0.0


class Row(msgspec.Struct, frozen=True):
    question: str
    outputs: dict[str, Output]


class Recorded:
    """A worker that replays one model of a file, or of rows given directly.

    Without a `price`, its calls cost the sums that the file states. Further keywords set other fields of the worker's
    card (`skills`, `region`, ...).
    """

    def __init__(
        self,
        source: Path | str | Iterable[Mapping[str, Any]],
        *,
        model: str,
        name: str = "",
        about: str = "",
        price: Price | None = None,
        **card: Any,
    ) -> None:
        self._book = _book(source)
        if model not in self._book.models:
            near = difflib.get_close_matches(model, self._book.models, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(self._book.models) or 'none'}"
            raise ConfigError(f"{self._book.source} has no answers of {model!r}; {hint}")
        fields = {"kind": "recorded", **card}
        self._info = WorkerInfo(name=name or model, about=about, model=model, price=price, **fields)

    @property
    def info(self) -> WorkerInfo:
        return self._info

    def __repr__(self) -> str:
        return f"Recorded({self._book.source}, model={self.info.model!r})"

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        self._refuse_unrecorded_settings(request)
        asked = _last_turn(request)
        question = self._book.find(asked)
        output = self._book.rows[question].get(self.info.model) if question is not None else None
        if output is None:
            raise WorkerError(
                f"{self._book.source} has no answer of {self.info.model} to {_start(question or asked)}",
                worker=self.info.name,
                fault="unanswerable",
            )
        reply = _reply(output, request, priced=self.info.price is not None)
        await stream_words(reply.text, observe)
        return msgspec.structs.replace(reply, model=self.info.model)

    def _refuse_unrecorded_settings(self, request: Request) -> None:
        wanted = {
            "tools": request.tools,
            "schema": request.schema,
            "json_mode": request.json_mode,
            "grammar": request.grammar,
        }
        for field, value in wanted.items():
            if value:
                raise WorkerError(
                    f"{self.info.name} replays recorded answers and cannot honour {field}; leave it out",
                    worker=self.info.name,
                    fault="request",
                )


ANCHOR_CHARS = 16
"""The index of questions uses this many first characters. Shorter questions are searched one by one."""


class _Book:
    """The rows of one source, and an index that finds a question within a longer text."""

    def __init__(self, rows: Iterable[Row], *, source: str) -> None:
        self.source = source
        self.rows: dict[str, dict[str, Output]] = {}
        """By question, without outer whitespace. The first of two rows with the same question counts."""
        self._by_anchor: dict[str, list[str]] = {}
        self._short: list[str] = []
        models: dict[str, None] = {}
        for row in rows:
            models.update(dict.fromkeys(row.outputs))
            question = row.question.strip()
            if question and question not in self.rows:
                self.rows[question] = row.outputs
                self._index(question)
        self.models = tuple(models)

    def _index(self, question: str) -> None:
        if len(question) < ANCHOR_CHARS:
            self._short.append(question)
        else:
            self._by_anchor.setdefault(question[:ANCHOR_CHARS], []).append(question)

    def find(self, text: str) -> str | None:
        """Return the recorded question that equals the text, or the longest that it contains as whole words."""
        if (whole := text.strip()) in self.rows:
            return whole
        found = {question for question in self._short if question in text}
        for start in range(len(text) - ANCHOR_CHARS + 1):
            for question in self._by_anchor.get(text[start : start + ANCHOR_CHARS], ()):
                if text.startswith(question, start):
                    found.add(question)
        return max((question for question in found if _stands_alone(question, text)), key=len, default=None)


def _stands_alone(question: str, text: str) -> bool:
    """Return whether the question occurs as whole words: "12 + 21" does not ask "2 + 2"."""
    at = text.find(question)
    while at >= 0:
        end = at + len(question)
        cut_before = at > 0 and text[at - 1].isalnum() and question[0].isalnum()
        cut_after = end < len(text) and text[end].isalnum() and question[-1].isalnum()
        if not cut_before and not cut_after:
            return True
        at = text.find(question, at + 1)
    return False


def _book(source: Path | str | Iterable[Mapping[str, Any]]) -> _Book:
    if not isinstance(source, str | Path):
        return _Book(msgspec.convert(list(source), list[Row]), source="the given rows")
    path = Path(source).expanduser()
    try:
        stat = path.stat()
    except OSError as error:
        raise ConfigError(f"recorded answers cannot be read from {path}: {error.strerror}") from error
    return _load(path.resolve(), stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=32)
def _load(path: Path, modified_ns: int, size: int) -> _Book:
    """Read a file once for all workers that replay it, and again after it has changed."""
    try:
        data = path.read_bytes()
        lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"recorded answers cannot be read from {path}: {error}") from error
    decoder = msgspec.json.Decoder(Row)
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}, line {number} is not a recorded row: {error}") from error
    return _Book(rows, source=path.name)


def _last_turn(request: Request) -> str:
    """Return the user's messages since the last answer, as one text."""
    texts: list[str] = []
    for message in reversed(request.messages):
        if message.role == "assistant":
            break
        if message.role == "user":
            texts.append(message.text)
    return "\n".join(reversed(texts))


def _reply(output: Output, request: Request, *, priced: bool) -> Reply:
    """Return the recorded answer, cut if it is longer than the request allows."""
    written = next(
        count for count in (output.output_tokens, output.est_tokens, estimate_tokens(output.text)) if count is not None
    )
    read = output.input_tokens
    if read is None:
        read = sum(estimate_tokens(message.text) for message in request.messages)
    cost_usd = 0.0 if priced else output.cost_usd
    allowed = request.max_output_tokens
    if allowed is None or written <= allowed:
        return Reply(output.text, usage=Usage(read, written), cost_usd=cost_usd)
    text = output.text[: len(output.text) * allowed // written]
    return Reply(text, finish="length", usage=Usage(read, allowed), cost_usd=cost_usd)


def _start(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:79]}…")
