"""The claims about a trained conductor, a line each: the figure, its 95% interval, its bound, and the verdict.

`claims` is arithmetic over measurements (`Evidence`) and runs no model. A missing measurement has a line that says so:
a table that leaves out its gaps is no evidence. Ratios get their interval from a bootstrap over questions, paired if
both sides answered the same ones; plain shares get Wilson's interval.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.stats import P_BELOW, paired_difference, percentile, wilson
from dirigent_gym.evals.test_sets import IN_OTHER_WORDS, placed
from dirigent_gym.questions.compare import compare
from dirigent_gym.train.controls import Followed, PlanShares, Share, pairs_right, share, unevenness, valid_share
from dirigent_gym.train.dataset import Row
from dirigent_gym.train.reward import Scored

RESAMPLES = 1000

OTHER_SETS = {
    "second-seed": "a second seed of the generator",
    "handwritten": "questions written by hand, in other words",
    "reasoning": "questions of reasoning-gym, as recorded",
}
"""Name of a set of `dirigent_gym/evals/test_sets.py` that is reported beside the test -> the name of its line."""
PLACED = {
    "handwritten": "questions written by hand: the right workers, each reading what it needs",
    "reasoning": "questions of reasoning-gym: the right workers, each reading what it needs",
}
"""The lines that judge the plans alone, for sets in words that the generator does not use. The workers' answers to such
words do not count there."""
KNOW_NO_OTHERS = "workers that answer by table know only the generator's words"
"""The note of a set that these workers cannot answer."""
START_SAMPLED = "warm start, sampled: valid plans"

Scores = Mapping[str, float]
"""Task id -> how right the answer is, between 0 and 1."""


class Run(msgspec.Struct, frozen=True):
    """One scored rollout for each row."""

    rows: tuple[Row, ...]
    scored: tuple[Scored, ...]

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.scored):
            raise ConfigError(f"a run needs one rollout a row: {len(self.rows)} rows, {len(self.scored)} rollouts")


def scores(run: Run) -> dict[str, float]:
    """How right a run's answer to each task is, without dropped rollouts."""
    return {row.task.id: x for row, x in _scores(run)}


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of one trained conductor. A field that is None was not measured."""

    test: Run
    ceiling: Scores
    """The ceiling of the same questions: the mean over the noise seeds."""
    oracle: Scores | None = None
    reworded: Run | None = None
    aliased: Run | None = None
    novel: Run | None = None
    swapped: Followed | None = None
    warm_start: Run | None = None
    """The warm start itself on the same questions."""
    warm_start_sampled: Run | None = None
    """Several sampled plans of the warm start for some of these questions, with a row for each plan."""
    rounds: tuple[Scores, Scores] | None = None
    """The scores after one round and after two, on kinds whose answers can be checked."""
    local: Scores | None = None
    """The shipped files in llama.cpp on the 4-bit base, on questions of the test."""
    plan_s: tuple[float, float] | None = None
    """The median seconds of a plan on two CPU cores: with the cards cached, and cold."""
    direct: Scores | None = None
    right_plans: Scores | None = None
    rejection: Scores | None = None
    online_rejection: Scores | None = None
    format_only: Scores | None = None
    shuffled: Scores | None = None
    vote: Scores | None = None
    vote_cost_ratio: float | None = None
    """The cost of that vote divided by the conductor's cost on the same questions."""
    before: Mapping[str, PlanShares] = {}
    """The decoding -> its shares: `greedy`, `sampled`, `pass@16`."""
    after: Mapping[str, PlanShares] = {}
    others: Mapping[str, Run] = {}
    """Further sets of questions, by their names in `OTHER_SETS`."""
    by_table: bool = False
    """Whether the workers answered by table."""


def claims(evidence: Evidence, *, seed: int = 0) -> list[Claim]:
    """Every line, in the order of the table."""
    return [
        *_accuracy_claims(evidence, seed),
        *_transfer_claims(evidence, seed),
        *_plan_claims(evidence.test, seed),
        *_shipping_claims(evidence, seed),
        *_warm_start_claims(evidence),
        *_control_claims(evidence, seed),
        *_before_and_after(evidence),
    ]


# ---- the lines ----------------------------------------------------------------------------------------------


Pick = Callable[[Row], bool]


