"""All skills in one place, by the part they play.

RL skills are what a conductor trains on and is tested on. Warm-only skills teach the language of plans and appear
nowhere else. The held-out skill and its worker are met for the first time in the test.
"""

from __future__ import annotations

from dirigent.errors import ConfigError
from dirigent_gym.questions.operation import Operation
from dirigent_gym.questions.skills_letters import CIPHER, LETTERS
from dirigent_gym.questions.skills_notation import CODE, CONVERT, ROMAN
from dirigent_gym.questions.skills_numbers import LIST_OPS, NUMBERS
from dirigent_gym.questions.skills_rare import PLANET_OPS, PUZZLES
from dirigent_gym.questions.skills_warm import WARM
from dirigent_gym.questions.skills_warm_scales import SCALES
from dirigent_gym.questions.skills_words import DATES, FACTS
from dirigent_gym.questions.warm_files import read_operations

RL_OPERATIONS: tuple[Operation, ...] = (
    *FACTS,
    *LETTERS,
    *NUMBERS,
    *LIST_OPS,
    *DATES,
    *CONVERT,
    *ROMAN,
    *CIPHER,
    *CODE,
)
PUZZLE_OPERATIONS: tuple[Operation, ...] = PUZZLES
HELD_OUT_OPERATIONS: tuple[Operation, ...] = PLANET_OPS
WARM_OPERATIONS: tuple[Operation, ...] = (*WARM, *SCALES, *read_operations())

GYM_OPERATIONS: tuple[Operation, ...] = (*RL_OPERATIONS, *PUZZLE_OPERATIONS, *HELD_OUT_OPERATIONS)
"""All that some specialist is asked to do."""

OPERATIONS: dict[str, Operation] = {op.full_name: op for op in (*GYM_OPERATIONS, *WARM_OPERATIONS)}

RL_SKILLS: tuple[str, ...] = tuple(dict.fromkeys(op.skill for op in RL_OPERATIONS))
WARM_SKILLS: tuple[str, ...] = tuple(dict.fromkeys(op.skill for op in WARM_OPERATIONS))
HELD_OUT_SKILL = "planets"
PUZZLE_SKILL = "puzzles"
CHECK_SKILL = "checking"


def find_operation(full_name: str) -> Operation:
    if full_name not in OPERATIONS:
        raise ConfigError(f"the gym has no operation {full_name!r}; there are: {', '.join(OPERATIONS)}")
    return OPERATIONS[full_name]
