"""The shortcut probe: how much of a plan the words of a question reveal without their order.

A multinomial naive Bayes over bags of words that predicts the sequence of skills. Reports show it beside a conductor:
if the probe does as well, the test asked for word spotting only. Minimal pairs with swapped order defeat it.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from dirigent.errors import ConfigError
from dirigent.tasks.task import Task

Plan = tuple[str, ...]
"""Skills in the order of the cheapest plan's steps."""


class Probe(msgspec.Struct, frozen=True):
    log_prior: dict[Plan, float]
    log_word: dict[Plan, dict[str, float]]
    log_unseen: dict[Plan, float]


def fit_probe(tasks: Sequence[Task]) -> Probe:
    """Count words per skill sequence, with add-one smoothing."""
    if not tasks:
        raise ConfigError("the probe needs at least one task to learn from")
    sizes: Counter[Plan] = Counter()
    words: defaultdict[Plan, Counter[str]] = defaultdict(Counter)
    for task in tasks:
        plan = _plan(task)
        sizes[plan] += 1
        words[plan].update(_bag(task.question))
    vocabulary = len({word for counts in words.values() for word in counts}) + 1
    totals = {plan: counts.total() + vocabulary for plan, counts in words.items()}
    return Probe(
        {plan: math.log(size / len(tasks)) for plan, size in sizes.items()},
        {p: {word: math.log((c + 1) / totals[p]) for word, c in counts.items()} for p, counts in words.items()},
        {plan: -math.log(total) for plan, total in totals.items()},
    )


def predict(probe: Probe, question: str) -> Plan:
    bag = _bag(question)

    def score(plan: Plan) -> float:
        known, unseen = probe.log_word[plan], probe.log_unseen[plan]
        return probe.log_prior[plan] + sum(known.get(word, unseen) for word in bag)

    return max(probe.log_prior, key=score)


def probe_accuracy(train: Sequence[Task], test: Sequence[Task]) -> float:
    """The share of test questions whose whole skill sequence the probe predicts."""
    probe = fit_probe(train)
    return sum(predict(probe, task.question) == _plan(task) for task in test) / len(test)


def _plan(task: Task) -> Plan:
    return task.sketch.skills if task.sketch else ()


def _bag(text: str) -> list[str]:
    return sorted(set(re.findall(r"[a-z%/*]+", text.casefold())))
