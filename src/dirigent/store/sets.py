"""Sets: a key's own questions, with the right answers that are known."""

from __future__ import annotations

import secrets

import msgspec
from sqlalchemy import Connection, case, delete, func, insert, select

from dirigent.store import Store
from dirigent.store.tables import now, set_questions, utc_text


class SetRow(msgspec.Struct, frozen=True):
    """A set in a list."""

    name: str
    questions: int
    with_answer: int
    """Questions with a known right answer."""


class SetQuestion(msgspec.Struct, frozen=True):
    id: str
    question: str
    answer: str
    """The right answer; empty if it is unknown."""
    run_id: str | None
    created_at: str


async def add_question(
    store: Store, *, key_id: str, name: str, question: str, answer: str, run_id: str | None
) -> SetQuestion:
    """Put a question into a set, which begins with its first question. The same question stands in it once."""
    made = SetQuestion(secrets.token_hex(8), _text(question), _text(answer), run_id, utc_text(now()))
    row = msgspec.structs.asdict(made) | {"key_id": key_id, "set_name": name}

    def work(connection: Connection, row: dict[str, object]) -> None:
        same = (set_questions.c.key_id == key_id, set_questions.c.set_name == name)
        connection.execute(delete(set_questions).where(*same, set_questions.c.question == made.question))
        connection.execute(insert(set_questions), row)

    await store.write(work, prepare=lambda: row)
    return made


async def list_sets(store: Store, *, key_id: str) -> list[SetRow]:
    """The sets of a key, by name."""
    known = func.sum(case((set_questions.c.answer != "", 1), else_=0))
    query = (
        select(set_questions.c.set_name, func.count(), known)
        .where(set_questions.c.key_id == key_id)
        .group_by(set_questions.c.set_name)
        .order_by(set_questions.c.set_name)
    )
    return await store.read(lambda c: [SetRow(name, n, int(k)) for name, n, k in c.execute(query)])


async def questions_of(store: Store, *, key_id: str, name: str) -> list[SetQuestion]:
    """The questions of a set, the oldest first."""
    columns = [set_questions.c[column] for column in SetQuestion.__struct_fields__]
    query = (
        select(*columns)
        .where(set_questions.c.key_id == key_id, set_questions.c.set_name == name)
        .order_by(set_questions.c.created_at, set_questions.c.id)
    )
    return await store.read(lambda connection: [SetQuestion(*row) for row in connection.execute(query)])


async def drop_question(store: Store, *, key_id: str, name: str, id: str) -> bool:
    """Take a question out of a set. Returns False if it is not in it."""

    def work(connection: Connection, id: str) -> int:
        this = (set_questions.c.key_id == key_id, set_questions.c.set_name == name, set_questions.c.id == id)
        return connection.execute(delete(set_questions).where(*this)).rowcount

    return bool(await store.write(work, prepare=lambda: id))


def _text(text: str) -> str:
    return text.replace("\0", "\ufffd")