def _accuracy_claims(evidence: Evidence, seed: int) -> list[Claim]:
    run, ceiling = evidence.test, evidence.ceiling

    def over_ceiling(name: str, pick: Pick, must: float | None, goal: float | None) -> Claim:
        pairs = [(x, ceiling[row.task.id]) for row, x in _scores(run) if pick(row) and row.task.id in ceiling]
        return _ratio(Claim(name, must=must, goal=goal), pairs, seed)

    lines = [over_ceiling("share of the ceiling", lambda row: True, 0.90, 0.97)]
    for depth, must, goal in ((1, 0.98, 0.99), (2, 0.92, 0.98), (3, 0.80, 0.95)):
        lines.append(
            over_ceiling(f"depth {depth}, share of its ceiling", lambda row, d=depth: row.task.depth == d, must, goal)  # type: ignore[misc]
        )
    oracle = evidence.oracle or {}
    deep = [(x, oracle[row.task.id]) for row, x in _scores(run) if row.task.depth >= 2 and row.task.id in oracle]
    lines.append(_ratio(Claim("depth 2 and more, over the oracle choice of one worker", "times", must=4.0), deep, seed))
    lines.append(
        over_ceiling("depth 4, never trained, share of its ceiling", lambda row: row.task.depth == 4, None, 0.5)
    )
    return lines


def _transfer_claims(evidence: Evidence, seed: int) -> list[Claim]:
    """Combinations are compared over chains only: chains are drawn half held out and half seen, fans are not."""
    chains = [(row, x) for row, x in _scores(evidence.test) if row.task.tags.get("shape") == "chain"]

    def over_seen(name: str, depths: tuple[int, ...], must: float | None, goal: float | None) -> Claim:
        by = {
            tag: [x for row, x in chains if row.task.depth in depths and row.task.tags.get("combination") == tag]
            for tag in ("held_out", "seen")
        }
        return _ratio_apart(Claim(name, must=must, goal=goal), by["held_out"], by["seen"], seed)

    pairs = pairs_right(evidence.test.rows, evidence.test.scored)
    novel = share(x for _, x in _scores(evidence.novel)) if evidence.novel else None
    return [
        over_seen("held-out combinations of skills, over seen ones", (2, 3), 0.80, 0.95),
        over_seen("held-out pairs, over seen ones", (2,), None, None),
        over_seen("held-out triples, over seen ones", (3,), None, None),
        _ratio(Claim("reworded cards, over seen ones", must=0.90), _beside_test(evidence.reworded, evidence), seed),
        _ratio(Claim("names that say nothing, over the workers' own"), _beside_test(evidence.aliased, evidence), seed),
        _with_share(Claim("a skill and a worker never seen in RL", goal=0.40), novel),
        _with_share(Claim("minimal pairs: order swapped, both right"), pairs.get("swap")),
        _with_share(Claim("minimal pairs: a decoy added, both right"), pairs.get("decoy")),
        *_other_claims(evidence),
    ]


def _other_claims(evidence: Evidence) -> list[Claim]:
    lines = []
    for name, said in OTHER_SETS.items():
        run = evidence.others.get(name)
        note = KNOW_NO_OTHERS if evidence.by_table and name in IN_OTHER_WORDS else ""
        lines.append(_with_share(Claim(said, note=note), share(x for _, x in _scores(run)) if run else None))
        if name in PLACED:
            lines.append(_with_share(Claim(PLACED[name]), _placed(run) if run else None))
    return lines


def _placed(run: Run) -> Share | None:
    kept = [(row, one) for row, one in zip(run.rows, run.scored, strict=True) if not one.dropped]
    return share(one.plan is not None and placed(row.task, one.plan).access for row, one in kept)


def _beside_test(run: Run | None, evidence: Evidence) -> list[tuple[float, float]]:
    """Scores on changed rows, each paired with the score of the unchanged row."""
    if run is None:
        return []
    plain = scores(evidence.test)
    return [(x, plain[row.task.id]) for row, x in _scores(run) if row.task.id in plain]


def _plan_claims(run: Run, seed: int) -> list[Claim]:
    kept = [(row, one) for row, one in zip(run.rows, run.scored, strict=True) if not one.dropped]
    right = [(row, one.plan) for row, one in kept if one.correct and one.plan is not None and row.task.sketch]
    # A plan shorter than the sketch counts as minimal, so that a lucky shortcut does not offset the padding of others.
    steps = [
        (float(max(len(plan.steps), _minimal(row))), float(_minimal(row))) for row, plan in right if plan is not None
    ]
    single = [one.plan is not None and len(one.plan.steps) == 1 for row, one in kept if _minimal(row) == 1]
    fans = [compare(row.task, plan).parallel for row, plan in right if row.task.tags.get("shape") == "fan"]
    return [
        _ratio(Claim("steps over minimal, correct answers", "times", must=1.10, goal=1.02, at_most=True), steps, seed),
        _with_share(Claim("one-step kinds answered in one step", must=0.95), share(single)),
        _with_share(Claim("fan-out questions planned in parallel, correct answers", must=0.80), share(fans)),
    ]


