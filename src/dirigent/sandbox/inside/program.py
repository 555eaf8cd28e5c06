"""A whole program: stdin starts with its source, then holds its own input; its prints are its answer."""

from __future__ import annotations

import os
import sys

from dirigent.sandbox.inside.channel import READY
from dirigent.sandbox.inside.literals import read_frame


def main() -> None:
    os.write(1, READY)
    source = read_frame(0)
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program"]
    exec(compile(source, "<program>", "exec"), module.__dict__)
