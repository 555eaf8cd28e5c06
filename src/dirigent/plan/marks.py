"""Marks around results: how one model's words are shown to another as data.

What a model wrote stands between marks that its writer could not have known. The marks of a step are derived from a
secret of the run and from the step's number, so a reply that repeats the marks it saw cannot close those of a later
step. Workers that are programs get the results as data (`Request.results`).
"""

from __future__ import annotations

import hashlib

from dirigent.plan.plan import Step

MAX_RESULT_CHARS = 32_000
"""Longest reply of one step that another may read; the middle of a longer one is left out, and the prompt says so."""


def mark_of(secret: str, purpose: str) -> str:
    """The mark that this secret gives for this purpose: eight hexadecimal digits."""
    return hashlib.blake2b(purpose.encode(), key=secret.encode()[:64], digest_size=4).hexdigest()


def marked_result(step: Step, number: int, reply: str, *, mark: str, most_chars: int = MAX_RESULT_CHARS) -> str:
    """A step's subtask and reply between marks, with any copy of the mark taken out of them."""
    reply = reply.strip()
    if len(reply) > most_chars:
        half = most_chars // 2
        reply = f"{reply[:half]}\n[… {len(reply) - 2 * half} characters left out …]\n{reply[-half:]}"
    text = f"Subtask: {step.subtask}\nResult: {reply}".replace(mark, "·")
    return f"<{mark} step {number}>\n{text}\n</{mark}>\n"
