"""The gym: questions that take several skills, specialists that have one each, and exact answers to everything.

Read in this order: `skills` and `solving` (the operations), `phrasing` and `recognition` (their wordings), `compose`
and `frames` (how operations become a question), `split` (questions for training and for the test), `specialists`,
`examples` and `oracle` (the workers), `pools` (the workers offered), `warmstart`, `compare`, `probe`.
"""

from dirigent_gym.questions.compare import Comparison, compare
from dirigent_gym.questions.examples import Example, examples
from dirigent_gym.questions.oracle import ExactSpecialist, answer, exact_pool
from dirigent_gym.questions.pools import cards_for, draw_pool, plan_for, solvable
from dirigent_gym.questions.probe import fit_probe, predict, probe_accuracy
from dirigent_gym.questions.recognition import recognise
from dirigent_gym.questions.specialists import RL_ROSTER, ROSTER, UNKNOWN, Specialist, find_specialist
from dirigent_gym.questions.split import Split, assert_disjoint, describe, generate
from dirigent_gym.questions.warmstart import Lesson, gym_decompositions, right_plans, warm_start

__all__ = [
    "Comparison",
    "Example",
    "ExactSpecialist",
    "Lesson",
    "RL_ROSTER",
    "ROSTER",
    "Specialist",
    "Split",
    "UNKNOWN",
    "answer",
    "assert_disjoint",
    "cards_for",
    "compare",
    "describe",
    "draw_pool",
    "exact_pool",
    "examples",
    "find_specialist",
    "fit_probe",
    "generate",
    "gym_decompositions",
    "plan_for",
    "predict",
    "probe_accuracy",
    "recognise",
    "right_plans",
    "solvable",
    "warm_start",
]
