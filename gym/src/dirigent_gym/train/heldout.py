"""No test text may occur in a training text. Every run checks this when it takes up texts; the tests check it too.

The gym's split keeps the two apart by its rules (`dirigent_gym/questions/split.py`). This is the proof by text, against
every question that is reported on: the test, its second seed, the skill that RL never meets, second rounds, the
handwritten questions and those of reasoning-gym. Lessons are checked when they are drawn and when stored ones are read,
rows of RL when they are drawn. An evaluation has no training texts, so it checks nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import pairwise

from dirigent_gym.evals.test_sets import probe_tasks
from dirigent_gym.questions.split import assert_disjoint, generate

SEED = 1
"""The seed of every set that is reported, except the second rounds."""
TEST: tuple[int, ...] = (1000, 400)
"""The numbers of test questions of `gym/benchmarks/claims.py` and `make results`. The 400 are not among the 1,000."""
PROBES: dict[str, tuple[int, ...]] = {
    "second-seed": (300, 400, 100),
    "novel": (300, 400, 100),
    "handwritten": (1000,),
    "plain": (1000,),
    "reasoning": (1000,),
}
"""The sizes of the other sets, the last size for `gym/benchmarks/must.py`; 1,000 takes all of a smaller set."""
ROUNDS, ROUNDS_SEED = 2400, 10_001
"""The test questions among which `gym/benchmarks/claims.py` finds those that get a second round."""


class HeldOut:
    """Test texts to compare training texts with: hundreds of thousands of them in a second or two.

    If a training text contains a test text, it contains the inner words of the test text, whole and in order. So each
    test text is compared only with texts that have two of its inner words in a row, the pair that fewest other test
    texts have. A test text of three words or fewer is compared with every text.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        pairs = {text: list(pairwise(text.casefold().split()[1:-1])) for text in texts}
        known = Counter(pair for of_text in pairs.values() for pair in set(of_text))
        self._short = [text for text, of_text in pairs.items() if not of_text]
        self._by_pair: dict[tuple[str, str], list[str]] = {}
        for text, of_text in pairs.items():
            if of_text:
                self._by_pair.setdefault(min(of_text, key=known.__getitem__), []).append(text)

    def check(self, training_texts: Iterable[str]) -> None:
        """Raise an error if any of the test texts occurs, whole, in any of these."""
        for text in training_texts:
            found = self._by_pair.keys() & set(pairwise(text.casefold().split()))
            if found or self._short:
                assert_disjoint([text], [*self._short, *(one for pair in found for one in self._by_pair[pair])])


@cache
def held_out() -> HeldOut:
    """The questions that are reported on. They are drawn once a process, which takes a few seconds."""
    tasks = [task for n in TEST for task in generate("test", n, seed=SEED)]
    tasks += generate("test", ROUNDS, seed=ROUNDS_SEED)
    tasks += [task for name, sizes in PROBES.items() for n in sizes for task in probe_tasks(name, limit=n, seed=SEED)]
    return HeldOut(task.question for task in tasks)
