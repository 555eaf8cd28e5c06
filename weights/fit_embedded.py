"""Fit the policy of the embedded pool, and write its card with the figures of its test questions.

    python weights/fit_embedded.py --data FOLDER --work FOLDER

The recorded replies of `roles_qwen15b` stand for the embedded workers: direct is `quick`, think is `thinker`, code is
`programmer`. The policy is fitted on the questions that the data's README leaves to learn from, without MBPP, whose
programs answer another kind of question. It is asked the test questions once, and nothing is chosen by them. The policy
is bound to the fingerprints of the embedded pool's workers as this version configures them.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
from importlib import resources
from pathlib import Path

import msgspec
import numpy as np

from dirigent.config.file import parse_config
from dirigent.config.runtime import open_runtime
from dirigent.evals.prove import Proof, prove
from dirigent.learn.policy import FILES, Policy, novelty
from dirigent.learn.policy_fit import PolicySettings, fit_policy
from dirigent.learn.selector import Selector, hashed_words
from dirigent.learn.table import Question, Table
from dirigent.learn.table_import import import_files

FOLDER = Path(__file__).parent / "src" / "dirigent_weights" / "policies" / "embedded"
EVERYDAY = Path(__file__).parents[1] / "benchmarks" / "everyday_questions.jsonl"
NAMES = {"direct": "quick", "think": "thinker", "code": "programmer"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with roles_qwen15b and its questions")
    parser.add_argument("--work", type=Path, required=True, help="folder that keeps gradings and the tables")
    parser.add_argument("--keep", action="store_true", help="keep the fitted policy; limit it and write its card anew")
    options = parser.parse_args()
    fingerprints = asyncio.run(embedded_fingerprints())
    table = pool_table(options.data, options.work, fingerprints)
    learn, test = (_part(table, test=wanted) for wanted in (False, True))
    test.save(options.work / "embedded-test")
    if options.keep:
        policy, selector = Policy.load(FOLDER), Selector.load(FOLDER)
    else:
        fitted = fit_policy(learn, where="the training questions", settings=PolicySettings(folds=3), say=print)
        assert fitted.selector is not None
        policy, selector = fitted.policy, fitted.selector
    policy = limited(policy, [json.loads(line)["question"] for line in EVERYDAY.read_text().splitlines()])
    for name in FILES:
        (FOLDER / name).unlink(missing_ok=True)
    policy.save(FOLDER, selector)
    known = sum(not policy.novel(hashed_words(question.text)) for question in test.questions) / len(test.questions)
    proof = prove(FOLDER, test, where="the test questions")
    (FOLDER / "README.md").write_text(card(policy, proof, known=known), encoding="utf-8")


def limited(policy: Policy, everyday: list[str]) -> Policy:
    """The policy that calls every everyday question of these novel, and so all that are as far from its clusters.

    It was fitted on questions of tests. Short everyday questions with a number in them look much like those, and its
    workers do worse on them than the pool's calculator and its plain model.
    """
    hashed = np.stack([hashed_words(question) for question in everyday]).astype(np.float32)
    nearest = float(novelty(hashed, policy.familiar, policy.centres)[:, 1].min())
    outside, angle = policy.novel_above
    return msgspec.structs.replace(policy, novel_above=(outside, min(angle, round(nearest - 0.005, 4))))


async def embedded_fingerprints() -> dict[str, str]:
    """The fingerprints of the embedded pool's workers, by name."""
    text = resources.files("dirigent.config").joinpath("embedded.toml").read_text(encoding="utf-8")
    async with open_runtime(parse_config(text)) as runtime:
        return {info.name: info.fingerprint for info in runtime.pool.infos}


def pool_table(data: Path, work: Path, fingerprints: dict[str, str]) -> Table:
    """The recorded replies as answers of the embedded workers."""
    files = [*sorted(data.glob("questions_*")), *sorted(data.glob("recorded_*crux*"))]
    roles = asyncio.run(
        import_files([data / "roles_qwen15b.jsonl.gz"], questions=files, cache=work / "gradings.json", say=print)
    )
    workers = tuple(
        msgspec.structs.replace(worker, name=NAMES[worker.name], fingerprint=fingerprints[NAMES[worker.name]])
        for worker in roles.workers
        if worker.name in NAMES
    )
    questions = {question.id for question in roles.questions if question.kind != "mbpp"}
    answers = tuple(
        msgspec.structs.replace(answer, worker=NAMES[answer.worker])
        for answer in roles.answers
        if answer.question in questions and answer.worker in NAMES
    )
    return Table(workers, tuple(q for q in roles.questions if q.id in questions), answers, roles.unit)


def is_test(question: Question) -> bool:
    """As the data's README defines the test of everything learned from the roles table."""
    if question.kind in ("gsm8k_test", "math500"):
        return True
    number = int(hashlib.sha1(question.id.encode()).hexdigest(), 16)
    return not question.kind.endswith("_train") and number % 6 in (0, 3, 5)


def _part(table: Table, *, test: bool) -> Table:
    questions = tuple(question for question in table.questions if is_test(question) == test)
    kept = {question.id for question in questions}
    answers = tuple(answer for answer in table.answers if answer.question in kept)
    return Table(table.workers, questions, answers, table.unit)


def card(policy: Policy, proof: Proof, *, known: float) -> str:
    """The card: what it was fitted on, and what it was worth on questions that it did not learn from."""
    rows = [
        f"| {row.price:g} | {100 * row.accuracy:.1f} | {row.cost:.0f} | {row.calls:.1f} | "
        f"{100 * row.diff:+.1f} [{100 * row.low:+.1f} to {100 * row.high:+.1f}] |"
        for row in proof.front
        if row.planner == "learned"
    ]
    return "\n".join(
        [
            "# Policy of the embedded pool",
            "",
            f"Fitted on {policy.questions:,} graded training questions (GSM8K, MATH, BIG-Bench Hard, CRUXEval), which "
            "one Qwen2.5-Coder-1.5B-Instruct answered as `quick` (twice), `thinker` and `programmer` (four times "
            "each). A cost unit is one output token; an input token is a quarter. `weights/fit_embedded.py` makes "
            "these files.",
            "",
            f"In use: `{policy.active}`. {policy.why}.",
            "",
            f"Asked {proof.questions:,} test questions that nothing was learned from or chosen by. {proof.verdict}",
            f"Best single worker there: {proof.best_single.name}, {100 * proof.best_single.accuracy:.1f}% at "
            f"{proof.best_single.cost:.0f}. The right worker known beforehand: {100 * proof.oracle.accuracy:.1f}%.",
            "",
            "| price | right | cost | calls | against the best single worker |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "It knows short questions with one answer that can be compared. Questions unlike those get the plain plan "
            f"here, and in the embedded pool the planner `program`; {known:.0%} of the test questions are known. No "
            "question of `benchmarks/everyday_questions.jsonl` is, because its limit of novelty was set by them. The "
            "policy holds for these workers only: another model, instruction or sampling is another worker. Licence: "
            "Apache-2.0; the questions keep their own terms.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
