"""Confirmation: what speaks for an answer, in one line. Without a measure or a second opinion it is unchecked."""

from __future__ import annotations

from dirigent.run.trace import Trace


def confirmation(trace: Trace) -> str:
    """Returns what confirms the answer of a run that is done; agreement is never called a proof."""
    reply = trace.steps[-1].reply if trace.steps else None
    if reply is not None and reply.confidence is not None:
        return f"{reply.confidence:.0%} sure, by how often these workers were right before"
    if reply is not None and reply.chosen is not None and reply.chosen.votes > 1:
        return f"unchecked: {reply.chosen.votes} of {reply.chosen.of} results agree, which is no proof"
    if reply is not None and reply.ran is not None and reply.ran.printed:
        return "unchecked: a program printed it, and nothing confirmed that the program asks the same question"
    return "unchecked: nothing confirmed this answer"


def is_unmeasured(trace: Trace) -> bool:
    """Returns whether only workers on this machine took part, whose answers need the word."""
    names = {step.worker for step in trace.steps}
    return all(info.kind == "local" or info.reads_results for info in trace.pool if info.name in names)
