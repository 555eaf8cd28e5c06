"""Program: a question that asks for a computed value goes to a worker that runs programs, any other to one plain call.

A fixed plan for a pool that nothing was learned about yet. The rule reads the question's words and numbers; it knows
nothing of answers. If the program fails or prints nothing, a second round asks the plain worker. A small model is
wrong about sums, dates and counting far more often than a program that it writes.
"""

from __future__ import annotations

import re

from dirigent.messages import Observe, ignore
from dirigent.plan.plan import Plan, Reason
from dirigent.plan.planner import Brief, Draft
from dirigent.planners.fixed import named, question_text, step

NUMBER = re.compile(
    r"\d[\d,.]*|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|sixty|"
    r"seventy|eighty|ninety|hundred|thousand|million|dozen|half|twice|double)\b",
    re.IGNORECASE,
)
OPERATION = re.compile(r"\d\s*(?:[-+*/^×÷%]|\*\*)\s*\(?\d|\d\s*(?:times|plus|minus|divided by|mod)\s*\d", re.IGNORECASE)
ASKS_AMOUNT = re.compile(
    r"\bhow (?:many|much|long|far|old|fast|often)\b|\bwhen (?:do|does|will)\b|\bcosts?\b|\bleft\b|\bremain|"
    r"\b(?:what|which)\b[^.?!]{0,60}\b(?:sum|product|difference|total|average|mean|median|remainder|area|volume|"
    r"perimeter|probability|chance|interest|number|value|price|percentage|ratio|date|day|time|pace|speed)\b|"
    r"\bsolve\b|\bcalculate\b|\bcompute\b|\bpercent\b|%|\bsplit\b|\bshared? equally\b",
    re.IGNORECASE,
)
CONVERTS = re.compile(r"\bconvert\b.*\d|\bhow many \w+ (?:are|is|make)\b.*\d", re.IGNORECASE)
ASKS_COUNT = re.compile(
    r"\bhow many (?:letters|vowels|consonants|words|times|characters|digits|days|weeks|hours|minutes|seconds)\b|"
    r"\bhow often does (?:the )?(?:letter|word|digit)\b|\bcount the\b|\bbackwards\b|\bsort\b|\balphabetical|"
    r"\breverse[sd]?\b|\bprimes?\b|\bdivisors\b|\bfactorial\b|\bfibonacci\b|\bsquares of\b|\bbinary\b|"
    r"\bhexadecimal\b|\broman numeral\b|\bleap year\b|\bsquare root\b|\bweekday\b|\bday of the week\b",
    re.IGNORECASE,
)
WRITES = re.compile(
    r"^\W*(?:please\s+)?(?:write(?! \d)|explain|describe|tell|translate|summari[sz]e|name|suggest|draft|give me|why|"
    r"who|what does)\b",
    re.IGNORECASE,
)


class Program:
    """One step: the worker that runs programs, or the plain worker."""

    name = "program"

    def __init__(self, worker: str = "") -> None:
        self._worker = worker
        """The plain worker. Default: the pool's first."""

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        plain = named(brief.pool, self._worker)
        if brief.previous is not None:
            answers = [one for one in brief.previous.steps if not brief.pool[one.worker].info.reads_results]
            if not answers or any(one.ran is None or one.ran.printed for one in answers):
                return Draft(plan=Plan())
            return _asking(brief, plain, f"no program of {answers[-1].worker} gave an answer")
        runs = next((info.name for info in brief.pool.infos if info.runs_programs and not info.reads_results), "")
        if runs and asks_for_a_value(question_text(brief)):
            return _asking(brief, runs, "the question asks for a value that a program can compute")
        return _asking(brief, plain, "one plain call: nothing here is to be computed")


def asks_for_a_value(question: str) -> bool:
    """Returns whether a program could compute the value that the question asks for, judged by its words and numbers."""
    if OPERATION.search(question):
        return True
    if WRITES.search(question):
        return False
    if ASKS_COUNT.search(question) or CONVERTS.search(question):
        return True
    return len(NUMBER.findall(question)) >= 2 and bool(ASKS_AMOUNT.search(question))


def _asking(brief: Brief, worker: str, why: str) -> Draft:
    return Draft(plan=Plan((step(brief, worker),)), reason=Reason(why=why, chosen=(worker,)))