def _shipping_claims(evidence: Evidence, seed: int) -> list[Claim]:
    first, second = evidence.rounds or ({}, {})
    broken = share(second[task] < 1 for task, x in first.items() if x == 1 and task in second)
    return [
        _with_share(Claim("two rounds: right turned wrong", must=0.01, at_most=True), broken),
        _difference(Claim("two rounds, over one", "points", must=0.0), second, first, seed),
        *file_claims(scores(evidence.test), evidence.local, evidence.plan_s, seed=seed),
    ]


def file_claims(
    torch: Scores, local: Scores | None, plan_s: tuple[float, float] | None, *, seed: int = 0
) -> list[Claim]:
    """The claims about the shipped files in llama.cpp, which need a CPU; the other claims need a GPU."""
    cached, cold = plan_s or (None, None)
    over_torch = Claim("shipped files on CPU, 4-bit base, over torch", "points", must=0.02, within=True)
    return [
        _difference(over_torch, local, torch, seed),
        Claim("plan on 2 CPU cores, cards cached, median", "seconds", cached, must=1.0, at_most=True),
        Claim("plan on 2 CPU cores, cold, median", "seconds", cold, must=3.0, at_most=True),
    ]


def _warm_start_claims(evidence: Evidence) -> list[Claim]:
    """Validity under both decodings, because RL begins with sampled plans."""
    run, sampled = evidence.warm_start, evidence.warm_start_sampled
    return [
        _with_share(
            Claim("warm start, greedy: valid plans", must=0.98), valid_share(run.rows, run.scored) if run else None
        ),
        _with_share(Claim(START_SAMPLED, must=0.98), valid_share(sampled.rows, sampled.scored) if sampled else None),
        Claim(
            "warm start, sampled: worker farthest from an even choice",
            "points",
            unevenness(sampled.rows, sampled.scored) if sampled else None,
            must=0.02,
            at_most=True,
        ),
    ]


def _control_claims(evidence: Evidence, seed: int) -> list[Claim]:
    ours = scores(evidence.test)
    start = scores(evidence.warm_start) if evidence.warm_start else None
    swapped = evidence.swapped

    def gain(claim: Claim, scores: Scores | None, base: Scores | None) -> Claim:
        return _difference(claim, scores, base, seed)

    return [
        gain(Claim("(a) conductor over one adapter, question to answer", "points"), ours, evidence.direct),
        gain(Claim("(b) conductor over SFT on the right plans", "points"), ours, evidence.right_plans),
        gain(
            Claim(
                "(c) RL over rejection sampling, equal rollouts: interval above 0, p < 0.05",
                "points",
                must=0.0,
                certain=True,
            ),
            ours,
            evidence.rejection,
        ),
        gain(Claim("(c) RL over online rejection sampling, equal rollouts", "points"), ours, evidence.online_rejection),
        gain(Claim("(d) format-only reward, gain", "points", must=0.03, at_most=True), evidence.format_only, start),
        gain(Claim("(d) shuffled reward, gain", "points", must=0.03, at_most=True), evidence.shuffled, start),
        _with_share(
            Claim("(e) two cards swapped: routing follows the card", must=0.80), swapped.card if swapped else None
        ),
        _with_share(Claim("(e) and follows the name instead"), swapped.name if swapped else None),
        gain(Claim("(f) conductor over an equal-cost vote of the best worker", "points"), ours, evidence.vote),
        Claim(
            "(f) cost of that vote, over the conductor's", "times", evidence.vote_cost_ratio, n=len(evidence.vote or ())
        ),
    ]


def _before_and_after(evidence: Evidence) -> list[Claim]:
    lines = []
    for way in ("greedy", "sampled", "pass@16"):
        for when, by_way in (("before RL", evidence.before), ("after RL", evidence.after)):
            for field in ("decomposition", "routing", "access", "answer"):
                found: Share | None = getattr(by_way[way], field) if way in by_way else None
                lines.append(_with_share(Claim(f"{when}, {way}: right {field}"), found))
    return lines


# ---- the arithmetic -----------------------------------------------------------------------------------------


def _scores(run: Run) -> list[tuple[Row, float]]:
    return [(row, float(one.correct)) for row, one in zip(run.rows, run.scored, strict=True) if not one.dropped]


def _minimal(row: Row) -> int:
    return len(row.task.sketch.steps) if row.task.sketch else 0


