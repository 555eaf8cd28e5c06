"""The child process of `mathematics.py`: it reads JSON lines and answers each. A slow child is killed.

A line is a pair of answers, `[gold, answer]`; the reply says whether they are equal: `true` or `false`. Its memory is
limited, because a tower of powers fills the memory faster than a clock can stop it. The module knows nothing of tasks.
"""

from __future__ import annotations

import functools
import json
import logging
import resource
import sys
from typing import Any

MEMORY_BYTES = 4 << 30


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.disable(logging.CRITICAL)  # math-verify warns that its own clock is off; the parent has the clock
    import math_verify  # noqa: F401  # two seconds: before the first comparison's time runs

    print("ready", flush=True)
    for line in sys.stdin:
        gold, answer = json.loads(line)
        try:
            same = _same(gold, answer)
        except Exception:  # answers that a parser cannot read count as different
            same = False
        print(json.dumps(same), flush=True)


def _same(gold: str, answer: str) -> bool:
    from math_verify import verify

    return any(
        left and right and verify(left, right, timeout_seconds=None)
        for left, right in zip(_forms(gold), _forms(answer), strict=True)
    )


@functools.lru_cache(maxsize=512)
def _forms(text: str) -> tuple[Any, Any]:
    """Returns the answer parsed as LaTeX and as plain text, because an answer field does not name its format."""
    from math_verify import parse

    bare = text.strip().strip("$").strip()
    return parse(f"${bare}$", parsing_timeout=None), parse(text, parsing_timeout=None)


if __name__ == "__main__":
    main()
