"""Cards: what each worker is measured to be good at, its price and its speed.

A table's cards are kept beside it (`cards.json`). Configuration puts a card's line behind what the user wrote about a
worker, so that planners read it, as long as the worker's fingerprint is the one that was measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median

import msgspec

from dirigent.errors import ConfigError
from dirigent.learn.intervals import wilson
from dirigent.learn.table import Answer, Table, TableWorker

FILE = "cards.json"
FORMAT = 1
LEAST = 10
"""Questions of a kind below which its share is not worth a word."""


class Share(msgspec.Struct, frozen=True):
    """How often a worker was right, on the questions of one kind or on all."""

    kind: str
    right: float
    low: float
    """Of Wilson's 95% interval over questions."""
    high: float
    questions: int


class Card(msgspec.Struct, frozen=True):
    worker: str
    fingerprint: str
    about: str
    """One line for planners."""
    right: Share | None
    """On all graded questions; None if no answer could be graded."""
    kinds: tuple[Share, ...] = ()
    """By kind of question, the best first."""
    estimated: bool = False
    """The shares rest on estimates from agreement or of a judge, and on no label."""
    cost: float = 0.0
    """Mean of an answer, in the table's unit."""
    unit: str = "usd"
    seconds: float = 0.0
    """Median of an answer."""
    tokens_per_s: float | None = None

    @property
    def strong(self) -> tuple[Share, ...]:
        """At most three kinds whose whole interval is above the worker's own share."""
        right = self.right.right if self.right is not None else 1.0
        return tuple(share for share in self.kinds if share.low > right)[:3]

    @property
    def weak(self) -> tuple[Share, ...]:
        """At most three kinds whose whole interval is below the worker's own share, the worst first."""
        right = self.right.right if self.right is not None else 0.0
        return tuple(share for share in self.kinds[::-1] if share.high < right)[:3]


class _File(msgspec.Struct, frozen=True):
    format: int
    cards: tuple[Card, ...]


def cards_of(table: Table) -> tuple[Card, ...]:
    """Returns the card of every worker that gave an answer."""
    kinds = {question.id: question.kind for question in table.questions}
    answers: dict[str, list[Answer]] = defaultdict(list)
    for answer in table.answers:
        answers[answer.worker].append(answer)
    return tuple(
        _card(worker, answers[worker.name], kinds, table.unit) for worker in table.workers if answers[worker.name]
    )


def write_cards(folder: Path, cards: Sequence[Card]) -> None:
    file = folder / FILE
    beside = file.with_suffix(".part")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(_File(FORMAT, tuple(cards))), indent=1) + b"\n")
    beside.replace(file)


def read_cards(folder: Path) -> dict[str, Card]:
    """Returns the cards in a folder, by worker; raises ConfigError if there are none that can be read."""
    file = folder / FILE
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_File)
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read ({error.strerror}); `dirigent calibrate --out {folder}` writes it"
        ) from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{file} holds no cards: {error}; calibrate again") from None
    if found.format != FORMAT:
        raise ConfigError(f"{file} has format {found.format}; this version reads {FORMAT}: calibrate again")
    return {card.worker: card for card in found.cards}


def _card(worker: TableWorker, answers: Sequence[Answer], kinds: dict[str, str], unit: str) -> Card:
    labelled = [answer for answer in answers if answer.right is not None and not answer.estimated]
    graded = labelled or [answer for answer in answers if answer.right is not None]
    of_kind: dict[str, list[Answer]] = defaultdict(list)
    for answer in graded:
        of_kind[kinds[answer.question]].append(answer)
    shares = [_share(kind, found) for kind, found in of_kind.items() if kind]
    writing_s = sum(answer.seconds for answer in answers)
    card = Card(
        worker=worker.name,
        fingerprint=worker.fingerprint,
        about="",
        right=_share("", graded) if graded else None,
        kinds=tuple(sorted((share for share in shares if share.questions >= LEAST), key=lambda s: (-s.right, s.kind))),
        estimated=bool(graded) and not labelled,
        cost=fmean(answer.cost for answer in answers),
        unit=unit,
        seconds=median(answer.seconds for answer in answers),
        tokens_per_s=sum(answer.output_tokens for answer in answers) / writing_s if writing_s else None,
    )
    return msgspec.structs.replace(card, about=_line(card))


def _share(kind: str, answers: Iterable[Answer]) -> Share:
    """Returns the share of right answers; the samples of one question count as one."""
    by_question: dict[str, list[float]] = defaultdict(list)
    for answer in answers:
        by_question[answer.question].append(answer.right or 0.0)
    right = [fmean(found) for found in by_question.values()]
    low, high = wilson(sum(right), len(right))
    return Share(kind, fmean(right), low, high, len(right))


def _line(card: Card) -> str:
    """Returns the line for planners: the share of right answers, the best and worst kinds, price and speed."""
    parts = []
    if (right := card.right) is not None:
        word = "estimated" if card.estimated else "measured"
        parts.append(
            f"{word}: {right.right:.0%} right on {right.questions} questions ({right.low:.0%}–{right.high:.0%})"
        )
        parts += [
            f"{word_for} {', '.join(f'{share.kind} ({share.right:.0%})' for share in named)}"
            for word_for, named in (("strong at", card.strong), ("weak at", card.weak))
            if named
        ]
    if card.unit == "usd":
        parts.append(f"${card.cost * 1000:.3g} per 1,000 answers" if card.cost else "free")
    parts.append(f"{card.seconds:.1f} s an answer")
    return "; ".join(parts)
