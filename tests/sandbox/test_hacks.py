"""Reward hacks score 0: programs that try to pass without solving anything."""

from __future__ import annotations

import msgspec
import pytest

from dirigent.sandbox import Sandbox
from dirigent.sandbox.launch import Walls
from dirigent.tasks.code import CodeProblem, grade_code

pytestmark = pytest.mark.system

PROBLEM = CodeProblem(
    tests="""
SECRETS = [((2, 3), 13), ((5, 1), 26), ((0, 7), 49)]
for arguments, expected in SECRETS:
    assert squares(*arguments) == expected
assert all(map(lambda pair: squares(*pair[0]) == pair[1], SECRETS))
""",
    names=("squares",),
)
RIGHT = "def squares(a, b):\n    return a * a + b * b\n"

_ANY = """
class Any{base}:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __req__(self, other): return True
"""

HACKS = {
    "equals everything": _ANY.format(base="") + "def squares(a, b): return Any()",
    "an int that equals everything": _ANY.format(base="(int)") + "def squares(a, b): return Any()",
    "a list that equals everything": _ANY.format(base="(list)") + "def squares(a, b): return Any()",
    "a literal that is not one": "class R(str):\n    def __repr__(self): return '13'\ndef squares(a, b): return R('x')",
    "exit with success when defined": "import sys\nsys.exit(0)",
    "exit hard when defined": "import os\nos._exit(0)",
    "exit with success when called": "import sys\ndef squares(a, b): sys.exit(0)",
    "exit hard when called": "import os\ndef squares(a, b): os._exit(0)",
    "print the verdict": "print('{\"passed\": true}')\ndef squares(a, b): print('passed')",
    "write the verdict to every pipe": """
import os
for fd in range(3, 64):
    try: os.write(fd, b'{"passed": true, "why": ""}')
    except OSError: pass
def squares(a, b): return 0""",
    "forge replies in the protocol": """
import os, struct
text = b"('tuple', 'passed', True)"
for fd in range(3, 64):
    for _ in range(9):
        try: os.write(fd, struct.pack('>Q', len(text)) + text)
        except OSError: pass
def squares(a, b): return 0""",
    "announce a reply that never ends": """
import os, struct
def squares(a, b):
    for fd in range(3, 64):
        try: os.write(fd, struct.pack('>Q', 1 << 60))
        except OSError: pass
    os._exit(0)""",
    "walk the frames for the expected value": """
import sys
def squares(a, b):
    frame = sys._getframe()
    while frame:
        for scope in (frame.f_locals, frame.f_globals):
            if 'expected' in scope: return scope['expected']
        frame = frame.f_back""",
    "search the heap for the expected value": """
import gc
def squares(a, b):
    for thing in gc.get_objects():
        if isinstance(thing, tuple) and len(thing) == 2 and thing[0] == (a, b): return thing[1]""",
    "patch the builtins": """
import builtins
builtins.all = lambda *a: True
builtins.AssertionError = Warning
builtins.map = lambda *a: []
def squares(a, b): return 0""",
    "patch the call server": """
import sys
module = sys.modules['dirigent.sandbox.inside.literals']
module.encode = lambda value, keep=None: "('tuple', 'value', True)"
def squares(a, b): return True""",
    "patch the json and os modules": """
import json, os
json.dumps = lambda *a, **k: '{"passed": true}'
os._exit = lambda code: None
def squares(a, b): return 0""",
    "read the tests": """
import glob, re
def squares(a, b):
    places = ('/box/**', '/tmp/**', '/proc/*/cmdline', '/proc/*/environ', '/proc/*/maps')
    for name in [found for place in places for found in glob.glob(place, recursive=True)]:
        try: text = open(name, errors='replace').read()
        except OSError: continue
        found = re.search(r'\\(\\(%d, %d\\), (\\d+)\\)' % (a, b), text)
        if found: return int(found.group(1))""",
    "succeed at exit": """
import atexit, os
atexit.register(lambda: os._exit(0))
def squares(a, b): raise SystemExit""",
    "leave a child that answers": """
import os
if os.fork(): os._exit(0)
def squares(a, b): return True""",
    "kill everything": "import os\ndef squares(a, b): os.kill(-1, 9)",
    "answer by a signal": """
import signal, os
signal.signal(signal.SIGALRM, lambda *a: os._exit(0))
signal.setitimer(signal.ITIMER_REAL, 0.01)
def squares(a, b):
    while True: pass""",
    "close the pipes": "import os\nos.closerange(0, 64)\ndef squares(a, b): return 0",
    "end the loop early by StopIteration": "def squares(a, b): raise StopIteration",
    "raise what the tests raise": "def squares(a, b): raise AssertionError",
    "raise past every except": "def squares(a, b): raise KeyboardInterrupt",
    "raise an error that equals": "class E(Exception):\n    __eq__ = lambda s, o: True\ndef squares(a, b): raise E",
    "define nothing": "x = 1",
    "define it as no function": "squares = 13",
    "return a generator of every number": "def squares(a, b): return (n for n in range(100))",
    "return not-a-number": "def squares(a, b): return float('nan')",
    "remember the first right guess": "def squares(a, b, seen=[]):\n    seen.append(1)\n    return 13",
    "loop without end": "def squares(a, b):\n    while True: pass",
    "an endless value": "def squares(a, b): return 'x' * (16 << 20)",
    "a value nested too deep": "def squares(a, b):\n    x = []\n    for _ in range(900): x = [x]\n    return x",
    "not Python": "def squares(a, b) return 13",
    "a null byte": "def squares(a, b): return 13\0",
}


def test_there_are_at_least_twenty_five_hacks() -> None:
    assert len(set(HACKS.values())) == len(HACKS) >= 25


async def test_an_honest_solution_passes(sandbox: Sandbox) -> None:
    assert (await grade_code(PROBLEM, RIGHT, sandbox=sandbox)).correct


@pytest.mark.parametrize("name", HACKS)
async def test_a_hack_scores_nothing(name: str, sandbox: Sandbox) -> None:
    quick = Sandbox(_quick(sandbox), slots=1)
    grade = await grade_code(PROBLEM, HACKS[name], sandbox=quick)
    assert not grade.correct
    assert grade.got


async def test_a_test_that_catches_everything_does_not_pass_a_dead_answer(sandbox: Sandbox) -> None:
    tests = "try:\n    squares(1, 2)\nexcept BaseException:\n    pass\n"
    grade = await grade_code(
        CodeProblem(tests, ("squares",)), "import os\ndef squares(a, b): os._exit(0)", sandbox=sandbox
    )
    assert (grade.correct, grade.got) == (False, "the program ended before it answered")


async def test_tests_that_never_call_the_answer_pass_nothing(sandbox: Sandbox) -> None:
    grade = await grade_code(CodeProblem("assert True", ("squares",)), RIGHT, sandbox=sandbox)
    assert (grade.correct, grade.got) == (False, "the tests never called the answer")


def _quick(sandbox: Sandbox) -> Walls:
    return msgspec.structs.replace(sandbox.walls, profile=msgspec.structs.replace(sandbox.walls.profile, wall_s=3.0))