def _with_share(claim: Claim, found: Share | None) -> Claim:
    if found is None:
        return claim
    return msgspec.structs.replace(claim, value=found.value, interval=found.interval, n=found.n)


def _ratio(claim: Claim, pairs: Sequence[tuple[float, float]], seed: int) -> Claim:
    """The ratio of two sums, resampled by question."""
    rng = random.Random(f"ratio {claim.name} {seed}")
    return _bootstrapped(
        claim, lambda: _ratio_of_sums(rng.choices(pairs, k=len(pairs))), _ratio_of_sums(pairs), len(pairs)
    )


def _ratio_apart(claim: Claim, above: Sequence[float], below: Sequence[float], seed: int) -> Claim:
    """The ratio of two means over different questions, each side resampled on its own."""
    if not above or not below:
        return claim
    rng = random.Random(f"ratio {claim.name} {seed}")

    def over(first: Sequence[float], second: Sequence[float]) -> float | None:
        return (sum(first) / len(first)) / (sum(second) / len(second)) if sum(second) else None

    def again() -> float | None:
        return over(rng.choices(above, k=len(above)), rng.choices(below, k=len(below)))

    return _bootstrapped(claim, again, over(above, below), len(above) + len(below))


def _bootstrapped(claim: Claim, again: Callable[[], float | None], value: float | None, n: int) -> Claim:
    if not n or value is None:
        return claim
    found = [x for x in (again() for _ in range(RESAMPLES)) if x is not None]
    interval = percentile(found, 0.025), percentile(found, 0.975)
    return msgspec.structs.replace(claim, value=value, interval=interval, n=n)


def _ratio_of_sums(pairs: Sequence[tuple[float, float]]) -> float | None:
    below = math.fsum(b for _, b in pairs)
    return math.fsum(a for a, _ in pairs) / below if below else None


def _difference(claim: Claim, first: Scores | None, second: Scores | None, seed: int) -> Claim:
    """The paired difference over the questions that both sides answered."""
    both = sorted((first or {}).keys() & (second or {}).keys())
    if first is None or second is None or not both:
        return claim
    found = paired_difference([first[task] for task in both], [second[task] for task in both], seed=seed)
    return msgspec.structs.replace(claim, value=found.mean, interval=found.interval, n=found.n, p=found.p)


# ---- a line, and the table of them

Unit = Literal["share", "times", "points", "seconds"]
Verdict = Literal["goal", "goal, not certain", "met", "met, not certain", "MISSED", "reported", "not measured"]


class Claim(msgspec.Struct, frozen=True):
    """One line of the table."""

    name: str
    unit: Unit = "share"
    value: float | None = None
    interval: tuple[float, float] | None = None
    n: int = 0
    """The number of questions it was measured on."""
    must: float | None = None
    goal: float | None = None
    at_most: bool = False
    """Whether must and goal are upper bounds."""
    within: bool = False
    """Whether must and goal bound the distance from 0 in both directions."""
    certain: bool = False
    """Whether the interval, and not the figure alone, must lie beyond the bound, and p be below 0.05."""
    spread: tuple[float, float] | None = None
    """The least and the largest value over training seeds."""
    seeds: int = 1
    """The number of training seeds that the figure is the mean of."""
    p: float | None = None
    """The p of a paired difference, computed as in reports; over several training seeds, the largest."""
    note: str = ""
    """A caveat of the figure: its origin, or its shortcoming."""

    @property
    def verdict(self) -> Verdict:
        if self.value is None:
            return "not measured"
        if self.goal is not None and self._reaches(self.value, self.goal):
            return "goal" if self._surely(self.goal) else "goal, not certain"
        if self.must is None:
            return "reported"
        if not self._reaches(self.value, self.must):
            return "MISSED"
        return "met" if self._surely(self.must) else "met, not certain"

    def _surely(self, bound: float) -> bool:
        """Whether the whole interval reaches the bound, and not the figure alone."""
        return self.interval is None or all(self._within_reach(end, bound) for end in self.interval)

    @property
    def _significant(self) -> bool:
        """Whether p is below the bound of reports. The interval alone would claim too much if few questions differ."""
        return self.p is not None and self.p < P_BELOW

    def _reaches(self, value: float, bound: float) -> bool:
        if self.certain:
            return self.interval is not None and self.interval[0] > bound and self._significant
        if self.within and self.spread is not None:
            return all(self._within_reach(one, bound) for one in self.spread)
        return self._within_reach(value, bound)

    def _within_reach(self, value: float, bound: float) -> bool:
        slack = 1e-9  # sums of fifths are not exact
        if self.within:
            return abs(value) <= bound + slack
        return value <= bound + slack if self.at_most else value >= bound - slack


