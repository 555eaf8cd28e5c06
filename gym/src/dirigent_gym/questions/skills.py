"""All skills in one place, by the part they play.

RL skills are what a conductor trains on and is tested on. Warm-only skills teach the language of plans and appear
nowhere else. The held-out skill and its worker are met for the first time in the test.
"""

from __future__ import annotations

from pathlib import Path

from dirigent.errors import ConfigError
from dirigent_gym.questions.operation import Operation
from dirigent_gym.questions.operation_files import read_operations, read_solved

HELD_OUT_SKILL = "planets"
PUZZLE_SKILL = "puzzles"
CHECK_SKILL = "checking"

_solved = read_solved(Path(__file__).with_name("skills.toml"))
PUZZLE_OPERATIONS: tuple[Operation, ...] = tuple(op for op in _solved if op.skill == PUZZLE_SKILL)
HELD_OUT_OPERATIONS: tuple[Operation, ...] = tuple(op for op in _solved if op.skill == HELD_OUT_SKILL)
RL_OPERATIONS: tuple[Operation, ...] = tuple(op for op in _solved if op.skill not in (PUZZLE_SKILL, HELD_OUT_SKILL))
WARM_OPERATIONS: tuple[Operation, ...] = (
    *read_solved(Path(__file__).with_name("skills_warm.toml")),
    *read_operations(),
)

GYM_OPERATIONS: tuple[Operation, ...] = (*RL_OPERATIONS, *PUZZLE_OPERATIONS, *HELD_OUT_OPERATIONS)
"""All that some specialist is asked to do."""

OPERATIONS: dict[str, Operation] = {op.full_name: op for op in (*GYM_OPERATIONS, *WARM_OPERATIONS)}

RL_SKILLS: tuple[str, ...] = tuple(dict.fromkeys(op.skill for op in RL_OPERATIONS))
WARM_SKILLS: tuple[str, ...] = tuple(dict.fromkeys(op.skill for op in WARM_OPERATIONS))


def find_operation(full_name: str) -> Operation:
    if full_name not in OPERATIONS:
        raise ConfigError(f"the gym has no operation {full_name!r}; there are: {', '.join(OPERATIONS)}")
    return OPERATIONS[full_name]