def join_seeds(tables: Sequence[Sequence[Claim]]) -> list[Claim]:
    """One table of several training seeds: the mean with its spread; the interval covers the intervals of all seeds.

    If a share is 0 in every seed, its interval is computed over all seeds' answers together. The seeds answer the same
    questions, so that interval treats answers as independent that are not quite independent.
    """
    names = [[claim.name for claim in table] for table in tables]
    if not tables or any(other != names[0] for other in names):
        raise ConfigError("tables of several seeds need the same lines in the same order")
    return [_join_lines(lines) for lines in zip(*tables, strict=True)]


def as_table(table: Sequence[Claim]) -> str:
    """The claims as a Markdown table. A claim with fewer training seeds than others names their number."""
    most = max((claim.seeds for claim in table), default=1)
    lines = ["| | figure | 95% | n | must | goal | |", "|---|---|---|---|---|---|---|"]
    for claim in table:
        figure = "–" if claim.value is None else _format_figure(claim, claim.value)
        if claim.spread is not None and claim.value is not None:
            figure += f" ({_format_value(claim.spread[0], claim.unit)} to {_format_value(claim.spread[1], claim.unit)})"
        if claim.value is not None and claim.seeds < most:
            figure += f" ({claim.seeds} seed{'s' if claim.seeds > 1 else ''})"
        interval = "–" if claim.interval is None else " to ".join(_format_value(x, claim.unit) for x in claim.interval)
        if claim.certain and claim.p is not None:
            interval += f", p {claim.p:.2g}"
        bounds = [_format_bound(claim, bound) for bound in (claim.must, claim.goal)]
        n = f"{claim.n:,}" if claim.n else "–"
        name = f"{claim.name} ({claim.note})" if claim.note else claim.name
        lines.append(f"| {name} | {figure} | {interval} | {n} | {bounds[0]} | {bounds[1]} | {claim.verdict} |")
    return "\n".join(lines) + "\n"


def _format_figure(claim: Claim, value: float) -> str:
    """A figure in the usual form; a miss that would look like its bound gets one more digit."""
    said = _format_value(value, claim.unit)
    close = claim.verdict == "MISSED" and claim.must is not None and said == _format_value(claim.must, claim.unit)
    return f"{value * 100:.2f}%" if close and claim.unit == "share" else said


def missed(table: Iterable[Claim]) -> list[str]:
    """The names of the claims that miss their bound."""
    return [claim.name for claim in table if claim.verdict == "MISSED"]


def _join_lines(lines: Sequence[Claim]) -> Claim:
    measured = [line for line in lines if line.value is not None]
    values = [line.value for line in measured if line.value is not None]
    if not values:
        return lines[0]
    intervals = [line.interval for line in measured if line.interval is not None]
    known = [line.p for line in measured if line.p is not None]
    whole = (min(low for low, _ in intervals), max(high for _, high in intervals)) if intervals else None
    n, notes = min(line.n for line in measured), _notes(lines)
    if len(values) > 1 and measured[0].unit == "share" and intervals and not any(values):
        n = sum(line.n for line in measured)
        whole = wilson(0, n)
        notes.append("none in any seed; n is all seeds' answers")
    return msgspec.structs.replace(
        measured[0],
        value=math.fsum(values) / len(values),
        interval=whole,
        n=n,
        spread=(min(values), max(values)) if len(values) > 1 else None,
        seeds=len(values),
        p=max(known) if len(known) == len(values) else None,
        note="; ".join(notes),
    )


def _notes(lines: Sequence[Claim]) -> list[str]:
    """The notes of the measured lines; a note that not all of them share names its training seeds."""
    measured = {seed: line.note for seed, line in enumerate(lines, 1) if line.value is not None}
    found = []
    for note in dict.fromkeys(note for note in measured.values() if note):
        seeds = [str(seed) for seed, other in measured.items() if other == note]
        found.append(note if len(seeds) == len(measured) else f"seed {' and '.join(seeds)}: {note}")
    return found


def _format_value(value: float, unit: Unit) -> str:
    match unit:
        case "share":
            return f"{value * 100:.1f}%"
        case "times":
            return f"{value:.2f}x"
        case "points":
            return f"{value * 100:+.1f}"
        case "seconds":
            return f"{value:.2f} s"


def _format_bound(claim: Claim, bound: float | None) -> str:
    if bound is None:
        return ""
    sign = "within" if claim.within else ">" if claim.certain else "≤" if claim.at_most else "≥"
    return f"{sign} {_format_value(bound, claim.unit)}"
